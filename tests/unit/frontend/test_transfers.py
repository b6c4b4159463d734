"""ProducerLink: batches out, answers back, and credit that never exceeds the window."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp.events import ACCEPTED, Transfers
from lightrail.amqp.lifetime import TTL_MAX
from lightrail.amqp.performatives import Attach, Rejected
from lightrail.amqp.sections import Header, encode_header
from lightrail.frontend import intake
from lightrail.frontend.hooks import FrontendHooks
from lightrail.frontend.links.incoming import (
    CREDIT_HELD_MS,
    LINK_CREDIT_MIN,
    LINK_UNANSWERED_BYTES,
    REFUSED_PAUSE_MS,
)
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.model import conditions, limits
from lightrail.model.orders import PRIORITY_MIXED
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import AFRESH, DURABLE, ENQUEUE_COLUMNS, ENQUEUE_ENDS, HEADER, HEADER_SIZE, Kind
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink, FakeShard
from tests.support.now import now
from tests.unit.amqp.peer import data

NOW_MS = 1_000_000


class Rig:
    def __init__(
        self, *, ready: bool = True, attach: Attach | None = None, hooks: FrontendHooks | None = None
    ) -> None:
        self.connection = FakeConnection()
        self.connection.frontend.hooks = hooks or FrontendHooks()
        self.link = FakeLink()
        self.link.attach = attach
        self.shard = FakeShard()
        self.producer = ProducerLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            self.shard,  # type: ignore[arg-type]
            number=5,
            queue="q",
        )
        self.next_id = 0
        if ready:
            self.producer.reopen()
            self.producer.ready()
            self.shard.take()

    def transfers(self, count: int, size: int = 10, **fields: Any) -> int:
        """The client sends; gives the first delivery-id."""
        first = self.next_id
        self.next_id += count
        self.link.credit -= count
        head = fields.pop("head", b"")
        payloads = [head + b"x" * size] * count
        event = Transfers(
            self.link,  # type: ignore[arg-type]
            first,
            payloads,
            fields.pop("settled", False),
            fields.pop("message_format", 0),
            head,
            fields.pop("absolute_expiry_ms", None),
        )
        self.producer.transfers(event, NOW_MS)
        return first

    def columns(self) -> tuple[int, int, int, int]:
        """(durable, priority, expires_at_ms, message_format) of the newest batch."""
        (said,) = self.shard.take(Kind.ENQUEUE)
        priority = HEADER.unpack_from(said.part)[2]
        expires, message_format, _ = ENQUEUE_COLUMNS.unpack_from(said.part, HEADER_SIZE)
        return said.flags & DURABLE, priority, expires, message_format


def test_the_attach_is_answered_when_the_shard_is_ready() -> None:
    rig = Rig(ready=False)
    rig.producer.reopen()
    (said,) = rig.shard.take()
    assert (said.kind, said.link, said.epoch) == (Kind.PRODUCER_OPEN, 5, 3)
    assert ProducerOpen.decode(said.body).queue == "q"
    assert rig.connection.accepted == []
    rig.producer.ready()
    assert rig.connection.accepted == [rig.link]
    assert rig.link.granted == [limits.LINK_CREDIT_MAX]
    rig.producer.ready()
    assert rig.connection.accepted == [rig.link]


def test_a_batch_is_one_frame() -> None:
    rig = Rig()
    rig.transfers(3)
    (said,) = rig.shard.take()
    assert (said.kind, said.link, said.epoch, said.number, said.count) == (Kind.ENQUEUE, 5, 3, 1, 3)
    ends = memoryview(said.part)[ENQUEUE_ENDS : ENQUEUE_ENDS + 12].cast("I")
    assert list(ends) == [10, 20, 30]
    assert said.part[ENQUEUE_ENDS + 12 :] == b"x" * 30


PRIORITIES = [3, 3, 7, 3]


def send_mixed(rig: Rig) -> list[bytes]:
    """The client sends messages of several priorities, which come as one event."""
    heads = [encode_header(Header(durable=True, priority=each)) for each in PRIORITIES]
    payloads = [head + data(b"%d" % each) for each, head in enumerate(heads)]
    event = Transfers(rig.link, 0, list(payloads), False, 0, heads[0], mixed=True)  # type: ignore[arg-type]
    rig.producer.transfers(event, NOW_MS)
    return payloads


def test_messages_whose_headers_differ_are_one_batch_that_says_so() -> None:
    rig = Rig()
    payloads = send_mixed(rig)
    (said,) = rig.shard.take(Kind.ENQUEUE)
    assert (said.flags & DURABLE, said.count, HEADER.unpack_from(said.part)[2]) == (1, 4, PRIORITY_MIXED)
    assert said.part.endswith(b"".join(payloads))


def test_for_a_queue_with_priorities_they_are_a_batch_for_each() -> None:
    rig = Rig()
    rig.connection.frontend.policies["q"] = {"priorities": 10}
    payloads = send_mixed(rig)
    said = rig.shard.take(Kind.ENQUEUE)
    assert [(each.number, each.count, HEADER.unpack_from(each.part)[2]) for each in said] == [
        (1, 2, 3),
        (2, 1, 7),
        (3, 1, 3),
    ]
    assert said[0].part.endswith(b"".join(payloads[:2]))
    rig.producer.answered(1, 3)
    assert rig.link.settled == [(0, 3, ACCEPTED)]


def test_headers_whose_ttl_differs_are_one_batch_for_each_priority_and_expire_with_the_last() -> None:
    rig = Rig()
    said = [(3, 500), (3, 507), (3, 503), (7, 505)]
    heads = [encode_header(Header(durable=True, priority=priority, ttl=ttl)) for priority, ttl in said]
    payloads = [head + data(b"x") for head in heads]
    for priorities, expected in [
        (1, [(4, PRIORITY_MIXED, NOW_MS + 507)]),
        (10, [(3, 3, NOW_MS + 507), (1, 7, NOW_MS + 505)]),
    ]:
        rig.connection.frontend.policies["q"] = {"priorities": priorities}
        event = Transfers(rig.link, 0, list(payloads), False, 0, heads[1], mixed=True)  # type: ignore[arg-type]
        rig.producer.transfers(event, NOW_MS)
        found = [
            (
                each.count,
                HEADER.unpack_from(each.part)[2],
                ENQUEUE_COLUMNS.unpack_from(each.part, HEADER_SIZE)[0],
            )
            for each in rig.shard.take(Kind.ENQUEUE)
        ]
        assert found == expected


def test_the_header_says_how_a_batch_is_kept() -> None:
    rig = Rig()
    rig.transfers(1)
    assert rig.columns() == (0, 4, 0, 0)
    rig.transfers(1, head=encode_header(Header(durable=True, priority=7, ttl=500)))
    assert rig.columns() == (1, 7, NOW_MS + 500, 0)
    rig.transfers(1, absolute_expiry_ms=NOW_MS + 100, head=encode_header(Header(ttl=500)))
    assert rig.columns() == (0, 4, NOW_MS + 100, 0)
    rig.transfers(1, absolute_expiry_ms=NOW_MS + 900, head=encode_header(Header(ttl=500)))
    assert rig.columns() == (0, 4, NOW_MS + 500, 0)
    rig.transfers(1, absolute_expiry_ms=-5)
    assert rig.columns() == (0, 4, 1, 0)
    rig.transfers(1, message_format=9)
    assert rig.columns() == (0, 4, 0, 9)


def test_a_ttl_counts_alone_where_a_client_adds_a_time_by_its_own_clock() -> None:
    rig = Rig(hooks=FrontendHooks(stores_all=lambda _: True))
    head = encode_header(Header(ttl=500))
    rig.transfers(1, absolute_expiry_ms=NOW_MS - 3_600_000, head=head)
    assert rig.columns() == (1, 4, NOW_MS + 500, 0)
    # A time to live of sixty days does not fit into the header.
    sixty_days = 60 * 86_400_000
    rig.transfers(1, absolute_expiry_ms=NOW_MS + sixty_days, head=encode_header(Header(ttl=TTL_MAX)))
    assert rig.columns() == (1, 4, NOW_MS + sixty_days, 0)
    rig.transfers(1, absolute_expiry_ms=NOW_MS + 900)
    assert rig.columns() == (1, 4, NOW_MS + 900, 0)
    rig.transfers(1, head=encode_header(Header(ttl=TTL_MAX)))
    assert rig.columns() == (1, 4, NOW_MS + TTL_MAX, 0)


def test_neighbouring_answers_are_one_disposition() -> None:
    rig = Rig()
    for _ in range(4):
        rig.transfers(10)
    rig.producer.answered(1, 3)
    assert rig.link.settled == [(0, 29, ACCEPTED)]
    rig.producer.answered(4, 1)
    assert rig.link.settled[1:] == [(30, 39, ACCEPTED)]
    assert rig.connection.frontend.counts.messages_accepted == 40
    assert rig.producer.unanswered == 0
    assert rig.connection.frontend.counts.unanswered_bytes == 0


def hold(rig: Rig, batches: int = 1) -> int:
    """Senders send all that they may, and are answered HELD; gives how many messages that are."""
    count = rig.link.credit
    for _ in range(batches):
        rig.transfers(count // batches)
    rig.producer.credit_held()
    rig.producer.answered(rig.producer._window.next - batches, batches)
    return count // batches * batches


def test_credit_that_is_held_is_given_as_the_shard_frees_it() -> None:
    rig = Rig()
    held = hold(rig)
    assert rig.link.settled == [(0, held - 1, ACCEPTED)]
    assert (rig.link.credit, rig.producer.unanswered) == (0, 0)
    rig.producer.credit_freed(300)
    assert rig.link.credit == 300
    rig.producer.credit_freed(10**6)
    assert rig.link.credit == held
    rig.producer.credit_freed(0)
    assert rig.link.credit == held
    assert rig.connection.frontend.counts.credit_held == held


def test_a_sender_that_waits_for_each_answer_does_not_notice_that_credit_is_held() -> None:
    rig = Rig()
    for _ in range(1_000):
        rig.transfers(1)
        rig.producer.credit_held()
        rig.producer.answered(rig.producer._window.next - 1, 1)
        assert rig.link.credit > 0


def test_a_shard_that_frees_nothing_holds_a_few_messages_a_time_and_no_more() -> None:
    rig = Rig()
    frontend = rig.connection.frontend
    held = hold(rig)
    for rounds in 1, 2:
        ((wait_ms, call),) = frontend.calls
        frontend.calls.clear()
        assert wait_ms == CREDIT_HELD_MS
        frontend.time_ms += wait_ms
        call()
        assert rig.link.credit == rounds * limits.PACE_FREED_MIN
    # The shard speaks: from here on it counts anew.
    ((_, call),) = frontend.calls
    frontend.calls.clear()
    frontend.time_ms += CREDIT_HELD_MS - 1
    rig.producer.credit_freed(100)
    frontend.time_ms += 1
    call()
    assert rig.link.credit == 2 * limits.PACE_FREED_MIN + 100
    ((wait_ms, call),) = frontend.calls
    frontend.calls.clear()
    assert wait_ms == CREDIT_HELD_MS - 1
    rig.producer.credit_freed(0)
    assert rig.link.credit == held
    call()
    assert not frontend.calls


def test_another_shard_knows_of_no_credit_that_is_held() -> None:
    rig = Rig()
    held = hold(rig, 2)
    rig.producer.reopen()
    assert rig.link.credit == held
    rig.producer.credit_freed(5)
    assert rig.link.credit == held


def test_a_batch_that_was_taken_in_part_is_settled_in_two_pieces() -> None:
    rig = Rig()
    rig.transfers(5)
    rig.transfers(2, settled=True)
    rig.producer.refused(1, Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "queue q is full", 2))
    rig.producer.refused(2, Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "queue q is full", 1))
    (first, second, state), rest = rig.link.settled[0], rig.link.settled[1:]
    assert (first, second, state) == (0, 1, ACCEPTED)
    ((first, second, state),) = rest
    assert (first, second) == (2, 4)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.description == "queue q is full"
    counts = rig.connection.frontend.counts
    assert (counts.messages_accepted, counts.messages_refused) == (3, 4)
    assert rig.producer.unanswered == 0


def test_settled_transfers_get_no_disposition() -> None:
    rig = Rig()
    rig.transfers(2)
    rig.transfers(2, settled=True)
    rig.transfers(2)
    rig.producer.answered(1, 3)
    assert rig.link.settled == [(0, 1, ACCEPTED), (4, 5, ACCEPTED)]


def test_ids_with_gaps_are_settled_apart() -> None:
    """Other links of the session have taken ids in between."""
    rig = Rig()
    rig.transfers(2)
    rig.next_id += 3
    rig.transfers(2)
    rig.producer.answered(1, 2)
    assert rig.link.settled == [(0, 1, ACCEPTED), (5, 6, ACCEPTED)]


def test_an_answer_that_comes_twice_counts_once() -> None:
    rig = Rig()
    rig.transfers(2)
    rig.producer.answered(1, 1)
    rig.producer.answered(1, 5)
    assert rig.link.settled == [(0, 1, ACCEPTED)]
    assert rig.producer.unanswered == 0


def test_after_a_greeting_what_has_no_answer_is_sent_again_in_order_and_unchanged() -> None:
    rig = Rig()
    for _ in range(4):
        rig.transfers(2)
    sent = rig.shard.take(Kind.ENQUEUE)
    rig.producer.answered(2, 1)
    rig.producer.disconnected()
    rig.producer.reopen()
    again = rig.shard.take()
    assert [each.kind for each in again] == [Kind.PRODUCER_OPEN, *[Kind.ENQUEUE] * 3]
    assert ProducerOpen.decode(again[0].body).sent_below == 5
    assert [each.part for each in again[1:]] == [sent[index].part for index in (0, 2, 3)]
    assert rig.connection.frontend.counts.batches_repeated == 3


def test_a_batch_is_afresh_when_all_before_it_have_their_answer() -> None:
    rig = Rig()
    for _ in range(2):
        rig.transfers(1)
    rig.producer.answered(1, 2)
    rig.transfers(1)
    assert [bool(said.flags & AFRESH) for said in rig.shard.take()] == [True, False, True]


def test_while_the_shard_is_away_batches_wait_for_the_greeting() -> None:
    rig = Rig()
    rig.shard.serving = False
    rig.transfers(2)
    assert rig.shard.take() == []
    rig.shard.serving = True
    rig.producer.reopen()
    opened, batch = rig.shard.take()
    assert (opened.kind, batch.kind) == (Kind.PRODUCER_OPEN, Kind.ENQUEUE)
    assert ProducerOpen.decode(opened.body).sent_below == 0


# --- credit --------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["send", "answer"]), st.integers(1, 400)), max_size=120))
def test_credit_and_unanswered_never_exceed_the_window(steps: list[tuple[str, int]]) -> None:
    """Whatever the order of sending and answering; and with all answered there is credit again."""
    rig = Rig()
    answered = 0
    for what, amount in steps:
        if what == "send" and rig.link.credit:
            rig.transfers(min(amount, rig.link.credit), size=100)
        elif what == "answer":
            newest = rig.producer._window.next - 1
            count = min(amount % 5 + 1, newest - answered)
            if count:
                rig.producer.answered(answered + 1, count)
                answered += count
        assert rig.link.credit >= 0
        assert rig.link.credit + rig.producer.unanswered <= limits.LINK_CREDIT_MAX
    rig.producer.answered(1, rig.producer._window.next)
    assert rig.producer.unanswered == 0
    assert rig.link.credit >= limits.LINK_CREDIT_MAX >> 1
    assert rig.connection.unanswered_bytes == 0


def test_flows_are_few() -> None:
    rig = Rig()
    for number in range(1, 101):
        rig.transfers(100)
        rig.producer.answered(number, 1)
    assert len(rig.link.granted) <= 11


def test_large_messages_get_less_credit() -> None:
    rig = Rig()
    for number in range(1, 40):
        rig.transfers(1, size=1_000_000)
        rig.producer.answered(number, 1)
    rig.link.credit = 0
    rig.transfers(1, size=1_000_000)
    rig.producer.answered(40, 1)
    assert rig.link.granted[-1] == LINK_CREDIT_MIN


def test_credit_is_for_so_many_bytes_without_an_answer() -> None:
    rig = Rig()
    size = LINK_UNANSWERED_BYTES // 100
    for number in range(1, 60):
        rig.transfers(1, size=size)
        rig.producer.answered(number, 1)
    rig.link.credit = 0
    rig.transfers(1, size=size)
    rig.producer.answered(60, 1)
    assert 99 <= rig.link.granted[-1] <= 100


def test_credit_that_was_meant_for_small_messages_is_taken_back() -> None:
    rig = Rig()
    rig.transfers(10, size=1_000_000)
    assert rig.link.granted[-1] == LINK_CREDIT_MIN
    assert rig.link.credit == LINK_CREDIT_MIN
    rig.transfers(1, size=1_000_000)
    assert len(rig.link.granted) == 2


def test_messages_without_a_byte_end_nothing() -> None:
    rig = Rig()
    for number in range(1, 200):
        rig.transfers(100, size=0)
        rig.producer.answered(number, 1)
    assert rig.link.credit > 0


def test_when_all_links_together_have_too_much_each_gets_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRONTEND_UNANSWERED_BYTES", 10_000)
    rig = Rig()
    rig.link.credit = 0
    rig.connection.frontend.counts.unanswered_bytes = 20_000
    rig.transfers(1)
    rig.producer.answered(1, 1)
    assert rig.link.granted[-1] == LINK_CREDIT_MIN
    assert not rig.connection.reading


def test_while_the_frontend_stops_no_credit_is_given() -> None:
    rig = Rig()
    rig.link.credit = 0
    rig.connection.frontend.stopping = True
    rig.transfers(1)
    rig.producer.answered(1, 1)
    assert len(rig.link.granted) == 1


# --- refusals, and the end -----------------------------------------------------------------------------


def test_a_refused_batch_is_rejected_and_credit_is_held_back() -> None:
    rig = Rig()
    rig.transfers(1_500)
    rig.transfers(500)
    rig.producer.refused(1, Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "the disk is full"))
    ((first, last, state),) = rig.link.settled
    assert (first, last) == (0, 1_499)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert (state.error.condition, state.error.description) == (
        conditions.RESOURCE_LIMIT_EXCEEDED,
        "the disk is full",
    )
    rig.producer.answered(2, 1)
    assert len(rig.link.granted) == 1
    ((wait_ms, go_on),) = rig.connection.frontend.calls
    assert wait_ms == REFUSED_PAUSE_MS
    go_on()
    assert rig.link.granted[-1] == limits.LINK_CREDIT_MAX
    assert rig.connection.frontend.counts.messages_refused == 1_500


def test_a_refused_batch_that_was_settled_is_only_counted() -> None:
    rig = Rig()
    rig.transfers(3, settled=True)
    rig.producer.refused(1, Refusal(conditions.INTERNAL_ERROR, ""))
    rig.producer.refused(1, Refusal(conditions.INTERNAL_ERROR, ""))
    assert rig.link.settled == []
    assert rig.connection.frontend.counts.messages_refused == 3
    assert rig.connection.frontend.calls == []


def test_a_link_that_closes_with_unanswered_batches_waits_for_them_at_the_shard() -> None:
    rig = Rig()
    rig.transfers(3)
    rig.producer.close()
    assert rig.shard.closed == []
    rig.shard.take()
    rig.producer.reopen()
    assert [said.kind for said in rig.shard.take()] == [
        Kind.PRODUCER_OPEN,
        Kind.ENQUEUE,
        Kind.PRODUCER_ABANDON,
    ]
    rig.producer.ready()
    assert rig.connection.accepted == [rig.link]
    granted = list(rig.link.granted)
    rig.producer.answered(1, 1)
    assert rig.link.settled == []
    assert rig.link.granted == granted
    assert rig.shard.closed == [("producer", 5)]


def test_a_link_that_closes_with_unanswered_batches_has_those_refused_that_wait_for_room() -> None:
    rig = Rig()
    rig.transfers(3)
    rig.transfers(2)
    rig.producer.close()
    assert [said.kind for said in rig.shard.take()] == [Kind.ENQUEUE, Kind.ENQUEUE, Kind.PRODUCER_ABANDON]
    rig.producer.answered(1, 1)
    assert rig.shard.closed == []
    rig.producer.refused(2, Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "", 0))
    assert rig.shard.closed == [("producer", 5)]
    assert rig.producer.unanswered == 0


def test_a_link_that_closes_with_a_refused_batch() -> None:
    rig = Rig()
    rig.transfers(3)
    rig.producer.close()
    rig.producer.refused(1, Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, ""))
    assert rig.link.settled == []
    assert rig.shard.closed == [("producer", 5)]
    for _, go_on in rig.connection.frontend.calls:
        go_on()
    assert len(rig.link.granted) == 1


def test_a_link_that_closes_empty_goes_at_once() -> None:
    rig = Rig()
    rig.producer.close()
    assert rig.shard.closed == [("producer", 5)]


@pytest.mark.parametrize("ready", [True, False])
def test_a_producer_that_the_shard_will_not_have(ready: bool) -> None:
    rig = Rig(ready=ready)
    if ready:
        rig.transfers(3)
    refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "no")
    rig.producer.ended(refusal)
    rig.producer.ended(refusal)
    assert rig.connection.refused == [(rig.link, ready, refusal)]
    assert rig.connection.frontend.counts.unanswered_bytes == 0
    assert rig.connection.unanswered_bytes == 0
    rig.producer.answered(1, 1)
    assert rig.link.settled == []


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_a_socket_is_not_read_while_too_much_of_it_waits(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """What is around a batch counts as well: tiny messages over many links are a batch each."""
    monkeypatch.setattr(intake, "CONNECTION_UNANSWERED_BYTES", 10 * (size + intake.UNANSWERED_BATCH_BYTES))
    rig = Rig()
    for _ in range(10):
        rig.transfers(1, size=size)
    assert now(rig.connection.reading)
    rig.transfers(1, size=size)
    assert not now(rig.connection.reading)
    rig.producer.answered(1, 5)
    assert not now(rig.connection.reading)
    rig.producer.answered(6, 1)
    assert rig.connection.reading
    rig.producer.answered(7, 5)
    assert rig.connection.unanswered_bytes == rig.connection.frontend.counts.unanswered_bytes == 0
