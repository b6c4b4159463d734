"""A peer that speaks in frames: a socket, bytes written by hand or from performatives, and what comes back.

It keeps no state and checks nothing by itself, so that a test can break every rule.
"""

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from lightrail.amqp.encoder import encode
from lightrail.amqp.performatives import (
    AmqpError,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
)
from lightrail.amqp.values import Symbol

Kind = TypeVar("Kind")

AMQP = b"AMQP\x00\x01\x00\x00"
TLS = b"AMQP\x02\x01\x00\x00"
SASL = b"AMQP\x03\x01\x00\x00"
EMPTY = b"\x00\x00\x00\x08\x02\x00\x00\x00"
TIMEOUT_S = 20.0
WINDOW = 1_000


class Frame(NamedTuple):
    """What came: `body` is None for an empty frame."""

    kind: int
    channel: int
    body: Any
    payload: bytes
    size: int


def frame(body: Any, payload: bytes = b"", channel: int = 0, kind: int = 0) -> bytes:
    """A frame around a performative, or around bytes that stand for one."""
    encoded = body if isinstance(body, bytes) else encode_performative(body)
    return struct.pack(">IBBH", 8 + len(encoded) + len(payload), 2, kind, channel) + encoded + payload


def value(body: Any) -> bytes:
    """A message: an amqp-value section alone."""
    return b"\x00\x53\x77" + encode(body)


class Peer:
    """One connection, from the first byte."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # --- writing ---------------------------------------------------------------------------------------

    def send(self, *pieces: bytes) -> None:
        """Bytes as they are, in one write."""
        self.socket.sendall(b"".join(pieces))

    def write(self, body: Any, payload: bytes = b"", channel: int = 0, kind: int = 0) -> None:
        """One frame."""
        self.send(frame(body, payload, channel, kind))

    # --- reading ---------------------------------------------------------------------------------------

    def take(self, count: int) -> bytes:
        """So many bytes, fewer when the broker closes."""
        while len(self._buffer) < count:
            data = self.socket.recv(65_536)
            if not data:
                break
            self._buffer += data
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def next(self) -> Frame | None:
        """The next frame, also an empty one; None at the end of the stream."""
        head = self.take(8)
        if not head:
            return None
        assert len(head) == 8, f"the stream ended inside a frame header: {head!r}"
        size, offset, kind, channel = struct.unpack(">IBBH", head)
        assert size >= 8, f"expected a frame, found {head!r}"
        assert offset == 2
        rest = self.take(size - 8)
        assert len(rest) == size - 8, "the stream ended inside a frame"
        if not rest:
            return Frame(kind, channel, None, b"", size)
        body, end = decode_performative(rest, 0, len(rest))
        return Frame(kind, channel, body, rest[end:], size)

    def read(self) -> Frame:
        """The next frame that says something."""
        while True:
            found = self.next()
            assert found is not None, "the broker closed the socket"
            if found.body is not None:
                return found

    def expect(self, kind: type[Kind], channel: int | None = 0) -> Kind:
        """The next frame is of this kind, on this (the broker's) channel."""
        found = self.read()
        assert type(found.body) is kind, f"expected {kind.__name__}, found {found.body!r}"
        assert channel is None or found.channel == channel
        return found.body

    def delivery(self, *passed: type) -> tuple[Transfer, bytes]:
        """The next delivery: its first transfer, and the message joined from all of its frames.

        Args:
            passed: bodies of frames that may come before it.
        """
        while type((found := self.read()).body) in passed:
            pass
        first = found.body
        assert type(first) is Transfer, f"expected Transfer, found {first!r}"
        payload = found.payload
        more = first.more
        while more:
            found = self.read()
            assert type(found.body) is Transfer, f"expected a continuation, found {found.body!r}"
            payload += found.payload
            more = found.body.more
        return first, payload

    def header(self) -> bytes:
        """A protocol header."""
        return self.take(8)

    def expect_end(self) -> None:
        """The broker closes the socket and says nothing before; a reset counts as well."""
        try:
            rest = self.take(1)
        except ConnectionResetError:
            return
        assert not rest, f"expected the end of the stream, found {rest + self._buffer!r}"

    # --- the usual ways ----------------------------------------------------------------------------------

    def open(self, **fields: Any) -> Open:
        """Headers and opens."""
        self.send(AMQP, frame(Open(**{"container_id": "test"} | fields)))
        assert self.header() == AMQP
        return self.expect(Open)

    def begin(self, channel: int = 0, **fields: Any) -> Begin:
        """A session."""
        given = {"next_outgoing_id": 0, "incoming_window": WINDOW, "outgoing_window": WINDOW}
        self.write(Begin(**given | fields), channel=channel)
        begun = self.expect(Begin, None)
        assert begun.remote_channel == channel
        return begun

    def attach_sender(self, queue: str | None, handle: int = 0, channel: int = 0, **fields: Any) -> Flow:
        """A link to send on; gives the first credit."""
        self.write(sender(queue, handle, **fields), channel=channel)
        answer = self.expect(Attach, None)
        assert answer.role is True
        return self.expect(Flow, None)

    def attach_receiver(self, queue: str, handle: int = 0, channel: int = 0, **fields: Any) -> Attach:
        """A link to receive on, without credit."""
        self.write(receiver(queue, handle, **fields), channel=channel)
        answer = self.expect(Attach, None)
        assert answer.role is False
        return answer

    def put(self, queue: str, *messages: bytes) -> None:
        """Messages into a queue, accepted, over a connection of their own."""
        with Peer("{}:{}".format(*self.socket.getpeername())) as other:
            other.open()
            other.begin()
            other.attach_sender(queue)
            for number, message in enumerate(messages):
                other.write(Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number), message)
            left = len(messages)
            while left:
                found = other.read().body
                if type(found) is Disposition:
                    left -= (found.first if found.last is None else found.last) - found.first + 1

    def flow(self, credit: int, count: int = 0, channel: int = 0, **fields: Any) -> None:
        """Link credit for handle 0."""
        given = {
            "next_incoming_id": 0,
            "incoming_window": WINDOW,
            "next_outgoing_id": 0,
            "outgoing_window": WINDOW,
            "handle": 0,
            "delivery_count": count,
            "link_credit": credit,
        }
        self.write(Flow(**given | fields), channel=channel)

    def nothing_before_echo(self, channel: int = 0, next_outgoing_id: int = 0) -> Flow:
        """A flow of the session with echo is answered before anything else comes."""
        self.write(
            Flow(
                next_incoming_id=0,
                incoming_window=WINDOW,
                next_outgoing_id=next_outgoing_id,
                outgoing_window=WINDOW,
                echo=True,
            ),
            channel=channel,
        )
        answer = self.expect(Flow, None)
        assert answer.handle is None
        return answer

    def error_of(
        self, kind: type[Close | End | Detach], condition: str, channel: int | None = 0
    ) -> AmqpError:
        """The next frame is a close, end or detach with this condition and a description."""
        error = self.expect(kind, channel).error
        assert error is not None, f"expected {condition}, found no error"
        assert str(error.condition) == condition, f"expected {condition}, found {error}"
        assert error.description
        return error

    def expect_close(self, condition: str) -> None:
        """Close with a condition; answered, after which the socket ends."""
        self.error_of(Close, condition)
        self.write(Close())
        self.expect_end()

    def expect_session_end(self, condition: str, channel: int = 0) -> None:
        """End with a condition; answered. The connection lives on."""
        self.error_of(End, condition)
        self.write(End(), channel=channel)
        self.begin(channel)

    def expect_detach(self, condition: str, handle: int = 0) -> None:
        """Detach with a condition; answered. The session lives on."""
        self.error_of(Detach, condition)
        self.write(Detach(handle=handle, closed=True))
        self.nothing_before_echo()

    def expect_detach_after_transfer(self, condition: str) -> None:
        """The same after one transfer of ours on handle 0."""
        self.error_of(Detach, condition)
        self.write(Detach(handle=0, closed=True))
        self.nothing_before_echo(next_outgoing_id=1)

    def expect_refusal(self, condition: str, handle: int = 0) -> Attach:
        """An attach without a terminus of the broker's, and a detach with a condition (2.6.3)."""
        answer = self.expect(Attach)
        assert answer.source is None if answer.role is False else answer.target is None
        self.expect_detach(condition, handle)
        return answer

    def sasl(self, mechanism: str, response: bytes | None = None) -> SaslOutcome:
        """SASL up to the outcome, for a mechanism of one step."""
        self.send(SASL)
        assert self.header() == SASL
        self.expect(SaslMechanisms)
        self.write(SaslInit(mechanism=Symbol(mechanism), initial_response=response), kind=1)
        return self.expect(SaslOutcome)


def sender(queue: str | None, handle: int = 0, **fields: Any) -> Attach:
    """An attach of a link on which the test sends."""
    given: dict[str, Any] = {
        "name": f"s{handle}",
        "handle": handle,
        "role": False,
        "source": Source(),
        "target": Target(address=queue),
        "initial_delivery_count": 0,
    }
    return Attach(**given | fields)


def receiver(queue: str | None, handle: int = 0, **fields: Any) -> Attach:
    """An attach of a link on which the test receives."""
    given: dict[str, Any] = {
        "name": f"r{handle}",
        "handle": handle,
        "role": True,
        "source": Source(address=queue),
        "target": Target(),
    }
    return Attach(**given | fields)


def transfers(handle: int, messages: Sequence[bytes], first: int = 0, **fields: Any) -> bytes:
    """Deliveries of one frame each, with ids from `first` on."""
    return b"".join(
        frame(Transfer(handle=handle, delivery_id=number, delivery_tag=b"%d" % number, **fields), message)
        for number, message in enumerate(messages, first)
    )
