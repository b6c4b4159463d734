"""The HTTP client of a gateway: bounds the time and the size of each answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver

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
