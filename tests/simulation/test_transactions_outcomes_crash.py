"""The shard dies at many bytes while transactions reject, release, modify, defer and move deliveries.

Whatever the crash leaves: of a transaction all outcomes are there, or none, with the messages that it sends:
dead letters, delivery counts and annotations too.
"""

import random
import re
from array import array
from itertools import accumulate
from typing import Any, NamedTuple

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Symbol
from lightrail.model.attempts import DEFERRED, failures
from lightrail.shard.journal.journal import Journal
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.fake_files import Crash, FakeFiles
from tests.support.shard.scene import Peer, Scene, numbered_messages

SEGMENT_BYTES = 4_000
KEEP = ("some", "none", "all", "some")
COUNT = 12
STRIDE = 41
"""Bytes from one crash to the next: each record of a group is cut at one of them at least."""
ATTEMPTS_MAX = 2
SENDER, READER, INSPECTOR = 1, 10, 90
PRODUCER = 7 << 32 | 50
MARK = "x-opt-seen"
DEAD, SOURCE, TARGET = "a/$dlq", "a", "b"
IN_MEMORY, ON_DISK = 1 << 30, 400


class Place(NamedTuple):
    """Where a message is, and what outcomes have left on it."""

    queue: str
    attempts: int
    """That failed; 0 for a dead letter, which begins anew."""
    is_marked: bool
    """By the annotation of a receiver."""
    is_deferred: bool = False


class Choice(NamedTuple):
    """An outcome, as a request has it."""

    code: OutcomeCode
    detail: dict[str, Any]

    def after(self, place: Place) -> Place:
        attempts = place.attempts + bool(self.detail.get("delivery_failed"))
        is_marked = place.is_marked or "annotations" in self.detail
        match self.code:
            case OutcomeCode.ACCEPTED:
                return Place(TARGET, 0, place.is_marked)
            case OutcomeCode.RELEASED:
                return place
            case OutcomeCode.MODIFIED if attempts < ATTEMPTS_MAX:
                return Place(SOURCE, attempts, is_marked, "deferred" in self.detail)
            case _:
                return Place(DEAD, 0, is_marked)


MARKS = encode({Symbol(MARK): 1}).hex()
CHOICES = (
    Choice(OutcomeCode.ACCEPTED, {}),
    Choice(OutcomeCode.REJECTED, {"condition": "app:bad", "description": "no"}),
    Choice(OutcomeCode.RELEASED, {}),
    Choice(OutcomeCode.MODIFIED, {"delivery_failed": True}),
    Choice(OutcomeCode.MODIFIED, {"annotations": MARKS}),
    Choice(OutcomeCode.MODIFIED, {"delivery_failed": True, "annotations": MARKS}),
    Choice(OutcomeCode.MODIFIED, {"deferred": True}),
    Choice(OutcomeCode.MODIFIED, {"deferred": True, "annotations": MARKS}),
)


def name_of(message: bytes) -> str:
    # The body is at the end; the bytes of a time before it may look like a name.
    found: list[bytes] = re.findall(rb"m\d+", message)
    return found[-1].decode()


class Life:
    """One frontend that settles what it receives in transactions, over the lives of its shard."""

    def __init__(self, seed: int, memory_mark: int) -> None:
        self.chance = random.Random(seed)
        self.memory_mark = memory_mark
        self.number = 0
        self.places: dict[str, Place] = {}
        self.pending: tuple[dict[str, Any], bytes, dict[str, Place]] | None = None
        self.asked = 0
        self.committed = 0
        self.used: set[int] = set()
        self.is_filled = False
        self.held: dict[int, bytes] = {}
        self.next = 0
        self.scene: Scene
        self.peer: Peer

    def start(self, files: FakeFiles) -> None:
        journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES)
        recovered = journal.recover(self.memory_mark, 1)
        self.scene = Scene(journal, recovered, memory_mark=self.memory_mark, max_delivery_count=ATTEMPTS_MAX)

    def connect(self) -> None:
        self.peer = Peer(self.scene, "frontend-0", 7)
        self.peer.greet()
        self.peer.consume(READER, SOURCE, first=self.next)

    def fill(self) -> None:
        self.peer.produce(SENDER, SOURCE)
        for message in numbered_messages(COUNT):
            self.peer.send(SENDER, len(self.places) + 1, [message], durable=True)
            self.places[name_of(message)] = Place(SOURCE, 0, False)
        self.scene.settle_down()
        self.is_filled = True

    def receive(self) -> None:
        self.peer.credit(READER, self.next + self.chance.randint(2, 5))
        self.scene.settle_down()
        self.hear()

    def hear(self) -> None:
        for each in self.peer.delivered.pop(READER, []):
            assert each.number == self.next
            self.next = each.number + 1
            self.held[each.number] = each.message

    def transact(self) -> None:
        after: dict[str, Place] = {}
        settles: list[Any] = []
        moved: list[bytes] = []
        for number in self.chance.sample(sorted(self.held), self.chance.randint(0, len(self.held))):
            message = self.held.pop(number)
            index = self.chance.randrange(len(CHOICES))
            code, detail = CHOICES[index]
            self.used.add(index)
            after[name_of(message)] = CHOICES[index].after(self.places[name_of(message)])
            settles.append([SOURCE, READER, number, 1, int(code), detail])
            if code == OutcomeCode.ACCEPTED:
                moved.append(message)
        if not settles:
            return
        self.number += 1
        ends = array("I", accumulate(map(len, moved)))
        posts = [[[TARGET], True, 4, 0, 0, len(moved), ends[-1]]] if moved else []
        fields = {"producer": PRODUCER, "number": self.number, "posts": posts, "settles": settles}
        self.pending = (fields, ends.tobytes() + b"".join(moved), after)
        self.send_pending()
        self.scene.settle_down()
        self.answered()

    def send_pending(self) -> None:
        assert self.pending is not None
        fields, blob, _ = self.pending
        self.asked = self.peer.ask("transact", blob, **fields)

    def answered(self) -> None:
        found = self.peer.answers.pop(self.asked, None)
        if found is None or self.pending is None:
            return
        assert found[0] == {"committed": True}, found
        self.places.update(self.pending[2])
        self.committed += 1
        self.pending = None

    def run(self, length: int) -> None:
        for _ in range(length):
            self.receive()
            self.transact()
        self.scene.settle_down()

    def contents(self) -> dict[str, Place]:
        """Where each message is; a receiver of all, whose frontend is lost afterwards."""
        inspector = Peer(self.scene, "inspector", 8)
        inspector.greet()
        found: list[tuple[str, Place]] = []
        for link, queue in enumerate((SOURCE, TARGET, DEAD), INSPECTOR):
            inspector.consume(link, queue, 1 << 20, browse=True)
            self.scene.turn()
            for each in inspector.delivered.get(link, []):
                attempts = each.attempts if queue == SOURCE else 0
                found.append((name_of(each.message), Place(queue, attempts, MARK.encode() in each.message)))
        for _, _, attempts, message in self.scene.everything(SOURCE):
            if attempts & DEFERRED:
                # No receiver gets it.
                mark = MARK.encode() in message
                found.append((name_of(message), Place(SOURCE, failures(attempts), mark, True)))
        self.scene.engine.lost(inspector.identity)
        assert len(found) == len(dict(found)), f"a message is in two places: {sorted(found)}"
        return dict(found)


def crashed(seed: int, length: int, memory_mark: int, steps: int | None) -> tuple[FakeFiles, Life]:
    files = FakeFiles(steps)
    life = Life(seed, memory_mark)
    try:
        life.start(files)
        life.connect()
        life.fill()
        life.run(length)
    except Crash:
        pass
    return files, life


def check(life: Life, files: FakeFiles, what: object) -> None:
    life.start(files)
    if not life.is_filled:
        return
    found = life.contents()
    after = life.places if life.pending is None else life.places | life.pending[2]
    assert found in (life.places, after), (what, "in part")
    if life.pending is None:
        return
    life.connect()
    life.send_pending()
    life.scene.settle_down()
    answer = life.peer.answers[life.asked][0]
    if after != life.places:
        assert ("committed" in answer) is (found == after), (what, answer)
    life.scene.engine.lost(life.peer.identity)
    life.scene.settle_down()
    assert life.contents() == found, (what, "after the request came again")


@pytest.mark.parametrize("memory_mark", [IN_MEMORY, ON_DISK])
def test_the_script_does_something(memory_mark: int) -> None:
    _, first = crashed(1, 20, memory_mark, None)
    assert first.committed > 5
    used = set[int]()
    for seed in range(1, 4):
        used |= crashed(seed, 6, memory_mark, None)[1].used
    assert used == set(range(len(CHOICES)))


@pytest.mark.parametrize("memory_mark", [IN_MEMORY, ON_DISK])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_crash_at_many_bytes(seed: int, memory_mark: int) -> None:
    files, life = crashed(seed, 6, memory_mark, None)
    check(life, files.after_crash(1, "none"), (seed, "whole"))
    for steps in range(seed, files.written + 1, STRIDE):
        dead, life = crashed(seed, 6, memory_mark, steps)
        check(life, dead.after_crash(steps, KEEP[steps % 4]), (seed, steps))
