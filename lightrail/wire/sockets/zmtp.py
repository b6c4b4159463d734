"""ZMTP 3.1 with the mechanism NULL (RFC 37 of ZeroMQ): the bytes of one connection, without a socket.

A connection begins with GREETING and READY of both ends; then messages follow, each a list of parts. What is
written here is read by ZeroMQ, and the other way round (versions 3.0 and 3.1).
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

Receive = Callable[[list[Any]], None]
"""Called with the parts of a message: bytes, or views of the memory into which large parts were received."""

GREETING: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
"""Signature, version, mechanism, no server, filler: 64 octets."""
SIGNATURE_BYTES: Final = 10
NAME_BYTES_MAX: Final[int] = 255
"""Of the name of a DEALER, its Identity."""
COMMAND_BYTES_MAX: Final[int] = 1_024
"""Of a command: a READY with the longest name, and properties that are ignored."""
CONTEXT_BYTES_MAX: Final = 16
"""Of the context of a PING (RFC 37); as libzmq, an end sends no more of it back."""
PART_BYTES_MAX: Final[int] = 1 << 31
"""Of a part; one that announces more ends its connection."""
APART_BYTES: Final = 64 * 1024
"""Parts from this size on are neither joined with others to be sent, nor copied while they arrive."""

_MORE: Final = 1
_LONG: Final = 2
_COMMAND: Final = 4
_LENGTH: Final = Struct(">BQ")
_SIZE: Final = Struct(">I")
_LAST_HEADS: Final = [bytes((0, size)) for size in range(256)]
_MORE_HEADS: Final = [bytes((_MORE, size)) for size in range(256)]
"""Flags and size of parts below 256 octets."""
_PEERS: Final = {b"ROUTER": b"DEALER", b"DEALER": b"ROUTER"}


class ZmtpError(Exception):
    """The other end does not speak this protocol, or refuses the connection; the text says why."""


def encode(parts: Sequence[bytes]) -> list[bytes]:
    """The octets of a message, to be written one after the other: small parts are joined, large ones are the
    objects that were passed."""
    found: list[bytes] = []
    joined: list[bytes] = []
    heads = _MORE_HEADS
    left = len(parts)
    for part in parts:
        left -= 1
        if not left:
            heads = _LAST_HEADS
        size = len(part)
        if size < 256:
            joined.append(heads[size])
            joined.append(part)
            continue
        joined.append(_LENGTH.pack(_LONG | (left > 0), size))
        if size < APART_BYTES:
            joined.append(part)
        else:
            found.append(b"".join(joined))
            found.append(part)
            joined = []
    if joined:
        found.append(b"".join(joined))
    return found


def ready(kind: bytes, name: bytes = b"") -> bytes:
    """What an end sends first: its GREETING, and READY with the kind of its socket and its name.

    Raises ValueError: the name is too long, or begins with a zero, as those do that a ROUTER draws.
    """
    if len(name) > NAME_BYTES_MAX or name[:1] == b"\0":
        raise ValueError(f"expected at most {NAME_BYTES_MAX} octets, the first not 0, found {name!r}")
    body = b"\x05READY"
    for key, value in ((b"Socket-Type", kind), (b"Identity", name)):
        body += bytes((len(key),)) + key + _SIZE.pack(len(value)) + value
    if len(body) < 256:
        return GREETING + bytes((_COMMAND, len(body))) + body
    return GREETING + _LENGTH.pack(_COMMAND | _LONG, len(body)) + body


class ZmtpReader:
    """Reads what one peer sends.

    Args:
        kind: of the socket at this end: ROUTER or DEALER.
        copies: False: a large part is a view of the memory into which it was received.
    """

    __slots__ = (
        "_copies",
        "_filled",
        "_flags",
        "_kind",
        "_large",
        "_parts",
        "_rest",
        "answers",
        "is_greeted",
        "is_ready",
        "messages",
        "name",
    )

    def __init__(self, kind: bytes, *, copies: bool = True) -> None:
        self._kind = kind
        self._copies = copies
        self._rest = b""
        """The beginning of what has not arrived whole."""
        self._parts: list[bytes | memoryview] = []
        """Of a message whose last part has not arrived."""
        self._large: memoryview | None = None
        """A large part that arrives; `_filled` octets of it have."""
        self._filled = 0
        self._flags = 0
        """Of that part."""
        self.is_greeted = False
        self.is_ready = False
        """Whether the other end has sent READY."""
        self.name = b""
        """Of the other end; empty: it has none."""
        self.messages: list[list[Any]] = []
        """Whole messages; the caller removes those that it has applied."""
        self.answers: list[bytes] = []
        """What is to be sent: answers to PING."""

    def room(self) -> memoryview | None:
        """Where the next octets belong, if a large part arrives; after they are there, call `filled`.
        Otherwise None: they belong to `receive`."""
        return None if self._large is None else self._large[self._filled :]

    def filled(self, size: int) -> None:
        """So many octets were written into `room`."""
        large = self._large
        assert large is not None
        self._filled += size
        if self._filled == len(large):
            self._large = None
            self._part(bytes(large) if self._copies else large, self._flags)

    def receive(self, data: bytes) -> None:
        """Octets have arrived. Raises ZmtpError: the connection has to be closed; earlier messages count."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at = 0
        if not self.is_greeted:
            if not self._greet(data):
                return
            at = len(GREETING)
        end = len(data)
        while end - at >= 2:
            flags = data[at]
            if flags & _LONG:
                if end - at < 9:
                    break
                size = _LENGTH.unpack_from(data, at)[1]
                begin = at + 9
            else:
                size = data[at + 1]
                begin = at + 2
            stop = begin + size
            if not flags and self.is_ready and stop <= end:
                # The last part of a message, or its only one, and whole.
                self._parts.append(data[begin:stop])
                self.messages.append(self._parts)
                self._parts = []
            elif stop <= end:
                self._frame(flags, data[begin:stop])
            else:
                self._check(flags, size)
                if size >= APART_BYTES:
                    self._begin_large(flags, size, data[begin:])
                    return
                break
            at = stop
        self._rest = data[at:]

    def _frame(self, flags: int, data: bytes) -> None:
        self._check(flags, len(data))
        if flags & _COMMAND:
            self._command(data)
        else:
            self._part(data, flags)

    def _part(self, part: bytes | memoryview, flags: int) -> None:
        self._parts.append(part)
        if not flags & _MORE:
            self.messages.append(self._parts)
            self._parts = []

    def _begin_large(self, flags: int, size: int, begin: bytes) -> None:
        try:
            large = memoryview(bytearray(size))
        except MemoryError:
            raise ZmtpError(f"expected a part that memory has room for, found one of {size} octets") from None
        large[: len(begin)] = begin
        self._large, self._flags, self._filled = large, flags, len(begin)

    def _check(self, flags: int, size: int) -> None:
        """Whether a frame may have these flags and this size, here and now."""
        if flags & ~(_MORE | _LONG | _COMMAND) or (flags & _COMMAND and flags & _MORE):
            raise ZmtpError(f"expected the flags of a part or of a command, found {flags:#04x}")
        if flags & _COMMAND:
            # It may stand between two parts of a message: so do libzmq's heartbeats, though not by RFC 37.
            if size > COMMAND_BYTES_MAX:
                raise ZmtpError(f"expected a command of at most {COMMAND_BYTES_MAX} octets, found {size}")
        elif not self.is_ready:
            raise ZmtpError("expected READY, found a message")
        elif size > PART_BYTES_MAX:
            raise ZmtpError(f"expected parts of at most {PART_BYTES_MAX} octets, found {size}")

    # --- greeting and commands --------------------------------------------------------------------------

    def _greet(self, data: bytes) -> bool:
        """Reads the greeting, if it has arrived whole. What is wrong is found as soon as it has arrived."""
        if data[:1] != b"\xff" or (len(data) >= SIGNATURE_BYTES and not data[9] & 1):
            raise ZmtpError(f"expected the signature of ZMTP, found {data[:SIGNATURE_BYTES]!r}")
        if len(data) > SIGNATURE_BYTES and data[SIGNATURE_BYTES] < 3:
            raise ZmtpError(f"expected version 3 of ZMTP, found {data[SIGNATURE_BYTES]}")
        if len(data) < len(GREETING):
            self._rest = data
            return False
        mechanism = data[12:32].rstrip(b"\0")
        if mechanism != b"NULL":
            raise ZmtpError(
                f"expected the mechanism NULL, found {mechanism!r}: has only one end the key of the wire?"
            )
        self.is_greeted = True
        return True

    def _command(self, body: bytes) -> None:
        length = body[0] if body else 0
        name, rest = body[1 : 1 + length], body[1 + length :]
        if name == b"READY" and not self.is_ready:
            self._ready(rest)
        elif name == b"ERROR":
            raise ZmtpError(f"the other end refuses the connection: {rest[1:]!r}")
        elif not self.is_ready:
            raise ZmtpError(f"expected READY, found {name!r}")
        elif name == b"PING":
            # Two octets of TTL, and a context, which is sent back.
            answer = b"\x04PONG" + rest[2 : 2 + CONTEXT_BYTES_MAX]
            self.answers.append(bytes((_COMMAND, len(answer))) + answer)
        # PONG, and commands of later versions, need no answer.

    def _ready(self, data: bytes) -> None:
        properties: dict[bytes, bytes] = {}
        while data:
            key, size_at = data[1 : 1 + data[0]], 1 + data[0]
            begin = size_at + _SIZE.size
            if len(data) < begin:
                raise ZmtpError("expected a property of READY, found its beginning")
            end = begin + _SIZE.unpack_from(data, size_at)[0]
            if len(data) < end:
                raise ZmtpError("expected a property of READY, found its beginning")
            properties[key.lower()] = data[begin:end]
            data = data[end:]
        kind, expected = properties.get(b"socket-type", b""), _PEERS[self._kind]
        if kind != expected:
            raise ZmtpError(f"expected a {expected.decode()} at the other end, found {kind!r}")
        name = properties.get(b"identity", b"")
        if len(name) > NAME_BYTES_MAX or name[:1] == b"\0":
            raise ZmtpError(
                f"expected a name of at most {NAME_BYTES_MAX} octets, the first not 0, found {name!r}"
            )
        self.name, self.is_ready = name, True
