"""RelayLink: credit is the listener's, outcomes reach the sender one by one, nothing is kept for later."""

from typing import Any

from lightrail.amqp.encoder import encode
from lightrail.amqp.events import ACCEPTED, RELEASED, Transfers
from lightrail.amqp.performatives import AmqpError, Modified, Rejected
from lightrail.amqp.sections import Header, encode_header
from lightrail.amqp.values import Symbol
from lightrail.frontend.links.relays import RelayLink
from lightrail.wire.bodies import ProducerOpen, Refusal, SettleDetail
from lightrail.wire.frames import DURABLE, ENQUEUE_COLUMNS, HEADER, HEADER_SIZE, Kind, OutcomeCode
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink, FakeShard

NOW_MS = 1_000_000
NOTHING = SettleDetail()


class Rig:
    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.link = FakeLink()
        self.shard = FakeShard()
        self.relay = RelayLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            self.shard,  # type: ignore[arg-type]
            number=5,
            name="point",
            label="client/s",
        )
        self.next_id = 0
        self.relay.reopen()
        self.relay.ready()

    def transfers(self, count: int, size: int = 10, settled: bool = False, head: bytes = b"") -> None:
        """The client sends."""
        event = Transfers(
            self.link,  # type: ignore[arg-type]
            self.next_id,
            [head + b"x" * size] * count,
            settled,
            0,
            head,
        )
        self.next_id += count
        self.link.credit -= count
        self.relay.transfers(event, NOW_MS)

    @property
    def unanswered_bytes(self) -> int:
        return self.connection.frontend.counts.unanswered_bytes


def test_it_opens_as_a_relay_and_gets_no_credit_of_ours() -> None:
    rig = Rig()
    (said,) = rig.shard.take()
    assert (said.kind, said.link, said.epoch) == (Kind.PRODUCER_OPEN, 5, 3)
    assert ProducerOpen.decode(said.body) == ProducerOpen("point", relay=True, label="client/s")
    assert rig.connection.accepted == [rig.link]
    assert rig.link.granted == []


def test_credit_is_what_the_listeners_give_and_take_away() -> None:
    rig = Rig()
    rig.relay.granted(10)
    rig.relay.granted(10)
    rig.transfers(4)
    rig.relay.granted(30)
    rig.relay.granted(2)
    rig.relay.granted(50)
    assert rig.link.granted == [10, 26, 0, 46]


def test_credit_that_came_before_the_attach_was_answered_is_given_with_it() -> None:
    rig = Rig()
    rig.relay._attached = False
    rig.relay.granted(3)
    assert rig.link.granted == []
    rig.relay.ready()
    assert rig.link.granted == [3]


def test_a_batch_is_one_frame_with_its_header() -> None:
    rig = Rig()
    rig.shard.take()
    rig.relay.granted(10)
    rig.transfers(3, head=encode_header(Header(durable=True, priority=7, ttl=500)))
    (said,) = rig.shard.take()
    assert (said.kind, said.number, said.count, said.flags & DURABLE) == (Kind.ENQUEUE, 1, 3, DURABLE)
    assert HEADER.unpack_from(said.part)[2] == 7
    assert ENQUEUE_COLUMNS.unpack_from(said.part, HEADER_SIZE)[0] == NOW_MS + 500


def test_each_outcome_settles_its_messages() -> None:
    rig = Rig()
    rig.relay.granted(10)
    rig.transfers(2)
    rig.transfers(5)
    annotations = {Symbol("x-opt-note"): 1}
    rig.relay.outcome(2, 1, 2, OutcomeCode.ACCEPTED, NOTHING)
    rig.relay.outcome(2, 0, 1, OutcomeCode.RELEASED, NOTHING)
    rig.relay.outcome(2, 3, 1, OutcomeCode.REJECTED, SettleDetail("example:no", "not this one"))
    rig.relay.outcome(1, 0, 2, OutcomeCode.REJECTED, NOTHING)
    rig.relay.outcome(
        2,
        4,
        1,
        OutcomeCode.MODIFIED,
        SettleDetail(delivery_failed=True, annotations=encode(annotations).hex()),
    )
    assert rig.link.settled == [
        (3, 4, ACCEPTED),
        (2, 2, RELEASED),
        (5, 5, Rejected(AmqpError(Symbol("example:no"), "not this one"))),
        (0, 1, Rejected()),
        (6, 6, Modified(True, False, annotations)),
    ]
    assert rig.unanswered_bytes == 0
    counts = rig.connection.frontend.counts
    assert (counts.messages_received, counts.messages_accepted, counts.messages_refused) == (7, 2, 5)
    rig.relay.outcome(2, 0, 1, OutcomeCode.ACCEPTED, NOTHING)
    assert len(rig.link.settled) == 5


def test_the_shard_can_answer_for_whole_batches() -> None:
    rig = Rig()
    for _ in range(3):
        rig.transfers(2)
    rig.relay.answered(1, 2)
    rig.relay.refused(3, Refusal("amqp:not-found", "nobody listens"))
    assert rig.link.settled == [
        (0, 1, ACCEPTED),
        (2, 3, ACCEPTED),
        (4, 5, Rejected(AmqpError(Symbol("amqp:not-found"), "nobody listens"))),
    ]
    assert rig.unanswered_bytes == 0


def test_settled_messages_are_told_nothing() -> None:
    rig = Rig()
    rig.transfers(2, settled=True)
    rig.relay.outcome(1, 0, 2, OutcomeCode.REJECTED, NOTHING)
    assert rig.link.settled == []
    assert rig.unanswered_bytes == 0


def test_what_has_no_outcome_is_released_when_the_shard_comes_back_and_never_sent_again() -> None:
    rig = Rig()
    rig.relay.granted(10)
    rig.transfers(4)
    rig.relay.outcome(1, 0, 1, OutcomeCode.ACCEPTED, NOTHING)
    rig.shard.take()
    rig.relay.reopen()
    assert [said.kind for said in rig.shard.take()] == [Kind.PRODUCER_OPEN]
    assert rig.link.settled[1:] == [(0, 3, RELEASED)]
    # The shard counts from there; credit of the time before is taken back.
    rig.relay.granted(5)
    assert rig.link.granted == [10, 0, 5]
    assert rig.unanswered_bytes == 0


def test_a_relay_that_is_gone_ends_its_link_once() -> None:
    rig = Rig()
    rig.transfers(1)
    refusal = Refusal("amqp:resource-deleted", "it was dropped")
    rig.relay.ended(refusal)
    rig.relay.ended(refusal)
    assert rig.link.settled == [(0, 0, RELEASED)]
    assert rig.connection.refused == [(rig.link, True, refusal)]
    assert rig.unanswered_bytes == 0


def test_a_closed_relay_says_nothing_more() -> None:
    rig = Rig()
    rig.transfers(1)
    rig.shard.take()
    rig.relay.close()
    rig.relay.close()
    assert rig.shard.closed == [("producer", 5)]
    calls: list[Any] = [rig.relay.reopen, lambda: rig.relay.granted(7), rig.relay.ready]
    for call in calls:
        call()
    rig.relay.outcome(1, 0, 1, OutcomeCode.ACCEPTED, NOTHING)
    assert (rig.shard.take(), rig.link.settled, rig.link.granted) == ([], [], [])
    assert rig.unanswered_bytes == 0
