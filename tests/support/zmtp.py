"""Raw ZMTP 3.0 (RFC 23, mechanism NULL): the bytes of a ZeroMQ peer, so that a test can end it anywhere."""

import socket
import struct
from collections.abc import Sequence
from typing import Final


def greeting(
    signature: bytes = b"\xff" + bytes(8) + b"\x7f", version: bytes = b"\3\0", mechanism: bytes = b"NULL"
) -> bytes:
    """What an end sends first, lawful or not."""
    return signature + version + mechanism.ljust(20, b"\0") + bytes(32)


GREETING = greeting()


def ready(kind: bytes, name: bytes = b"") -> bytes:
    """The handshake of a socket of this kind: everything that it sends before its first message."""
    return GREETING + command(ready_body(kind, name))


def ready_body(kind: bytes, name: bytes = b"") -> bytes:
    body = b"\x05READY"
    for key, value in ((b"Socket-Type", kind), (b"Identity", name)):
        body += bytes((len(key),)) + key + len(value).to_bytes(4, "big") + value
    return body


def command(body: bytes, flags: int = 4) -> bytes:
    """A command; its name, with the length of the name, is at the beginning of the body."""
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | 2,)) + len(body).to_bytes(8, "big") + body


def ping(context: bytes = b"", ttl: int = 0) -> bytes:
    """A PING; the TTL is in tenths of seconds."""
    return command(b"\x04PING" + ttl.to_bytes(2, "big") + context)


def pong(context: bytes = b"") -> bytes:
    return command(b"\x04PONG" + context)


def message(parts: Sequence[bytes], *, is_whole: bool = True) -> bytes:
    """A message; one that is not whole announces a further part behind its last one."""
    last = len(parts) - 1 if is_whole else len(parts)
    return b"".join(part(data, index < last) for index, data in enumerate(parts))


def too_large() -> bytes:
    """The beginning of a part of 2^64 - 1 bytes, after which a ZeroMQ peer ends the connection."""
    return b"\2" + b"\xff" * 8


def announced(size: int, flags: int = 0) -> bytes:
    """The head of a part of this size, without the part."""
    return bytes((flags | 2,)) + size.to_bytes(8, "big")


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


BEFORE_READY: Final = {
    "wrong first octet": (greeting(signature=b"\xfe" + bytes(8) + b"\x7f"), "signature"),
    "wrong tenth octet": (greeting(signature=b"\xff" + bytes(8) + b"\x7e"), "signature"),
    "another protocol": (b"GET / HTTP/1.1\r\n\r\n", "signature"),
    "version 1": (greeting(version=b"\1\0"), "version 3"),
    "version 2": (greeting(version=b"\2\0"), "version 3"),
    "mechanism CURVE": (greeting(mechanism=b"CURVE"), "mechanism NULL"),
    "mechanism PLAIN": (greeting(mechanism=b"PLAIN"), "mechanism NULL"),
    "message before READY": (GREETING + part(b"early", False), "READY"),
    "beginning of a part before READY": (GREETING + announced(100_000) + b"early", "READY"),
    "PING before READY": (GREETING + ping(), "READY"),
    "command without a name before READY": (GREETING + command(b""), "READY"),
    "property of READY cut in its name": (GREETING + command(ready_body(b"DEALER") + b"\7Resou"), "property"),
    "property of READY cut in its size": (GREETING + command(ready_body(b"DEALER") + b"\1a\0\0"), "property"),
    "property of READY cut in its value": (
        GREETING + command(ready_body(b"DEALER", b"name")[:-1]),
        "property",
    ),
    "socket type SUB": (GREETING + command(ready_body(b"SUB")), "DEALER"),
    "no socket type": (GREETING + command(b"\x05READY"), "DEALER"),
    "name that is too long": (GREETING + command(ready_body(b"DEALER", b"n" * 256)), "255 octets"),
    "name that begins with 0": (GREETING + command(ready_body(b"DEALER", b"\0n")), "first not 0"),
    "ERROR": (GREETING + command(b"\x05ERROR\x07go away"), "go away"),
    "READY that is too long": (
        GREETING + command(ready_body(b"DEALER") + b"\1a" + bytes(1_100)),
        "at most 1024",
    ),
}
"""Violations of a DEALER in place of its READY: what it sends, and what the error says."""
AFTER_READY: Final = {
    "reserved flag": (b"\x08\0", "0x08"),
    "reserved flag of a long part": (b"\x82" + bytes(8), "0x82"),
    "command with MORE": (command(b"\x04PING\0\0", flags=5), "0x05"),
    "ERROR": (command(b"\x05ERROR\x07go away"), "go away"),
    "command that is too long": (command(b"\x04PING" + bytes(1_020)), "at most 1024"),
    "announced command that is too long": (announced(1 << 62, flags=4), "at most 1024"),
    "part that is too large by one": (announced((1 << 31) + 1), "at most 2147483648"),
    "part that is too large": (announced((1 << 64) - 1, flags=1), "at most 2147483648"),
}
"""Violations in place of a message."""
