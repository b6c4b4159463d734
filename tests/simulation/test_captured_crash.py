"""The shard of captured queues dies at any byte that it writes; its journal tells of them what happened.

Durable and transient messages are recovered as those of any queue. Beyond that the journal, read as others
read it, has each durable message that was accepted once, and its end where that was on disk; and it tells of
no message what can't be.
"""

import random

import pytest

from lightrail.model.policy import Policy
from lightrail.shard.queues.declarations import EveryName
from tests.support.shard.captured import Reading, broken_laws, read
from tests.support.shard.fake_files import Crash, FakeFiles
from tests.support.shard.life import QUEUE, STAY, Id, Life, id_of

KEEP = ("some", "none", "all", "some")
MARKS = (1 << 30, 600, 1_500)


class CapturedLife(Life):
    """Half of the batches are transient; both queues are captured."""

    durable_share = 0.5
    files: FakeFiles

    def start(self, files: FakeFiles, *, memory_mark: int) -> None:
        self.files = files
        super().start(files, memory_mark=memory_mark)

    def names(self) -> EveryName:
        names = EveryName()
        for name in (QUEUE, STAY):
            names.give(name, Policy.parse({"role": "queue", "capture": True}))
        return names

    def check(self, what: object, *, resent: bool) -> None:
        super().check(what, resent=resent)
        self.scene.settle_down()
        reading = read(self.files.after_crash(1, "all"))
        whole = "000000000001.segment" in self.files.names()
        assert not broken_laws(reading.events, whole=whole), what
        if whole:
            self.check_each(reading, what, resent=resent)

    def check_each(self, reading: Reading, what: object, *, resent: bool) -> None:
        """What the journal has of each message."""
        ids: dict[tuple[str, int], Id] = {}
        came: dict[Id, int] = {}
        ends: dict[Id, str] = {}
        for each in reading.events:
            if each.queue not in (QUEUE, STAY):
                continue
            key = each.queue, each.sequence
            if each.event == "enqueued":
                ids[key] = id_of(each.message)
                came[ids[key]] = came.get(ids[key], 0) + 1
            ends[ids[key]] = each.event
        for id, fate in self.fates.items():
            if fate.durable:
                assert came.get(id, 0) <= 1, (what, "twice", id)
                assert came.get(id) or not (fate.accepted or resent), (what, "missing", id)
            if fate.gone and id in came:
                assert not fate.durable or ends[id] == "accepted", (what, "its end is missing", id)


class LargeLife(CapturedLife):
    """Nothing goes from its journal: each message can be followed from its beginning."""

    segment_bytes = 1 << 14

    def start(self, files: FakeFiles, *, memory_mark: int) -> None:
        super().start(files, memory_mark=memory_mark)
        self.scene.store.oldest_to_clean = lambda: None  # type: ignore[method-assign]


def crashed(kind: type[CapturedLife], seed: int, length: int, steps: int | None, mark: int) -> CapturedLife:
    """A life on a disk that stops after so many steps."""
    life = kind(seed)
    life.files = FakeFiles(steps)
    try:
        life.start(life.files, memory_mark=mark)
        life.connect()
        life.run(length)
    except Crash:
        pass
    return life


def come_back(life: CapturedLife, files: FakeFiles, mark: int, *what: object) -> None:
    """Recovers, resends, and goes on for a while."""
    life.start(files, memory_mark=mark)
    life.check((*what, "recovered"), resent=False)
    life.connect()
    life.settle_down()
    assert not any(life.unanswered.values()), (what, "not answered")
    life.scene.engine.lost(life.peer.identity)
    life.scene.turn()
    life.settle_down()
    life.check((*what, "resent"), resent=True)


def test_the_script_does_something() -> None:
    life = crashed(LargeLife, 1, 300, None, 600)
    come_back(life, life.files.after_crash(1, "none"), 600, "whole")
    found = read(life.files.after_crash(1, "all")).events
    assert {each.event for each in found} >= {
        *("enqueued", "delivered", "accepted", "dead_lettered", "released", "modified")
    }
    assert {each.durable for each in found if each.event == "enqueued"} == {True, False}
    assert life.scene.counts.evictions or life.scene.counts.fetched_bytes
    small = crashed(CapturedLife, 1, 300, None, 600)
    assert small.scene.store.usage().segments_dropped > 3


@pytest.mark.parametrize(("kind", "seed", "length"), [(CapturedLife, 2, 14), (LargeLife, 1, 14)])
def test_crash_at_any_byte(kind: type[CapturedLife], seed: int, length: int) -> None:
    mark = MARKS[seed % 2]
    for steps in range(0, crashed(kind, seed, length, None, mark).files.written + 1, 3):
        life = crashed(kind, seed, length, steps, mark)
        come_back(life, life.files.after_crash(steps, KEEP[steps % 4]), mark, seed, steps)


@pytest.mark.parametrize("kind", [CapturedLife, LargeLife])
@pytest.mark.parametrize("seed", range(3, 6))
def test_crash_somewhere_in_a_longer_life(kind: type[CapturedLife], seed: int) -> None:
    mark = MARKS[seed % 3]
    written = crashed(kind, seed, 150, None, mark).files.written
    for steps in range(seed, written, max(1, written // 60)):
        life = crashed(kind, seed, 150, steps, mark)
        come_back(life, life.files.after_crash(steps, KEEP[steps % 4]), mark, seed, steps)


@pytest.mark.parametrize("kind", [CapturedLife, LargeLife])
def test_many_lives_of_one_shard(kind: type[CapturedLife]) -> None:
    chance = random.Random(20)
    life = kind(20)
    files = FakeFiles()
    for number in range(12):
        mark = chance.choice(MARKS)
        files.steps_left = None
        come_back(life, files, mark, number)
        life.connect()
        files.steps_left = chance.randint(0, 6_000)
        try:
            life.run(80)
            files.crash()
        except Crash:
            pass
        files = files.after_crash(number, KEEP[number % 4])
