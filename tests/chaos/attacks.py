"""Attacks: sockets that say what no client says, and the frames they say it with."""

import contextlib
import os
import random
import resource
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lightrail.amqp import frames
from lightrail.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from tests.support.amqp.socket_client import split

UINT_MAX = 0xFFFFFFFF
MESSAGE = b"\x00\x53\x70\xc0\x02\x01\x41\x00\x53\x75\xa0\x05hello"
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes close() a reset."""


def frame(body: object, payload: bytes = b"", channel: int = 0) -> bytes:
    """A frame with a performative."""
    return frames.frame(channel, encode_performative(body) + payload)


OPEN = frame(Open(container_id="attacker"))
BEGIN = frame(Begin(next_outgoing_id=0, incoming_window=UINT_MAX, outgoing_window=UINT_MAX))
CLOSE = frame(Close())


def attach(handle: int, queue: str, *, receiver: bool, name: str | None = None) -> bytes:
    return frame(
        Attach(
            name=name or f"{'r' if receiver else 's'}{handle}",
            handle=handle,
            role=receiver,
            source=Source(address=queue),
            target=Target(address=queue),
            initial_delivery_count=None if receiver else 0,
        )
    )


def credit(handle: int, count: int, *, window: int = UINT_MAX) -> bytes:
    return frame(
        Flow(
            next_incoming_id=0,
            incoming_window=window,
            next_outgoing_id=0,
            outgoing_window=UINT_MAX,
            handle=handle,
            delivery_count=0,
            link_credit=count,
        )
    )


def transfer(handle: int, number: int, payload: bytes = MESSAGE, *, more: bool = False) -> bytes:
    return frame(
        Transfer(
            handle=handle,
            delivery_id=number,
            delivery_tag=number.to_bytes(4, "big"),
            message_format=0,
            settled=False,
            more=more,
        ),
        payload,
    )


def conversation(queue: str) -> list[bytes]:
    """Everything a short life of a client says, in pieces of one frame."""
    return [
        frames.AMQP_HEADER,
        OPEN,
        BEGIN,
        attach(0, queue, receiver=False),
        attach(1, queue, receiver=True),
        *(transfer(0, number) for number in range(3)),
        credit(1, 10),
        frame(Disposition(role=True, first=0, last=2, settled=True)),
        frame(Detach(handle=1, closed=True)),
        frame(Detach(handle=0, closed=True)),
        frame(End()),
        CLOSE,
    ]


def mutated(pieces: Sequence[bytes], chance: random.Random) -> bytes:
    """A conversation with some octets changed, left out or put in; the sizes of frames may be wrong then."""
    data = bytearray(b"".join(pieces))
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(8, len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                del data[at : at + chance.randint(1, 8)]
            case _:
                data[at:at] = chance.randbytes(chance.randint(1, 8))
    return bytes(data)


def garbage(queue: str, chance: random.Random) -> bytes:
    """Octets of all kinds: noise at once, behind a good beginning, in whole frames; slips of a bit."""
    pieces = conversation(queue)
    begun = b"".join(pieces[: chance.randint(0, len(pieces))])
    match chance.randrange(5):
        case 0:
            return chance.randbytes(chance.randint(1, 20_000))
        case 1:
            return begun + chance.randbytes(chance.randint(1, 20_000))
        case 2:
            noise = [chance.randbytes(chance.randint(0, 200)) for _ in range(chance.randint(1, 20))]
            return begun + b"".join(frames.frame(chance.randrange(3), part) for part in noise)
        case 3:
            # A good descriptor, then noise.
            codes = [bytes((0x00, 0x53, chance.randint(0x10, 0x18))) for _ in range(8)]
            noise = [code + chance.randbytes(40) for code in codes]
            return begun + b"".join(frames.frame(0, part) for part in noise)
        case _:
            return mutated(pieces, chance)


class Attacker:
    """A plain socket to the broker; `source` is the address that it comes from, 127.0.0.1 otherwise."""

    def __init__(self, address: str, *, receive_buffer: int = 0, source: str = "") -> None:
        host, port = split(address)
        self.socket = socket.socket()
        if source:
            self.socket.bind((source, 0))
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10.0)
        self.socket.connect((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def say(self, data: bytes) -> bool:
        """Writes all of it; False when the broker has had enough before."""
        try:
            self.socket.sendall(data)
        except (ConnectionError, TimeoutError):
            return False
        return True

    def _readable(self, wait_s: float) -> bool:
        poll = select.poll()  # select() knows no file beyond 1023
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(wait_s * 1000))

    def heard(self, wait_s: float = 0.0) -> bytes:
        """What the broker says until it is silent for so long, or has closed."""
        found = b""
        while self._readable(wait_s):
            try:
                data = self.socket.recv(65_536)
            except ConnectionError:
                break
            if not data:
                break
            found += data
        return found

    def until_closed(self, deadline_s: float = 10.0) -> bytes:
        """What the broker says until it closes the socket. Raises AssertionError when it does not."""
        end = time.monotonic() + deadline_s
        found = b""
        while True:
            left = end - time.monotonic()
            assert left > 0, f"the broker keeps the connection, after {found[-200:]!r}"
            if self._readable(left):
                try:
                    data = self.socket.recv(65_536)
                except ConnectionError:
                    return found
                if not data:
                    return found
                found += data

    def closed_by_broker(self) -> bool:
        """Whether it has closed already; what it said before is dropped."""
        while self._readable(0):
            try:
                if not self.socket.recv(65_536):
                    return True
            except ConnectionError:
                return True
        return False

    def close(self, *, reset: bool = False) -> None:
        if reset:
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.socket.close()

    def __enter__(self) -> "Attacker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def many_files(wanted: int) -> Iterator[int]:
    """Lets this process open so many files if the system does; gives how many more it may open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted + 1_000 if hard == resource.RLIM_INFINITY else min(hard, wanted + 1_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    try:
        yield max(soft, allowed) - len(os.listdir("/proc/self/fd")) - 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def crowd(stack: ExitStack, address: str, count: int, first: bytes = b"") -> list[Attacker]:
    """So many connections, each with the same first words."""
    found = []
    for _ in range(count):
        attacker = stack.enter_context(Attacker(address))
        if first:
            attacker.say(first)
        found.append(attacker)
    return found
