"""Handshakes: sockets of clients that were accepted where TLS is served, and their TLS handshakes."""

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
"""Of what a client of another protocol has sent; it is not looked at."""


async def shake(
    client: socket.socket,
    tls: ssl.SSLContext,
    protocol: Callable[[], asyncio.BaseProtocol],
    seconds: float,
    strangers: Strangers,
    peer: str,
    now_ms: int,
) -> bytes:
    """Makes a transport of an accepted socket whose client speaks TLS; else gives what the client began with.

    Nothing is done with the socket of a client that speaks something else: it is the caller's to close.

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
        # What stays unread would turn a close into a reset, which takes an answer with it.
        client.recv(READ_BYTES)
        return first
    await loop.connect_accepted_socket(protocol, client, ssl=tls, ssl_handshake_timeout=seconds)
    return b""
