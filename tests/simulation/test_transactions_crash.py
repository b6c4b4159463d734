"""The shard dies at any byte while transactions take messages from one queue and put them into others.

Whatever the crash leaves: each message is in one place, once. What was committed stays; what was not answered
has happened as a whole or not at all, and once when the same request is sent again.
"""

import random
from array import array
from itertools import accumulate
from typing import Any

import pytest

from lightrail.shard.journal.journal import Journal
from tests.support.shard.fake_files import Crash, FakeFiles, crashes
from tests.support.shard.scene import Peer, Scene

SEGMENT_BYTES = 1_500
KEEP = ("some", "none", "all", "some")
COUNT = 12
QUEUES = ("a", "b", "c")
SENDER, FIRST_READER, COORDINATOR, INSPECTOR = 1, 10, 50, 90
PRODUCER = 7 << 32 | COORDINATOR


def posts_of(moves: dict[str, list[bytes]]) -> tuple[list[Any], bytes]:
    posts: list[Any] = []
    blob = b""
    for queue, messages in moves.items():
        ends = array("I", accumulate(map(len, messages)))
        posts.append([[queue], True, 4, 0, 0, len(messages), ends[-1]])
        blob += ends.tobytes() + b"".join(messages)
    return posts, blob


class Life:
    """One frontend with a reader at each queue and one coordinator, over the lives of its shard."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.number = 0
        self.place: dict[bytes, str] = {}
        """Where each message is by the transactions that were committed."""
        self.pending: tuple[int, dict[str, Any], bytes, dict[bytes, str]] | None = None
        """The request without an answer: its number, fields, blob, and where it moves messages to."""
        self.asked = 0
        self.committed = 0
        self.is_filled = False
        self.held: dict[str, dict[int, bytes]] = {}
        self.next = dict.fromkeys(QUEUES, 0)
        self.scene: Scene
        self.peer: Peer

    def start(self, files: FakeFiles) -> None:
        journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES)
        self.scene = Scene(journal, journal.recover(1 << 30, 1))

    def connect(self) -> None:
        self.peer = Peer(self.scene, "frontend-0", 7)
        self.peer.greet()
        for link, queue in enumerate(QUEUES, FIRST_READER):
            self.held[queue] = {}
            self.peer.consume(link, queue, first=self.next[queue])

    def fill(self) -> None:
        self.peer.produce(SENDER, "a")
        self.peer.send(SENDER, 1, [b"<%d>" % number for number in range(COUNT)], durable=True)
        self.scene.settle_down()
        self.is_filled = True
        self.place = {b"<%d>" % number: "a" for number in range(COUNT)}

    def receive(self) -> None:
        for link, queue in enumerate(QUEUES, FIRST_READER):
            self.peer.credit(link, self.next[queue] + self.chance.randint(0, 5))
        self.hear()

    def hear(self) -> None:
        for link, queue in enumerate(QUEUES, FIRST_READER):
            for each in self.peer.delivered.pop(link, []):
                assert each.number == self.next[queue]
                self.next[queue] = each.number + 1
                self.held[queue][each.number] = each.message

    def transact(self) -> None:
        """Moves some of what is received to other queues, each message once."""
        moves: dict[str, list[bytes]] = {}
        settles: list[Any] = []
        to: dict[bytes, str] = {}
        for link, queue in enumerate(QUEUES, FIRST_READER):
            held = self.held[queue]
            for number in self.chance.sample(sorted(held), self.chance.randint(0, len(held))):
                message = held.pop(number)
                to[message] = self.chance.choice([each for each in QUEUES if each != queue])
                moves.setdefault(to[message], []).append(message)
                settles.append([queue, link, number, 1, 0, {}])
        if not settles:
            return
        self.number += 1
        posts, blob = posts_of(moves)
        fields = {"producer": PRODUCER, "number": self.number, "posts": posts, "settles": settles}
        self.pending = (self.number, fields, blob, to)
        self.send_pending()
        self.scene.settle_down()
        self.answered()

    def send_pending(self) -> None:
        assert self.pending is not None
        _, fields, blob, _ = self.pending
        self.asked = self.peer.ask("transact", blob, **fields)

    def answered(self) -> None:
        """Notes the answer to the pending request, if it is there."""
        found = self.peer.answers.pop(self.asked, None)
        if found is None or self.pending is None:
            return
        if found[0] == {"committed": True}:
            self.place.update(self.pending[3])
            self.committed += 1
        self.pending = None

    def run(self, length: int) -> None:
        for _ in range(length):
            self.receive()
            self.transact()
        self.scene.settle_down()

    def contents(self) -> dict[bytes, str]:
        """Where each message is; a receiver of all, whose frontend is lost afterwards."""
        inspector = Peer(self.scene, "inspector", 8)
        inspector.greet()
        found: list[tuple[bytes, str]] = []
        for link, queue in enumerate(QUEUES, INSPECTOR):
            inspector.consume(link, queue, 1 << 20, browse=True)
            self.scene.turn()
            found += [(message, queue) for message in inspector.messages(link)]
        self.scene.engine.lost(inspector.identity)
        assert len(found) == len(dict(found)), f"a message is in two places: {sorted(found)}"
        return dict(found)


def crashed(seed: int, length: int, steps: int | None) -> tuple[FakeFiles, Life]:
    files = FakeFiles(steps)
    life = Life(seed)
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
    found = life.contents()
    if not life.is_filled:
        # The batch was not answered: it is there as a whole or not at all.
        assert len(found) in (0, COUNT), what
        return
    moved = {} if life.pending is None else life.pending[3]
    after = life.place | moved
    assert found in (life.place, after), (what, "in part")
    if life.pending is None:
        return
    happened = found == after
    life.connect()
    life.send_pending()
    life.scene.settle_down()
    answer = life.peer.answers[life.asked][0]
    if happened:
        # It was on disk, and is not applied again.
        assert answer == {"committed": True}, (what, answer)
    else:
        # What it settles was delivered by the shard that has died.
        assert "error" in answer, (what, answer)
    life.scene.engine.lost(life.peer.identity)
    life.scene.settle_down()
    assert life.contents() == found, (what, "after the request came again")


def test_the_script_does_something() -> None:
    files, life = crashed(1, 60, None)
    assert life.committed > 20
    assert life.scene.store.usage().segments_dropped > 3
    check(life, files.after_crash(1, "none"), "whole")


@pytest.mark.parametrize(("seed", "length"), [(1, 3), (2, 3)])
def test_crash_at_every_byte(seed: int, length: int) -> None:
    files, _ = crashed(seed, length, None)
    for steps in crashes(files, KEEP):
        dead, life = crashed(seed, length, steps)
        check(life, dead.after_crash(steps, KEEP[steps % 4]), (seed, steps))


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_crash_somewhere_in_a_longer_life(seed: int) -> None:
    files, _ = crashed(seed, 50, None)
    for steps in range(seed, files.written, max(1, files.written // 80)):
        dead, life = crashed(seed, 50, steps)
        check(life, dead.after_crash(steps, KEEP[steps % 4]), (seed, steps))
