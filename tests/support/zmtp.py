"""Raw ZMTP 3.0 (RFC 23, mechanism NULL): the bytes of a ZeroMQ peer, so that a test can end it anywhere."""

import socket
import struct
from collections.abc import Sequence

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def ready(kind: bytes, name: bytes = b"") -> bytes:
    """The handshake of a socket of this kind: everything that it sends before its first message."""
    body = b"\x05READY"
    for key, value in ((b"Socket-Type", kind), (b"Identity", name)):
        body += bytes((len(key),)) + key + len(value).to_bytes(4, "big") + value
    return GREETING + bytes((4, len(body))) + body


def message(parts: Sequence[bytes], *, is_whole: bool = True) -> bytes:
    """A message; one that is not whole announces a further part behind its last one."""
    last = len(parts) - 1 if is_whole else len(parts)
    return b"".join(part(data, index < last) for index, data in enumerate(parts))


def too_large() -> bytes:
    """The beginning of a part of 2^64 - 1 bytes, after which a ZeroMQ peer ends the connection."""
    return b"\2" + b"\xff" * 8


def part(data: bytes, more: bool) -> bytes:
    if len(data) < 256:
        return bytes((more, len(data))) + data
    return bytes((2 | more,)) + len(data).to_bytes(8, "big") + data


def read_handshake(connection: socket.socket) -> None:
    """Reads what `ready` writes, from a peer of any version 3."""
    read(connection, len(GREETING))
    read(connection, read(connection, 2)[1])


def read(connection: socket.socket, size: int) -> bytes:
    """So many bytes. Raises ConnectionError."""
    data = b""
    while len(data) < size:
        if not (more := connection.recv(size - len(data))):
            raise ConnectionError(f"expected {size} bytes, found {len(data)} and the end")
        data += more
    return data


def reset(connection: socket.socket) -> None:
    """Ends a TCP connection as the system does for a killed process that has not read everything."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
