"""ConsumerLink: credit in windows, drains of any size, outcomes back, headers that a broker must change."""

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp.decoder import decode
from lightrail.amqp.events import ACCEPTED, RELEASED, Credit, Outcome
from lightrail.amqp.link import SETTLE_FIRST, SETTLE_SECOND
from lightrail.amqp.performatives import AmqpError, Modified, Received, Rejected, Released
from lightrail.amqp.sections import Header, decode_header, encode_header
from lightrail.amqp.values import Symbol
from lightrail.frontend import unsettled_bytes
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.model import conditions, limits
from lightrail.wire.bodies import ConsumerOpen, Refusal, SettleDetail
from lightrail.wire.frames import ASKED, DRAIN, MORE, REPEATED, Kind, OutcomeCode, deliver
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink, FakeShard, Said

WINDOW = limits.DELIVERY_WINDOW_MAX


class Rig:
    """A consumer, and a shard that keeps to what it was told."""

    def __init__(
        self,
        *,
        ready: bool = True,
        warm: bool = True,
        connection: FakeConnection | None = None,
        **options: Any,
    ) -> None:
        self.connection = connection or FakeConnection()
        self.link = FakeLink()
        self.shard = FakeShard()
        self.consumer = ConsumerLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            self.shard,  # type: ignore[arg-type]
            number=6,
            options=ConsumerOpen("q", **options),
        )
        if warm:
            # The mean size of what it has seen: small, so that the window is the largest there is.
            self.consumer._mean_size = 100.0
        self.limit = 0
        self.next = 0
        self.draining = False
        self.room = 0
        """Bytes that the shard may still send; what would be more than these is the rest of a slice."""
        self.credits: list[tuple[int, int]] = []
        if ready:
            self.consumer.reopen()
            self.consumer.ready()
            self.hear()

    # --- the client ------------------------------------------------------------------------------------

    def credit(self, limit: int, drain: bool = False) -> None:
        self.consumer.credit(Credit(self.link, limit, drain))  # type: ignore[arg-type]

    def outcome(self, first: int, last: int, state: Any, settled: bool = True) -> list[Said]:
        self.hear()
        self.consumer.outcome(Outcome(self.link, first, last, state, settled))  # type: ignore[arg-type]
        return self.shard.take(Kind.SETTLE)

    # --- the shard -------------------------------------------------------------------------------------

    def hear(self) -> None:
        """What the shard makes of what it was told, as the queue machine does."""
        for said in self.shard.take():
            if said.kind == Kind.CONSUMER_OPEN:
                self.limit = self.next = ConsumerOpen.decode(said.body).first
            elif said.kind == Kind.CREDIT:
                self.credits.append((said.number, said.flags))
                self.limit = max(said.number, self.next)
                self.room = said.count << 10
                self.draining = bool(said.flags & DRAIN)

    def deliver(self, count: int, size: int = 10, **fields: int) -> None:
        """A slice; never more than the shard may send."""
        messages = [b"%0*d" % (size, self.next + index) for index in range(count)]
        self.deliver_messages(messages, **fields)

    def deliver_messages(self, messages: list[bytes], **fields: int) -> None:
        count = len(messages)
        assert self.next + count <= self.limit, "more than the shard was told"
        assert self.room > 0, "more bytes than the shard was told"
        self.room -= sum(map(len, messages))
        part = slice_of(self.next, messages, **fields)
        first, self.next = self.next, self.next + count
        self.consumer.deliver(part, first, count)

    def drain(self) -> None:
        """The shard has nothing more."""
        assert self.draining
        self.draining = False
        self.limit = self.next
        self.consumer.drained(self.next)


def slice_of(
    number: int,
    messages: list[bytes],
    *,
    attempts: int = 0,
    expires: int = 0,
    message_format: int = 0,
    skipped: int = 0,
) -> bytes:
    """A DELIVER frame; `skipped` bytes of the batch lie before the first message."""
    ends = array("I")
    end = skipped
    for message in messages:
        end += len(message)
        ends.append(end)
    blob = b"".join(messages)
    count = len(messages)
    return deliver(6, 3, number, count, 0, number, attempts, expires, 0, message_format, skipped, ends, blob)


# --- credit --------------------------------------------------------------------------------------------


def test_the_attach_is_answered_when_the_shard_is_ready() -> None:
    rig = Rig(ready=False)
    rig.consumer.start(10, False)
    rig.consumer.reopen()
    said = rig.shard.take()
    assert [each.kind for each in said] == [Kind.CONSUMER_OPEN, Kind.CREDIT]
    assert ConsumerOpen.decode(said[0].body) == ConsumerOpen("q")
    assert said[1].number == 10
    assert rig.connection.accepted == []
    rig.consumer.ready()
    rig.consumer.ready()
    assert rig.connection.accepted == [rig.link]


def test_credit_reaches_the_shard_a_window_at_a_time() -> None:
    rig = Rig()
    rig.credit(10 * WINDOW)
    rig.hear()
    assert rig.limit == WINDOW
    assert rig.credits[-1][1] & MORE
    rig.deliver(WINDOW // 2 - 1, size=100)
    rig.hear()
    assert rig.limit == WINDOW
    rig.deliver(1, size=100)
    rig.hear()
    assert rig.limit == WINDOW // 2 + WINDOW


def test_the_first_window_is_small_and_shared() -> None:
    rig = Rig(warm=False)
    rig.credit(10 * WINDOW)
    rig.hear()
    assert rig.limit == limits.DELIVERY_WINDOW_FIRST
    rig.connection.consumers = 4
    rig.deliver(limits.DELIVERY_WINDOW_FIRST, size=100)
    rig.hear()
    assert rig.limit == rig.next + WINDOW
    rig.connection.consumers = 1_000
    rig.deliver(WINDOW, size=100)
    rig.hear()
    assert rig.limit == rig.next + limits.DELIVERY_WINDOW_BYTES // 101 // 1_000


def test_a_client_that_does_not_settle_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_UNSETTLED_BYTES", 10_000)
    rig = Rig()
    rig.credit(10 * WINDOW)
    rig.hear()
    rig.deliver(WINDOW, size=100)
    assert rig.shard.take() == []
    assert list(rig.connection.starved) == [rig.consumer]
    rig.outcome(0, WINDOW - 1, ACCEPTED)
    assert rig.connection.unsettled_bytes == 0
    rig.consumer.writable()
    rig.hear()
    assert rig.limit == 2 * WINDOW


def test_a_link_that_settles_nothing_does_not_stop_the_others_of_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CONNECTION_UNSETTLED_BYTES", 100_000)
    connection = FakeConnection()
    idle, other = Rig(connection=connection), Rig(connection=connection)
    idle.credit(10 * WINDOW)
    idle.hear()
    idle.deliver(WINDOW // 2, size=200)
    idle.hear()
    assert idle.consumer in connection.starved
    assert connection.has_too_much_unsettled()
    other.credit(10 * WINDOW)
    other.hear()
    share = limits.CONNECTION_UNSETTLED_BYTES // 2
    while other.consumer not in connection.starved:
        assert other.next * 100 <= share, "an equal part, and what was under way"
        other.deliver(50, size=100)
        other.hear()
    assert other.next * 100 + WINDOW > share // 2, "the rest is overhead of slices"
    other.outcome(0, other.next - 1, ACCEPTED)
    assert connection.has_too_much_unsettled()
    assert (other.consumer.exceeds_share(), idle.consumer.exceeds_share()) == (False, True)


def test_runs_count_towards_the_share_of_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_UNSETTLED_BYTES", 10 * limits.UNSETTLED_RUN_BYTES)
    rig = Rig()
    rig.credit(10 * WINDOW)
    rig.hear()
    rig.deliver(20, size=1)
    assert not rig.consumer.exceeds_share()
    for number in range(0, 40, 2):
        rig.link.session.outgoing.add(rig.link, number, number)
    assert rig.consumer.exceeds_share()
    rig.outcome(0, 14, ACCEPTED)
    assert not rig.consumer.exceeds_share(), "of the runs of the session, one for each of its messages"


def test_a_session_window_that_is_shut_holds_deliveries_back() -> None:
    rig = Rig()
    rig.credit(10 * WINDOW)
    rig.hear()
    rig.link.backlog = 1
    rig.deliver(WINDOW, size=100)
    assert rig.shard.take() == []
    rig.link.backlog = 0
    rig.consumer.writable()
    rig.hear()
    assert rig.limit == 2 * WINDOW


def test_unsettled_bytes_add_up_to_nothing_in_the_end() -> None:
    rig = Rig()
    rig.credit(100)
    rig.hear()
    for size in (1, 50, 7, 1_000):
        rig.deliver(5, size=size)
    rig.outcome(3, 9, ACCEPTED)
    rig.outcome(15, 15, RELEASED)
    rig.consumer.close()
    rig.consumer.close()
    assert (rig.connection.unsettled_bytes, rig.connection.consumers) == (0, 0)


def test_small_credit_is_said_as_it_is() -> None:
    rig = Rig()
    rig.credit(5)
    rig.hear()
    assert rig.limit == 5
    rig.deliver(5)
    assert rig.shard.take() == []
    assert len(rig.link.sent) == 5


def test_large_messages_make_the_window_small() -> None:
    rig = Rig(warm=False)
    rig.credit(200)
    rig.hear()
    for number in range(70):
        rig.deliver(1, size=4_000_000)
        rig.outcome(number, number, ACCEPTED)
        rig.consumer.writable()
        rig.hear()
    assert rig.limit - rig.next == 1


def test_a_client_that_does_not_read_gets_no_more_than_was_said() -> None:
    rig = Rig()
    rig.credit(10 * WINDOW)
    rig.hear()
    rig.connection.paused = True
    rig.deliver(WINDOW, size=100)
    assert rig.shard.take() == []
    rig.credit(20 * WINDOW)
    rig.hear()
    assert rig.limit == WINDOW
    rig.connection.paused = False
    rig.consumer.writable()
    rig.hear()
    assert rig.limit == 2 * WINDOW


def test_credit_that_is_taken_back() -> None:
    rig = Rig()
    rig.credit(100)
    rig.hear()
    rig.deliver(10)
    rig.credit(10)
    rig.hear()
    assert rig.limit == 10
    rig.credit(0)
    rig.hear()
    assert rig.limit == 10


# --- credit in bytes -----------------------------------------------------------------------------------

LARGE = 3 * 1024 * 1024
"""More than a window."""


def test_a_shard_that_used_up_its_bytes_gets_more_while_the_socket_takes_them() -> None:
    rig = Rig()
    rig.credit(1_000)
    for _ in range(10):
        rig.hear()
        rig.deliver(1, LARGE)
        assert rig.room <= 0
    rig.hear()
    assert rig.room > 0
    assert rig.limit > rig.next


def test_links_of_a_connection_share_the_bytes_of_its_window() -> None:
    rig = Rig()
    rig.connection.consumers = 4
    rig.credit(1_000)
    rig.hear()
    assert rig.room == limits.DELIVERY_WINDOW_BYTES // 4


def test_a_client_that_does_not_read_gets_no_more_bytes_however_often_it_gives_credit() -> None:
    rig = Rig()
    rig.credit(1_000)
    rig.hear()
    rig.connection.paused = True
    rig.deliver(1, limits.DELIVERY_WINDOW_BYTES // 2)
    left = rig.room
    for more in range(10):
        rig.credit(1_000 + more)
        rig.hear()
        assert rig.room <= left
    rig.deliver(1, LARGE)
    for more in range(10):
        rig.credit(2_000 + more)
        rig.hear()
        assert rig.limit == rig.next
    rig.connection.paused = False
    rig.consumer.writable()
    rig.hear()
    assert rig.room > 0
    assert rig.limit > rig.next


def test_nothing_is_said_to_the_shard_where_it_can_go_on() -> None:
    rig = Rig()
    rig.credit(100)
    rig.hear()
    for _ in range(10):
        rig.deliver(1)
        rig.connection.paused = True
        rig.connection.paused = False
        rig.consumer.writable()
    assert not rig.shard.take()


def test_a_drain_that_ends_for_want_of_bytes_is_asked_again() -> None:
    rig = Rig()
    rig.credit(100, drain=True)
    for _ in range(3):
        rig.hear()
        rig.deliver(1, LARGE)
        rig.drain()
        assert not rig.link.drains
    rig.hear()
    assert rig.draining
    rig.drain()
    assert rig.link.drains == 1


# --- drain ---------------------------------------------------------------------------------------------


def test_a_drain_is_answered_when_the_shard_has_nothing_more() -> None:
    rig = Rig()
    rig.credit(10, drain=True)
    rig.hear()
    assert rig.draining
    rig.deliver(3)
    assert rig.link.drains == 0
    rig.drain()
    assert rig.link.drains == 1
    assert rig.shard.take() == []
    rig.consumer.drained(3)
    assert rig.link.drains == 1


def test_a_drain_of_several_windows_brings_everything() -> None:
    rig = Rig()
    rig.credit(3 * WINDOW + 10, drain=True)
    left = 2 * WINDOW + 7
    for _ in range(10):
        rig.hear()
        if not rig.draining:
            break
        while left and rig.next < rig.limit:
            count = min(left, rig.limit - rig.next, 500)
            rig.deliver(count, size=100)
            left -= count
        assert rig.link.drains == 0
        rig.drain()
    assert rig.link.drains == 1
    assert len(rig.link.sent) == 2 * WINDOW + 7
    # A window at a time: nothing was said while the answer was on its way.
    assert [limit for limit, _ in rig.credits[1:]] == [WINDOW, 2 * WINDOW, 3 * WINDOW]


def test_a_drain_while_the_client_does_not_read_waits_for_it() -> None:
    """Asking the shard again and again would keep both processes busy for nothing."""
    rig = Rig()
    rig.credit(2 * WINDOW, drain=True)
    rig.hear()
    rig.connection.paused = True
    rig.deliver(WINDOW)
    rig.drain()
    assert rig.shard.take() == []
    assert rig.link.drains == 0
    rig.connection.paused = False
    rig.consumer.writable()
    rig.hear()
    assert rig.draining
    rig.deliver(5)
    rig.drain()
    assert rig.link.drains == 1


def test_credit_never_crosses_the_answer_to_a_drain() -> None:
    """The shard takes all credit away when it answers: what crossed the answer would be understood by one."""
    rig = Rig()
    rig.credit(10, drain=True)
    rig.hear()
    rig.deliver(4)
    rig.credit(20, drain=True)
    assert rig.shard.take() == []
    rig.drain()
    assert rig.link.drains == 0
    rig.hear()
    assert (rig.limit, rig.draining) == (20, True)
    rig.deliver(2)
    rig.drain()
    assert rig.link.drains == 1


def test_a_drain_that_the_client_takes_back() -> None:
    rig = Rig()
    rig.credit(10, drain=True)
    rig.hear()
    rig.credit(10, drain=False)
    rig.drain()
    assert rig.link.drains == 0
    rig.hear()
    assert (rig.limit, rig.draining) == (10, False)
    rig.deliver(10)


def test_a_drain_without_credit_is_answered() -> None:
    rig = Rig()
    rig.credit(0, drain=True)
    rig.hear()
    rig.drain()
    assert rig.link.drains == 1


def test_a_drain_outlives_the_shard() -> None:
    rig = Rig()
    rig.credit(10, drain=True)
    rig.hear()
    rig.deliver(4)
    rig.consumer.reopen()
    rig.hear()
    assert (rig.limit, rig.draining) == (10, True)
    rig.drain()
    assert rig.link.drains == 1


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("credit"), st.integers(0, 30), st.booleans()),
            st.tuples(st.just("hear"), st.just(0), st.just(False)),
            st.tuples(st.just("deliver"), st.integers(1, 9), st.just(False)),
            st.tuples(st.just("nothing"), st.just(0), st.just(False)),
            st.tuples(st.just("pause"), st.just(0), st.booleans()),
            st.tuples(st.just("lost"), st.just(0), st.just(False)),
        ),
        max_size=60,
    )
)
def test_any_order_of_credit_drains_and_deliveries(steps: list[tuple[str, int, bool]]) -> None:
    """The shard never has more than the client ever gave since the last drained; in the end it has all."""
    rig = Rig()
    most = 0
    for what, amount, flag in steps:
        drains = rig.link.drains
        if what == "credit":
            limit = rig.consumer.delivered() + amount
            most = max(most, limit)
            rig.credit(limit, flag)
        elif what == "hear":
            rig.hear()
        elif what == "deliver":
            count = min(amount, rig.limit - rig.next)
            if count:
                rig.deliver(count)
        elif what == "nothing" and rig.draining:
            rig.drain()
        elif what == "pause":
            rig.connection.paused = flag
            if not flag:
                rig.consumer.writable()
        elif what == "lost":
            rig.draining = False
            rig.consumer.reopen()
        if rig.link.drains > drains:
            most = rig.consumer.delivered()
        assert rig.consumer._window.limit <= max(most, rig.consumer.delivered())
    rig.connection.paused = False
    rig.consumer.writable()
    for _ in range(10):
        rig.hear()
        if rig.draining:
            rig.drain()
    if rig.link.drains and rig.consumer._limit == rig.consumer.delivered():
        return
    assert rig.limit == max(rig.consumer._limit, rig.next)


# --- deliveries ----------------------------------------------------------------------------------------


def test_a_slice_of_a_batch_goes_out_as_it_came() -> None:
    rig = Rig()
    rig.credit(10)
    rig.hear()
    rig.deliver_messages([b"abc", b"", b"de"], skipped=1_000)
    assert rig.link.sent == [b"abc", b"", b"de"]
    assert rig.connection.frontend.counts.messages_delivered == 3
    assert rig.connection.touched == 1


def test_a_redelivered_message_says_so() -> None:
    rig = Rig()
    rig.credit(10)
    rig.hear()
    header = encode_header(Header(durable=True, first_acquirer=True, delivery_count=1))
    body = b"\x00\x53\x75\xa0\x01x"
    rig.deliver_messages([header + body, body], attempts=2)
    first, second = rig.link.sent
    assert [decode_header(message).delivery_count for message in (first, second)] == [3, 2]
    assert [decode_header(message).durable for message in (first, second)] == [True, False]
    assert not decode_header(first).first_acquirer
    assert first.endswith(body)
    assert second.endswith(body)
    assert rig.connection.frontend.counts.messages_redelivered == 2
    assert rig.link.pieces == 1


UNCOMMON = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x70"
"""The descriptor of a header section as an ulong of eight octets."""


def test_a_redelivered_message_says_what_is_left_of_its_own_time() -> None:
    rig = Rig()
    rig.credit(10)
    rig.hear()
    now_ms = rig.connection.frontend.time_ms
    body = b"\x00\x53\x75\xa0\x01x"
    lasting = [encode_header(Header(ttl=ttl)) + body for ttl in (195, 205)]
    rig.deliver_messages([*lasting, body], attempts=1, expires=now_ms + 200)
    rig.deliver_messages(lasting, attempts=1)
    rig.deliver_messages([lasting[0], UNCOMMON + lasting[1][3:]], attempts=1, expires=now_ms + 200)
    headers = [decode_header(message) for message in rig.link.sent]
    assert [header.ttl for header in headers] == [195, 200, None, 195, 205, 195, 200]
    assert {header.delivery_count for header in headers} == {1}
    assert rig.link.pieces == 4


def test_a_delivery_count_ends_where_its_encoding_does() -> None:
    rig = Rig()
    rig.credit(10)
    rig.hear()
    full = encode_header(Header(delivery_count=2**32 - 2))
    rig.deliver_messages([full], attempts=3)
    rig.deliver_messages([UNCOMMON + full[3:]], attempts=3)
    assert [decode_header(message).delivery_count for message in rig.link.sent] == [2**32 - 1] * 2


def test_a_message_that_can_not_be_read_goes_out_as_it_came() -> None:
    rig = Rig()
    rig.credit(10)
    rig.hear()
    strange = [b"\x00Sz\x45", UNCOMMON + b"\xc0\x09", b"text"]
    rig.deliver_messages(strange, attempts=1)
    rig.deliver_messages(strange, expires=rig.connection.frontend.time_ms + 200)
    assert rig.link.sent == strange * 2


def test_the_time_that_is_left_is_said() -> None:
    rig = Rig()
    rig.credit(10)
    rig.hear()
    now_ms = rig.connection.frontend.time_ms
    body = b"\x00\x53\x75\xa0\x01x"
    rig.deliver_messages([encode_header(Header(ttl=500)) + body, body], expires=now_ms + 200)
    rig.deliver_messages([encode_header(Header(ttl=500)) + body], expires=now_ms - 5)
    assert [decode_header(message).ttl for message in rig.link.sent] == [200, None, 0]


def test_what_expires_by_the_policy_of_its_queue_goes_out_as_it_came_and_in_one_piece() -> None:
    rig = Rig()
    rig.credit(10)
    rig.hear()
    body = b"\x00\x53\x75\xa0\x01x"
    messages = [body, encode_header(Header(durable=True, priority=9)) + body, body]
    rig.deliver_messages(messages, expires=rig.connection.frontend.time_ms + 200)
    assert rig.link.sent == messages
    assert rig.link.pieces == 1


def test_a_foreign_format_is_never_rewritten() -> None:
    rig = Rig()
    rig.credit(10)
    rig.hear()
    rig.deliver_messages([b"\x00\x53\x70nonsense"], attempts=3, expires=5, message_format=9)
    assert rig.link.sent == [b"\x00\x53\x70nonsense"]
    assert rig.link.formats == {9}


def test_nothing_is_sent_on_a_link_that_is_closed() -> None:
    rig = Rig()
    rig.credit(10)
    rig.hear()
    rig.consumer.close()
    rig.deliver(3)
    rig.consumer.drained(3)
    rig.consumer.ready()
    assert rig.link.sent == []
    assert rig.shard.closed == [("consumer", 6)]
    # A broker that ends leaves its links to the goodbye; a greeting in between opens them no more.
    rig.shard.take()
    rig.consumer.reopen()
    rig.consumer.writable()
    assert rig.shard.take() == []


# --- outcomes ------------------------------------------------------------------------------------------


def rig_with_deliveries(count: int = 10, **options: Any) -> Rig:
    rig = Rig(**options)
    rig.credit(100)
    rig.hear()
    rig.deliver(count)
    rig.shard.take()
    return rig


def test_outcomes_go_to_the_shard_as_ranges() -> None:
    rig = rig_with_deliveries()
    (said,) = rig.outcome(2, 5, ACCEPTED)
    assert (said.flags, said.number, said.count, said.body) == (OutcomeCode.ACCEPTED, 2, 4, b"")
    assert (said.link, said.epoch) == (6, 3)
    (said,) = rig.outcome(6, 6, RELEASED)
    assert (said.flags, said.body) == (OutcomeCode.RELEASED, b"")
    assert rig.connection.frontend.counts.outcomes == [4, 0, 1, 0]
    assert rig.link.settled_sent == []


def test_rejected_carries_its_error() -> None:
    rig = rig_with_deliveries()
    error = AmqpError(condition=Symbol("acme:" + "x" * 500), description="y" * 5_000)
    (said,) = rig.outcome(0, 0, Rejected(error=error))
    detail = SettleDetail.decode(said.body)
    assert (detail.condition, detail.description) == ("acme:" + "x" * 251, "y" * 1_024)
    (said,) = rig.outcome(1, 1, Rejected())
    assert SettleDetail.decode(said.body) == SettleDetail()


def test_modified_carries_all_its_fields() -> None:
    rig = rig_with_deliveries()
    notes = {Symbol("x-opt-a"): 1}
    state = Modified(delivery_failed=True, undeliverable_here=True, message_annotations=notes)
    (said,) = rig.outcome(0, 0, state)
    detail = SettleDetail.decode(said.body)
    assert (detail.delivery_failed, detail.undeliverable_here) == (True, True)
    annotations = bytes.fromhex(detail.annotations)
    assert decode(annotations, 0, len(annotations))[0] == notes


@pytest.mark.parametrize(
    ("options", "code", "failed"),
    [
        ({}, OutcomeCode.MODIFIED, True),
        ({"default_outcome": 2, "default_failed": False}, OutcomeCode.RELEASED, False),
    ],
)
def test_settled_without_an_outcome_means_the_default(
    options: dict[str, Any], code: OutcomeCode, failed: bool
) -> None:
    rig = rig_with_deliveries(**options)
    for number, state in enumerate((None, Received(section_number=0, section_offset=0))):
        (said,) = rig.outcome(number, number, state)
        assert said.flags == code
        assert SettleDetail.decode(said.body).delivery_failed is failed


@pytest.mark.parametrize("state", [None, Received(section_number=0, section_offset=5)])
def test_what_is_neither_settled_nor_an_outcome_changes_nothing(state: object) -> None:
    rig = rig_with_deliveries()
    assert rig.outcome(0, 3, state, settled=False) == []
    assert rig.link.settled_sent == []


# --- receivers that wait for us to settle (receiver-settle-mode second) ------------------------------------


def test_a_receiver_that_waits_for_us_is_answered_when_its_outcome_is_on_disk() -> None:
    rig = rig_with_deliveries()
    (said,) = rig.outcome(0, 3, ACCEPTED, settled=False)
    assert (said.number, said.count, said.asked) == (0, 4, ASKED)
    assert rig.link.settled_sent == []
    rig.consumer.settled(0, 4, True)
    assert rig.link.settled_sent == [(0, 3, ACCEPTED)]
    (said,) = rig.outcome(4, 5, ACCEPTED)
    assert said.asked == 0
    rig.consumer.settled(4, 2, True)
    assert rig.link.settled_sent == [(0, 3, ACCEPTED)]


def test_neighbours_that_wait_are_answered_apart_where_their_outcomes_differ() -> None:
    rig = rig_with_deliveries()
    rejected = Rejected()
    rig.outcome(0, 1, ACCEPTED, settled=False)
    rig.outcome(2, 2, rejected, settled=False)
    rig.consumer.settled(0, 3, True)
    assert rig.link.settled_sent == [(0, 1, ACCEPTED), (2, 2, rejected)]


def test_a_receiver_that_waits_no_longer_is_not_answered_and_nothing_is_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is around a slice is shared by its messages; here their own bytes are looked at.
    monkeypatch.setattr(unsettled_bytes, "UNSETTLED_SLICE_BYTES", 0)
    rig = rig_with_deliveries()
    rig.outcome(2, 4, ACCEPTED, settled=False)
    before = rig.connection.unsettled_bytes
    # It settles by itself, and others with it.
    assert [(said.number, said.count) for said in rig.outcome(1, 6, ACCEPTED)] == [(1, 1), (5, 2)]
    assert rig.connection.unsettled_bytes == before - 3 * 10
    assert rig.connection.frontend.counts.outcomes[OutcomeCode.ACCEPTED] == 6
    rig.consumer.settled(2, 3, True)
    assert rig.link.settled_sent == []
    # Nor what it says twice while it waits.
    assert len(rig.outcome(7, 7, ACCEPTED, settled=False)) == 1
    assert rig.outcome(7, 7, Released(), settled=False) == []
    rig.consumer.settled(7, 1, True)
    assert rig.link.settled_sent == [(7, 7, ACCEPTED)]


def test_what_the_former_shard_did_not_answer_is_asked_of_the_one_that_has_the_queue_now() -> None:
    rig = rig_with_deliveries()
    rig.outcome(0, 1, ACCEPTED, settled=False)
    rig.outcome(3, 3, ACCEPTED, settled=False)
    rig.shard.resuming = True
    rig.consumer.reopen()
    opened, *settled, credit = rig.shard.take()
    assert (opened.kind, credit.kind) == (Kind.CONSUMER_OPEN, Kind.CREDIT)
    again = ASKED | REPEATED
    assert [(said.number, said.count, said.asked) for said in settled] == [(0, 2, again), (3, 1, again)]
    rig.consumer.settled(0, 2, True)
    rig.consumer.settled(3, 1, True)
    assert rig.link.settled_sent == [(0, 1, ACCEPTED), (3, 3, ACCEPTED)]
    assert rig.connection.lost == []


@pytest.mark.parametrize("how", ["restart", "no room", "outcome after the restart"])
@pytest.mark.parametrize("mode", [SETTLE_FIRST, SETTLE_SECOND])
def test_what_can_not_be_confirmed_is_not_and_who_waits_for_it_is_detached(how: str, mode: int) -> None:
    rig = rig_with_deliveries()
    rig.link.rcv_settle_mode = mode
    if how == "outcome after the restart":
        rig.consumer.reopen()
        assert rig.outcome(0, 3, ACCEPTED, settled=False) == []
    else:
        rig.outcome(0, 3, ACCEPTED, settled=False)
        if how == "restart":
            rig.consumer.reopen()
        rig.consumer.settled(0, 4, False)
    for _, call in rig.connection.frontend.calls:
        call()
    assert rig.link.settled_sent == []
    # A receiver of mode first settles by itself, whatever we say.
    expected = [conditions.DETACH_FORCED] if mode == SETTLE_SECOND else []
    assert [condition for condition, _ in rig.connection.lost][:1] == expected


def test_presettled_deliveries_have_no_outcome() -> None:
    rig = rig_with_deliveries(presettled=True)
    assert rig.outcome(0, 3, Released()) == []
    assert rig.connection.frontend.counts.messages_presettled == 10


def test_outcomes_of_what_a_former_shard_delivered_are_passed_over() -> None:
    """The messages are in their queue again: an old number must not settle a new delivery."""
    rig = rig_with_deliveries()
    rig.consumer.reopen()
    (opened, credit) = rig.shard.take()
    assert ConsumerOpen.decode(opened.body).first == 10
    assert credit.number == 100
    assert rig.outcome(3, 5, ACCEPTED) == []
    rig.next, rig.limit = 10, 100
    rig.deliver(5)
    rig.shard.take()
    (said,) = rig.outcome(8, 12, ACCEPTED)
    assert (said.number, said.count) == (10, 3)


@pytest.mark.parametrize("ready", [True, False])
def test_a_consumer_that_the_shard_will_not_have(ready: bool) -> None:
    rig = Rig(ready=ready)
    refusal = Refusal(conditions.RESOURCE_LOCKED, "no")
    rig.consumer.ended(refusal)
    rig.consumer.ended(refusal)
    assert rig.connection.refused == [(rig.link, ready, refusal)]
