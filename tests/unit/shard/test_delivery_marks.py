"""Delivery marks: what may have been delivered before a crash is marked, and nothing else."""

import asyncio
import errno
import os
import random
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import NewerFormatError
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.delivery_marks import EVERYTHING, FILE, DeliveryMarks, FileMarks
from lightrail.shard.queues.queues import DELIVERY_MARK_AHEAD_MAX, DELIVERY_MARK_PAUSE_MS
from lightrail.wire.frames import Kind, OutcomeCode, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene
from tests.support.wait import until
from tests.unit.shard.transactions.test_prepared import ID, prepare
from tests.unit.shard.transactions.test_transactions import post, transact

AHEAD = DELIVERY_MARK_AHEAD_MAX
BOOT = bytes(range(16))


def life(files: FakeFiles, marks: DeliveryMarks, names: EveryName | None = None) -> Scene:
    """A shard on this disk, whose former process was killed."""
    files.unlock()
    journal = Journal(files, "test", 0, segment_bytes=1 << 20)
    return Scene(journal, journal.recover(1 << 30, 1), names=names, marks=marks, max_delivery_count=2)


def next_life(marks: DeliveryMarks, last: dict[int, int] | None = None) -> DeliveryMarks:
    """The marks that the next start finds after a kill, or after an orderly end with the marks `last`."""
    made = DeliveryMarks()
    made._former = {**marks._noted, **(last or {})}
    made.is_exact = last is not None
    made._former_last = max(made._former, default=-1)
    made.is_after_kill = last is None
    return made


# --- what consumers see ---------------------------------------------------------------------------------


def test_after_a_crash_only_what_may_have_been_delivered_is_marked() -> None:
    files, marks = FakeFiles(), DeliveryMarks()
    scene = life(files, marks)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"%d" % n for n in range(2 * AHEAD)])
    scene.settle_down()
    peer.consume(2, "q", 10)
    scene.settle_down()
    scene = life(files, next_life(marks))
    peer = scene.peer(boot=8)
    peer.consume(2, "q", 2 * AHEAD)
    scene.settle_down()
    marked = [each.attempts for each in peer.delivered[2]]
    assert marked == [1] * 10 + [0] * (2 * AHEAD - 10)


def test_what_consumers_had_at_an_orderly_end_is_marked_and_nothing_else() -> None:
    """Given back by a frontend that ended first, or not settled: they may have had it, and what they settle
    too late reaches nobody any more."""
    files, marks = FakeFiles(), DeliveryMarks()
    scene = life(files, marks)
    first, second = scene.peer("frontend-0", 7), scene.peer("frontend-1", 8)
    queues = {"given back": first, "unsettled": second, "settled": second}
    for link, (queue, consumer) in enumerate(queues.items(), 1):
        second.produce(link, queue)
        second.send(link, 1, [b"%d" % n for n in range(20)])
        # A fast queue, whose mark is written ahead: they are lost with the process.
        second.send(link, 2, [b"transient"] * 50, durable=False)
        scene.settle_down()
        consumer.consume(10 + link, queue, 5)
        scene.settle_down()
        consumer.credit(10 + link, 10)
        scene.settle_down()
    second.settle(13, 0, 10)
    first.say(frame(Kind.GOODBYE))
    scene.settle_down()
    marks = next_life(marks, scene.engine.last_marks())
    scene.store.close(scene.now_ms)
    scene = life(files, marks)
    peer = scene.peer(boot=9)
    found = {}
    for link, queue in enumerate(queues, 1):
        peer.produce(link, queue)
        peer.send(link, 1, [b"new"] * 60)
        peer.consume(10 + link, queue, 100)
        scene.settle_down()
        found[queue] = [each.attempts for each in peer.delivered[10 + link]]
    assert found == {
        "given back": [1] * 10 + [0] * 70,
        "unsettled": [1] * 10 + [0] * 70,
        "settled": [0] * 70,
    }


def test_the_mark_of_a_fast_queue_is_ahead_and_that_of_a_slow_one_is_exact() -> None:
    scene = Scene(marks=(marks := DeliveryMarks()))
    peer = scene.peer()
    peer.produce(1, "q")
    peer.consume(2, "q", 1_000_000)
    sent = 0
    ahead = []
    for number in range(1, 2_001):
        peer.send(1, number, [b"m"] * 30)
        sent += 30
        scene.settle_down()
        mark = next_life(marks).before(1)
        assert sent <= mark <= sent + AHEAD
        ahead.append(mark - sent)
    assert max(ahead) > AHEAD // 2
    falling = [AHEAD]
    while falling[-1]:
        scene.tick(100 * DELIVERY_MARK_PAUSE_MS)
        number += 1
        peer.send(1, number, [b"m"] * (falling[-1] + 1))
        sent += falling[-1] + 1
        scene.settle_down()
        falling.append(next_life(marks).before(1) - sent)
    assert falling == sorted(falling, reverse=True), falling


def test_the_mark_of_a_fast_queue_stays_ahead_when_half_of_it_lasts_longer_than_a_pause() -> None:
    """Each mark costs a turn, and deliveries beyond the former one wait for it."""

    class CountedMarks(DeliveryMarks):
        notes = 0

        def note(self, queue: int, mark: int) -> None:
            self.notes += 1
            super().note(queue, mark)

    scene = Scene(marks=(marks := CountedMarks()))
    peer = scene.peer()
    peer.produce(1, "q")
    peer.consume(2, "q", 1_000_000)
    messages = [b"m"] * (AHEAD // 20)
    for number in range(1, 401):
        peer.send(1, number, messages)
        scene.settle_down()
        scene.tick(DELIVERY_MARK_PAUSE_MS // 2)
    # Half of a mark is delivered in ten steps, and at first there is a note for each power of two.
    assert marks.notes <= 400 // 10 + AHEAD.bit_length()


def test_what_is_marked_is_no_failed_delivery() -> None:
    """It counts as none against max_delivery_count, over any number of crashes."""
    files, marks = FakeFiles(), DeliveryMarks()
    scene = life(files, marks)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"m"])
    scene.settle_down()
    for boot in range(8, 13):
        marks = next_life(marks) if boot > 8 else marks
        scene = life(files, marks)
        peer = scene.peer(boot=boot)
        peer.consume(2, "q", 1)
        scene.settle_down()
        assert peer.messages(2) == [b"m"]
        assert peer.delivered[2][-1].attempts == (boot > 8)
    peer.settle(2, 0, 1, OutcomeCode.MODIFIED)
    peer.credit(2, 2)
    scene.settle_down()
    assert peer.delivered[2][-1].attempts == 1


def test_new_messages_under_sequences_of_lost_ones_are_not_marked() -> None:
    """Transient messages were delivered and are lost with their shard: their sequences are given again."""
    files, marks = FakeFiles(), DeliveryMarks()
    scene = life(files, marks)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"durable"])
    peer.send(1, 2, [b"lost"] * 5, durable=False)
    peer.consume(2, "q", 10_000)
    scene.settle_down()
    marks = next_life(marks)
    scene = life(files, marks)
    peer = scene.peer(boot=8)
    peer.produce(1, "q")
    peer.send(1, 1, [b"new"] * 5)
    peer.consume(2, "q", 100)
    scene.settle_down()
    found = [(each.message, each.attempts) for each in peer.delivered[2]]
    assert found == [(b"durable", 1)] + [(b"new", 0)] * 5


def send(peer: Peer, way: str, number: int, messages: list[bytes]) -> None:
    if way == "routed":
        peer.route(1, number, 1, messages)
    else:
        peer.send(1, number, messages)


@pytest.mark.parametrize("lost", [3, 2 * AHEAD])
@pytest.mark.parametrize("way", ["plain", "guarded", "routed"])
def test_what_was_delivered_before_its_commit_and_is_sent_again_is_marked(way: str, lost: int) -> None:
    """However far ahead the mark is; new messages are not."""
    names = EveryName()
    names.give(
        "q", Policy.parse({"role": "queue", **({"max_length": 10 * AHEAD} if way == "guarded" else {})})
    )

    def open_links(peer: Peer, number: int) -> None:
        # Of batches 2 to 4 the last one was not sent to the lost shard.
        sent_below = 0 if number == 1 else 4
        peer.produce(1, "" if way == "routed" else "q", number=number, sent_below=sent_below)
        peer.targets(1, 1, "q")
        peer.consume(2, "q", 10 * AHEAD)

    files, marks = FakeFiles(), DeliveryMarks()
    scene = life(files, marks, names)
    peer = scene.peer()
    open_links(peer, 1)
    scene.settle_down()
    send(peer, way, 1, [b"stored"])
    scene.settle_down()
    # Batches of the same moment: the mark of a fast queue is written ahead.
    for number in (2, 3):
        send(peer, way, number, [b"m"] * (lost // 2 + 1))
        scene.turn()
    assert len(peer.messages(2)) == 1 + 2 * (lost // 2 + 1)
    # The shard is killed before the commit; the frontend sends again what has no answer.
    scene = life(files, next_life(marks), names)
    peer = scene.peer()
    open_links(peer, 5)
    for number in (2, 3):
        send(peer, way, number, [b"m"] * (lost // 2 + 1))
    send(peer, way, 4, [b"new"] * 3)
    send(peer, way, 5, [b"new"] * 3)
    scene.settle_down()
    found: dict[bytes, set[int]] = {b"stored": set(), b"m": set(), b"new": set()}
    for each in peer.delivered[2]:
        found[each.message].add(each.attempts)
    assert found == {b"stored": {1}, b"m": {1}, b"new": {0}}


@pytest.mark.parametrize("over", ["one shard", "several"])
def test_what_a_lost_transaction_delivered_is_marked_when_it_is_applied_again(over: str) -> None:
    posts = [post("q", messages=[b"1", b"2"]), post("q", messages=[b"3"])]
    files, marks = FakeFiles(), DeliveryMarks()
    scene = life(files, marks)
    peer = scene.peer()
    peer.consume(2, "q", 100)
    if over == "several":
        prepare(peer, *posts)
        scene.settle_down()
        peer.ask("conclude", id=ID, commit=True)
    else:
        transact(peer, 1, *posts)
    scene.turn()
    assert len(peer.messages(2)) == 3
    # The shard is killed before the commit; the frontend, or the deciding shard, repeats the request.
    scene = life(files, next_life(marks))
    peer = scene.peer()
    peer.consume(2, "q", 100)
    if over == "several":
        peer.ask("conclude", id=ID, commit=True)
    else:
        transact(peer, 1, *posts, repeated=True)
    transact(peer, 2, post("q", messages=[b"new"]))
    scene.settle_down()
    assert [each.attempts for each in peer.delivered[2]] == [1, 1, 1, 0]


def test_a_dead_letter_that_is_buried_again_is_marked() -> None:
    files, marks = FakeFiles(), DeliveryMarks()
    scene = life(files, marks)
    peer = scene.peer()
    peer.produce(1, "q", number=1)
    peer.send(1, 1, [b"m"] * 3)
    scene.settle_down()

    def bury(peer: Peer) -> None:
        peer.consume(2, "q", 100)
        peer.consume(3, "q/$dlq", 100)
        peer.settle(2, 0, 3, OutcomeCode.REJECTED)

    bury(peer)
    scene.turn()
    assert len(peer.messages(3)) == 3
    scene = life(files, next_life(marks))
    peer = scene.peer(boot=8)
    bury(peer)
    scene.settle_down()
    assert [each.attempts for each in peer.delivered[3]] == [1] * 3


def test_what_is_sent_again_over_a_lost_connection_alone_is_not_marked() -> None:
    scene = Scene(marks=DeliveryMarks())
    peer = scene.peer()
    peer.consume(2, "q", 100)
    peer.produce(1, "q", number=3, sent_below=3)
    peer.send(1, 1, [b"1"])
    peer.send(1, 2, [b"2"])
    scene.settle_down()
    assert [each.attempts for each in peer.delivered[2]] == [0, 0]


def test_what_a_lost_frontend_held_is_marked_and_what_it_had_not_is_not() -> None:
    scene = Scene()
    sender, holder = scene.peer("frontend-0", 7), scene.peer("frontend-1", 8)
    sender.produce(1, "q")
    sender.send(1, 1, [b"%d" % n for n in range(10)])
    holder.consume(2, "q", 4)
    scene.settle_down()
    successor = scene.peer("frontend-1", 9)
    successor.consume(2, "q", 10)
    scene.settle_down()
    assert [each.attempts for each in successor.delivered[2]] == [1] * 4 + [0] * 6


def test_a_lost_frontend_that_held_nothing_marks_nothing() -> None:
    scene = Scene()
    sender, reader = scene.peer("frontend-0", 7), scene.peer("frontend-1", 8)
    sender.produce(1, "q")
    reader.consume(2, "q", 4)
    sender.send(1, 1, [b"%d" % n for n in range(6)])
    scene.settle_down()
    reader.settle(2, 0, 4)
    scene.settle_down()
    successor = scene.peer("frontend-1", 9)
    successor.consume(2, "q", 10)
    scene.settle_down()
    assert [each.attempts for each in successor.delivered[2]] == [0, 0]


async def written(marks: FileMarks) -> None:
    """Waits until the thread has written all that was noted."""
    await asyncio.to_thread(until, lambda: not marks._writing, "the marks are written")


# --- the file -------------------------------------------------------------------------------------------


def test_marks_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    async def main() -> None:
        marks = FileMarks(str(tmp_path), BOOT)
        marks.note(3, 100)
        marks.begin(asyncio.get_running_loop(), lambda: None)
        marks.note(3, 700)
        marks.note(20_000, 1 << 40)
        marks._worker.close()  # type: ignore[union-attr]  # all that was handed to the thread is done
        found = FileMarks(str(tmp_path), BOOT)
        assert found.before(3) in (100, 700)
        await asyncio.sleep(0)
        assert found.before(4) == 0

    asyncio.run(main())


def test_after_a_kill_a_queue_that_is_not_found_may_have_delivered_up_to_the_last_mark(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        marks = FileMarks(str(tmp_path), BOOT)
        assert not marks.lost_one(0)
        marks.begin(asyncio.get_running_loop(), lambda: None)
        marks.note(3, 100)
        await written(marks)
        killed = FileMarks(str(tmp_path), BOOT)
        assert [killed.lost_one(queue) for queue in (0, 3, 4)] == [True, True, False]
        marks.close({})
        assert not FileMarks(str(tmp_path), BOOT).lost_one(3)

    asyncio.run(main())


def test_what_gathers_while_the_thread_writes_is_written_next(tmp_path: Path) -> None:
    async def main() -> None:
        marks = FileMarks(str(tmp_path), BOOT)
        marks.begin(asyncio.get_running_loop(), lambda: None)
        for mark in range(1, 500):
            marks.note(mark % 7, mark)
        await written(marks)
        found = FileMarks(str(tmp_path), BOOT)
        assert [found.before(queue) for queue in range(7)] == [497, 498, 499, 493, 494, 495, 496]
        marks.close({})

    asyncio.run(main())


def test_what_is_delivered_beyond_the_mark_is_held_until_the_file_has_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        released: list[bool] = []
        marks = FileMarks(str(tmp_path), BOOT)
        marks.begin(asyncio.get_running_loop(), lambda: released.append(marks.holds))
        marks.note(1, 100)
        marks.note(2, 40)
        assert (marks.there(1), marks.holds) == (0, False)
        marks.hold(1, 90)
        marks.hold(2, 40)
        assert marks.holds
        await written(marks)
        await asyncio.to_thread(until, lambda: released, "it is released")
        assert released == [False]
        assert (marks.there(1), marks.there(2)) == (100, 40)
        marks.close({})

    asyncio.run(main())


def test_a_mark_that_falls_is_believed_before_the_thread_has_written_it(tmp_path: Path) -> None:
    """The file may have the lower mark already: what is delivered beyond it has to wait for its own."""

    async def main() -> None:
        marks = FileMarks(str(tmp_path), BOOT)
        marks.begin(asyncio.get_running_loop(), lambda: None)
        marks.note(1, 100)
        await written(marks)
        assert marks.there(1) == 100
        marks.note(1, 50)
        assert marks.there(1) == 50
        marks.note(1, 60)
        assert marks.there(1) == 50
        await written(marks)
        assert (marks.there(1), FileMarks(str(tmp_path), BOOT).before(1)) == (60, 60)
        marks.close({})

    asyncio.run(main())


def test_no_delivery_is_sent_beyond_the_mark_of_the_file_whenever_the_thread_writes(tmp_path: Path) -> None:
    """Fast and slow turns of a queue, and a thread that writes and answers at any time."""
    draw = random.Random(7)
    for round in range(30):
        path = tmp_path / str(round)
        path.mkdir()
        scene = Scene(marks=(marks := FileMarks(str(path), BOOT)))
        thread = Thread()
        marks._file = marks._make(0, {})
        marks._worker = thread  # type: ignore[assignment]
        marks._loop = Loop()  # type: ignore[assignment]
        marks._release = lambda: None
        peer = scene.peer()
        peer.produce(1, "q")
        peer.consume(2, "q", 1_000_000)
        for number in range(1, 60):
            peer.send(1, number, [b"m"] * draw.choice((1, 3, 40)))
            scene.settle_down()
            if draw.random() < 0.3:
                scene.tick(DELIVERY_MARK_PAUSE_MS + 1)
            for _ in range(draw.randrange(4)):
                thread.go_on()
            delivered = len(peer.delivered.get(2, ()))
            (mark,) = struct.unpack_from("<Q", (path / FILE).read_bytes().ljust(80, b"\0"), 72)
            assert delivered <= mark
        os.close(marks._file)
        marks._worker = None


class Thread:
    """The thread of a `Worker` that works when it is asked: first a job, then its answer."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        self._jobs += [work, partial(done, None)]

    def go_on(self) -> None:
        if self._jobs:
            self._jobs.popleft()()


class Loop:
    """A loop on which no time passes."""

    def call_later(self, _delay: float, _call: Callable[[], None]) -> "Loop":
        return self

    def cancel(self) -> None: ...


def test_nothing_is_kept_of_queues_that_have_ended_and_nothing_waits_for_their_marks(tmp_path: Path) -> None:
    async def main() -> None:
        marks = FileMarks(str(tmp_path), BOOT)
        marks.begin(asyncio.get_running_loop(), lambda: None)
        for queue in range(100):
            marks.note(queue, 5)
            marks.hold(queue, 5)
            marks.forget(queue)
        await asyncio.to_thread(until, lambda: not marks.holds, "nothing is held")
        await written(marks)
        assert (marks._there, marks._noted) == ({}, {})
        marks.close({})

    asyncio.run(main())


def test_an_orderly_end_leaves_exact_marks_which_outlive_the_machine(tmp_path: Path) -> None:
    async def main() -> None:
        marks = FileMarks(str(tmp_path), BOOT)
        marks.note(1, 5)
        marks.begin(asyncio.get_running_loop(), lambda: None)
        marks.note(2, 16_384)
        marks.note(3, 6)
        # The thread may be at it still, so this one gathers.
        marks.note(3, 7)
        marks.close({1: 0, 2: 80})

    asyncio.run(main())
    for boot in BOOT, BOOT[::-1]:
        found = FileMarks(str(tmp_path), boot)
        assert found.is_exact
        assert [found.before(queue) for queue in range(5)] == [0, 0, 80, 7, 0]


def test_the_orderly_end_of_a_former_version_left_no_marks(tmp_path: Path) -> None:
    file = struct.pack("<8sHH16s", b"LRDMARKS", 1, 1, BOOT).ljust(64, b"\0") + struct.pack("<Q", 9)
    (tmp_path / FILE).write_bytes(file)
    assert FileMarks(str(tmp_path), BOOT).before(0) == 0


def test_after_the_machine_went_down_everything_is_marked(tmp_path: Path) -> None:
    async def main() -> None:
        marks = FileMarks(str(tmp_path), BOOT)
        marks.note(1, 5)
        marks.begin(asyncio.get_running_loop(), lambda: None)

    asyncio.run(main())
    found = FileMarks(str(tmp_path), BOOT[::-1])
    assert found.before(1) == found.before(2) == EVERYTHING


def test_where_another_member_may_have_delivered_everything_is_marked(tmp_path: Path) -> None:
    async def main() -> None:
        marks = FileMarks(str(tmp_path), BOOT)
        marks.begin(asyncio.get_running_loop(), lambda: None)
        marks.note(1, 5)
        marks.close({1: 5})

    asyncio.run(main())
    found = FileMarks(str(tmp_path), BOOT, is_followed=True)
    assert found.is_after_kill
    assert not found.is_exact
    assert found.before(1) == found.before(2) == EVERYTHING


def test_a_file_that_is_no_such_file_marks_everything(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"half")
    assert FileMarks(str(tmp_path), BOOT).before(1) == EVERYTHING


def test_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(struct.pack("<8sHH16s", b"LRDMARKS", 2, 0, BOOT).ljust(64, b"\0"))
    with pytest.raises(NewerFormatError, match="version 2"):
        FileMarks(str(tmp_path), BOOT)


def test_a_disk_that_refuses_the_file_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def main() -> None:
        marks = FileMarks(str(tmp_path), BOOT)
        marks.begin(asyncio.get_running_loop(), lambda: None)
        monkeypatch.setattr(os, "pwrite", refuse)
        for mark in range(3):
            marks.note(1, mark + 1)
            marks.hold(1, mark + 1)
            await written(marks)
            assert not marks.holds
        marks.close({})

    asyncio.run(main())
    assert len([each for each in caplog.records if "are not marked" in each.message]) == 1
