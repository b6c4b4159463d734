"""Duplicates by message-id: what is dropped, for how long, and what survives a restart."""

import uuid

from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import ULong
from lightrail.journal.record import CONTINUED, Ids
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.queue.timed.windows import digest_of
from lightrail.shard.queue.values.commands import Change
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queues.shard_queue import Queue
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore

WINDOW = Policy(duplicate_window_ms=1_000)


def message(id: object, body: bytes = b"x") -> bytes:
    """With a message-id, or none."""
    section = b"" if id is None else encode(Properties(message_id=id))  # type: ignore[arg-type]
    return section + b"\x00\x53\x75\xa0" + bytes((len(body),)) + body


def guarded(scene: Scene, policy: Policy = WINDOW) -> tuple[Peer, Queue]:
    peer = scene.peer()
    peer.produce(1, "q")
    queue = scene.engine._queues.find("q")
    assert queue is not None
    queue.machine.apply(Change(policy), 0)
    peer.take()
    return peer, queue


def bodies(peer: Peer, link: int = 5) -> str:
    peer.consume(link, "q", 100)
    return "".join(each[-1:].decode() for each in peer.messages(link))


def test_the_same_id_within_the_window_is_accepted_and_dropped() -> None:
    scene = Scene()
    peer, queue = guarded(scene)
    peer.send(1, 1, [message("a", b"1"), message("b", b"2"), message("a", b"3")])
    peer.send(1, 2, [message("b", b"4"), message(None, b"5"), message(None, b"6"), message("c", b"7")])
    peer.send(1, 3, [message("c", b"8")])
    scene.settle_down()
    assert peer.accepted(1) == [1, 2, 3]
    scene.now_ms += 1_000
    peer.send(1, 4, [message("a", b"9")])
    assert bodies(peer) == "125679"
    assert queue.machine.contents.counters.duplicates == 3
    assert isinstance(scene.store, SmallStore)
    append, ids = scene.store.records[1:3]
    assert isinstance(append, Append)
    assert append.flags == CONTINUED
    assert ids == Ids(1, 1_001_000, digest_of("a") + digest_of("b"))


def test_a_duplicate_is_answered_when_the_first_is_on_disk() -> None:
    scene = Scene()
    peer, _ = guarded(scene)
    peer.send(1, 1, [message("a")])
    peer.send(1, 2, [message("a")])
    assert peer.accepted(1) == []
    scene.settle_down()
    assert peer.accepted(1) == [1, 2]


def test_ids_of_different_types_are_different() -> None:
    number = uuid.UUID(int=7)
    ids = ["7", b"7", ULong(7), number, str(number), number.bytes]
    assert len({digest_of(each) for each in ids}) == len(ids)
    scene = Scene()
    peer, _ = guarded(scene)
    peer.send(1, 1, [message(each) for each in (*ids, *ids)], durable=False)
    assert len(bodies(peer)) == len(ids)


def test_what_has_no_readable_id_is_no_duplicate() -> None:
    scene = Scene()
    peer, _ = guarded(scene)
    peer.send(1, 1, [b"\x00\x53\x73\xc0", b"\x00\x53\x73\xc0", b"zz", b"zz"], durable=False)
    assert scene.queue("q")["ready"] == 4


def test_a_full_queue_takes_what_is_new_and_fits() -> None:
    scene = Scene()
    peer, queue = guarded(scene, Policy(duplicate_window_ms=1_000, max_length=3))
    peer.send(1, 1, [message("a", b"1"), message("b", b"2")])
    again = [message("a"), message("c", b"3"), message("b"), message("d", b"4"), message("e", b"5")]
    peer.send(1, 2, again)
    scene.settle_down()
    ((_, number, refusal),) = peer.refusals
    # a, c and b had their end; d is the first that did not fit.
    assert (number, refusal.accepted) == (2, 3)
    assert (queue.machine.contents.counters.duplicates, queue.machine.contents.counters.refused) == (2, 2)
    assert bodies(peer) == "123"


def test_ids_survive_a_restart_and_the_cleaner() -> None:
    files = FakeFiles()
    for life in range(3):
        journal = Journal(files, "test", 0, segment_bytes=2_000)
        scene = Scene(journal, journal.recover(1 << 20, 1), boot=life + 1)
        peer = scene.peer()
        peer.produce(1, "q")
        peer.produce(2, "other")
        queue = scene.engine._queues.find("q")
        assert queue is not None
        queue.machine.apply(Change(Policy(duplicate_window_ms=60_000)), 0)
        peer.send(1, life + 1, [message("a"), message(f"life-{life}")])
        # Segments go, and the ids with them to the tail.
        peer.consume(6, "other", 1_000)
        for number in range(1, 40):
            peer.send(2, life * 100 + number, [b"y" * 200])
            peer.settle(6, number - 1, 1)
            scene.settle_down()
        assert journal.usage().segments_dropped > 2
        files = files.after_crash(life, "none")
    journal = Journal(files, "test", 0, segment_bytes=2_000)
    recovered = journal.recover(1 << 20, 1)
    (queue_found,) = [each for each in recovered.queues if each.name == "q"]
    known = b"".join(digests for _, digests in queue_found.ids)
    for id in ("a", "life-0", "life-1", "life-2"):
        assert digest_of(id) in known
    assert sum(run.count for run in queue_found.runs) == 4


def test_a_window_that_is_closed_forgets() -> None:
    scene = Scene()
    peer, queue = guarded(scene)
    peer.send(1, 1, [message("a")], durable=False)
    queue.machine.apply(Change(Policy()), 0)
    peer.send(1, 2, [message("a")], durable=False)
    queue.machine.apply(Change(WINDOW), 0)
    peer.send(1, 3, [message("a"), message("a")], durable=False)
    assert scene.queue("q")["ready"] == 3
