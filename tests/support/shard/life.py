"""A shard that dies and comes back, and a frontend that lives through it: scripted, seeded, accounted for.

The ledger knows of every message what was asked for and what had been committed. After each recovery the
queues must hold: each durable message whose end was never asked for, once and in order; none whose end was
committed; none twice.
"""

import random
import re
from collections.abc import Sequence

from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, batch

BOOT = 7
QUEUE = "q"
DEAD = "q/$dlq"
STAY = "stay"
"""Nobody takes anything from it: what lies in old segments has to be written again."""
QUEUE_OF = {1: QUEUE, 2: QUEUE, 3: STAY}
"""By the link that sends."""
SEGMENT_BYTES = 1_500

Id = tuple[int, int, int]
"""(link, number of the batch, index in it): rises per link in order of sending."""


class Fate:
    """What was asked of one message."""

    __slots__ = ("accepted", "durable", "failed", "gone", "taken")

    def __init__(self, durable: bool) -> None:
        self.durable = durable
        self.accepted = False
        """The sender was told."""
        self.failed = False
        """A receiver rejected it, or gave it back as failed: it may be in the dead-letter queue."""
        self.taken = False
        """A receiver accepted it."""
        self.gone = False
        """That is on disk."""


def message(id: Id, size: int) -> bytes:
    text = b"<%d:%d:%d>" % id
    body = text + b"." * max(0, size - len(text))
    return b"\x00\x53\x75\xa0" + bytes((len(body),)) + body


def id_of(data: bytes) -> Id:
    found = re.search(rb"<(\d+):(\d+):(\d+)>(\.*)$", data)
    assert found, data
    link, number, index = (int(part) for part in found.groups()[:3])
    return link, number, index


class Life:
    """One frontend over many lives of its shard."""

    durable_share = 0.8
    """Of the batches."""
    segment_bytes = SEGMENT_BYTES

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fates: dict[Id, Fate] = {}
        self.links = tuple(QUEUE_OF)
        self.numbers = dict.fromkeys(self.links, 0)
        self.unanswered: dict[int, dict[int, bytes]] = {link: {} for link in self.links}
        self.received = 0
        self.base = 0
        self.held: dict[int, Id] = {}
        """Deliveries that the receiver has not settled, by number."""
        self.settling: list[Id] = []
        """Taken since the last commit began."""
        self.committing: list[Id] = []
        self.scene: Scene
        self.peer: Peer

    # --- the shard's life ------------------------------------------------------------------------------

    def start(self, files: FakeFiles, *, memory_mark: int) -> None:
        """A new process of the shard recovers."""
        journal = Journal(files, "test", 0, segment_bytes=self.segment_bytes)
        recovered = journal.recover(memory_mark, 1)
        self.scene = Scene(
            journal, recovered, memory_mark=memory_mark, max_delivery_count=3, names=self.names()
        )
        self.settling = []
        self.committing = []
        self.configure()

    def names(self) -> EveryName:
        """The directory, for lives in which names have policies."""
        return EveryName()

    def configure(self) -> None:
        """Lives with policies set them here, on the queues that are there."""

    def connect(self) -> None:
        """Greets, and says everything once more."""
        self.peer = Peer(self.scene, "frontend-0", BOOT)
        self.peer.greet()
        for link in self.links:
            self.peer.produce(link, QUEUE_OF[link])
            self.configure()
            parts = list(self.unanswered[link].values())
            if parts:
                self.peer.say(*parts)
        self.held = {}
        self.base = self.received
        self.peer.consume(9, QUEUE, first=self.received)
        self.hear()

    def settle_down(self) -> None:
        self.scene.turn()
        while self.scene.store.pending or self.scene.commit is not None:
            if self.scene.commit is None:
                self.begin_commit()
            self.end_commit()
        self.hear()

    # --- what the script may do ------------------------------------------------------------------------

    def run(self, length: int) -> None:
        steps = [*[self.send] * 3, *[self.receive] * 2, *[self.settle] * 4, self.commit]
        for _ in range(length):
            self.chance.choice([*steps, self.tick, self.commit_overlapping, self.greet_again])()
            self.hear()
        self.settle_down()

    def send(self) -> None:
        """One to three batches in one message."""
        link = self.chance.choices(self.links, (9, 9, 2))[0]
        parts = []
        for _ in range(self.chance.randint(1, 3)):
            number = self.numbers[link] = self.numbers[link] + 1
            durable = self.chance.random() < self.durable_share
            size = self.chance.choice((10, 40, 200))
            ids = self.ids(link, number)
            for id in ids:
                self.fates.setdefault(id, Fate(durable))
            made = batch(
                link,
                number,
                [self.message(id, size) for id in ids],
                durable=durable,
                afresh=not self.unanswered[link],
            )
            self.unanswered[link][number] = made
            parts.append(made)
        self.peer.say(*parts)

    def ids(self, link: int, number: int) -> list[Id]:
        """Of the messages of one batch."""
        return [(link, number, index) for index in range(self.chance.randint(1, 4))]

    def message(self, id: Id, size: int) -> bytes:
        return message(id, size)

    def receive(self) -> None:
        self.peer.credit(9, self.received + self.chance.randint(1, 12))

    def settle(self) -> None:
        if not self.held:
            return
        first = self.chance.choice(list(self.held))
        count = 0
        while first + count in self.held and count < 8:
            count += 1
        ids = [self.held.pop(number) for number in range(first, first + count)]
        code = self.chance.choice([OutcomeCode.ACCEPTED] * 5 + list(OutcomeCode)[1:])
        failed = code in (OutcomeCode.REJECTED, OutcomeCode.MODIFIED)
        if code == OutcomeCode.ACCEPTED:
            self.settling += ids
        for id in ids:
            self.fates[id].taken |= code == OutcomeCode.ACCEPTED
            self.fates[id].failed |= failed
        self.peer.settle(9, first, count, code, SettleDetail(delivery_failed=True) if failed else None)

    def begin_commit(self) -> None:
        self.committing, self.settling = self.settling, []
        self.scene.begin_commit()

    def end_commit(self) -> None:
        self.scene.end_commit()
        for id in self.committing:
            self.fates[id].gone = True
        self.committing = []

    def commit(self) -> None:
        if self.scene.commit is not None:
            self.end_commit()
        elif self.scene.store.pending:
            self.begin_commit()
            self.end_commit()

    def commit_overlapping(self) -> None:
        """More comes while a commit is under way."""
        if self.scene.commit is None and self.scene.store.pending:
            self.begin_commit()

    def tick(self) -> None:
        self.peer.say(frame(Kind.PING))
        self.scene.tick(300)

    def greet_again(self) -> None:
        """The frontend believes that it lost something."""
        if self.chance.random() < 0.2:
            self.connect()

    # --- what it hears ---------------------------------------------------------------------------------

    def hear(self) -> None:
        for answer in self.peer.take(Kind.ACCEPTED, Kind.REFUSED):
            assert answer.kind == Kind.ACCEPTED
            for number in range(answer.number, answer.number + answer.count):
                if self.unanswered[answer.link].pop(number, None) is not None:
                    for id, fate in self.fates.items():
                        if id[:2] == (answer.link, number):
                            fate.accepted = True
        for each in self.peer.delivered.pop(9, []):
            assert each.number == self.received
            self.held[each.number] = id_of(each.message)
            self.received = each.number + 1

    # --- what must be so -------------------------------------------------------------------------------

    def contents(self) -> tuple[list[Id], list[Id]]:
        """All that is ready in the queues, and in the dead-letter queue, without changing anything."""
        inspector = Peer(self.scene, "inspector", BOOT + 1)
        inspector.greet()
        inspector.consume(1, QUEUE, 1 << 20)
        inspector.consume(2, DEAD, 1 << 20)
        inspector.consume(3, STAY, 1 << 20)
        ready, dead, stay = ([id_of(each) for each in inspector.messages(link)] for link in (1, 2, 3))
        inspector.say(frame(Kind.GOODBYE))
        self.scene.turn()
        return ready + stay, dead

    def check(self, what: object, *, resent: bool) -> None:
        """Right after a recovery, and again when everything was `resent` and committed."""
        ready, dead = self.contents()
        both = ready + dead
        assert len(set(both)) == len(both), (what, "stored twice")
        for link in self.links:
            mine = [id for id in ready if id[0] == link]
            assert mine == sorted(mine), (what, "out of order", link)
        there, buried = set(ready), set(dead)
        for id, fate in self.fates.items():
            if not fate.durable:
                continue
            if fate.gone:
                assert id not in there | buried, (what, "came back", id)
            elif not fate.taken and (fate.accepted or resent):
                assert id in there | buried, (what, "lost", id)
                assert fate.failed or id in there, (what, "buried", id)


def live(seed: int, length: int, files: FakeFiles, *, memory_mark: int) -> Life:
    """One life, until the script ends or the disk stops; the life says what it knew then."""
    life = Life(seed)
    life.start(files, memory_mark=memory_mark)
    life.connect()
    life.run(length)
    return life


__all__: Sequence[str] = ["Fate", "Life", "live"]
