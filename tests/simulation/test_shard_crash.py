"""The shard dies at any byte that it writes; its frontend says again what was not answered.

Whatever byte the crash falls on, and whatever became of the writes that were not synced: every durable
message that was accepted is there after recovery, in order, none twice, and none that was taken for good.
"""

import random

import pytest

from lightrail.journal.record import REWRITTEN
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.tail import Tail
from lightrail.shard.queue.values.runs import Location
from tests.support.shard.fake_files import Crash, FakeFiles, crashes
from tests.support.shard.life import Life

KEEP = ("some", "none", "all", "some")
MARKS = (1 << 30, 600, 1_500)
"""Memory marks: with the small ones messages flow to disk and are fetched, with transient ones among them."""


def crashed(seed: int, length: int, steps: int | None, mark: int) -> tuple[FakeFiles, Life]:
    """A life on a disk that stops after so many steps."""
    files = FakeFiles(steps)
    life = Life(seed)
    try:
        life.start(files, memory_mark=mark)
        life.connect()
        life.run(length)
    except Crash:
        pass
    return files, life


def come_back(life: Life, files: FakeFiles, mark: int, what: object) -> None:
    """Recovers, resends, and goes on for a while."""
    life.start(files, memory_mark=mark)
    life.check((*_tuple(what), "recovered"), resent=False)
    life.connect()
    life.settle_down()
    assert not any(life.unanswered.values()), (what, "not answered")
    life.scene.engine.lost(life.peer.identity)
    life.scene.turn()
    life.settle_down()
    life.check((*_tuple(what), "resent"), resent=True)


def _tuple(what: object) -> tuple[object, ...]:
    return what if isinstance(what, tuple) else (what,)


def test_the_script_does_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments roll and go, batches are answered, messages are taken, rejected, evicted and fetched."""
    appended: list[Append] = []
    real = Tail.append

    def append(tail: Tail, record: Append, now_ms: int) -> Location:
        appended.append(record)
        return real(tail, record, now_ms)

    monkeypatch.setattr(Tail, "append", append)
    files, life = crashed(1, 300, None, 600)
    usage = life.scene.store.usage()
    assert usage.segments_dropped > 3
    assert life.scene.counts.evictions > 3
    assert life.scene.counts.fetched_bytes > 0
    assert life.scene.counts.batches_duplicate > 3
    assert any(each.flags & REWRITTEN for each in appended)
    assert sum(life.scene.counts.dead_lettered.values()) > 3
    assert sum(fate.gone for fate in life.fates.values()) > 20
    come_back(life, files.after_crash(1, "none"), 600, "whole")


@pytest.mark.parametrize(("seed", "length", "mark"), [(1, 22, MARKS[0]), (2, 14, MARKS[1])])
def test_crash_at_every_byte(seed: int, length: int, mark: int) -> None:
    files, _ = crashed(seed, length, None, mark)
    for steps in crashes(files, KEEP):
        dead, life = crashed(seed, length, steps, mark)
        come_back(life, dead.after_crash(steps, KEEP[steps % 4]), mark, (seed, steps))


def test_a_crash_that_is_passed_over_leaves_a_disk_that_another_one_left() -> None:
    def left(steps: int) -> tuple[object, ...]:
        """The point of the run, and the disk."""
        dead, _ = crashed(2, 3, steps, MARKS[1])
        kept = dead.after_crash(steps, KEEP[steps % 4]).inodes
        return len(dead.calls), *sorted((name, bytes(inode.live)) for name, inode in kept.items())

    files, _ = crashed(2, 3, None, MARKS[1])
    stops = set(crashes(files, KEEP))
    others = set(range(files.written + 1)) - stops
    assert {*range(0, files.written + 1, 4), *range(2, files.written + 1, 4)} <= stops
    assert len(others) > files.written // 8
    assert {left(steps) for steps in others} <= {left(steps) for steps in stops if KEEP[steps % 4] == "none"}


@pytest.mark.parametrize("seed", range(3, 9))
def test_crash_somewhere_in_a_longer_life(seed: int) -> None:
    mark = MARKS[seed % 3]
    files, _ = crashed(seed, 150, None, mark)
    for steps in range(seed, files.written, max(1, files.written // 60)):
        dead, life = crashed(seed, 150, steps, mark)
        come_back(life, dead.after_crash(steps, KEEP[steps % 4]), mark, (seed, steps))


@pytest.mark.parametrize("seed", range(20, 24))
def test_many_lives_of_one_shard(seed: int) -> None:
    """One frontend, one disk, thirty lives: each dies somewhere, the next goes on with what it finds."""
    chance = random.Random(seed)
    life = Life(seed)
    files = FakeFiles()
    for number in range(30):
        mark = chance.choice(MARKS)
        files.steps_left = None
        come_back(life, files, mark, (seed, number))
        life.connect()
        files.steps_left = chance.randint(0, 6_000)
        try:
            life.run(80)
            files.crash()
        except Crash:
            pass
        files = files.after_crash(number, KEEP[number % 4])
