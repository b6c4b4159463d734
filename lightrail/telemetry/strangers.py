"""Clients that never get as far as a request: of another protocol, or without an end of their handshake.

Strangers: log lines about clients that speak another protocol than a listener's, one line a minute for
each.

Handshakes: the TLS handshakes of accepted sockets.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from lightrail.model import protocols

PAUSE_MS: Final = 60_000
"""Pause between two lines about the same protocol."""
KINDS_MAX: Final = 64
"""Protocols and unknown first bytes that are logged separately; past it nothing is logged for PAUSE_MS."""


_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Strangers:
    """Clients of one listener that speak another protocol.

    Args:
        expected: the listener's own protocol as text, such as ``AMQP 1.0 is served here``.
        hints: by the name of a protocol, what to do about it instead.
    """

    __slots__ = ("_expected", "_hints", "_log", "_logged")

    def __init__(self, log: logging.Logger, expected: str, hints: Mapping[str, str] = _NONE) -> None:
        self._log = log
        self._expected = expected
        self._hints = hints
        self._logged: dict[str, tuple[int, int]] = {}
        """By protocol: the time of its last line, and the number of clients that spoke it since."""

    def heard(self, first: bytes, peer: str, now_ms: int) -> None:
        """Logs a client by its first bytes."""
        self.spoke(protocols.described(first), peer, now_ms)

    def spoke(self, what: str, peer: str, now_ms: int) -> None:
        """Logs a client by the name of its protocol."""
        before = self._logged.get(what)
        if before is not None and now_ms - before[0] < PAUSE_MS:
            self._logged[what] = before[0], before[1] + 1
            return
        if before is None and len(self._logged) >= KINDS_MAX:
            self._logged = {key: each for key, each in self._logged.items() if now_ms - each[0] < PAUSE_MS}
            if len(self._logged) >= KINDS_MAX:
                return
        self._logged[what] = now_ms, 0
        others = f" (and {before[1]} others since the last such line)" if before and before[1] else ""
        hint = self._hints.get(what, self._expected)
        self._log.warning("the client %s speaks %s%s; %s", peer, what, others, hint)


TLS_RECORD: Final = b"\x16"
"""The first byte of every TLS conversation: a record of the handshake (RFC 8446, 5.1)."""

READ_BYTES: Final = 64 * 1024
"""Bytes that are read, and ignored, from a client of another protocol."""


async def shake(
    client: socket.socket,
    tls: ssl.SSLContext,
    protocol: Callable[[], asyncio.BaseProtocol],
    seconds: float,
    strangers: Strangers,
    peer: str,
    now_ms: int,
) -> bytes:
    """Makes a transport of an accepted socket whose client speaks TLS; else returns the client's first bytes.

    The socket of a client that speaks another protocol stays open: the caller closes it.

    Raises:
        OSError: the client closed, its handshake failed, or its first byte or the handshake took more
            than `seconds`.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(client, readable.set)
    try:
        async with asyncio.timeout(seconds):
            await readable.wait()
    finally:
        loop.remove_reader(client)
    first = client.recv(protocols.BYTES, socket.MSG_PEEK)
    if first and not first.startswith(TLS_RECORD):
        strangers.heard(first, peer, now_ms)
        # Unread bytes would turn a close into a reset, and the client would lose the answer.
        client.recv(READ_BYTES)
        return first
    await loop.connect_accepted_socket(protocol, client, ssl=tls, ssl_handshake_timeout=seconds)
    return b""
