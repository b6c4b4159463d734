"""Handshakes: the TLS handshakes of accepted sockets."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from lightrail.model import protocols
from lightrail.telemetry.strangers import Strangers

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
