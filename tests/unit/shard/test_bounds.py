"""Bounds of a queue: what fits, what becomes of the rest, who is told what and when."""

import pytest

from lightrail.amqp.sections import decode_annotations
from lightrail.amqp.values import Symbol
from lightrail.journal.record import CONTINUED, Outcome, Settle, Taken
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy as NamePolicy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.queue.values.commands import Change
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queues import memory as memory_module
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.frames import Kind, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore, batch

BODY = b"\x00\x53\x75\xa0\x01"
"""A data section of one byte, without that byte."""


def letters(text: str) -> list[bytes]:
    return [BODY + letter.encode() for letter in text]


def text(messages: list[bytes]) -> str:
    return b"".join(message[-1:] for message in messages).decode()


def bounded(policy: Policy, name: str = "q") -> tuple[Scene, Peer, Queue]:
    """A queue with this policy, and a producer for it on link 1."""
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, name)
    queue = scene.engine._queues.find(name)
    assert queue is not None
    queue.machine.apply(Change(policy), 0)
    peer.take()
    return scene, peer, queue


def send(scene: Scene, peer: Peer, number: int, content: str, **options: int | bool) -> None:
    peer.send(1, number, letters(content), **options)
    scene.settle_down()


def records(scene: Scene) -> list[object]:
    assert isinstance(scene.store, SmallStore)
    return list(scene.store.records)


def everything(peer: Peer, link: int = 5, queue: str = "q") -> str:
    peer.consume(link, queue, 100)
    return text(peer.messages(link))


@pytest.mark.parametrize("durable", [True, False])
def test_reject_takes_the_first_that_fit_and_says_so(durable: bool) -> None:
    scene, peer, queue = bounded(Policy(max_length=5))
    send(scene, peer, 1, "abc", durable=durable)
    send(scene, peer, 2, "defg", durable=durable, afresh=True)
    assert [(answer.kind, answer.number) for answer in peer.take()] == [
        (Kind.ACCEPTED, 1),
        (Kind.REFUSED, 2),
    ]
    ((_, _, refusal),) = peer.refusals
    assert (refusal.accepted, refusal.condition) == (2, conditions.RESOURCE_LIMIT_EXCEEDED)
    assert "queue q is full: it may have at most 5 messages, it has 5 messages of 30 bytes" in (
        refusal.description
    )
    assert everything(peer) == "abcde"
    assert queue.machine.contents.counters.refused == 2


def test_what_comes_behind_a_refused_batch_is_refused_until_it_is_afresh() -> None:
    scene, peer, _ = bounded(Policy(max_length=3))
    peer.say(batch(1, 1, letters("ab")), batch(1, 2, letters("cd")), batch(1, 3, letters("e")))
    peer.consume(5, "q", 100)
    peer.settle(5, 0, 3)
    scene.settle_down()
    assert [(number, refusal.accepted) for _, number, refusal in peer.refusals] == [(3, 0), (2, 1)]
    send(scene, peer, 4, "e", afresh=True)
    assert peer.accepted(1) == [1, 4]
    assert text(peer.messages(5)) == "abce"


def test_in_flight_counts_and_bytes_bound_too() -> None:
    scene, peer, _ = bounded(Policy(max_bytes=20))
    peer.consume(5, "q", 100)
    send(scene, peer, 1, "abcd", durable=False)
    assert peer.refusals[0][2].accepted == 3
    assert "at most 20 bytes" in peer.refusals[0][2].description
    peer.settle(5, 0, 1)
    send(scene, peer, 2, "de", durable=False, afresh=True)
    assert peer.refusals[1][2].accepted == 1
    assert text(peer.messages(5)) == "abcd"


def test_a_partial_refusal_waits_for_the_disk() -> None:
    scene, peer, _ = bounded(Policy(max_length=1))
    peer.send(1, 1, letters("ab"))
    assert not peer.refusals
    *_, append, taken = records(scene)
    assert isinstance(append, Append)
    assert append.flags == CONTINUED
    assert taken == Taken(append.producer, 1, 1)
    scene.settle_down()
    assert peer.refusals[0][2].accepted == 1


def test_a_partly_refused_batch_that_comes_again_is_answered_the_same_way() -> None:
    scene, peer, _ = bounded(Policy(max_length=2))
    send(scene, peer, 1, "abcd")
    peer.consume(5, "q", 100)
    peer.settle(5, 0, 2)
    peer.greet()
    peer.produce(1, "q")
    send(scene, peer, 1, "abcd")
    assert [refusal.accepted for _, _, refusal in peer.refusals] == [2, 2]
    assert everything(peer, 6) == ""
    # The rest is still refused for good, and a new batch goes on.
    send(scene, peer, 2, "e", afresh=True)
    assert text(peer.messages(6)) == "e"


def test_discard_incoming_accepts_and_drops_the_rest() -> None:
    scene, peer, queue = bounded(Policy(max_length=3, overflow="discard_incoming"))
    send(scene, peer, 1, "abcd")
    send(scene, peer, 2, "e")
    assert peer.accepted(1) == [1, 2]
    assert everything(peer) == "abc"
    assert queue.machine.contents.counters.dropped == 2


def test_discard_existing_removes_the_oldest() -> None:
    scene, peer, queue = bounded(Policy(max_length=3, overflow="discard_existing"))
    send(scene, peer, 1, "abc")
    send(scene, peer, 2, "de")
    assert peer.accepted(1) == [1, 2]
    settle = records(scene)[-1]
    assert isinstance(settle, Settle)
    assert (settle.outcome, settle.ranges, settle.reason) == (Outcome.DISCARDED, [(0, 2)], "discarded")
    assert everything(peer) == "cde"
    assert queue.machine.contents.counters.discarded == {"discarded": 2}
    # What consumers hold is not taken from them: then the newest give way.
    send(scene, peer, 3, "f")
    assert queue.machine.contents.counters.discarded == {"discarded": 3}
    assert text(peer.messages(5)) == "cde"


def test_discard_existing_into_the_dead_letter_queue() -> None:
    policy = Policy(max_length=2, overflow="discard_existing", discard_to_dead_letter=True)
    scene, peer, _ = bounded(policy)
    send(scene, peer, 1, "ab")
    send(scene, peer, 2, "c")
    peer.consume(5, "q/$dlq", 100)
    (dead,) = peer.messages(5)
    assert decode_annotations(dead)[Symbol("x-opt-dead-letter-reason")] == "queue-full"
    assert everything(peer, 6) == "bc"
    assert scene.counts.dead_lettered["queue-full"] == 1


def test_discard_existing_fetches_what_it_has_to_bury() -> None:
    policy = Policy(max_length=4, overflow="discard_existing", discard_to_dead_letter=True)
    scene, peer, queue = bounded(policy)
    send(scene, peer, 1, "abcd")
    queue.machine.contents.eviction.head_bytes = 0
    assert queue.machine.footprint.evict(1 << 20)
    queue.machine.contents.eviction.head_bytes = 1
    send(scene, peer, 2, "ef")
    assert everything(peer) == "cdef"
    assert everything(peer, 6, "q/$dlq") == "ab"


def test_discard_existing_of_what_is_only_on_disk() -> None:
    scene, peer, queue = bounded(Policy(max_length=4, overflow="discard_existing"))
    send(scene, peer, 1, "abcd")
    queue.machine.contents.eviction.head_bytes = 0
    assert queue.machine.footprint.evict(1 << 20)
    queue.machine.contents.eviction.head_bytes = 1
    send(scene, peer, 2, "ef")
    assert everything(peer) == "cdef"


def test_flow_control_answers_nobody_until_there_is_room() -> None:
    scene, peer, queue = bounded(Policy(max_length=3, overflow="flow_control"))
    peer.say(batch(1, 1, letters("ab")), batch(1, 2, letters("cde")), batch(1, 3, letters("f")))
    peer.produce(2, "q")
    peer.say(batch(2, 1, letters("X")))
    scene.settle_down()
    assert peer.accepted(1) == [1]
    assert queue.parked_count == 4
    assert queue.machine.contents.held == 3
    assert everything(peer) == "abc"
    peer.settle(5, 0, 1)
    scene.settle_down()
    assert peer.accepted(1) == []
    peer.settle(5, 1, 3)
    scene.settle_down()
    assert text(peer.messages(5)) == "abcdefX"
    answers = peer.take(Kind.ACCEPTED)
    assert {(answer.link, answer.number, answer.count) for answer in answers} == {(1, 2, 2), (2, 1, 1)}
    assert queue.parked is None
    assert queue.next_deadline_ms is None
    assert not peer.refusals


def test_flow_control_gives_up_after_the_enqueue_timeout() -> None:
    scene, peer, queue = bounded(Policy(max_length=1, overflow="flow_control", enqueue_timeout_ms=700))
    peer.say(batch(1, 1, letters("ab")), batch(1, 2, letters("c")))
    peer.produce(2, "q")
    peer.say(batch(2, 1, letters("X")))
    scene.settle_down()
    assert scene.engine.deadline_ms == scene.now_ms + 700
    scene.tick(699)
    assert not peer.refusals
    scene.tick(1)
    scene.settle_down()
    found = sorted((link, number, refusal.accepted) for link, number, refusal in peer.refusals)
    assert found == [(1, 1, 1), (1, 2, 0), (2, 1, 0)]
    assert queue.parked is None
    assert scene.engine._house.memory.parked == 0
    assert queue.machine.contents.counters.refused == 3


def test_the_other_overflows_wait_too_when_the_policy_says_so() -> None:
    for overflow, left, refused in (
        ("reject", "a", [0]),
        ("discard_incoming", "a", []),
        ("discard_existing", "b", []),
    ):
        scene, peer, _ = bounded(Policy(max_length=1, overflow=overflow, enqueue_timeout_ms=500))
        send(scene, peer, 1, "a")
        send(scene, peer, 2, "b")
        assert peer.accepted(1) == [1]
        scene.tick(500)
        scene.settle_down()
        assert [refusal.accepted for _, _, refusal in peer.refusals] == refused
        assert peer.accepted(1) == ([] if refused else [2])
        assert everything(peer) == left


def test_parked_batches_of_a_frontend_that_goes_are_dropped_and_others_go_on() -> None:
    scene, peer, queue = bounded(Policy(max_length=2, overflow="flow_control"))
    other = scene.peer("frontend-1", 8)
    other.produce(1, "q")
    send(scene, peer, 1, "ab")
    send(scene, peer, 2, "cd")
    other.say(batch(1, 1, letters("X")))
    peer.say(frame(Kind.GOODBYE))
    assert queue.parked_count == 1
    other.consume(5, "q", 100)
    other.settle(5, 0, 1)
    scene.settle_down()
    assert text(other.messages(5)) == "abX"
    assert other.accepted(1) == [1]


def test_what_waits_of_a_sender_that_has_gone_is_refused_and_never_stored() -> None:
    scene, peer, queue = bounded(Policy(max_length=3, overflow="flow_control"))
    peer.produce(2, "q")
    send(scene, peer, 1, "ab")
    peer.say(batch(1, 2, letters("cd")), batch(1, 3, letters("e")))
    peer.say(batch(2, 1, letters("X")))
    assert queue.parked_count == 3
    peer.say(frame(Kind.PRODUCER_ABANDON, link=1))
    scene.settle_down()
    # What was taken of the first one stays, and is answered when it is on disk.
    assert sorted((number, refusal.accepted) for _, number, refusal in peer.refusals) == [(2, 1), (3, 0)]
    reasons = {number: refusal.description for _, number, refusal in peer.refusals}
    assert "link to queue q was closed while this waited for room" in reasons[2]
    assert queue.parked_count == 1
    peer.close_producer(1)
    peer.consume(5, "q", 100)
    peer.settle(5, 0, 3)
    assert text(peer.messages(5)) == "abcX"
    assert queue.parked is None
    assert scene.engine._house.memory.parked == 0


def test_a_sender_that_has_gone_and_waits_for_nothing_keeps_its_answers() -> None:
    scene, peer, _ = bounded(Policy(max_length=3, overflow="flow_control"))
    peer.say(batch(1, 1, letters("ab")), frame(Kind.PRODUCER_ABANDON, link=1))
    peer.say(frame(Kind.PRODUCER_ABANDON, link=77))
    scene.settle_down()
    assert peer.accepted(1) == [1]
    assert not peer.refusals


def test_a_parked_batch_that_comes_again_is_stored_once() -> None:
    scene, peer, _ = bounded(Policy(max_length=2, overflow="flow_control"))
    send(scene, peer, 1, "abcd")
    peer.greet()
    peer.produce(1, "q")
    send(scene, peer, 1, "abcd")
    peer.consume(5, "q", 100)
    peer.settle(5, 0, 2)
    scene.settle_down()
    assert peer.accepted(1) == [1]
    assert text(peer.messages(5)) == "abcd"
    send(scene, peer, 1, "abcd")
    assert text(peer.messages(5)) == "abcd"
    assert scene.counts.batches_duplicate == 1


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "PARKED_BYTES_MAX", 15)
    scene, peer, _ = bounded(Policy(max_length=1, overflow="flow_control"))
    send(scene, peer, 1, "a")
    send(scene, peer, 2, "bc")
    assert not peer.refusals
    send(scene, peer, 3, "d")
    # What was refused takes with it what waited before it: order is kept, and all of it is told.
    assert sorted(number for _, number, _ in peer.refusals) == [2, 3]
    assert "12 bytes wait in this shard already" in peer.refusals[0][2].description


def test_what_waits_counts_toward_the_memory_mark_and_may_take_half_of_it() -> None:
    scene, peer, _ = bounded(Policy(max_length=1, overflow="flow_control"))
    memory = scene.engine._house.memory
    memory.mark = 40
    send(scene, peer, 1, "a")
    send(scene, peer, 2, "bcd")
    assert (memory.resident, memory.parked) == (24 + limits.RUN_BYTES, 18)
    send(scene, peer, 3, "e")
    assert "18 bytes wait in this shard already" in peer.refusals[0][2].description
    assert (memory.resident, memory.parked) == (6 + limits.RUN_BYTES, 0)


def test_a_message_that_never_fits_is_refused_at_once() -> None:
    scene, peer, _ = bounded(Policy(max_bytes=10, overflow="flow_control"))
    peer.send(1, 1, [BODY + b"a", b"x" * 11])
    scene.settle_down()
    ((_, _, refusal),) = peer.refusals
    assert (refusal.accepted, refusal.condition) == (1, conditions.MESSAGE_SIZE_EXCEEDED)
    assert "at most 10 bytes, this one has 11" in refusal.description
    scene, peer, _ = bounded(Policy(max_message_bytes=7))
    peer.send(1, 1, [b"x" * 8])
    assert peer.refusals[0][2].condition == conditions.MESSAGE_SIZE_EXCEEDED


def test_flow_to_disk_keeps_only_so_much_in_memory() -> None:
    scene, peer, queue = bounded(Policy(max_length=4, overflow="flow_to_disk"))
    for number in range(1, 11):
        send(scene, peer, number, "abcdefghij", durable=number % 2 == 0)
    assert not peer.refusals
    assert queue.machine.contents.resident_message_bytes <= 10 * 6
    assert scene.counts.evictions
    assert everything(peer) == "abcdefghij" * 10


def test_max_age_and_durability_are_the_policys() -> None:
    scene, peer, queue = bounded(Policy(max_age_ms=100, durable="always", dead_letter=False))
    send(scene, peer, 1, "a", durable=False)
    send(scene, peer, 2, "b", durable=False, expires_at_ms=scene.now_ms + 30)
    appends = [record for record in records(scene) if isinstance(record, Append)]
    assert [record.batch.expires_at_ms for record in appends] == [scene.now_ms + 100, scene.now_ms + 30]
    scene.tick(30)
    assert queue.machine.contents.held == 1
    scene.tick(70)
    assert queue.machine.contents.held == 0
    scene, peer, _ = bounded(Policy(durable="never"))
    peer.send(1, 1, letters("a"))
    assert peer.accepted(1) == [1]
    assert not [record for record in records(scene) if isinstance(record, Append)]


def test_a_lower_bound_acts_with_the_next_batch() -> None:
    scene, peer, queue = bounded(Policy())
    send(scene, peer, 1, "abcd")
    queue.machine.apply(Change(Policy(max_length=2, overflow="discard_existing")), 0)
    send(scene, peer, 2, "e")
    queue.machine.apply(Change(Policy(max_length=2)), 0)
    send(scene, peer, 3, "f")
    assert len(peer.refusals) == 1
    queue.machine.apply(Change(Policy()), 0)
    send(scene, peer, 4, "g", afresh=True)
    assert everything(peer) == "deg"


def test_a_full_disk_refuses_with_the_part_that_was_done_before() -> None:
    scene, peer, queue = bounded(Policy(max_length=2, overflow="flow_control"))
    send(scene, peer, 1, "abc")
    assert isinstance(scene.store, SmallStore)
    scene.store.full = True
    peer.consume(5, "q", 100)
    peer.settle(5, 0, 2)
    scene.settle_down()
    assert [(refusal.accepted, refusal.description) for _, _, refusal in peer.refusals] == [
        (2, "there is no room")
    ]
    assert queue.parked is None


def test_the_directory_sets_bounds_and_they_hold_after_a_restart() -> None:
    """Policies come by their names: durations in seconds, a dead-letter queue of their own."""
    names = EveryName()
    given = {"role": "queue", "max_length": 2, "overflow": "discard_existing", "dead_letter": "failed"}
    names.give("q", NamePolicy.parse(given))
    names.give("once", NamePolicy.parse({"role": "queue", "duplicate_window": 60, "lock_duration": 0.5}))
    files = FakeFiles()
    journal = Journal(files, "test", 0)
    scene = Scene(journal, journal.recover(1 << 20, 1), names=names)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.produce(2, "once")
    identified = b"\x00\x53\x73\xc0\x04\x01\xa1\x01A" + BODY + b"x"
    peer.send(1, 1, letters("abc"))
    peer.send(2, 1, [identified])
    scene.settle_down()
    assert scene.queue("q")["ready"] == 2
    assert scene.queue("q/$dlq")["ready"] == 1
    names.give("q", NamePolicy.parse(given | {"max_length": 3}))
    scene.refresh()
    peer.send(1, 2, letters("d"))
    scene.settle_down()
    assert scene.queue("q")["ready"] == 3
    journal = Journal(files.after_crash(1, "none"), "test", 0)
    scene = Scene(journal, journal.recover(1 << 20, 1), names=names, boot=2)
    peer = scene.peer(boot=8)
    peer.produce(1, "q")
    peer.produce(2, "once")
    peer.send(1, 1, letters("e"))
    peer.send(2, 1, [identified])
    scene.settle_down()
    assert everything(peer) == "cde"
    assert scene.queue("once")["ready"] == 1
    peer.consume(6, "once", 1)
    scene.tick(500)
    assert scene.queue("once") == {"ready": 1, "in_flight": 0}


@pytest.mark.parametrize("durable", [True, False])
def test_a_whole_batch_that_does_not_fit_is_refused_to_the_last_message(durable: bool) -> None:
    scene, peer, _ = bounded(Policy(max_length=3))
    send(scene, peer, 1, "ab", durable=durable, whole=True)
    send(scene, peer, 2, "cd", durable=durable, whole=True)
    assert peer.accepted(1) == [1]
    assert [(number, refusal.accepted) for _, number, refusal in peer.refusals] == [(2, 0)]
    assert everything(peer) == "ab"


def test_a_whole_batch_waits_for_room_for_all_of_it() -> None:
    scene, peer, _ = bounded(Policy(max_length=3, overflow="flow_control"))
    send(scene, peer, 1, "ab")
    send(scene, peer, 2, "cd", whole=True)
    assert peer.accepted(1) == [1]
    assert not peer.refusals
    assert everything(peer) == "ab"
    peer.settle(5, 0, 1)
    scene.settle_down()
    assert peer.accepted(1) == [2]
    assert text(peer.messages(5)) == "abcd"


def test_a_whole_batch_that_is_larger_than_its_queue_does_not_wait_for_ever() -> None:
    scene, peer, _ = bounded(Policy(max_length=3, overflow="flow_control"))
    send(scene, peer, 1, "abcd", whole=True)
    ((_, number, refusal),) = peer.refusals
    assert (number, refusal.accepted) == (1, 0)
    assert "at most 3 of the 4 messages" in refusal.description


def test_a_whole_batch_with_a_message_that_is_too_large_is_refused() -> None:
    scene, peer, _ = bounded(Policy(max_message_bytes=5))
    peer.send(1, 1, [*letters("ab"), BODY + b"12"], whole=True)
    scene.settle_down()
    assert [(number, refusal.accepted) for _, number, refusal in peer.refusals] == [(1, 0)]
    assert everything(peer) == ""
