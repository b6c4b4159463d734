"""ResumableConsumer (2.6.13): the client's map beside the shard's, and what is sent again."""

from array import array
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from lightrail.amqp.events import ACCEPTED, Credit
from lightrail.amqp.performatives import Accepted, Modified, Received, Rejected
from lightrail.amqp.sections import Header, decode_header, encode_header
from lightrail.frontend.links.bound import Terms
from lightrail.frontend.links.resumable_consumer import BEGINNING, ResumableConsumer
from lightrail.model import conditions, limits
from lightrail.model.links import Ending
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.columns import decode_ranges
from lightrail.wire.frames import ASKED, DRAIN, Kind, OutcomeCode, deliver
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink, FakeShard, Said

TERMINUS = 7 << 32 | 2
NEXT = 10


class Again(NamedTuple):
    """A delivery that was sent again."""

    number: int
    payload: bytes
    resume: bool
    settled: bool
    aborted: bool
    state: Any


class Link(FakeLink):
    """The engine's link, with the attach of the client, as far as resuming needs it."""

    def __init__(self, unsettled: dict[bytes, Any] | None, *, incomplete: bool) -> None:
        super().__init__()
        self.attach = SimpleNamespace(unsettled=unsettled, incomplete_unsettled=incomplete)
        self.prefix = b""
        self.first = 0
        self.again: list[Again] = []
        self.waiting_again = 0

    @property
    def limit(self) -> int:
        return self.first + self.credit

    def number_tags(self, prefix: bytes, first: int) -> None:
        self.prefix, self.first = prefix, first

    def tag_of(self, number: int) -> bytes:
        return tag(number)

    def send_again(
        self,
        number: int,
        payload: Any = b"",
        message_format: int = 0,
        *,
        resume: bool,
        settled: bool = False,
        aborted: bool = False,
        state: Any = None,
    ) -> None:
        self.again.append(Again(number, bytes(payload), resume, settled, aborted, state))
        self.formats.add(message_format)


def tag(number: int) -> bytes:
    return TERMINUS.to_bytes(8, "big") + number.to_bytes(4, "big")


class Rig:
    def __init__(self, unsettled: dict[bytes, Any] | None = None, *, incomplete: bool = False) -> None:
        self.connection = FakeConnection()
        self.link = Link(unsettled, incomplete=incomplete)
        self.shard = FakeShard()
        self.terms = Terms("owner")
        self.consumer = ResumableConsumer(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            self.shard,  # type: ignore[arg-type]
            number=6,
            options=ConsumerOpen("q", client_link="1" * 32),
            seconds=60,
            durability=2,
            terms=self.terms,
        )
        self.consumer.reopen()

    def ready(self, *ranges: tuple[int, int], durability: int = 0) -> None:
        self.consumer.recovered(TERMINUS, NEXT, [*ranges], durability)
        self.consumer.ready()

    def credit(self, credit: int, *, drain: bool = False) -> None:
        self.link.credit = credit
        self.consumer.credit(Credit(self.link, self.link.limit, drain))  # type: ignore[arg-type]

    def deliver(self, number: int, *messages: bytes, **fields: int) -> None:
        ends = array("I")
        for message in messages:
            ends.append(len(message) + (ends[-1] if ends else 0))
        part = deliver(
            6,
            3,
            number,
            len(messages),
            0,
            0,
            fields.get("attempts", 0),
            fields.get("expires", 0),
            0,
            fields.get("message_format", 0),
            0,
            ends,
            b"".join(messages),
        )
        self.consumer.deliver(part, number, len(messages))

    def take(self, *kinds: Kind) -> list[Said]:
        return self.shard.take(*kinds)

    def asked(self) -> list[list[tuple[int, int]]]:
        return [decode_ranges(said.body) for said in self.take(Kind.RESEND)]

    def credits(self) -> list[int]:
        return [said.number for said in self.take(Kind.CREDIT)]


def test_the_opening_says_how_long_and_whether_the_client_has_a_map() -> None:
    maps: list[dict[bytes, Any] | None] = [None, {}]
    for unsettled in maps:
        (said,) = Rig(unsettled).take()
        opening = ConsumerOpen.decode(said.body)
        assert (opening.steals, opening.suspended_ms) == (True, 60_000)
        assert opening.recovers is (unsettled is not None)


def test_the_answer_has_the_deliveries_of_the_shard_and_new_ones_go_on_behind_them() -> None:
    rig = Rig({})
    rig.credit(5)
    assert rig.credits() == []
    rig.ready()
    assert rig.connection.accepted == [rig.link]
    assert (rig.terms.unsettled, rig.terms.suspended_s) == ({}, 60)
    assert (rig.link.prefix, rig.link.first) == (TERMINUS.to_bytes(8, "big"), NEXT)
    assert rig.credits() == [NEXT + 5]
    rig.deliver(NEXT, b"a")
    assert rig.link.sent == [b"a"]
    assert rig.consumer.delivered() == 1


def test_without_a_map_the_answer_has_none() -> None:
    rig = Rig()
    rig.ready()
    assert rig.terms.unsettled is None


def test_each_delivery_comes_again_as_its_states_ask() -> None:
    theirs = {tag(1): None, tag(3): Received(section_number=0, section_offset=2), b"unknown": None}
    rig = Rig(theirs)
    rig.credit(9)
    rig.take()
    rig.ready((1, 3), (5, 1))
    assert rig.terms.unsettled == {tag(number): None for number in (1, 2, 3, 5)}
    assert rig.asked() == [[(1, 3), (5, 1)]]
    rig.deliver(1, b"one", b"two", b"three", message_format=7)
    rig.deliver(5, b"five")
    rig.credit(9)
    assert rig.credits() == []
    rig.consumer.resent(6)
    assert rig.link.again == [
        Again(1, b"one", True, False, False, BEGINNING),
        Again(2, b"two", False, False, False, None),
        Again(3, b"three", True, False, False, BEGINNING),
        Again(5, b"five", False, False, False, None),
    ]
    assert rig.link.formats == {0, 7}
    assert rig.consumer.settlements.count == 4
    assert rig.credits() == [NEXT + 9]


def test_the_rest_is_asked_for_when_the_engine_has_sent_what_came() -> None:
    rig = Rig({})
    rig.ready((1, 4))
    assert rig.asked() == [[(1, 4)]]
    rig.deliver(1, b"one", b"two")
    rig.link.waiting_again = 2
    rig.consumer.resent(3)
    assert rig.asked() == []
    assert rig.consumer in rig.connection.starved
    rig.link.waiting_again = 0
    rig.consumer.writable()
    assert rig.asked() == [[(3, 2)]]
    rig.consumer.writable()
    assert rig.asked() == []


def test_what_the_shard_does_not_have_any_more_is_aborted_where_the_client_has_it() -> None:
    """Its lock has run out since the attach."""
    rig = Rig({tag(1): None, tag(4): None})
    rig.ready((1, 4))
    rig.deliver(3, b"three")
    rig.consumer.resent(5)
    assert [(each.number, each.aborted, each.resume) for each in rig.link.again] == [
        (1, True, True),
        (3, False, False),
        (4, True, True),
    ]


def test_headers_of_failed_messages_are_new() -> None:
    rig = Rig({tag(1): None})
    rig.ready((1, 1))
    rig.deliver(1, encode_header(Header(durable=True)) + b"\x00\x53\x75\xa0\x01x", attempts=2)
    (again,) = rig.link.again
    assert decode_header(again.payload).delivery_count == 2


def test_outcomes_of_the_client_are_stored_before_it_learns_that() -> None:
    states = {tag(1): Accepted(), tag(2): Accepted(), tag(3): Rejected(), tag(5): Modified()}
    rig = Rig(states)
    rig.credit(3)
    rig.take()
    rig.ready((1, 3), (5, 1))
    said = rig.take(Kind.SETTLE)
    assert [(each.number, each.count, each.flags, each.asked) for each in said] == [
        (1, 2, OutcomeCode.ACCEPTED, ASKED),
        (3, 1, OutcomeCode.REJECTED, ASKED),
        (5, 1, OutcomeCode.MODIFIED, ASKED),
    ]
    assert rig.link.again == []
    rig.consumer.settled(1, 2, True)
    rig.consumer.settled(3, 1, True)
    assert [(each.number, each.settled, each.state) for each in rig.link.again] == [
        (1, True, ACCEPTED),
        (2, True, ACCEPTED),
        (3, True, states[tag(3)]),
    ]
    assert rig.credits() == []
    rig.consumer.settled(5, 1, True)
    assert rig.credits() == [NEXT + 3]
    assert rig.consumer.settlements.count == 0


def test_a_link_whose_outcomes_may_be_lost_ends() -> None:
    for greeted in (False, True):
        rig = Rig({tag(1): Accepted()})
        rig.ready((1, 1))
        if greeted:
            rig.consumer.reopen()
        else:
            rig.consumer.settled(1, 1, False)
        for _, call in rig.connection.frontend.calls:
            call()
        assert [condition for condition, _ in rig.connection.lost] == [conditions.DETACH_FORCED]


def test_an_incomplete_map_gets_what_is_in_it_alone() -> None:
    rig = Rig({tag(2): None}, incomplete=True)
    rig.credit(9)
    rig.ready((1, 3))
    assert rig.asked() == [[(2, 1)]]
    rig.deliver(2, b"two")
    rig.consumer.resent(3)
    assert rig.credits() == []
    rig.credit(9, drain=True)
    assert rig.link.drains == 1
    assert rig.credits() == []


def test_behind_a_move_the_rest_is_asked_for_at_the_new_owner() -> None:
    rig = Rig({tag(1): None, tag(2): None})
    rig.ready((1, 2))
    rig.deliver(1, b"one")
    rig.take()
    rig.shard.resuming = True
    rig.consumer.reopen()
    opened, resend = rig.take()
    opening = ConsumerOpen.decode(opened.body)
    assert (opening.resume, opening.first, opening.terminus, opening.steals) == (True, NEXT, TERMINUS, False)
    assert decode_ranges(resend.body) == [(2, 1)]


def test_where_the_shard_was_started_again_the_rest_is_aborted() -> None:
    rig = Rig({tag(1): None})
    rig.credit(3)
    rig.take()
    rig.ready((1, 2))
    rig.consumer.reopen()
    assert [(each.number, each.aborted) for each in rig.link.again] == [(1, True)]
    assert rig.credits()[-1] == NEXT + 3


def test_a_durable_link_is_resumed_by_its_client_where_the_shard_was_started_again() -> None:
    """Outcomes were on their way, and the deliveries are locked at the shard."""
    rig = Rig({})
    (opened, *_) = rig.take()
    assert ConsumerOpen.decode(opened.body).durability == 2
    rig.ready(durability=2)
    assert rig.terms.durability == 2
    rig.take()
    rig.consumer.reopen()
    assert rig.take() == []
    ((wait_ms, call),) = rig.connection.frontend.calls
    assert wait_ms == 0
    call()
    assert [condition for condition, _ in rig.connection.lost] == [conditions.DETACH_FORCED]


def test_a_durable_link_whose_queue_moved_goes_on() -> None:
    rig = Rig({})
    rig.ready(durability=2)
    rig.take()
    rig.shard.resuming = True
    rig.consumer.reopen()
    assert [said.kind for said in rig.take(Kind.CONSUMER_OPEN)] == [Kind.CONSUMER_OPEN]
    assert rig.connection.lost == []


def test_a_link_that_is_closed_in_order_for_good_gives_everything_back_uncounted() -> None:
    rig = Rig({})
    rig.ready()
    rig.credit(3)
    rig.deliver(NEXT, b"a", b"b")
    rig.take()
    rig.consumer.ends(Ending.BY_CLIENT)
    rig.consumer.closed_for_good()
    (said,) = rig.take(Kind.SETTLE)
    assert (said.number, said.count, said.flags) == (0, NEXT + 2, OutcomeCode.RELEASED)


def test_credit_ends_before_more_is_unsettled_than_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUSPENDED_DELIVERIES_MAX", 4)
    rig = Rig({})
    rig.ready()
    rig.take()
    rig.credit(100)
    assert rig.credits() == [NEXT + 4]
    rig.deliver(NEXT, b"a", b"b", b"c", b"d")
    rig.take()
    rig.credit(96)
    assert all(number <= NEXT + 4 for number in rig.credits())
    assert rig.consumer in rig.connection.starved
    rig.consumer.settlements.settle(NEXT, NEXT + 1, ACCEPTED)
    rig.consumer.writable()
    assert rig.credits() == [NEXT + 6]


def test_a_drain_that_came_meanwhile_is_sent_when_all_came_again() -> None:
    rig = Rig({tag(1): None})
    rig.ready((1, 1))
    rig.credit(5, drain=True)
    rig.deliver(1, b"one")
    rig.link.credit = 4
    rig.take()
    rig.consumer.resent(2)
    (said,) = rig.take(Kind.CREDIT)
    assert (said.number, bool(said.flags & DRAIN)) == (NEXT + 4, True)


def test_nothing_comes_to_a_link_that_has_ended() -> None:
    rig = Rig({tag(1): None})
    rig.ready((1, 1))
    rig.take()
    rig.consumer.close()
    rig.deliver(1, b"one")
    rig.consumer.resent(2)
    rig.consumer.settled(1, 1, True)
    rig.consumer.recovered(TERMINUS, NEXT, [(1, 1)], 0)
    rig.consumer.ready()
    rig.consumer.reopen()
    assert rig.link.again == []
    assert rig.take() == []
