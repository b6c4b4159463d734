"""ResumableLink (transport 2.6.13): tags ahead of batches, and credit within what the shard keeps."""

from types import SimpleNamespace
from typing import Any

import pytest

from lightrail.amqp.events import ACCEPTED, Resumed, SenderSettled, Transfers
from lightrail.frontend.links.batched import BATCHED
from lightrail.frontend.links.bound import Terms
from lightrail.frontend.links.resumable import ResumableLink
from lightrail.model import conditions, limits
from lightrail.model.links import Durability
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.columns import decode_tags
from lightrail.wire.frames import CLOSED, Kind
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink, FakeShard

ATTACH = 77
"""Number of the attach, by the shard."""


class Link(FakeLink):
    """The engine's link, with the attach of the client."""

    def __init__(self, mode: int, unsettled: dict[bytes, Any] | None, incomplete: bool) -> None:
        super().__init__()
        self.rcv_settle_mode = mode
        self.incomplete_unsettled = False
        self.attach = SimpleNamespace(unsettled=unsettled, incomplete_unsettled=incomplete, properties=None)
        self.keeps_tags = False

    def keep_tags(self) -> None:
        self.keeps_tags = True


class Rig:
    def __init__(
        self, *, mode: int = 1, unsettled: dict[bytes, Any] | None = None, incomplete: bool = False
    ) -> None:
        self.connection = FakeConnection()
        self.link = Link(mode, unsettled, incomplete)
        self.shard = FakeShard()
        self.terms = Terms("owner")
        self.producer = ResumableLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            self.shard,  # type: ignore[arg-type]
            number=5,
            queue="q",
            label="",
            client_link="1" * 32,
            seconds=60,
            durability=2,
            terms=self.terms,
        )
        self.next_id = 0
        self.producer.reopen()

    def ready(self, *tags: bytes, is_kept: bool = True, durability: int = 0) -> None:
        number = self.producer.number
        self.producer.unsettled([*tags], is_kept, durability, ATTACH)
        if self.producer.number == number:
            self.producer.ready()

    def transfers(self, *tags: bytes, settled: bool = False) -> None:
        first, self.next_id = self.next_id, self.next_id + len(tags)
        self.link.credit -= len(tags)
        event = Transfers(self.link, first, [b"x"] * len(tags), settled, tags=[*tags])  # type: ignore[arg-type]
        self.producer.transfers(event, 0)

    def frames(self) -> list[tuple[Kind, int, list[bytes]]]:
        """(kind, number, tags) of what was said to the shard."""
        return [
            (said.kind, said.number, decode_tags(said.body) if said.kind in (Kind.TAGS, Kind.FORGET) else [])
            for said in self.shard.take()
        ]


def test_the_opening_asks_for_a_terminus_and_the_answer_has_what_the_shard_kept() -> None:
    rig = Rig(unsettled={b"a": None})
    (said,) = rig.shard.take()
    opening = ProducerOpen.decode(said.body)
    assert (opening.client_link, opening.steals, opening.suspended_ms) == ("1" * 32, True, 60_000)
    assert (opening.durability, opening.user) == (2, "anonymous")
    rig.ready(b"a")
    assert rig.connection.accepted == [rig.link]
    assert (rig.terms.unsettled, rig.terms.suspended_s) == ({b"a": ACCEPTED}, 60)
    assert rig.terms.rcv_settle_mode == 1


def test_where_the_shard_keeps_nothing_the_link_is_a_plain_one() -> None:
    rig = Rig()
    rig.ready(is_kept=False)
    assert (rig.terms.unsettled, rig.terms.suspended_s, rig.terms.rcv_settle_mode) == (None, 0, 0)


@pytest.mark.parametrize(
    ("mode", "mine", "known"),
    [(1, {b"a": None}, [b"a"]), (1, {}, []), (1, None, []), (0, {b"a": None}, [])],
    ids=["of the map", "of an empty map", "without a map", "in mode first"],
)
def test_tags_that_the_client_may_use_again_are_removed_before_its_attach_is_answered(
    mode: int, mine: dict[bytes, Any] | None, known: list[bytes]
) -> None:
    rig = Rig(mode=mode, unsettled=mine)
    rig.shard.take()
    rig.ready(b"a", b"b")
    forget, opening = rig.shard.take()
    assert (forget.kind, forget.link) == (Kind.FORGET, 5)
    assert decode_tags(forget.body) == [tag for tag in (b"a", b"b") if tag not in known]
    # The answer to another opening proves that the shard has removed them, and that this is on disk.
    assert (opening.kind, opening.link, rig.shard.closed) == (
        Kind.PRODUCER_OPEN,
        rig.producer.number,
        [("producer", 5)],
    )
    assert opening.link != 5
    assert rig.connection.accepted == []
    rig.ready(*known)
    assert rig.connection.accepted == [rig.link]
    assert rig.terms.unsettled == (None if mine is None else dict.fromkeys(known, ACCEPTED))


def test_an_incomplete_map_settles_nothing_by_what_it_lacks() -> None:
    rig = Rig(unsettled={b"a": None}, incomplete=True)
    rig.ready(b"a", b"b")
    assert rig.terms.unsettled == {b"a": ACCEPTED, b"b": ACCEPTED}


def test_in_mode_first_no_tags_are_kept_and_no_unsettled_state_is_durable() -> None:
    rig = Rig(mode=0)
    (said,) = rig.shard.take()
    assert ProducerOpen.decode(said.body).durability == Durability.CONFIGURATION
    rig.ready()
    rig.transfers(b"a")
    assert rig.frames() == [(Kind.ENQUEUE, 1, [])]


def test_where_the_shard_keeps_nothing_the_answer_has_no_map() -> None:
    rig = Rig(unsettled={b"a": None})
    rig.ready(is_kept=False)
    assert rig.terms.unsettled is None


def test_a_settled_tag_is_removed_also_if_the_shard_was_lost_meanwhile() -> None:
    rig = Rig()
    rig.ready()
    rig.transfers(b"a")
    rig.producer.answered(1, 1)
    rig.shard.take()
    rig.producer.sender_settled(SenderSettled(rig.link, 0, 0))  # type: ignore[arg-type]
    rig.transfers(b"a")
    sent = [(Kind.FORGET, 2, [b"a"]), (Kind.TAGS, 2, [b"a"]), (Kind.ENQUEUE, 2, [])]
    assert rig.frames() == sent
    rig.producer.reopen()
    assert rig.frames()[1:] == sent
    rig.producer.answered(2, 1)
    rig.producer.reopen()
    assert rig.frames()[1:] == []


def test_settled_tags_are_repeated_between_the_batches_that_they_were_settled_between() -> None:
    """A client may settle a delivery before its outcome."""
    rig = Rig()
    rig.ready()
    rig.shard.take()
    rig.transfers(b"a")
    rig.producer.sender_settled(SenderSettled(rig.link, 0, 0))  # type: ignore[arg-type]
    rig.transfers(b"b")
    first = [(Kind.TAGS, 1, [b"a"]), (Kind.ENQUEUE, 1, [])]
    behind = [(Kind.FORGET, 2, [b"a"])]
    second = [(Kind.TAGS, 2, [b"b"]), (Kind.ENQUEUE, 2, [])]
    assert rig.frames() == [*first, *behind, *second]
    rig.producer.reopen()
    assert rig.frames()[1:] == [*first, *behind, *second]
    # Of a batch without an answer the tags are sent again.
    rig.producer.answered(2, 1)
    rig.producer.reopen()
    assert rig.frames()[1:] == [*first, *behind]
    rig.producer.answered(1, 1)
    rig.transfers(b"c")
    rig.producer.answered(3, 1)
    rig.frames()
    rig.producer.reopen()
    assert rig.frames()[1:] == []


def test_a_link_that_opens_again_has_the_number_of_its_attach() -> None:
    rig = Rig()

    def opened() -> ProducerOpen:
        rig.shard.take()
        rig.producer.reopen()
        (said,) = rig.shard.take()
        return ProducerOpen.decode(said.body)

    assert (opened().steals, opened().attach) == (True, 0)
    rig.ready()
    assert (opened().steals, opened().attach) == (False, ATTACH)


def test_tags_go_ahead_of_their_batch_also_when_it_is_sent_again() -> None:
    rig = Rig()
    rig.ready()
    rig.shard.take()
    rig.transfers(b"a", b"b")
    rig.transfers(b"c")
    rig.transfers(b"d", settled=True)
    sent = [(Kind.TAGS, 1, [b"a", b"b"]), (Kind.ENQUEUE, 1, []), (Kind.TAGS, 2, [b"c"])]
    sent += [(Kind.ENQUEUE, 2, []), (Kind.ENQUEUE, 3, [])]
    assert rig.frames() == sent
    rig.producer.answered(1, 1)
    rig.producer.reopen()
    (said, *_), again = rig.shard.said[:1], rig.frames()
    assert not ProducerOpen.decode(said.body).steals
    assert again[1:] == sent[2:]
    rig.producer.refused(2, Refusal("amqp:resource-limit-exceeded"))
    rig.producer.reopen()
    assert rig.frames()[1:] == sent[4:]


def test_what_the_client_settles_is_forgotten() -> None:
    rig = Rig()
    rig.ready()
    rig.transfers(b"a", b"b", b"c")
    rig.shard.take()
    rig.producer.sender_settled(SenderSettled(rig.link, 0, 1))  # type: ignore[arg-type]
    rig.producer.sender_settled(SenderSettled(rig.link, 0, 1))  # type: ignore[arg-type]
    assert rig.frames() == [(Kind.FORGET, 2, [b"a", b"b"])]


@pytest.mark.parametrize("settled", [False, True])
def test_a_resumed_delivery_is_answered_and_not_sent(settled: bool) -> None:
    rig = Rig(unsettled={b"a": None})
    rig.ready(b"a")
    rig.shard.take()
    rig.producer.resumed(Resumed(rig.link, 7, b"a", ACCEPTED, settled))  # type: ignore[arg-type]
    assert rig.link.settled == ([] if settled else [(7, 7, ACCEPTED)])
    assert rig.frames() == ([(Kind.FORGET, 1, [b"a"])] if settled else [])
    rig.producer.sender_settled(SenderSettled(rig.link, 7, 7))  # type: ignore[arg-type]
    assert rig.frames() == ([] if settled else [(Kind.FORGET, 1, [b"a"])])


def test_credit_ends_before_the_shard_would_have_to_forget_what_is_unsettled() -> None:
    """Mode second: up to UNSETTLED_TAGS_MAX deliveries, the credit that is out included."""
    rig = Rig()
    rig.ready()
    sent = 0
    while rig.link.credit:
        count = min(rig.link.credit, 1_000)
        rig.transfers(*(b"%d" % number for number in range(sent, sent + count)))
        sent += count
        rig.producer.answered(rig.producer._window.first, 1)
    assert limits.UNSETTLED_TAGS_MAX - limits.LINK_CREDIT_MAX < sent <= limits.UNSETTLED_TAGS_MAX
    rig.producer.sender_settled(SenderSettled(rig.link, 0, sent - 1))  # type: ignore[arg-type]
    assert rig.link.granted[-1] == limits.LINK_CREDIT_MAX


def test_a_link_that_is_closed_for_good_is_forgotten_and_another_is_not() -> None:
    rig = Rig()
    rig.ready()
    rig.shard.take()
    rig.producer.closed_for_good()
    (said,) = rig.shard.take()
    assert (said.kind, said.flags) == (Kind.FORGET, CLOSED)


def test_while_the_shard_is_away_no_outcome_is_guessed() -> None:
    rig = Rig()
    rig.ready()
    rig.transfers(b"a")
    rig.producer.disconnected()
    rig.producer.timed_out()
    assert rig.link.settled == []
    assert rig.link.granted[-1] == 0
    rig.producer.reopen()
    rig.producer.reconnected()
    rig.producer.answered(1, 1)
    assert rig.link.settled == [(0, 0, ACCEPTED)]
    assert rig.link.granted[-1] == limits.LINK_CREDIT_MAX - 1


def test_a_batch_is_refused_since_one_tag_is_one_message() -> None:
    rig = Rig()
    rig.ready()
    rig.frames()
    event = Transfers(rig.link, 0, [b"x", b"y"], False, BATCHED, tags=[b"a", b"b"])  # type: ignore[arg-type]
    rig.producer.transfers(event, 0)
    assert rig.frames() == []
    assert [(first, last, str(state.error.condition)) for first, last, state in rig.link.settled] == [
        (0, 0, conditions.NOT_IMPLEMENTED),
        (1, 1, conditions.NOT_IMPLEMENTED),
    ]
