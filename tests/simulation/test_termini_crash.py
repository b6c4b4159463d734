"""The shard dies at any byte that it writes, and a client resumes its durable link: a message is stored once.

The client sends under tags, in receiver-settle-mode second, and forgets a delivery when it is settled at both
ends. After a crash it attaches the link again at another frontend, with its map, and sends the deliveries
again that are not in the map of the broker (transport 2.6.13).
"""

import random
from typing import Any

import pytest

from lightrail.model.links import Durability
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.columns import encode_tags
from lightrail.wire.frames import Kind, frame
from tests.support.shard.fake_files import Crash, FakeFiles, crashes
from tests.support.shard.scene import Peer, Scene, batch

LINK = "1" * 32
SEGMENT_BYTES = 1_500
KEEP = ("some", "none", "all", "some")
POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bounded": {"max_length": 5, "overflow": "flow_control"},
    "duplicates": {"duplicate_window": 0.001},
}


def message(tag: bytes) -> bytes:
    return b"\x00\x53\x75\xa0" + bytes((len(tag) + 20,)) + tag + b"." * 20


class Client:
    """A client with one link over many lives of its shard, and a receiver that takes what is there."""

    def __init__(self, seed: int, policy: str) -> None:
        self.chance = random.Random(seed)
        self.policy = {"role": "queue"} | POLICIES[policy]
        self.next = 0
        self.boot = 10
        self.unsettled: dict[bytes, None] = {}
        """Deliveries without an outcome: in no attach's map of the broker, or of unknown fate."""
        self.settled: list[bytes] = []
        """Deliveries with an outcome, which the client has settled."""
        self.received: list[bytes] = []
        """Settled by the receiver, on disk."""
        self.receiving: list[bytes] = []
        """Settled by the receiver."""
        self.batches: dict[int, list[bytes]] = {}
        self.number = 0
        self.scene: Scene
        self.peer: Peer

    def start(self, files: FakeFiles) -> None:
        journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES)
        recovered = journal.recover(1 << 30, 1)
        names = EveryName()
        names.give("q", Policy.parse(self.policy))
        self.scene = Scene(journal, recovered, names=names)

    def attach(self) -> None:
        """Attaches the link at a new frontend, and sends again what the broker does not have."""
        self.boot += 1
        self.peer = Peer(self.scene, f"frontend-{self.boot}", self.boot)
        self.peer.greet()
        self.number = 0
        self.batches = {}
        self.peer.produce(
            1, "q", client_link=LINK, steals=True, suspended_ms=60_000, durability=Durability.UNSETTLED_STATE
        )
        self.scene.settle_down()
        is_kept, tags = self.peer.unsettled[1]
        assert is_kept
        assert self.peer.durability[1] == Durability.UNSETTLED_STATE
        theirs = set(tags)
        # Deliveries that are settled at both ends may be in the map, if their end was not on disk.
        self.forget([tag for tag in tags if tag not in self.unsettled])
        for tag in [tag for tag in self.unsettled if tag in theirs]:
            self.settle(tag)
        missing = [*self.unsettled]
        while missing:
            count = self.chance.randint(1, 4)
            self.send_again(missing[:count])
            missing = missing[count:]

    def forget(self, tags: list[bytes]) -> None:
        self.peer.say(frame(Kind.FORGET, link=1, count=len(tags), body=encode_tags(tags)))

    def settle(self, tag: bytes) -> None:
        """The client has an outcome, and settles."""
        del self.unsettled[tag]
        self.settled.append(tag)
        self.forget([tag])

    def send_again(self, tags: list[bytes]) -> None:
        self.number += 1
        self.batches[self.number] = tags
        self.peer.say(
            frame(Kind.TAGS, link=1, number=self.number, count=len(tags), body=encode_tags(tags)),
            batch(1, self.number, [message(tag) for tag in tags], afresh=len(self.batches) == 1),
        )

    # --- steps -----------------------------------------------------------------------------------------

    def run(self, length: int) -> None:
        self.attach()
        steps = [self.send, self.send, self.hear, self.receive, self.commit, self.commit, self.begin]
        for _ in range(length):
            self.chance.choice([*steps, self.reattach])()

    def send(self) -> None:
        tags = [b"t%03d" % (self.next + each) for each in range(self.chance.randint(1, 4))]
        self.next += len(tags)
        self.unsettled |= dict.fromkeys(tags)
        self.send_again(tags)

    def hear(self) -> None:
        """Outcomes arrive; the client settles most of these deliveries."""
        for number in self.peer.accepted(1):
            for tag in self.batches.pop(number, []):
                if tag in self.unsettled and self.chance.random() < 0.8:
                    self.settle(tag)

    def receive(self) -> None:
        """Another client takes some of the messages for good, before anything else happens."""
        self.boot += 1
        receiver = Peer(self.scene, f"receiver-{self.boot}", self.boot)
        receiver.greet()
        receiver.consume(1, "q", self.chance.randint(1, 3))
        found = [each.message[5:9] for each in receiver.delivered.get(1, [])]
        self.receiving += found
        if found:
            receiver.settle(1, 0, len(found))
        self.settle_down()
        self.received += found
        self.scene.engine.lost(receiver.identity)

    def commit(self) -> None:
        self.settle_down()

    def begin(self) -> None:
        if self.scene.commit is None and self.scene.store.pending:
            self.scene.begin_commit()

    def reattach(self) -> None:
        if self.chance.random() < 0.4:
            self.attach()

    def settle_down(self) -> None:
        if self.scene.commit is not None:
            self.scene.end_commit()
        self.scene.settle_down()

    # --- what must be so -------------------------------------------------------------------------------

    def stored(self) -> list[bytes]:
        inspector = Peer(self.scene, "inspector", 5)
        inspector.greet()
        inspector.consume(1, "q", 1 << 20)
        found = []
        while deliveries := inspector.delivered.pop(1, []):
            found += [each.message[5:9] for each in deliveries]
            inspector.settle(1, deliveries[0].number, len(deliveries))
            self.settle_down()
        return found

    def check(self, what: object) -> None:
        """After a recovery: resumes, and counts everything that was ever sent."""
        self.attach()
        self.settle_down()
        stored = self.stored()
        everything = sorted(b"t%03d" % number for number in range(self.next))
        assert len({*stored}) == len(stored), (what, "stored twice", sorted(stored))
        assert sorted({*stored, *self.receiving}) == everything, (what, "lost")
        again = {*stored} & {*self.received}
        assert not again, (what, "stored again", again)


def lived(seed: int, length: int, steps: int | None, policy: str) -> tuple[FakeFiles, Client]:
    files = FakeFiles(steps)
    client = Client(seed, policy)
    try:
        client.start(files)
        client.run(length)
    except Crash:
        pass
    return files, client


def come_back(files: FakeFiles, client: Client, what: tuple[object, ...]) -> None:
    client.start(files)
    client.check(what)


def test_the_script_does_something() -> None:
    _, client = lived(1, 300, None, "plain")
    usage = client.scene.store.usage()
    assert usage.segments_dropped > 3
    assert len(client.received) > 20
    assert len(client.settled) > 20
    assert len(client.unsettled) > 3


@pytest.mark.parametrize(("seed", "length", "policy"), [(1, 14, "plain"), (2, 14, "bounded")])
def test_crash_at_every_byte(seed: int, length: int, policy: str) -> None:
    files, _ = lived(seed, length, None, policy)
    for steps in crashes(files, KEEP):
        dead, client = lived(seed, length, steps, policy)
        come_back(dead.after_crash(steps, KEEP[steps % 4]), client, (seed, steps))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3, 6))
def test_crash_somewhere_in_a_longer_life(seed: int, policy: str) -> None:
    files, _ = lived(seed, 120, None, policy)
    for steps in range(seed, files.written, max(1, files.written // 60)):
        dead, client = lived(seed, 120, steps, policy)
        come_back(dead.after_crash(steps, KEEP[steps % 4]), client, (seed, steps))
