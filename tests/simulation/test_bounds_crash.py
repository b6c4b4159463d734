"""The shard of a bounded queue dies at any byte that it writes; what was taken in part is stored once.

Three lives: a queue that refuses what does not fit, one whose senders wait, and one that drops what comes
with a message-id of before.
"""

from collections.abc import Callable

import pytest

from lightrail.journal.record import Ids, Taken
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Record
from lightrail.shard.queue.values.commands import Change
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Location
from lightrail.wire.frames import Kind
from tests.support.shard.fake_files import Crash, FakeFiles, crashes
from tests.support.shard.life import QUEUE, QUEUE_OF, Id, Life, message
from tests.support.shard.scene import Peer

KEEP = ("some", "none", "all", "some")
MARK = 1 << 30


class BoundedLife(Life):
    """All messages are durable; `refused` are those whose sender was told so."""

    policy = Policy(max_delivery_count=3, max_length=6)
    durable_share = 1.0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.refused: set[Id] = set()
        self.kept: dict[tuple[int, int], list[Id]] = {}

    def configure(self) -> None:
        queue = self.scene.engine._queues.find(QUEUE)
        if queue is not None:
            queue.machine.apply(Change(self.policy), 0)

    def ids(self, link: int, number: int) -> list[Id]:
        found = self.kept[link, number] = self.chosen(link, number)
        return found

    def chosen(self, link: int, number: int) -> list[Id]:
        return super().ids(link, number)

    def send(self) -> None:
        # A sender with a refusal or with much on its way waits, as its credit would have it.
        if all(len(batches) > 4 for batches in self.unanswered.values()):
            return
        super().send()

    def hear(self) -> None:
        self.answers()
        super().hear()

    def answers(self) -> None:
        """What was refused counts as answered, and as accepted up to where it was taken."""
        refusals, self.peer.refusals = self.peer.refusals, []
        for link, number, refusal in refusals:
            if self.unanswered[link].pop(number, None) is None:
                continue
            ids = self.kept[link, number]
            for id in ids[: refusal.accepted]:
                self.fates[id].accepted = True
            self.refused.update(ids[refusal.accepted :])
            self.told(link, number)
        self.peer.heard = [answer for answer in self.peer.heard if answer.kind != Kind.REFUSED]
        for answer in self.peer.heard:
            if answer.kind == Kind.ACCEPTED:
                for number in range(answer.number, answer.number + answer.count):
                    if number in self.unanswered[answer.link]:
                        for id in self.kept[answer.link, number]:
                            self.fates[id].accepted = True

    def told(self, link: int, number: int) -> None:
        """A refusal was heard."""

    def check(self, what: object, *, resent: bool) -> None:
        ready, dead = self.contents()
        both = ready + dead
        assert len(set(both)) == len(both), (what, "stored twice")
        there = set(both)
        for link in self.links:
            mine = [id for id in ready if id[0] == link]
            assert mine == sorted(mine), (what, "out of order", link)
        for id, fate in self.fates.items():
            if id in self.refused:
                assert id not in there, (what, "refused and stored", id)
            elif fate.gone:
                assert id not in there, (what, "came back", id)
            elif not fate.taken and (fate.accepted or resent):
                assert id in there, (what, "lost", id)

    def drain(self) -> None:
        """Takes everything until nobody waits for an answer."""
        for _ in range(200):
            if not any(self.unanswered.values()):
                return
            self.peer.credit(9, self.received + 50)
            self.hear()
            numbers = list(self.held)
            for number in numbers:
                id = self.held.pop(number)
                self.fates[id].taken = True
                self.settling.append(id)
                self.peer.settle(9, number, 1)
            self.settle_down()
            self.commit()
        raise AssertionError(f"never answered: {self.unanswered}")

    def settle_down(self) -> None:
        super().settle_down()
        self.hear()


class WaitingLife(BoundedLife):
    """Nobody is ever refused."""

    policy = Policy(max_delivery_count=3, max_length=6, overflow="flow_control")

    def told(self, link: int, number: int) -> None:
        raise AssertionError(f"batch {number} of link {link} was refused")


class RepeatingLife(BoundedLife):
    """Senders say again, under new numbers, what they said before: with the same message-ids."""

    policy = Policy(max_delivery_count=3, duplicate_window_ms=60_000, max_length=30, overflow="flow_control")

    def chosen(self, link: int, number: int) -> list[Id]:
        found = super().chosen(link, number)
        earlier = [id for id in self.fates if id[0] == link and id not in found and QUEUE_OF[link] == QUEUE]
        if earlier and self.chance.random() < 0.6:
            found.insert(self.chance.randint(0, len(found)), self.chance.choice(earlier[-8:]))
        return found

    def message(self, id: Id, size: int) -> bytes:
        name = b"%d:%d:%d" % id
        section = b"\xa1" + bytes((len(name),)) + name
        return b"\x00\x53\x73\xc0" + bytes((len(section) + 1, 1)) + section + message(id, size)


LIVES = pytest.mark.parametrize("make", [BoundedLife, WaitingLife, RepeatingLife])
Make = Callable[[int], BoundedLife]


def crashed(make: Make, seed: int, length: int, steps: int | None) -> tuple[FakeFiles, BoundedLife]:
    files = FakeFiles(steps)
    life = make(seed)
    try:
        life.start(files, memory_mark=MARK)
        life.connect()
        life.run(length)
    except Crash:
        pass
    return files, life


def come_back(life: BoundedLife, files: FakeFiles, what: object) -> None:
    life.start(files, memory_mark=MARK)
    life.peer = Peer(life.scene)
    life.check((what, "recovered"), resent=False)
    life.connect()
    life.settle_down()
    life.drain()
    life.settle_down()
    life.scene.engine.lost(life.peer.identity)
    life.scene.turn()
    life.settle_down()
    life.check((what, "resent"), resent=True)


def test_the_scripts_do_something(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Record] = []
    real = Journal.append

    def append(journal: Journal, record: Record, now_ms: int = 0) -> Location | None:
        written.append(record)
        return real(journal, record, now_ms)

    monkeypatch.setattr(Journal, "append", append)
    for make in (BoundedLife, WaitingLife, RepeatingLife):
        written.clear()
        files, life = crashed(make, 1, 300, None)
        queue = life.scene.engine._queues.find(QUEUE)
        assert queue is not None
        taken = sum(isinstance(record, Taken) for record in written)
        ids = sum(isinstance(record, Ids) for record in written)
        if make is RepeatingLife:
            assert queue.machine.contents.counters.duplicates > 20
            assert ids > 20
        else:
            assert taken > 5
            assert bool(life.refused) == (make is BoundedLife)
        assert life.scene.store.usage().segments_dropped > 3
        come_back(life, files.after_crash(1, "none"), make)


@LIVES
def test_crash_at_every_byte(make: Make) -> None:
    files, _ = crashed(make, 2, 14, None)
    for steps in crashes(files, KEEP):
        dead, life = crashed(make, 2, 14, steps)
        come_back(life, dead.after_crash(steps, KEEP[steps % 4]), (make, steps))


@LIVES
@pytest.mark.parametrize("seed", range(3, 7))
def test_crash_somewhere_in_a_longer_life(make: Make, seed: int) -> None:
    files, _ = crashed(make, seed, 120, None)
    for steps in range(seed, files.written, max(1, files.written // 30)):
        dead, life = crashed(make, seed, 120, steps)
        come_back(life, dead.after_crash(steps, KEEP[steps % 4]), (make, seed, steps))
