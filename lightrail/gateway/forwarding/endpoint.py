"""Endpoints: the HTTP client of a gateway's pushes, and the result of an attempt."""

import asyncio
import errno
import socket
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from lightrail.model import limits
from lightrail.model.destinations import Destinations


class Result(NamedTuple):
    """The result of one request."""

    status: int | None
    """Status of the answer, or None without an answer."""
    retry_after_s: float | None = None
    """Retry-After of the endpoint, in seconds."""
    error: str = ""
    """Why the request failed, for people; empty for a status of 2xx."""


class Endpoints(Protocol):
    """Sends pushes."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Result:
        """Sends one request; errors of the other side are results and not exceptions."""
        ...


class HttpEndpoints:
    """Sends over HTTP: checks certificates, follows no redirects, reads a bounded part of each answer."""

    def __init__(self, destinations: Destinations) -> None:
        self._destinations = destinations
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(limits.PUSHES_UNDER_WAY)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Result:
        """See `Endpoints`."""
        problem = self._destinations.problem(url)
        if problem is not None:
            return Result(None, None, problem)
        async with self._slots:
            try:
                async with self._client().post(
                    url, headers=headers, data=body, allow_redirects=False
                ) as response:
                    # An answer that is read to its end keeps the connection open; a longer answer closes it.
                    read = 0
                    while read <= limits.PUSH_RESPONSE_BYTES and (part := await response.content.readany()):
                        read += len(part)
                    if read > limits.PUSH_RESPONSE_BYTES:
                        response.close()
                    return _result(response.status, response.headers.get("Retry-After"))
            except TimeoutError:
                return Result(None, None, f"no answer within {limits.PUSH_REQUEST_MS / 1000:g} s")
            except (aiohttp.ClientError, OSError, ValueError) as error:
                return Result(None, None, f"{type(error).__name__}: {error}"[:500])

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=limits.PUSHES_UNDER_WAY, resolver=_Resolver(self._destinations)
                ),
                timeout=aiohttp.ClientTimeout(total=limits.PUSH_REQUEST_MS / 1000),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers={"User-Agent": "LightRail"},
            )
        return self._session


class _Resolver(AbstractResolver):
    """Resolves names to addresses, without those that push_allow forbids for the name."""

    def __init__(self, destinations: Destinations) -> None:
        self._destinations = destinations
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        allowed = [each for each in found if self._destinations.allows(host, each["host"])]
        if found and not allowed:
            raise OSError(
                errno.EACCES,
                f"{host} resolves to {found[0]['host']}, which push_allow does not allow for this name",
            )
        return allowed

    async def close(self) -> None:
        await self._resolver.close()


def _result(status: int, retry_after: str | None) -> Result:
    if 200 <= status < 300:
        return Result(status)
    after: float | None = None
    if status in (429, 503) and retry_after is not None:
        text = retry_after.strip()
        # The form with a date needs synchronized clocks, and is rare.
        if text.isascii() and text.isdigit():
            after = min(float(text[:9]), limits.PUSH_RETRY_AFTER_MS_MAX / 1000)
    what = "redirects are not followed" if 300 <= status < 400 else "the answer was"
    return Result(status, after, f"{what}: status {status}")
