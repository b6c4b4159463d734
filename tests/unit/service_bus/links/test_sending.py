"""SessionProducer: messages without a session are rejected where the queue has sessions."""

from typing import Any

import pytest

from lightrail.amqp.composite import write_composite
from lightrail.amqp.events import Transfers
from lightrail.amqp.performatives import Rejected
from lightrail.amqp.sections import Header, Properties
from lightrail.frontend.links.batched import BATCHED
from lightrail.model import conditions
from lightrail.model.policy import Policy
from lightrail.namespace.records import Name
from lightrail.service_bus.links.sending import SessionProducer
from lightrail.wire.frames import Kind
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink, FakeShard
from tests.unit.amqp.peer import data

NOW_MS = 1_000_000
HEAD = write_composite(Header())


def message(session: str | None, body: bytes = b"x") -> bytes:
    return HEAD + write_composite(Properties(message_id="m", group_id=session)) + data(body)


IN, OUT = message("s"), message(None)


class Rig:
    """A link to a queue with or without sessions."""

    def __init__(self, *, groups: bool = True) -> None:
        self.connection = FakeConnection()
        policy = Policy.parse({"role": "queue", "groups": groups})
        self.connection.frontend.directory.get = lambda name: Name(name, policy)  # type: ignore[method-assign]
        self.link = FakeLink()
        self.shard = FakeShard()
        self.producer = SessionProducer(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            self.shard,  # type: ignore[arg-type]
            number=5,
            queue="q",
        )
        self.producer.reopen()
        self.producer.ready()
        self.shard.take()

    def send(self, *payloads: bytes, **fields: Any) -> list[tuple[int, bool]]:
        """The client sends; gives for each frame to the shard its messages, and if IN is one of them."""
        format = fields.pop("message_format", 0)
        event = Transfers(self.link, 0, list(payloads), False, format, HEAD, **fields)  # type: ignore[arg-type]
        self.event = event
        self.producer.transfers(event, NOW_MS)
        return [(said.count, bytes(IN) in said.part) for said in self.shard.take(Kind.ENQUEUE)]

    def rejected(self) -> list[int]:
        found: list[int] = []
        for first, last, state in self.link.settled:
            assert isinstance(state, Rejected)
            assert state.error is not None
            assert state.error.condition == conditions.NOT_ALLOWED
            assert "session id" in (state.error.description or "")
            found += range(first, last + 1)
        return found


def test_only_messages_with_a_session_are_stored() -> None:
    rig = Rig()
    assert len(rig.send(IN, IN)) == 1
    assert rig.rejected() == []
    assert len(rig.send(OUT, IN, IN, OUT, IN)) == 2
    assert rig.rejected() == [0, 3]
    assert rig.producer.unanswered == 5
    assert rig.send(OUT) == []


def test_messages_of_several_frames_are_looked_into() -> None:
    rig = Rig()
    assert len(rig.send(pieces=[IN[:20], IN[20:]])) == 1
    assert rig.send(pieces=[OUT[:20], OUT[20:]]) == []
    assert rig.rejected() == [0]


def test_a_batch_is_rejected_as_a_whole() -> None:
    rig = Rig()
    assert len(rig.send(data(IN) + data(IN), message_format=BATCHED)) == 1
    assert rig.send(data(IN) + data(OUT), message_format=BATCHED) == []
    assert rig.rejected() == [0]


def test_a_queue_that_has_no_sessions_any_more_takes_all_messages() -> None:
    rig = Rig(groups=False)
    assert len(rig.send(OUT, IN)) == 1
    assert rig.rejected() == []


@pytest.mark.parametrize(("payloads", "is_refused"), [((IN, IN), False), ((IN, OUT), True)])
def test_a_transaction_is_told_why_it_fails(payloads: tuple[bytes, ...], is_refused: bool) -> None:
    rig = Rig()
    event = Transfers(rig.link, 0, list(payloads), False)  # type: ignore[arg-type]
    assert (rig.producer.refusal(event) is not None) is is_refused
