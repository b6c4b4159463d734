"""Shards and the frontend die at any step of transactions over two and three shards.

Whatever dies: when all are back and have asked each other, a transaction has happened at all of its shards or
at none, each message is in one place, and what the client was answered stays so.
"""

import random
from array import array
from itertools import accumulate
from typing import Any

import pytest

from lightrail.model import limits
from lightrail.shard.journal.journal import Journal
from tests.support.shard.fake_files import Crash, FakeFiles
from tests.support.shard.scene import Peer, Scene

SEGMENT_BYTES = 2_000
KEEP = ("some", "none", "all", "some")
COUNT = 4
SENDER, READER, INSPECTOR = 1, 10, 90
PRODUCER = 7 << 32 | 50


class Shard:
    """One shard over its lives, with queue `q` and `to`."""

    def __init__(self, number: int, steps: int | None, memory_mark: int) -> None:
        self.number = number
        self.memory_mark = memory_mark
        self.files = FakeFiles(steps)
        self.received = 0
        self.is_down = False
        self.scene: Scene
        self.peer: Peer
        self.start()

    def name(self, queue: str) -> str:
        return f"{queue}{self.number}"

    def start(self) -> None:
        journal = Journal(self.files, "test", self.number, segment_bytes=SEGMENT_BYTES)
        recovered = journal.recover(self.memory_mark, 1)
        self.scene = Scene(journal, recovered, shard=self.number, memory_mark=self.memory_mark)
        self.peer = Peer(self.scene, "frontend-0", 7)
        self.peer.greet()
        self.is_down = False

    def restart(self, seed: int) -> None:
        self.files = self.files.after_crash(seed, KEEP[seed % 4])
        self.start()

    def consume(self) -> None:
        self.peer.consume(READER, self.name("q"), first=self.received)
        self.peer.credit(READER, self.received + COUNT)
        self.scene.settle_down()
        self.received += COUNT

    def ask(self, op: str, blob: bytes = b"", **fields: Any) -> dict[str, Any] | None:
        """The answer; None where the shard dies of it."""
        if self.is_down:
            return None
        try:
            request = self.peer.ask(op, blob, **fields)
            self.scene.settle_down()
        except Crash:
            self.is_down = True
            return None
        return self.peer.answers[request][0]

    def contents(self, queue: str, suffix: str = "") -> list[bytes]:
        inspector = Peer(self.scene, "inspector", 8)
        inspector.greet()
        inspector.consume(INSPECTOR, self.name(queue) + suffix, 1 << 20, browse=True)
        self.scene.turn()
        found = inspector.messages(INSPECTOR)
        self.scene.engine.lost(inspector.identity)
        return found


def part(shard: Shard, messages: list[bytes]) -> tuple[dict[str, Any], bytes]:
    """Sends messages to the shard's queue `to`, accepts a delivery of its queue `q`, and rejects others."""
    ends = array("I", accumulate(map(len, messages)))
    posts = [[[shard.name("to")], True, 4, 0, 0, len(messages), ends[-1]]]
    settles = [[shard.name("q"), READER, 0, 1, 0, {}], [shard.name("q"), READER, 1, COUNT - 2, 1, {}]]
    return {"posts": posts, "settles": settles}, ends.tobytes() + b"".join(messages)


class World:
    """Some shards, each with messages in flight at the frontend, and one transaction over all of them.

    Args:
        steps: of the files of one shard, until it crashes; None: it does not.
        dies_at: the step of the frontend before which it dies; None: it does not.
        memory_mark: bytes of messages in memory at each shard; the others are only on disk.
    """

    def __init__(
        self,
        count: int,
        seed: int,
        victim: int,
        steps: int | None,
        dies_at: int | None,
        memory_mark: int = 1 << 30,
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.shards = [Shard(number, None, memory_mark) for number in range(count)]
        for shard in self.shards:
            shard.peer.produce(SENDER, shard.name("q"))
            shard.peer.send(SENDER, 1, [b"<%d.%d>" % (shard.number, i) for i in range(COUNT)], durable=True)
            shard.scene.settle_down()
            shard.consume()
        if steps is not None:
            self.shards[victim].files.steps_left = steps
        self.id = f"{seed + 1:032x}"
        self.step = 0
        self.dies_at = dies_at
        self.answer: bool | None = None
        self.parts = {
            shard.number: part(shard, [b"[%d]" % shard.number, b"[%d!]" % shard.number])
            for shard in self.shards
        }

    def alive(self) -> bool:
        """Whether the frontend comes to its next step."""
        self.step += 1
        return self.dies_at is None or self.step < self.dies_at

    def run(self) -> None:
        """What a frontend does (frontend/transactions/committing.py); a shard that dies is back at once."""
        *others, last = self.shards
        is_prepared = True
        for shard in others:
            if not self.alive():
                return
            answer = self.repeated(shard, "prepare", id=self.id, decides=last.number)
            is_prepared &= answer is not None and "prepared" in answer
        decision = False
        if is_prepared:
            if not self.alive():
                return
            numbers = [shard.number for shard in others]
            answer = self.repeated(last, "transact", id=self.id, others=numbers, producer=PRODUCER, number=1)
            if answer is None:
                return
            decision = "committed" in answer
        self.answer = decision
        for shard in others:
            if not self.alive():
                return
            shard.ask("conclude", id=self.id, commit=decision)

    def repeated(self, shard: Shard, op: str, **fields: Any) -> dict[str, Any] | None:
        part, blob = self.parts[shard.number]
        answer = shard.ask(op, blob, **part, **fields)
        if answer is None:
            shard.restart(self.seed)
            answer = shard.ask(op, blob, **part, **fields)
        return answer

    def recover(self) -> None:
        """All come back, the frontend as another process; then each asks for what it does not know."""
        for shard in self.shards:
            shard.files.steps_left = None
            if shard.is_down or self.chance.random() < 0.5:
                shard.restart(self.seed)
            else:
                shard.scene.engine.lost(shard.peer.identity)
                shard.scene.settle_down()
            shard.peer = Peer(shard.scene, "shard", 9)
            shard.peer.greet()
        for shard in self.shards:
            transactions = shard.scene.engine.transactions
            now_ms = shard.scene.now_ms + limits.TRANSACTION_RESOLVE_MS
            for id, decides in transactions.overdue(now_ms):
                answer = self.shards[decides].ask("outcome", id=id.hex())
                assert answer is not None
                transactions.conclude(id, commits=answer["committed"], now_ms=shard.scene.now_ms)
                shard.scene.settle_down()
            assert transactions.overdue(now_ms) == []
        for shard in self.shards:
            transactions = shard.scene.engine.transactions
            for number, ids in transactions.awaited.items():
                answer = self.shards[number].ask("concluded", ids=[id.hex() for id in ids])
                assert answer is not None
                transactions.forget(number, map(bytes.fromhex, answer["concluded"]), shard.scene.now_ms)
            shard.scene.settle_down()

    def check(self, what: object) -> None:
        happened = set()
        for shard in self.shards:
            there, sent = shard.contents("q"), shard.contents("to")
            rejected = shard.contents("q", "/$dlq")
            everything = [b"<%d.%d>" % (shard.number, i) for i in range(COUNT)]
            if sent:
                assert sent == [b"[%d]" % shard.number, b"[%d!]" % shard.number], (what, shard.number, sent)
                assert there == everything[COUNT - 1 :], (what, shard.number, there)
                assert rejected == everything[1 : COUNT - 1], (what, shard.number, rejected)
            else:
                assert there == everything, (what, shard.number, there)
                assert rejected == [], (what, shard.number, rejected)
            happened.add(bool(sent))
        assert len(happened) == 1, (what, "at some shards only")
        if self.answer is not None:
            assert happened == {self.answer}, (what, "the client was answered", self.answer)

    def check_again(self, what: object) -> None:
        """Another restart of all changes nothing, and nothing is left of the transaction."""
        for shard in self.shards:
            shard.restart(self.seed + 1)
            transactions = shard.scene.engine.transactions
            assert transactions.overdue(1 << 60) == [], what
            assert not transactions.awaited, what
        self.check((what, "again"))


def play(
    count: int, seed: int, victim: int, steps: int | None, dies_at: int | None, memory_mark: int = 1 << 30
) -> World:
    world = World(count, seed, victim, steps, dies_at, memory_mark)
    what = (count, seed, victim, steps, dies_at)
    world.run()
    world.recover()
    world.check(what)
    world.check_again(what)
    return world


@pytest.mark.parametrize("count", [2, 3])
def test_without_a_crash_it_happens(count: int) -> None:
    assert play(count, 0, 0, None, None).answer is True


@pytest.mark.parametrize("count", [2, 3])
def test_the_frontend_dies_before_each_step(count: int) -> None:
    outcomes = [play(count, seed, 0, None, step).answer for step in range(1, 2 * count) for seed in range(6)]
    assert None in outcomes
    assert True in outcomes


@pytest.mark.parametrize("count", [2, 3])
def test_a_shard_dies_at_each_byte(count: int) -> None:
    for victim in range(count):
        for steps in range(1, 900, 7 if victim else 5):
            play(count, steps, victim, steps, None)


def test_a_shard_dies_whose_messages_are_on_disk() -> None:
    world = World(2, 0, 0, None, None, 8)
    assert all(shard.scene.queue_contents(shard.name("q")).deliveries.evicted_count for shard in world.shards)
    assert play(2, 0, 0, None, None, 8).answer is True
    for victim in range(2):
        for steps in range(1, 1200, 19):
            play(2, steps, victim, steps, None, 8)


def test_a_shard_and_the_frontend_die() -> None:
    chance = random.Random(5)
    for seed in range(150):
        count = chance.choice((2, 3))
        play(count, seed, chance.randrange(count), chance.randint(1, 900), chance.randint(1, 2 * count))
