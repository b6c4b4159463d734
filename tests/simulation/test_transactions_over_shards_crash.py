"""Shards and the frontend die at any step of transactions over two and three shards.

Whatever dies: when all are back and have asked each other, a transaction has happened at all of its shards or
at none, each message is in one place, and what the client was answered stays so.
"""

import random
from array import array
from itertools import accumulate
from typing import Any

import pytest

from lightrail.model.attempts import DEFERRED, failures
from lightrail.shard.journal.journal import Journal
from lightrail.shard.transactions.preparing import TRANSACTION_RESOLVE_MS
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.fake_files import Crash, FakeFiles
from tests.support.shard.scene import Peer, Scene

SEGMENT_BYTES = 2_000
KEEP = ("some", "none", "all", "some")
COUNT = 4
SENDER, READER, DEFERRER, INSPECTOR = 1, 10, 11, 90
KEY = "00ff00ff00ff00ff"
"""Of the locks of deferred messages."""
PRODUCER = 7 << 32 | 50
STEPS_MAX = 1_750
"""Steps of the files of a shard in a whole transaction, and some more."""


class Shard:
    """One shard over its lives, with queue `q`, `late` and `to`."""

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

    def defer(self) -> None:
        """Two messages of `late` are deferred, received by their sequences and locked."""
        queue = self.name("late")
        self.peer.produce(DEFERRER, queue)
        self.peer.send(DEFERRER, 1, [b"0", b"1"], durable=True)
        self.peer.consume(DEFERRER, queue, 2)
        self.scene.settle_down()
        self.peer.settle(DEFERRER, 0, 2, OutcomeCode.MODIFIED, SettleDetail(deferred=True))
        found = self.ask("receive_deferred", queue=queue, sequences=[0, 1], key=KEY)
        assert found is not None
        assert len(found["messages"]) == 2

    def late(self) -> dict[bytes, int]:
        """The failed deliveries of each message of `late`, all of which are deferred."""
        found = self.scene.everything(self.name("late"))
        assert all(attempts & DEFERRED for _, _, attempts, _ in found)
        return {message: failures(attempts) for _, _, attempts, message in found}

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
    """Sends messages to the shard's queue `to`, accepts a delivery of its queue `q`, and rejects others.

    Of the deferred messages of its queue `late`, it accepts one, and defers the other again.
    """
    ends = array("I", accumulate(map(len, messages)))
    posts = [[[shard.name("to")], True, 4, 0, 0, len(messages), ends[-1]]]
    settles: list[list[Any]] = [
        [shard.name("q"), READER, 0, 1, 0, {}],
        [shard.name("q"), READER, 1, COUNT - 2, 1, {}],
        [shard.name("late"), 0, 0, 1, 0, {}, KEY],
        [shard.name("late"), 0, 1, 1, 3, {"deferred": True}, KEY],
    ]
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
            shard.defer()
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
        """What a frontend does (shard_client/commits.py); a shard that dies is back at once."""
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
            now_ms = shard.scene.now_ms + TRANSACTION_RESOLVE_MS
            for id, decides in transactions.prepared.overdue(now_ms):
                answer = self.shards[decides].ask("outcome", id=id.hex())
                assert answer is not None
                transactions.prepared.conclude(id, commits=answer["committed"], now_ms=shard.scene.now_ms)
                shard.scene.settle_down()
            assert transactions.prepared.overdue(now_ms) == []
        for shard in self.shards:
            transactions = shard.scene.engine.transactions
            for number, ids in transactions.decisions.awaited.items():
                answer = self.shards[number].ask("concluded", ids=[id.hex() for id in ids])
                assert answer is not None
                transactions.decisions.forget(
                    number, map(bytes.fromhex, answer["concluded"]), shard.scene.now_ms
                )
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
                assert shard.late() == {b"1": 0}, (what, shard.number, shard.late())
            else:
                assert set(shard.late()) == {b"0", b"1"}, (what, shard.number, shard.late())
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
            assert transactions.prepared.overdue(1 << 60) == [], what
            assert not transactions.decisions.awaited, what
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


def test_the_steps_are_those_of_a_whole_transaction() -> None:
    for victim in range(2):
        world = World(2, 0, victim, STEPS_MAX, None)
        world.run()
        left = world.shards[victim].files.steps_left
        assert left is not None
        assert 0 < left < STEPS_MAX // 4


@pytest.mark.parametrize("count", [2, 3])
def test_the_frontend_dies_before_each_step(count: int) -> None:
    outcomes = [play(count, seed, 0, None, step).answer for step in range(1, 2 * count) for seed in range(6)]
    assert None in outcomes
    assert True in outcomes


@pytest.mark.parametrize("count", [2, 3])
def test_a_shard_dies_at_each_byte(count: int) -> None:
    for victim in range(count):
        for steps in range(1, STEPS_MAX, 11 if victim else 8):
            play(count, steps, victim, steps, None)


def test_a_shard_dies_whose_messages_are_on_disk() -> None:
    world = World(2, 0, 0, None, None, 8)
    assert all(shard.scene.queue_contents(shard.name("q")).deliveries.evicted_count for shard in world.shards)
    assert play(2, 0, 0, None, None, 8).answer is True
    for victim in range(2):
        for steps in range(1, STEPS_MAX, 23):
            play(2, steps, victim, steps, None, 8)


def test_a_shard_and_the_frontend_die() -> None:
    chance = random.Random(5)
    for seed in range(150):
        count = chance.choice((2, 3))
        play(count, seed, chance.randrange(count), chance.randint(1, STEPS_MAX), chance.randint(1, 2 * count))
