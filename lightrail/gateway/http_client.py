"""The HTTP client of a gateway: bounds the time and the size of each answer, and for URLs that users chose
(`Endpoints`) the destinations as well.
"""

import asyncio
import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from lightrail.model.endpoint import Destinations

PUSHES_UNDER_WAY: Final[int] = 256
"""Requests of one gateway to the URLs of subscriptions that wait for an answer."""
PUSH_REQUEST_MS: Final[int] = 10_000
"""How long an endpoint may take for its answer."""
PUSH_RESPONSE_BYTES: Final[int] = 64 * 1024
"""Bytes of an answer that are read so that the connection can be reused; after a longer one it is closed."""
PUSH_RETRY_AFTER_MS_MAX: Final[int] = 3_600_000
"""Longest pause that an endpoint may ask for."""

FAILURES: Final = (aiohttp.ClientError, OSError)
"""Errors of a request without a whole answer; TimeoutError is an OSError."""


@dataclass(eq=False, repr=False)
class HttpClient:
    """Follows no redirects and keeps no cookies.

    Probes of own processes and calls of URLs that users chose have one each: what may be called differs, and
    endpoints that do not answer must not take the connections of probes.
    """

    _connections_max: int = 100
    _resolver: AbstractResolver | None = None
    _session: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, seconds: float, size: int
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Returns status, fields and body, of which about `size` bytes are read. Raises one of FAILURES."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections_max, resolver=self._resolver),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers={"User-Agent": "LightRail"},
            )
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with self._session.request(
            method, url, headers=headers, data=body, timeout=timeout, allow_redirects=False
        ) as response:
            # aiohttp closes the connection of an answer that is not read to its end.
            received = bytearray()
            while len(received) <= size and (part := await response.content.readany()):
                received += part
            return response.status, response.headers, bytes(received)

    async def close(self) -> None:
        """Closes all connections, for good."""
        if self._session is not None:
            await self._session.close()


class Result(NamedTuple):
    """The result of one request."""

    status: int | None
    """Status of the answer, or None without an answer."""
    retry_after_s: float | None = None
    """Retry-After of the endpoint, in seconds."""
    error: str = ""
    """Why the request failed, for people; empty for a status of 2xx."""


class Endpoints(HttpClient):
    """Sends over HTTP: checks certificates and destinations."""

    def __init__(self, destinations: Destinations) -> None:
        super().__init__(PUSHES_UNDER_WAY, _Resolver(destinations))
        self._destinations = destinations
        self._slots = asyncio.Semaphore(PUSHES_UNDER_WAY)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Result:
        """Sends one request; errors of the other side are results and not exceptions."""
        if (problem := self._destinations.problem(url)) is not None:
            return Result(None, None, problem)
        seconds = PUSH_REQUEST_MS / 1000
        async with self._slots:
            try:
                status, fields, _ = await self.request(
                    "POST", url, headers, body, seconds, PUSH_RESPONSE_BYTES
                )
            except TimeoutError:
                return Result(None, None, f"no answer within {seconds:g} s")
            except (*FAILURES, ValueError) as error:
                return Result(None, None, f"{type(error).__name__}: {error}"[:500])
        return _result(status, fields.get("Retry-After"))


class _Resolver(aiohttp.ThreadedResolver):
    """Resolves names to addresses, without those that push_allow forbids for the name."""

    def __init__(self, destinations: Destinations) -> None:
        super().__init__()
        self._destinations = destinations

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        allowed = [each for each in found if self._destinations.allows(host, each["host"])]
        if found and not allowed:
            raise OSError(
                errno.EACCES,
                f"{host} resolves to {found[0]['host']}, which push_allow does not allow for this name",
            )
        return allowed


def _result(status: int, retry_after: str | None) -> Result:
    if 200 <= status < 300:
        return Result(status)
    after: float | None = None
    if status in (429, 503) and retry_after is not None:
        text = retry_after.strip()
        # The form with a date needs synchronized clocks, and is rare.
        if text.isascii() and text.isdigit():
            after = min(float(text[:9]), PUSH_RETRY_AFTER_MS_MAX / 1000)
    what = "redirects are not followed" if 300 <= status < 400 else "the answer was"
    return Result(status, after, f"{what}: status {status}")
