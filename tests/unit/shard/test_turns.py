"""What a step of a shard may cost, whatever happens to a queue of very many messages that came one by one."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Symbol, Timestamp
from lightrail.journal.record import Outcome, QueueEvent, Settle
from lightrail.journal.record import Queue as QueueRecord
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy as NamePolicy
from lightrail.shard.engine.settling import SETTLE_SLICE_BYTES, SETTLE_SLICE_MESSAGES
from lightrail.shard.queue.changes.removals import EXPIRED_AT_ONCE
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.counters import DELIVERIES_OF_A_TURN, LETTER_MESSAGE, QUEUE_WORK_OF_A_TURN
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.ownership import OwnershipEvent
from lightrail.shard.queues.tenancy import moved
from lightrail.wire.bodies import Refusal, SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode, frame
from tests.support.shard.scene import Peer, Scene, SmallStore, batch, numbered_messages

COUNT = 30_000
PIECE = 2 * LETTER_MESSAGE * EXPIRED_AT_ONCE
"""More units than any piece of work costs."""


class Metered(Scene):
    """Says after each turn what it cost."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: list[int] = []

    def turn(self) -> None:
        super().turn()
        self.spent.append(QUEUE_WORK_OF_A_TURN - self.engine._queues.work.left)

    def go_on(self) -> list[int]:
        """Turns until nothing is due any more; what each of them cost, with those since the last time."""
        while (due_ms := self.engine.deadline_ms) is not None and due_ms <= self.now_ms:
            self.tick(1)
            self.settle_down()
        self.settle_down()
        spent, self.spent = self.spent, []
        assert max(spent) <= QUEUE_WORK_OF_A_TURN + PIECE
        return spent

    def follow(self, **policy: Any) -> None:
        """The queue gets another policy."""
        queue = self.engine._queues.find("q")
        assert queue is not None
        changed = commands.Change(replace(queue.machine.contents.policy, **policy))
        self.engine._performer.perform(queue, queue.machine.apply(changed, self.now_ms), self.now_ms)
        self.engine._performer.touched[queue] = None
        self.turn()

    def settled(self, outcome: Outcome) -> list[tuple[int, int]]:
        """Ranges of sequences in the journal that ended so."""
        assert isinstance(self.store, SmallStore)
        return [
            each for record in self.store.settles() if record.outcome is outcome for each in record.ranges
        ]


def covered(ranges: list[tuple[int, int]]) -> int:
    """How many sequences ranges that do not overlap cover."""
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(sorted(ranges)))
    return sum(end - first for first, end in ranges)


def filled(scene: Scene, count: int = COUNT, **options: Any) -> Peer:
    """A queue whose messages came one by one, and differ so that neighbours are not joined."""
    peer = scene.peer()
    peer.produce(1, "q")
    parts = [
        batch(1, number, [message], **{"priority": 3 + number % 2, **options})
        for number, message in enumerate(numbered_messages(count), 1)
    ]
    for start in range(0, count, 1_000):
        peer.say(*parts[start : start + 1_000])
    scene.settle_down()
    peer.heard.clear()
    return peer


def test_a_purge_is_answered_when_all_of_it_is_on_disk_and_others_are_served_meanwhile() -> None:
    scene = Metered()
    peer = filled(scene)
    scene.spent.clear()
    number = peer.ask("purge", queue="q")
    assert scene.queue("q")["ready"] == 0
    assert number not in peer.answers
    assert covered(scene.settled(Outcome.PURGED)) < COUNT
    peer.send(1, COUNT + 1, numbered_messages(1))
    peer.consume(2, "q", 10)
    assert peer.messages(2) == numbered_messages(1)
    spent = scene.go_on()
    assert len([each for each in spent if each]) >= COUNT // QUEUE_WORK_OF_A_TURN
    assert peer.answers[number][0] == {"purged": COUNT}
    assert covered(scene.settled(Outcome.PURGED)) == COUNT


def test_a_queue_that_is_being_purged_is_frozen_after_that() -> None:
    scene = Metered()
    peer = filled(scene)
    peer.ask("purge", queue="q")
    refused = scene.engine.freezing.freeze("q", 0, scene.now_ms)
    assert isinstance(refused, Refusal)
    assert refused.condition == conditions.RESOURCE_LIMIT_EXCEEDED
    assert "purge" in refused.description
    scene.go_on()
    assert isinstance(scene.engine.freezing.freeze("q", 0, scene.now_ms), list)


def test_a_queue_that_is_dropped_while_it_is_purged_writes_nothing_after_its_end() -> None:
    scene = Metered()
    peer = filled(scene)
    number = peer.ask("purge", queue="q")
    assert isinstance(scene.store, SmallStore)
    queue = scene.engine._queues.find("q")
    assert queue is not None
    scene.engine._follower._delete(queue, OwnershipEvent.DELETE, moved("gone"))
    scene.turn()
    scene.go_on()
    [end] = [
        index
        for index, record in enumerate(scene.store.records)
        if isinstance(record, QueueRecord) and record.event is QueueEvent.DELETED
    ]
    assert not [each for each in scene.store.records[end:] if isinstance(each, Settle)]
    assert peer.answers[number][0] == {"purged": COUNT}
    assert scene.store.usage().live_bytes == 0


def test_a_queue_that_is_dropped_is_gone_at_once_and_its_messages_are_freed_in_pieces() -> None:
    scene = Metered()
    peer = filled(scene, 2 * COUNT)
    peer.consume(2, "q", COUNT)
    scene.spent.clear()
    queue = scene.engine._queues.find("q")
    assert queue is not None
    scene.engine._follower._delete(queue, OwnershipEvent.DELETE, moved("gone"))
    scene.turn()
    assert scene.engine._queues.find("q") is None
    assert scene.store.usage().live_bytes > 0
    scene.go_on()
    assert scene.store.usage().live_bytes == 0


@pytest.mark.parametrize("dead_letter", [False, True])
def test_messages_that_expire_at_once_leave_in_pieces_and_none_is_delivered(dead_letter: bool) -> None:
    scene = Metered()
    scene.peer().produce(1, "q")
    scene.follow(dead_letter=dead_letter)
    peer = filled(scene, COUNT // 3, expires_at_ms=scene.now_ms + 1_000)
    scene.spent.clear()
    scene.now_ms += 2_000
    peer.consume(2, "q", COUNT)
    peer.send(1, COUNT + 1, numbered_messages(1))
    spent = scene.go_on()
    assert sum(each > 0 for each in spent) > 3
    assert peer.messages(2) == numbered_messages(1)
    if dead_letter:
        assert scene.queue("q/$dlq")["ready"] == COUNT // 3


def test_one_batch_of_very_many_messages_becomes_dead_letters_in_pieces() -> None:
    scene = Metered()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered_messages(20_000), expires_at_ms=scene.now_ms + 1_000)
    scene.settle_down()
    scene.tick(2_000)
    assert len([each for each in scene.go_on() if each]) > 3
    assert scene.queue("q/$dlq")["ready"] == 20_000
    peer.consume(2, "q/$dlq", 20_000)
    assert len(peer.messages(2)) == 20_000


def test_locks_that_run_out_at_once_are_given_back_in_pieces() -> None:
    scene = Metered()
    peer = filled(scene)
    peer.consume(2, "q", COUNT, lock_ms=1_000)
    peer.credit(2, COUNT)
    assert scene.queue("q")["in_flight"] == COUNT
    scene.spent.clear()
    scene.tick(2_000)
    assert 0 < scene.queue("q")["ready"] < COUNT
    scene.go_on()
    assert scene.queue("q") == {"ready": COUNT, "in_flight": 0}
    peer.consume(3, "q", COUNT)
    scene.go_on()
    assert peer.messages(3) == numbered_messages(COUNT)


def test_what_a_lost_frontend_held_comes_back_in_pieces_and_in_its_order() -> None:
    scene = Metered()
    peer = filled(scene)
    other = scene.peer("frontend-1", 8)
    other.consume(2, "q", COUNT)
    peer.send(1, COUNT + 1, numbered_messages(1, COUNT))
    scene.spent.clear()
    scene.engine.lost(other.identity)
    peer.consume(3, "q", COUNT + 1)
    assert 0 < scene.queue("q")["in_flight"] < COUNT
    assert not peer.messages(3)
    refused = scene.engine.freezing.freeze("q", 0, scene.now_ms)
    assert isinstance(refused, Refusal)
    scene.go_on()
    assert peer.messages(3) == numbered_messages(COUNT + 1)
    assert {each.attempts for each in peer.delivered[3][:COUNT]} == {1}
    assert scene.queue("q") == {"ready": 0, "in_flight": COUNT + 1}


def test_a_queue_that_is_over_a_new_bound_gets_within_it_in_pieces() -> None:
    scene = Metered()
    peer = filled(scene)
    scene.spent.clear()
    scene.follow(max_length=10, overflow="discard_existing")
    assert scene.queue("q")["ready"] > 10
    scene.go_on()
    assert scene.queue("q")["ready"] == 10
    peer.consume(2, "q", COUNT)
    assert peer.messages(2) == numbered_messages(10, COUNT - 10)


def test_outcomes_with_large_annotations_are_given_to_fewer_messages_in_a_turn() -> None:
    scene = Metered()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered_messages(500))
    peer.consume(2, "q", 500)
    notes = encode({Symbol("x-opt-a"): bytes(60_000)}).hex()
    body = SettleDetail(condition="a:b", annotations=notes).encode()
    whole = frame(Kind.SETTLE, flags=OutcomeCode.REJECTED, link=2, number=0, count=500) + body
    left = [whole]
    found = [scene.queue("q")["in_flight"]]
    while left:
        left = scene.engine.receive(peer.identity, left, scene.now_ms)
        scene.turn()
        found.append(scene.queue("q")["in_flight"])
    most = SETTLE_SLICE_BYTES // len(whole)
    assert 10 < most < 100
    assert max(before - after for before, after in itertools.pairwise(found)) == most
    assert found[-1] == 0
    assert scene.queue("q/$dlq")["ready"] == 500


def test_rejected_deliveries_are_counted_by_messages_however_few_runs_they_are() -> None:
    scene = Metered()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered_messages(COUNT))
    peer.consume(2, "q", COUNT)
    left = [frame(Kind.SETTLE, flags=OutcomeCode.REJECTED, link=2, number=0, count=COUNT)]
    found = [scene.queue("q")["in_flight"]]
    while left:
        left = scene.engine.receive(peer.identity, left, scene.now_ms)
        scene.turn()
        found.append(scene.queue("q")["in_flight"])
    assert {before - after for before, after in itertools.pairwise(found)} == {SETTLE_SLICE_MESSAGES}
    assert found[-1] == 0
    assert scene.queue("q/$dlq")["ready"] == COUNT


def test_queues_share_the_work_of_a_step() -> None:
    scene = Metered()
    peer = scene.peer()
    [message] = numbered_messages(1)
    for queue in range(20):
        peer.produce(1 + queue, f"q{queue}")
        parts = [
            batch(1 + queue, number, [message], expires_at_ms=scene.now_ms + 1_000, priority=number % 2)
            for number in range(1, 2_001)
        ]
        peer.say(*parts[:1_000])
        peer.say(*parts[1_000:])
    scene.spent.clear()
    scene.tick(2_000)
    assert len([each for each in scene.go_on() if each]) > 10
    assert all(scene.queue(f"q{queue}")["ready"] == 0 for queue in range(20))


def test_a_policy_that_does_not_rearrange_a_queue_leaves_its_line_as_it_is() -> None:
    scene = Metered()
    filled(scene, 100)
    queue = scene.engine._queues.find("q")
    assert queue is not None
    line = queue.machine.contents.ready
    scene.follow(lock_ms=5_000, max_length=1_000)
    assert queue.machine.contents.ready is line
    scene.follow(priorities=10)
    assert queue.machine.contents.ready is not line
    assert scene.queue("q")["ready"] == 100


@pytest.mark.parametrize("browse", [False, True])
def test_credit_for_very_many_messages_is_met_in_pieces_and_others_get_theirs(browse: bool) -> None:
    """One frontend's links have credit for all of a queue; what came for another one leaves meanwhile."""
    links = range(2, 12 if browse else 42)
    scene = Metered()
    peer = filled(scene)
    for link in links:
        peer.consume(link, "q", 0, browse=browse)
    other = scene.peer("frontend-1", 8)
    other.produce(1, "other")
    other.consume(2, "other", 10)
    wanted = COUNT if browse else COUNT // len(links)
    peer.say(*[frame(Kind.CREDIT, link=link, number=wanted) for link in links])
    other.send(1, 1, numbered_messages(1))
    found = [0]
    steps_of_other = 0
    while (due_ms := scene.engine.deadline_ms) is not None and due_ms <= scene.now_ms:
        found.append(sum(len(peer.delivered.get(link, ())) for link in links))
        steps_of_other += not other.delivered
        scene.tick(1)
    found.append(sum(len(peer.delivered[link]) for link in links))
    most = COUNT if browse else limits.DELIVERY_SLICE_MESSAGES
    assert max(now - before for before, now in itertools.pairwise(found)) < DELIVERIES_OF_A_TURN + most
    assert len(found) > 2
    assert found[-1] == wanted * len(links)
    assert steps_of_other <= found[-1] // DELIVERIES_OF_A_TURN
    assert other.messages(2) == numbered_messages(1)
    if browse:
        assert all(peer.messages(link) == numbered_messages(COUNT) for link in links)
    else:
        came = [message for link in links for message in peer.messages(link)]
        assert sorted(came) == sorted(numbered_messages(COUNT))


def test_queues_share_the_deliveries_of_a_step_and_each_gets_its_turn() -> None:
    scene = Metered()
    peer = scene.peer()
    queues = range(30)
    for queue in queues:
        peer.produce(1 + queue, f"q{queue}")
        peer.say(
            *[
                batch(1 + queue, number, [message], priority=number % 2)
                for number, message in enumerate(numbered_messages(2_000), 1)
            ]
        )
        peer.consume(101 + queue, f"q{queue}", 0)
    peer.say(*[frame(Kind.CREDIT, link=101 + queue, number=2_000) for queue in queues])
    first = [queue for queue in queues if 101 + queue in peer.delivered]
    assert len(first) < len(queues)
    # What the first ones could have again does not come before what the others wait for.
    peer.say(*[batch(1 + queue, 2_001, numbered_messages(1)) for queue in first])
    peer.say(*[frame(Kind.CREDIT, link=101 + queue, number=2_001) for queue in first])
    scene.go_on()
    for queue in queues:
        assert len(peer.messages(101 + queue)) == 2_000 + (queue in first)


def test_routed_batches_are_received_in_pieces_where_queues_look_into_them() -> None:
    names = EveryName()
    queues = [f"q{number}" for number in range(20)]
    for queue in queues:
        names.give(queue, NamePolicy.parse({"role": "queue", "groups": True}))
    names.give("plain", NamePolicy.parse({"role": "queue"}))
    scene = Scene(names=names)
    peer = scene.peer()
    peer.produce(1)
    peer.targets(1, 1, *queues)
    peer.targets(1, 2, "plain")
    count = 100
    messages = numbered_messages(count)
    frames = [batch(1, number, messages, set_=1 if number < 4 else 2) for number in range(1, 9)]
    left = scene.engine.receive(peer.identity, frames, scene.now_ms)
    # The first one alone is as much as a shard may look at before it looks at the time.
    assert count * len(queues) >= limits.LOOKED_INTO_AT_ONCE
    assert left == frames[1:]
    left = scene.engine.receive(peer.identity, left, scene.now_ms)
    left = scene.engine.receive(peer.identity, left, scene.now_ms)
    assert left == frames[3:]
    # Nobody looks into the others.
    assert scene.engine.receive(peer.identity, left, scene.now_ms) == []
    scene.turn()
    assert {scene.queue(queue)["ready"] for queue in queues} == {3 * count}
    assert scene.queue("plain")["ready"] == 5 * count


def test_a_purge_of_delayed_messages_leaves_nothing_to_look_at() -> None:
    scene = Metered()
    scene.peer().produce(1, "q")
    scene.follow(delay=True)
    peer = scene.peer()
    peer.produce(1, "q")
    due = {Symbol("x-opt-delivery-time"): Timestamp(scene.now_ms + 1_000)}
    later = b"\x00\x53\x72" + encode(due) + b"\x00\x53\x77" + encode("later")
    peer.send(1, 1, [later] * 100)
    scene.settle_down()
    queue = scene.engine._queues.find("q")
    assert queue is not None
    assert queue.machine.contents.delayed.count == 100
    peer.ask("purge", queue="q")
    assert queue.machine.contents.delayed.count == 0
    assert queue.machine.contents.special is not None
    assert queue.machine.contents.special.delays is not None
    assert not queue.machine.contents.special.delays._due
