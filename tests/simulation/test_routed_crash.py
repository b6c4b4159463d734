"""The shard dies at any byte while batches go to several queues: each is in all of its queues or in none.

Whatever the crash leaves: what was accepted is in every queue of its set once and in order, unless it was
taken; what was not accepted is in all of them or nowhere, and once when it was said again.
"""

import random
import re

import pytest

from lightrail.journal.record import REWRITTEN
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.tail import Tail
from lightrail.shard.queue.values.runs import Location
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.frames import Kind
from tests.support.shard.captured import broken_laws, read
from tests.support.shard.fake_files import Crash, FakeFiles, crashes
from tests.support.shard.scene import Peer, Scene, batch

SEGMENT_BYTES = 1_500
KEEP = ("some", "none", "all", "some")
SETS = {1: ("a", "b"), 2: ("a", "b", "c", "d"), 3: ("b",)}
WEIGHTS = (8, 1, 4)
"""Nobody takes anything from c and d: what lies there has to be written again."""
ROUTER, FIRST_READER, INSPECTOR = 1, 10, 90
MARKS = (1 << 30, 500)


def text(number: int, index: int, size: int) -> bytes:
    return b"<%d:%d>" % (number, index) + b"." * size


def ids(messages: list[bytes]) -> list[tuple[int, int]]:
    found = [re.match(rb"<(\d+):(\d+)>", message) for message in messages]
    return [(int(each[1]), int(each[2])) for each in found if each]


class Life:
    """One router's link and two readers, over the lives of their shard."""

    def __init__(self, seed: int, captured: str = "") -> None:
        self.captured = captured
        """Queues whose policy says capture."""
        self.chance = random.Random(seed)
        self.number = 0
        self.sent: dict[int, tuple[int, int, bool]] = {}
        """(set, messages, durable) of each batch."""
        self.unanswered: dict[int, bytes] = {}
        self.accepted: set[int] = set()
        self.received = {"a": 0, "b": 0}
        self.held: dict[str, dict[int, tuple[int, int]]] = {"a": {}, "b": {}}
        self.taken: dict[str, set[tuple[int, int]]] = {name: set() for name in "abcd"}
        self.settling: list[tuple[str, tuple[int, int]]] = []
        self.committing: list[tuple[str, tuple[int, int]]] = []
        self.gone: dict[str, set[tuple[int, int]]] = {name: set() for name in "abcd"}
        self.scene: Scene
        self.peer: Peer

    def start(self, files: FakeFiles, mark: int) -> None:
        journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES)
        names = EveryName()
        for name in self.captured:
            names.give(name, Policy.parse({"role": "queue", "capture": True}))
        self.scene = Scene(journal, journal.recover(mark, 1), memory_mark=mark, names=names)
        self.files = files
        self.settling, self.committing = [], []

    def connect(self) -> None:
        self.peer = Peer(self.scene, "frontend-0", 7)
        self.peer.greet()
        self.peer.produce(ROUTER)
        for number, queues in SETS.items():
            self.peer.targets(ROUTER, number, *queues)
        if self.unanswered:
            self.peer.say(*self.unanswered.values())
        for link, queue in enumerate(self.held, FIRST_READER):
            self.held[queue] = {}
            self.peer.consume(link, queue, first=self.received[queue])
        self.hear()

    def run(self, length: int) -> None:
        for _ in range(length):
            self.chance.choice([self.send] * 3 + [self.receive] * 2 + [self.settle] * 3 + [self.commit] * 2)()
            self.hear()
        self.settle_down()

    def send(self) -> None:
        self.number += 1
        set_ = self.chance.choices(list(SETS), WEIGHTS)[0]
        count = self.chance.randint(1, 3)
        durable = self.chance.random() < 0.8
        self.sent[self.number] = (set_, count, durable)
        messages = [text(self.number, index, self.chance.choice((5, 60))) for index in range(count)]
        afresh = not self.unanswered
        part = batch(ROUTER, self.number, messages, set_=set_, durable=durable, afresh=afresh)
        self.unanswered[self.number] = part
        self.peer.say(part)

    def receive(self) -> None:
        link, queue = self.chance.choice(list(enumerate(self.held, FIRST_READER)))
        self.peer.credit(link, self.received[queue] + self.chance.randint(1, 16))

    def settle(self) -> None:
        link, queue = self.chance.choice(list(enumerate(self.held, FIRST_READER)))
        held = self.held[queue]
        for number in self.chance.sample(list(held), self.chance.randint(0, len(held))):
            self.taken[queue].add(held[number])
            self.settling.append((queue, held.pop(number)))
            self.peer.settle(link, number, 1)

    def commit(self) -> None:
        if self.scene.commit is None:
            if self.scene.store.pending:
                self.committing, self.settling = self.settling, []
                self.scene.begin_commit()
            return
        self.scene.end_commit()
        for queue, id in self.committing:
            self.gone[queue].add(id)
        self.committing = []

    def settle_down(self) -> None:
        self.scene.turn()
        while self.scene.store.pending or self.scene.commit is not None:
            self.commit()
        self.hear()

    def hear(self) -> None:
        for answer in self.peer.take(Kind.ACCEPTED, Kind.REFUSED):
            assert answer.kind == Kind.ACCEPTED
            for number in range(answer.number, answer.number + answer.count):
                self.unanswered.pop(number, None)
                self.accepted.add(number)
        for link, queue in enumerate(self.held, FIRST_READER):
            came = self.peer.delivered.pop(link, [])
            for each, id in zip(came, ids([each.message for each in came]), strict=True):
                assert each.number == self.received[queue]
                self.held[queue][each.number] = id
                self.received[queue] = each.number + 1

    def contents(self) -> dict[str, list[tuple[int, int]]]:
        inspector = Peer(self.scene, "inspector", 8)
        inspector.greet()
        found = {}
        for link, queue in enumerate("abcd", INSPECTOR):
            inspector.consume(link, queue, 1 << 20, browse=True)
            self.scene.turn()
            found[queue] = ids(inspector.messages(link))
        self.scene.engine.lost(inspector.identity)
        return found

    def check(self, what: object, *, resent: bool) -> None:
        found = self.contents()
        self.scene.settle_down()
        said = read(self.files.after_crash(1, "all")).events
        assert not broken_laws(said, whole="000000000001.segment" in self.files.names()), what
        assert {each.queue for each in said} <= set(self.captured)
        for queue, there in found.items():
            assert there == sorted(set(there)), (what, queue, "twice or out of order")
            assert not self.gone[queue] & set(there), (what, queue, "came back")
        for number, (set_, count, durable) in self.sent.items():
            if not durable:
                continue
            # What is missing was taken, or (neither accepted nor said again) was stored nowhere.
            missing = [
                (queue, (number, index))
                for queue in SETS[set_]
                for index in range(count)
                if (number, index) not in found[queue] and (number, index) not in self.taken[queue]
            ]
            if number in self.accepted or resent:
                assert not missing, (what, "lost", missing)
            elif missing:
                anywhere = [queue for queue in SETS[set_] if any(id[0] == number for id in found[queue])]
                assert not anywhere, (what, "in some queues only", number, anywhere)


def crashed(
    seed: int, length: int, steps: int | None, mark: int, captured: str = ""
) -> tuple[FakeFiles, Life]:
    files = FakeFiles(steps)
    life = Life(seed, captured)
    try:
        life.start(files, mark)
        life.connect()
        life.run(length)
    except Crash:
        pass
    return files, life


def come_back(life: Life, files: FakeFiles, mark: int, what: object) -> None:
    life.start(files, mark)
    life.check((what, "recovered"), resent=False)
    life.connect()
    life.settle_down()
    assert not life.unanswered, (what, "not answered")
    life.scene.engine.lost(life.peer.identity)
    life.settle_down()
    life.check((what, "resent"), resent=True)


def test_the_script_does_something(monkeypatch: pytest.MonkeyPatch) -> None:
    appended: list[Append] = []
    real = Tail.append

    def append(tail: Tail, record: Append, now_ms: int) -> Location:
        appended.append(record)
        return real(tail, record, now_ms)

    monkeypatch.setattr(Tail, "append", append)
    files, life = crashed(1, 300, None, 500)
    assert life.scene.store.usage().segments_dropped > 3
    assert life.scene.counts.evictions > 3
    assert any(each.flags & REWRITTEN and len(each.targets) > 1 for each in appended)
    assert sum(map(len, life.gone.values())) > 20
    come_back(life, files.after_crash(1, "none"), 500, "whole")


@pytest.mark.parametrize(("seed", "length", "mark"), [(1, 24, MARKS[0]), (2, 16, MARKS[1])])
def test_crash_at_every_byte(seed: int, length: int, mark: int) -> None:
    files, _ = crashed(seed, length, None, mark)
    for steps in crashes(files, KEEP):
        dead, life = crashed(seed, length, steps, mark)
        come_back(life, dead.after_crash(steps, KEEP[steps % 4]), mark, (seed, steps))


@pytest.mark.parametrize(("seed", "captured"), [(3, ""), (4, ""), (5, ""), (6, ""), (7, "ac"), (8, "abd")])
def test_crash_somewhere_in_a_longer_life(seed: int, captured: str) -> None:
    """Long enough for segments to be cleaned, and the crash falls into that as well."""
    mark = MARKS[seed % 2]
    files, _ = crashed(seed, 200, None, mark, captured)
    for steps in range(seed, files.written, max(1, files.written // 60)):
        dead, life = crashed(seed, 200, steps, mark, captured)
        come_back(life, dead.after_crash(steps, KEEP[steps % 4]), mark, (seed, steps))
