"""Memory and disk of a shard: what flows to disk comes back in order, the cleaner keeps what lives."""

import pytest

from lightrail.journal.record import SPILLED
from lightrail.model import conditions, limits
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import JournalDamagedError, StoreError
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import Enqueue, Purge
from lightrail.shard.queue.values.runs import batch_of
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.ownership import Ownership, OwnershipState
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore

MARK = 200_000


def fill(
    scene: Scene, peer: Peer, queue: str, batches: int, *, link: int = 1, durable: bool = True
) -> list[bytes]:
    """Batches of ten messages of a kilobyte, with everything written that has to be."""
    peer.produce(link, queue)
    sent = []
    for number in range(1, batches + 1):
        messages = [b"%01000d" % (number * 10 + index) for index in range(10)]
        peer.send(link, number, messages, durable=durable)
        scene.settle_down()
        sent += messages
    return sent


def receive_all(
    scene: Scene, peer: Peer, queue: str, count: int, *, link: int = 2, step: int = 50
) -> list[bytes]:
    """Receives and settles, some at a time."""
    peer.consume(link, queue, step)
    done = 0
    for _ in range(20 * count // step):
        came = len(peer.messages(link))
        if came > done:
            peer.settle(link, done, came - done)
            done = came
        if done == count:
            break
        peer.credit(link, done + step)
        scene.settle_down()
    return peer.messages(link)


@pytest.mark.parametrize("durable", [True, False])
def test_a_long_queue_flows_to_disk_and_comes_back_in_order(durable: bool) -> None:
    scene = Scene(memory_mark=MARK)
    store = scene.store
    assert isinstance(store, SmallStore)
    peer = scene.peer()
    sent = fill(scene, peer, "q", 100, durable=durable)
    assert sorted(peer.accepted(1)) == list(range(1, 101))
    assert scene.engine._house.memory.resident <= MARK
    assert scene.counts.evicted_bytes > 0
    spilled = [each for each in store.appends() if each.flags & SPILLED]
    assert bool(spilled) is not durable
    assert receive_all(scene, peer, "q", len(sent)) == sent
    assert scene.counts.fetched_bytes > 0
    assert scene.queue("q") == {"ready": 0, "in_flight": 0}
    scene.tick(1_000)
    assert scene.engine._house.memory.resident == 0
    assert scene.engine._performer.reading == {}


def test_many_queues_share_the_mark() -> None:
    """All heads together fit: without consumers, senders of many queues are still answered."""
    scene = Scene(memory_mark=MARK)
    peer = scene.peer()
    for link in range(1, 41):
        fill(scene, peer, f"q{link}", 5, link=link, durable=False)
    answered = dict.fromkeys(range(1, 41), 0)
    for answer in peer.take(Kind.ACCEPTED):
        answered[answer.link] += answer.count
    assert answered == dict.fromkeys(range(1, 41), 5)
    queues = scene.engine._queues
    assert sum(queue.machine.contents.resident_message_bytes for queue in queues) <= 2 * MARK


def test_memory_is_taken_from_the_largest_first() -> None:
    def filled(name: str, size: int) -> Queue:
        machine = Machine(name)
        machine.apply(Enqueue(batch_of([bytes(size - limits.RUN_BYTES)])), 0)
        return Queue(1, EveryName().get(name), machine, Ownership(OwnershipState.SERVING, 1))

    memory = Memory(1_000_000)
    large, small = filled("large", 1_400_000), filled("small", 100_000)
    for queue in (small, large):
        memory.update(queue)
    assert memory.above_mark
    assert not memory.far_above_mark
    assert memory.plan() == [(large, 600_000)]
    large.machine.apply(Purge(), 0)
    memory.update(large)
    assert memory.resident == 100_000
    assert memory.plan() == []


def test_on_a_full_disk_transient_senders_wait_and_go_on_when_it_is_read() -> None:
    scene = Scene(memory_mark=MARK)
    store = scene.store
    assert isinstance(store, SmallStore)
    peer = scene.peer()
    peer.produce(1, "q")
    store.full = True
    messages = [b"%01000d" % index for index in range(100)]
    for number in range(1, 9):
        peer.send(1, number, messages, durable=False)
    assert len(peer.accepted(1)) < 8
    assert receive_all(scene, peer, "q", 800, step=100) == messages * 8
    scene.turn()
    assert peer.accepted(1)[-1:] == [8]


def test_a_full_store_refuses_with_a_condition_and_loses_nothing() -> None:
    scene = Scene()
    store = scene.store
    assert isinstance(store, SmallStore)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"a"])
    scene.settle_down()
    store.full = True
    peer.send(1, 2, [b"b"])
    scene.settle_down()
    assert peer.accepted(1) == [1]
    (refused,) = peer.refusals
    assert refused[:2] == (1, 2)
    assert refused[2].condition == conditions.RESOURCE_LIMIT_EXCEEDED
    store.full = False
    peer.send(1, 3, [b"c"], afresh=True)
    scene.settle_down()
    peer.consume(2, "q", 10)
    assert peer.messages(2) == [b"a", b"c"]


def test_settlements_that_find_no_room_are_only_redelivered() -> None:
    scene = Scene()
    store = scene.store
    assert isinstance(store, SmallStore)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"a", b"b"])
    peer.consume(2, "q", 10)
    store.full_for_all = True
    peer.settle(2, 0, 2)
    assert scene.counts.store_failures == 1
    assert scene.queue("q") == {"ready": 0, "in_flight": 0}


# --- reads that fail -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("input/output error"), StoreError("no such segment")])
def test_a_read_that_failed_is_made_again(error: Exception) -> None:
    scene = Scene(memory_mark=MARK)
    peer = scene.peer()
    sent = fill(scene, peer, "q", 100)
    scene.reading = False
    peer.consume(2, "q", len(sent))
    failed = scene.take_reads()
    assert failed
    for read in failed:
        scene.engine.read_ended(read, error, scene.now_ms)
    scene.turn()
    assert scene.take_reads() == []
    scene.reading = True
    for _ in range(100):
        scene.tick(500)
    assert peer.messages(2) == sent


def test_damaged_messages_are_given_up_and_the_queue_goes_on() -> None:
    scene = Scene(memory_mark=MARK)
    peer = scene.peer()
    sent = fill(scene, peer, "q", 100)
    scene.reading = False
    peer.consume(2, "q", len(sent))
    first, *others = scene.take_reads()
    scene.engine.read_ended(first, JournalDamagedError("1", 0, "nothing good"), scene.now_ms)
    for read in others:
        read.perform(scene.store)
        scene.engine.read_ended(read, None, scene.now_ms)
    scene.reading = True
    for _ in range(100):
        scene.tick(500)
    got = peer.messages(2)
    assert 0 < len(sent) - len(got) == first.run.count
    assert got == [message for message in sent if message in set(got)]


def test_damaged_messages_stay_on_disk_for_a_repair(caplog: pytest.LogCaptureFixture) -> None:
    """No settlement is written and no cleaner drops the segment: the next start reports the damage."""
    files = FakeFiles()
    scene, _ = journal_scene(files, 60_000)
    peer = scene.peer()
    peer.produce(1, "q")
    for number in range(1, 201):
        peer.send(1, number, [b"%01000d" % number])
    scene.tick(10)
    scene.reading = False
    peer.consume(2, "q", 10_000)
    first, *others = scene.take_reads()
    segment = first.location.segment
    for read in (first, *others):
        scene.engine.read_ended(read, JournalDamagedError("1", 0, "nothing good"), scene.now_ms)
    scene.reading = True
    for _ in range(100):
        scene.tick(500)
    assert "can't be read back" in caplog.text
    assert any(segment == int(name.split(".")[0]) for name in files.names() if name.endswith(".segment"))


# --- the cleaner ---------------------------------------------------------------------------------------


def journal_scene(files: FakeFiles, mark: int = 1 << 30) -> tuple[Scene, Journal]:
    journal = Journal(files, "test", 0, segment_bytes=40_000)
    recovered = journal.recover(mark, 1)
    return Scene(journal, recovered, memory_mark=mark), journal


@pytest.mark.parametrize("mark", [1 << 30, 60_000])
def test_the_cleaner_moves_what_lives_and_drops_the_rest(mark: int) -> None:
    """Two messages of the first segments stay for ever; the others come and go a hundred times."""
    files = FakeFiles()
    scene, journal = journal_scene(files, mark)
    peer = scene.peer()
    peer.produce(1, "old")
    peer.send(1, 1, [b"first", b"second"])
    peer.produce(2, "busy")
    peer.consume(3, "busy", 10_000)
    for number in range(1, 101):
        peer.send(2, number, [b"%01000d" % number] * 10)
        scene.settle_down()
        peer.settle(3, (number - 1) * 10, 10)
        scene.settle_down()
        scene.tick(10)
    usage = journal.usage()
    assert usage.segments_dropped > 20
    assert usage.total_bytes < 6 * 40_000
    scene.settle_down()
    after, _ = journal_scene(files.after_crash(1, "none"), mark)
    follower = after.peer("frontend-0", 8)
    follower.consume(1, "old", 10)
    follower.consume(2, "busy", 10)
    after.settle_down()
    assert follower.messages(1) == [b"first", b"second"]
    assert follower.messages(2) == []


def test_what_is_being_read_is_not_cleaned() -> None:
    files = FakeFiles()
    scene, journal = journal_scene(files, 60_000)
    peer = scene.peer()
    sent = fill(scene, peer, "q", 40)
    scene.reading = False
    peer.consume(2, "q", len(sent))
    reads = scene.take_reads()
    assert reads
    busy = {read.segment for read in reads}
    assert all(scene.engine._house._cleaner._in_use(segment) for segment in busy)
    for read in reads:
        read.perform(journal)
        scene.engine.read_ended(read, None, scene.now_ms)
    assert not any(scene.engine._house._cleaner._in_use(segment) for segment in busy)


def test_a_full_disk_comes_back_by_itself() -> None:
    files = FakeFiles(space=200_000)
    scene, _ = journal_scene(files)
    peer = scene.peer()
    peer.produce(1, "q")
    sent: list[bytes] = []
    number = 0
    while not peer.refusals:
        number += 1
        messages = [b"%01000d" % (number * 10 + index) for index in range(10)]
        peer.send(1, number, messages, afresh=True)
        scene.settle_down()
        if not peer.refusals:
            sent += messages
        assert number < 100
    assert receive_all(scene, peer, "q", len(sent), step=10) == sent
    for _ in range(8):
        scene.tick(500)
        scene.settle_down()
    peer.take()
    peer.send(1, number + 1, [b"%01000d" % 1] * 10, afresh=True)
    scene.settle_down()
    assert peer.accepted(1) == [number + 1]


def test_a_queue_that_can_not_be_written_down_is_refused() -> None:
    scene = Scene()
    store = scene.store
    assert isinstance(store, SmallStore)
    store.full_for_all = True
    peer = scene.peer()
    peer.produce(1, "q")
    assert peer.refusals[0][2].condition == conditions.RESOURCE_LIMIT_EXCEEDED
    store.full_for_all = False
    peer.produce(2, "q")
    assert peer.take(Kind.PRODUCER_READY)[-1].link == 2


def test_a_head_is_never_larger_than_the_limit() -> None:
    assert Memory(1 << 40).head_bytes == limits.RESIDENT_HEAD_BYTES


def test_pings_alone_cost_no_commit() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.say(frame(Kind.PING))
    scene.tick(1_000)
    assert not scene.store.pending


def test_heads_that_are_larger_than_the_mark_stop_no_sender() -> None:
    """The first batch of a queue stays in memory, whatever its size; what can flow to disk has done so."""
    scene = Scene(memory_mark=10_000)
    peer = scene.peer()
    for link in range(1, 4):
        fill(scene, peer, f"q{link}", 3, link=link, durable=False)
    assert scene.engine._house.memory.far_above_mark
    answered = [(answer.link, answer.number, answer.count) for answer in peer.take(Kind.ACCEPTED)]
    assert sum(count for _, _, count in answered) == 9


def holding(durable: bool) -> tuple[Scene, Peer]:
    """A shard with a mark of 10 kB, and a frontend that holds 50 kB of it."""
    scene = Scene(memory_mark=10_000)
    peer = scene.peer()
    peer.consume(2, "q", 50)
    peer.produce(1, "q")
    messages = [b"%01000d" % index for index in range(10)]
    for number in range(1, 6):
        peer.send(1, number, messages, durable=durable)
        scene.settle_down()
    return scene, peer


@pytest.mark.parametrize("durable", [True, False])
def test_what_receivers_hold_flows_to_disk_and_stops_no_sender(durable: bool) -> None:
    scene, peer = holding(durable)
    assert peer.accepted(1) == [1, 2, 3, 4, 5]
    assert scene.engine._house.memory.resident <= 10_000
    peer.settle(2, 0, 50)
    scene.settle_down()
    assert scene.queue("q") == {"ready": 0, "in_flight": 0}
    assert scene.counts.fetched_bytes == 0
    assert scene.store.usage().live_bytes == 0


def test_senders_wait_for_the_disk_while_more_flows_to_it_than_there_is_room_for() -> None:
    scene = Scene(memory_mark=10_000)
    peer = scene.peer()
    peer.produce(1, "q")
    accepted: list[int] = []
    number = 0

    def send() -> int:
        """One more; how many are not answered then."""
        nonlocal number
        number += 1
        peer.send(1, number, [b"%01000d" % number], durable=False)
        accepted.extend(peer.accepted(1))
        return number - len(accepted)

    while not send():
        assert number < 20
    memory = scene.engine._house.memory
    assert memory.resident <= 10_000 < memory.resident + memory.flowing
    scene.begin_commit()
    # The disk is slow: what comes meanwhile waits for the next commit, and flows with it.
    assert [send() for _ in range(10)] == list(range(2, 12))
    scene.end_commit()
    accepted.extend(peer.accepted(1))
    assert number - len(accepted) == 10
    scene.settle_down()
    accepted.extend(peer.accepted(1))
    assert accepted == list(range(1, number + 1))
    assert memory.flowing == 0


def rejecting() -> tuple[Scene, Peer]:
    """The same, which waits for the answer to a rejection: the shard has to read the message for that."""
    scene, peer = holding(durable=True)
    scene.reading = False
    peer.settle(2, 0, 1, OutcomeCode.REJECTED, SettleDetail(), asked=1)
    scene.settle_down()
    assert not peer.take(Kind.SETTLED)
    return scene, peer


def test_a_rejection_of_what_is_on_disk_is_confirmed_with_its_dead_letter() -> None:
    scene, peer = rejecting()
    assert scene.queue("q") == {"ready": 0, "in_flight": 50}
    scene.reading = True
    scene.settle_down()
    assert [(each.number, each.count) for each in peer.take(Kind.SETTLED)] == [(0, 1)]
    assert scene.queue("q") == {"ready": 0, "in_flight": 49}
    assert scene.queue("q/$dlq") == {"ready": 1, "in_flight": 0}


def test_who_waits_for_such_a_rejection_is_answered_when_the_queue_ends() -> None:
    scene, peer = rejecting()
    assert isinstance(scene.names, EveryName)
    scene.names.drop("q")
    scene.refresh()
    scene.settle_down()
    assert [(each.number, each.count) for each in peer.take(Kind.SETTLED)] == [(0, 1)]
