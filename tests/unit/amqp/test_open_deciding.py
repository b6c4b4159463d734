"""Opens that the caller decides on: what is read and written until then, and after either answer."""

from typing import Any

import pytest

from lightrail.amqp import events, frames
from lightrail.amqp.connection import PIPELINED_BYTES_MAX, Connection
from lightrail.amqp.errors import LocalError
from lightrail.amqp.performatives import Begin, Close, Open, decode_performative
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.values import Symbol
from lightrail.model import limits
from tests.support.amqp.frame_peer import AMQP, frame

DESIRED = Symbol("x")
BEGIN = frame(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))


def asked(*behind: bytes) -> Connection:
    """A server's connection whose client desires the capability, and has sent more behind its open."""
    server = Connection(ConnectionSettings(open_deciding=frozenset((DESIRED,))), 0)
    data = AMQP + frame(Open(container_id="c", desired_capabilities=[DESIRED])) + b"".join(behind)
    [event] = server.feed(data, 0)
    assert isinstance(event, events.OpenAsked)
    assert event.open.container_id == "c"
    assert sent(server) == []
    return server


def sent(server: Connection) -> list[Any]:
    """Performatives that were written, behind the protocol header."""
    data = b"".join(bytes(each) for each in server.output).removeprefix(frames.AMQP_HEADER)
    server.output.clear()
    found = []
    while data:
        size = int.from_bytes(data[:4])
        found.append(decode_performative(data[:size], 8, size)[0])
        data = data[size:]
    return found


def test_what_was_sent_behind_the_open_is_read_after_the_answer() -> None:
    server = asked(BEGIN)
    assert server.feed(b"", 0) == []
    server.accept_open({Symbol("p"): 1})
    opened, begun = server.feed(b"", 0)
    assert isinstance(opened, events.Opened)
    assert isinstance(begun, events.Begun)
    answer, *_ = sent(server)
    assert (type(answer), answer.properties) == (Open, {"p": 1})
    with pytest.raises(LocalError):
        server.accept_open()


def test_a_refusal_is_an_open_that_says_so_and_a_close() -> None:
    server = asked(BEGIN)
    server.refuse_open("amqp:invalid-field", "no", {Symbol("invalid-field"): Symbol("container-id")})
    answer, close = sent(server)
    assert answer.properties == {"amqp:connection-establishment-failed": True}
    assert (type(close), close.error.condition) == (Close, "amqp:invalid-field")
    assert server.feed(frame(Close()), 0) == []
    assert server.closed
    with pytest.raises(LocalError):
        server.refuse_open("amqp:invalid-field", "no")


def test_a_client_that_sends_more_than_can_wait_is_closed() -> None:
    most = max(server_max(), PIPELINED_BYTES_MAX)
    server = asked(BEGIN * (most // len(BEGIN)))
    [event] = server.feed(BEGIN, 0)
    assert isinstance(event, events.Closed)
    assert event.error is not None
    assert event.error.condition == "amqp:resource-limit-exceeded"
    assert server.closed


def server_max() -> int:
    return ConnectionSettings().max_sasl_frame_size


def test_an_answer_that_does_not_come_in_time_ends_the_connection() -> None:
    server = asked()
    assert server.tick(0) == limits.OPENING_TIME_MS
    server.tick(limits.OPENING_TIME_MS)
    answer, close = sent(server)
    assert (type(answer), type(close)) == (Open, Close)
    with pytest.raises(LocalError):
        server.accept_open()


def test_other_clients_are_answered_at_once() -> None:
    server = Connection(ConnectionSettings(open_deciding=frozenset((DESIRED,))), 0)
    [event] = server.feed(AMQP + frame(Open(container_id="c", desired_capabilities=[Symbol("y")])), 0)
    assert isinstance(event, events.Opened)
    with pytest.raises(LocalError):
        server.accept_open()
