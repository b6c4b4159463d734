"""Health of a service over HTTP, for Kubernetes: /healthz, /readyz, and /metrics if configured."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

REQUEST_MAX: Final = 8 * 1024
"""Bytes of a request's head."""
REQUEST_S: Final = 5.0
"""Time for a client to send it."""
CONNECTIONS_MAX: Final = 50


class Health:
    """A small HTTP server.

    Args:
        is_ready: whether messages are handled now.
        metrics: text for Prometheus; None if /metrics is not served.
    """

    def __init__(self, is_ready: Callable[[], bool], metrics: Callable[[], bytes] | None = None) -> None:
        self._is_ready = is_ready
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._connections = 0

    async def open(self, host: str, port: int) -> int:
        """Listens; returns the port. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_MAX)
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                with suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    async with asyncio.timeout(REQUEST_S):
                        head = await reader.readuntil(b"\r\n\r\n")
                        writer.write(self._answer(head))
                        await writer.drain()
        finally:
            self._connections -= 1
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        kind = "text/plain; charset=utf-8"
        if method not in (b"GET", b"HEAD"):
            status, body = "405 Method Not Allowed", b"expected GET\n"
        elif path == b"/healthz":
            status, body = "200 OK", b"ok\n"
        elif path == b"/readyz":
            is_ready = self._is_ready()
            status = "200 OK" if is_ready else "503 Service Unavailable"
            body = b"ready\n" if is_ready else b"not connected to the broker\n"
        elif path == b"/metrics" and self._metrics is not None:
            status, body = "200 OK", self._metrics()
            kind = "text/plain; version=0.0.4; charset=utf-8"
        else:
            status, body = "404 Not Found", b"expected /healthz, /readyz or /metrics\n"
        head_lines = (
            f"HTTP/1.1 {status}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
            "\r\n",
        )
        return "\r\n".join(head_lines).encode() + (b"" if method == b"HEAD" else body)
