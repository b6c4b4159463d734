"""The shard dies at any byte that it writes, and a client resumes its durable receiver: a message comes once.

The client receives in receiver-settle-mode second: it keeps an outcome until the broker has confirmed it.
After a crash it attaches the link again at another frontend, and compares its map with that of the broker
(transport 2.6.13): what it has and has not settled must be locked for it under its number.
"""

import random
from typing import Any

import pytest

from lightrail.model.links import Durability
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard.fake_files import Crash, FakeFiles, crashes
from tests.support.shard.scene import Peer, Scene, numbered_messages

LINK = "1" * 32
SEGMENT_BYTES = 1_500
KEEP = ("some", "none", "all", "some")
POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "groups": {"groups": True},
    "priorities": {"priorities": 3},
}
Tag = tuple[int, int]
"""Terminus, and number of the delivery."""


class Client:
    """A client with one link over many lives of its shard."""

    def __init__(self, seed: int, policy: str = "plain") -> None:
        self.chance = random.Random(seed)
        self.policy = {"role": "queue"} | POLICIES[policy]
        self.boot = 10
        self.sent: list[bytes] = []
        """On disk."""
        self.sending: list[bytes] = []
        self.received: list[bytes] = []
        """In the order of their first delivery."""
        self.unsettled: dict[Tag, bytes] = {}
        self.accepted: dict[Tag, bytes] = {}
        """Those that the broker has not confirmed."""
        self.links = 1
        self.terminus = 0
        self.next = 0
        self.scene: Scene
        self.peer: Peer | None = None

    def start(self, files: FakeFiles) -> None:
        journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES)
        recovered = journal.recover(self.chance.choice((0, 1 << 30)), 1)
        names = EveryName()
        names.give("q", Policy.parse(self.policy))
        self.scene = Scene(journal, recovered, names=names)
        self.peer = None

    # --- the link --------------------------------------------------------------------------------------

    def attach(self) -> None:
        self.boot += 1
        peer = self.peer = Peer(self.scene, f"frontend-{self.boot}", self.boot)
        peer.greet()
        self.links += 1
        peer.consume(
            self.links,
            "q",
            client_link=LINK,
            steals=True,
            suspended_ms=60_000,
            recovers=True,
            durability=Durability.UNSETTLED_STATE,
        )
        self.settle_down()
        self.terminus, self.next, ranges = peer.recovered.pop(self.links)
        assert peer.durability[self.links] == Durability.UNSETTLED_STATE
        theirs = {(self.terminus, first + each) for first, count in ranges for each in range(count)}
        assert {*self.unsettled} <= theirs, "the client has deliveries that are not locked for it"
        for tag in [*self.accepted]:
            if tag not in theirs:
                # Its outcome is stored.
                del self.accepted[tag]
        for tag in self.accepted:
            peer.settle(self.links, tag[1], 1, asked=1)
        self.read()
        again = [number for _, number in sorted(theirs - {*self.accepted})]
        while again:
            peer.take()
            peer.resend(self.links, *[(number, 1) for number in again])
            self.scene.settle_down()
            for each in peer.delivered.pop(self.links, []):
                tag = (self.terminus, each.number)
                if tag in self.unsettled:
                    assert self.unsettled[tag] == each.message
                else:
                    self.came(tag, each.message)
            (answer,) = peer.take(Kind.RESENT)
            # Those on disk come one after another.
            again = [number for number in again if number >= answer.number]

    def came(self, tag: Tag, message: bytes) -> None:
        assert message not in self.received, ("came twice", message)
        assert tag not in self.unsettled
        assert tag not in self.accepted
        self.received.append(message)
        self.unsettled[tag] = message

    def read(self) -> None:
        """New deliveries, and confirmations."""
        peer = self.peer
        if peer is None:
            return
        for each in peer.delivered.pop(self.links, []):
            assert each.number == self.next
            self.next += 1
            self.came((self.terminus, each.number), each.message)
        for answer in peer.take(Kind.SETTLED):
            if answer.link == self.links:
                for number in range(answer.number, answer.number + answer.count):
                    self.accepted.pop((self.terminus, number), None)

    # --- steps -----------------------------------------------------------------------------------------

    def run(self, length: int) -> None:
        self.send()
        self.attach()
        steps = [self.send, self.credit, self.credit, self.settle, self.settle, self.commit, self.begin]
        for _ in range(length):
            self.chance.choice([*steps, self.release, self.other, self.close, self.reattach])()

    def send(self) -> None:
        """Messages are on disk when this returns."""
        self.boot += 1
        sender = Peer(self.scene, f"sender-{self.boot}", self.boot)
        sender.greet()
        sender.produce(1, "q")
        messages = numbered_messages(self.chance.randint(1, 6), len(self.sending))
        self.sending += messages
        sender.send(1, 1, messages)
        self.settle_down()
        self.sent += messages
        self.scene.engine.lost(sender.identity)
        self.read()

    def credit(self) -> None:
        if self.peer is None:
            self.attach()
        assert self.peer is not None
        self.peer.credit(self.links, self.next + self.chance.randint(1, 5))
        self.read()

    def settle(self) -> None:
        if self.peer is not None and self.unsettled:
            tag = self.chance.choice([*self.unsettled])
            self.accepted[tag] = self.unsettled.pop(tag)
            self.peer.settle(self.links, tag[1], 1, asked=1)
            self.read()

    def release(self) -> None:
        """The client gives a message back, and may get it again."""
        if self.peer is not None and self.unsettled and self.chance.random() < 0.4:
            tag = self.chance.choice([*self.unsettled])
            self.received.remove(self.unsettled.pop(tag))
            self.peer.settle(self.links, tag[1], 1, OutcomeCode.RELEASED)
            self.read()
            # A release that is not on disk may be lost, and then the message is locked for this link again.
            self.settle_down()
            self.read()

    def other(self) -> None:
        """Another client gets some messages, and its frontend is lost."""
        self.boot += 1
        other = Peer(self.scene, f"other-{self.boot}", self.boot)
        other.greet()
        other.consume(1, "q", self.chance.randint(1, 3))
        self.scene.engine.lost(other.identity)
        self.scene.turn()
        self.read()

    def commit(self) -> None:
        self.settle_down()
        self.read()

    def begin(self) -> None:
        if self.scene.commit is None and self.scene.store.pending:
            self.scene.begin_commit()

    def close(self) -> None:
        if self.peer is not None and self.chance.random() < 0.4:
            self.peer.close_consumer(self.links)
            self.read()
            self.peer = None

    def reattach(self) -> None:
        if self.chance.random() < 0.4:
            self.attach()

    def settle_down(self) -> None:
        if self.scene.commit is not None:
            self.scene.end_commit()
        self.scene.settle_down()

    # --- what must be so -------------------------------------------------------------------------------

    def check(self) -> None:
        """After a recovery: resumes, and gets all that is left."""
        self.attach()
        assert self.peer is not None
        for _ in range(200):
            if self.scene.queue("q") == {"ready": 0, "in_flight": 0}:
                break
            self.peer.credit(self.links, self.next + 50)
            self.settle_down()
            self.read()
            for tag in [*self.unsettled]:
                self.accepted[tag] = self.unsettled.pop(tag)
                self.peer.settle(self.links, tag[1], 1, asked=1)
            self.settle_down()
            self.read()
        assert {*self.sent} <= {*self.received} <= {*self.sending}


def lived(seed: int, length: int, steps: int | None, policy: str) -> tuple[FakeFiles, Client]:
    files = FakeFiles(steps)
    client = Client(seed, policy)
    try:
        client.start(files)
        client.run(length)
    except Crash:
        pass
    return files, client


def come_back(files: FakeFiles, client: Client) -> None:
    # What the frontends had was sent before the crash.
    client.read()
    client.start(files)
    client.check()


def test_the_script_does_something() -> None:
    _, client = lived(1, 300, None, "plain")
    assert client.scene.store.usage().segments_dropped > 3
    assert len(client.received) > 50


@pytest.mark.parametrize(("seed", "length", "policy"), [(1, 14, "plain"), (2, 14, "groups")])
def test_crash_at_every_byte(seed: int, length: int, policy: str) -> None:
    files, _ = lived(seed, length, None, policy)
    for steps in crashes(files, KEEP):
        dead, client = lived(seed, length, steps, policy)
        come_back(dead.after_crash(steps, KEEP[steps % 4]), client)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3, 6))
def test_crash_somewhere_in_a_longer_life(seed: int, policy: str) -> None:
    files, _ = lived(seed, 120, None, policy)
    for steps in range(seed, files.written, max(1, files.written // 60)):
        dead, client = lived(seed, 120, steps, policy)
        come_back(dead.after_crash(steps, KEEP[steps % 4]), client)
