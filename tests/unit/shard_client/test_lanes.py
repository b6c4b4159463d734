"""Lane: sets of queues, frames and their answers, and what a refusal does to those behind it."""

from typing import Any

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import booleans, sampled_from

from lightrail.model import limits
from lightrail.shard_client.sending.lanes import Lane, Load
from lightrail.shard_client.sending.window import Attributes
from lightrail.wire.bodies import ProducerOpen, Refusal, Targets
from lightrail.wire.frames import AFRESH, DURABLE, ENQUEUE_COLUMNS, ENQUEUE_ENDS, HEADER, HEADER_SIZE, Kind
from tests.support.amqp.frontend_fakes import FakeShard, Said

PLAIN = Attributes(False, 4, 0, 0)
FULL = Refusal("amqp:resource-limit-exceeded", "full")


class Rig:
    def __init__(self) -> None:
        self.shard = FakeShard()
        self.stored: list[Any] = []
        self.refused: list[tuple[Any, Refusal]] = []
        self.displaced: list[Any] = []
        self.lane = Lane(
            self.shard,  # type: ignore[arg-type]
            5,
            label="me",
            on_stored=lambda loads: self.stored.extend(load.batch for load in loads),
            on_refused=lambda load, refusal: self.refused.append((load.batch, refusal)),
            on_displaced=lambda loads: self.displaced.extend(load.batch for load in loads),
        )

    def send(self, batch: Any, queues: str = "a", attributes: Attributes = PLAIN, count: int = 1) -> None:
        load = Load(batch, frozenset(queues.split()), range(count))
        self.lane.send(load, [str(batch).encode()] * count, attributes)

    def routes(self) -> list[tuple[int, int]]:
        """(number, set) of the frames that were said."""
        return [(said.number, said.epoch) for said in self.shard.take(Kind.ROUTE)]


def content(said: Said) -> bytes:
    return said.part[ENQUEUE_ENDS + 4 * said.count :]


def test_a_lane_opens_when_it_is_first_used_and_declares_a_set_once() -> None:
    rig = Rig()
    assert rig.shard.said == []
    rig.send("x", "b a")
    opened, declared, first = rig.shard.take()
    assert (opened.kind, opened.link) == (Kind.PRODUCER_OPEN, 5)
    assert ProducerOpen.decode(opened.body) == ProducerOpen("", label="me")
    assert (declared.kind, declared.number) == (Kind.TARGETS, 1)
    assert Targets.decode(declared.body).queues == ["a", "b"]
    assert (first.kind, first.epoch, first.number, first.count) == (Kind.ROUTE, 1, 1, 1)
    assert content(first) == b"x"
    rig.send("y", "a b")
    rig.send("z", "c")
    assert [(said.kind, said.number, said.epoch) for said in rig.shard.take()] == [
        (Kind.ROUTE, 2, 1),
        (Kind.TARGETS, 2, 0),
        (Kind.ROUTE, 3, 2),
    ]


def test_a_frame_carries_what_its_messages_have_in_common() -> None:
    rig = Rig()
    rig.send("x", attributes=Attributes(True, 7, 99, 3), count=2)
    rig.send("y")
    first, second = rig.shard.take(Kind.ROUTE)
    assert first.flags == DURABLE | AFRESH
    assert HEADER.unpack_from(first.part)[2] == 7
    assert ENQUEUE_COLUMNS.unpack_from(first.part, HEADER_SIZE) == (99, 3, 2)
    assert second.flags == 0


def test_after_a_greeting_everything_is_said_again() -> None:
    rig = Rig()
    for batch, queues in (("x", "a"), ("y", "b"), ("z", "a")):
        rig.send(batch, queues)
    rig.lane.answered(1, 1)
    rig.shard.take()
    rig.lane.reopen()
    assert [(said.kind, said.number, said.epoch) for said in rig.shard.take()] == [
        (Kind.PRODUCER_OPEN, 4, 0),
        (Kind.TARGETS, 2, 0),
        (Kind.ROUTE, 2, 2),
        (Kind.TARGETS, 1, 0),
        (Kind.ROUTE, 3, 1),
    ]
    rig.send("w", "c")
    assert [(said.kind, said.number) for said in rig.shard.take()] == [(Kind.TARGETS, 3), (Kind.ROUTE, 4)]


def test_an_opening_names_the_loads_that_a_lost_shard_may_have_delivered() -> None:
    rig = Rig()
    rig.send("x")
    rig.send("y")
    rig.lane.disconnected()
    rig.send("while it is away")
    rig.shard.take()
    rig.lane.reopen()
    opened, *_ = rig.shard.take()
    assert ProducerOpen.decode(opened.body).sent_below == 3
    assert opened.number == 4


def test_a_link_that_is_gone_is_said_behind_its_last_frame_and_after_a_greeting_too() -> None:
    rig = Rig()
    rig.lane.abandon()
    assert rig.shard.take() == []
    rig = Rig()
    rig.send("x")
    rig.lane.abandon()
    assert rig.shard.take()[-1].kind == Kind.PRODUCER_ABANDON
    rig.lane.reopen()
    kinds = [said.kind for said in rig.shard.take()]
    assert kinds == [Kind.PRODUCER_OPEN, Kind.TARGETS, Kind.ROUTE, Kind.PRODUCER_ABANDON]


def test_what_was_refused_only_for_what_was_before_it_is_sent_again_in_order() -> None:
    rig = Rig()
    for batch in "vwxy":
        rig.send(batch, "a" if batch == "w" else "b")
    rig.shard.take()
    rig.lane.answered(1, 1)
    rig.lane.refused(2, FULL)
    assert rig.refused == [("w", FULL)]
    rig.send("z", "b")
    assert rig.routes() == []
    for number in (3, 4):
        rig.lane.refused(
            number, Refusal("amqp:resource-limit-exceeded", "a batch before this one was refused")
        )
    again = rig.shard.take(Kind.ROUTE)
    assert [(said.number, said.flags & AFRESH, content(said)) for said in again] == [
        (5, AFRESH, b"x"),
        (6, 0, b"y"),
        (7, 0, b"z"),
    ]
    rig.lane.answered(5, 3)
    assert rig.stored == ["v", "x", "y", "z"]
    assert [batch for batch, _ in rig.refused] == ["w"]
    assert rig.lane.is_idle


def test_a_refusal_with_nothing_behind_it_holds_nothing_up() -> None:
    rig = Rig()
    rig.send("x")
    rig.lane.refused(1, FULL)
    rig.shard.take()
    rig.send("y")
    (said,) = rig.shard.take(Kind.ROUTE)
    assert (said.number, said.flags) == (2, AFRESH)


def test_a_lane_that_the_shard_ends_opens_again_for_what_comes_next() -> None:
    rig = Rig()
    rig.send("x")
    rig.send("y")
    rig.lane.ended(FULL)
    assert [batch for batch, _ in rig.refused] == ["x", "y"]
    rig.shard.take()
    rig.send("z")
    assert [(said.kind, said.number) for said in rig.shard.take()] == [
        (Kind.PRODUCER_OPEN, 4),
        (Kind.TARGETS, 1),
        (Kind.ROUTE, 3),
    ]


def test_a_set_that_was_not_found_is_declared_anew() -> None:
    rig = Rig()
    for batch in "xyz":
        rig.send(batch, "a")
    rig.shard.take()
    rig.lane.refused(1, Refusal("amqp:not-found", "a was dropped"))
    for number in (2, 3):
        rig.lane.refused(number, FULL)
    assert [(said.kind, said.number, said.epoch) for said in rig.shard.take()] == [
        (Kind.TARGETS, 2, 0),
        (Kind.ROUTE, 4, 2),
        (Kind.ROUTE, 5, 2),
    ]


def test_numbers_of_sets_are_given_anew_and_frames_keep_their_meaning() -> None:
    rig = Rig()
    for index in range(limits.ROUTE_SETS_MAX + 1):
        rig.send(index, f"q{index}")
    meaning = dict[int, list[str]]()
    for said in rig.shard.take():
        if said.kind == Kind.TARGETS:
            meaning[said.number] = Targets.decode(said.body).queues
        elif said.kind == Kind.ROUTE:
            assert meaning[said.epoch] == [f"q{said.number - 1}"]
    rig.lane.reopen()
    again = rig.shard.take()
    assert sum(said.kind == Kind.ROUTE for said in again) == limits.ROUTE_SETS_MAX + 1
    for said in again:
        if said.kind == Kind.TARGETS:
            meaning[said.number] = Targets.decode(said.body).queues
        elif said.kind == Kind.ROUTE:
            assert meaning[said.epoch] == [f"q{said.number - 1}"]


class Shard(RuleBasedStateMachine):
    """A shard that keeps to the rules of the wire, refuses what is for a full queue, and gets lost."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.sent = 0
        self.last = 0
        self.sets: dict[int, list[str]] = {}
        self.refusing = False
        self.queues: dict[str, list[int]] = {"a": [], "b": []}
        self.inbox: list[Said] = []
        self.answers: list[tuple[int, Refusal | None]] = []

    def take(self) -> None:
        self.inbox += self.rig.shard.take()

    @rule(queues=sampled_from(["a", "b", "a b", "full", "a full"]))
    def send(self, queues: str) -> None:
        self.sent += 1
        self.rig.send(self.sent, queues)
        self.take()

    @precondition(lambda self: self.inbox)
    @rule()
    def apply(self) -> None:
        said = self.inbox.pop(0)
        if said.kind == Kind.TARGETS:
            self.sets[said.number] = Targets.decode(said.body).queues
        elif said.kind == Kind.ROUTE:
            if said.number <= self.last:
                self.answers.append((said.number, None))
            elif self.refusing and not said.flags & AFRESH:
                self.answers.append((said.number, FULL))
            elif "full" in self.sets[said.epoch]:
                self.refusing = True
                self.answers.append((said.number, FULL))
            else:
                self.refusing = False
                self.last = said.number
                for queue in self.sets[said.epoch]:
                    self.queues[queue].append(int(content(said)))
                self.answers.append((said.number, None))

    @precondition(lambda self: self.answers)
    @rule()
    def answer(self) -> None:
        number, refusal = self.answers.pop(0)
        if refusal is None:
            self.rig.lane.answered(number, 1)
        else:
            self.rig.lane.refused(number, refusal)
        self.take()

    @rule(restarted=booleans())
    def lose(self, restarted: bool) -> None:
        self.inbox.clear()
        self.answers.clear()
        self.sets.clear()
        self.refusing = False
        if self.rig.shard.opened:
            self.rig.lane.reopen()
        self.take()

    @invariant()
    def every_queue_has_its_messages_in_order(self) -> None:
        for found in self.queues.values():
            assert found == sorted(set(found))

    def teardown(self) -> None:
        while self.inbox or self.answers:
            if self.inbox:
                self.apply()
            else:
                self.answer()
        refused = [batch for batch, _ in self.rig.refused]
        assert sorted(self.rig.stored + refused) == list(range(1, self.sent + 1))
        assert self.rig.lane.is_idle
        for batch in refused:
            assert batch not in self.queues["a"] + self.queues["b"]


TestShard = Shard.TestCase
TestShard.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
