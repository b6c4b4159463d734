"""Two shards: one keeps a queue, the other's moves; both go through the same, and must say the same.

`Twins` drives a scene where nothing moves and one from which the queue (and its dead-letter queue) moves to a
third, by hand: without the protocol, with the frontend's part of it played here.
"""

import random
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Symbol
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.moving.exporting import Exporting, Exports
from lightrail.shard.moving.importing import ImportFailedError, Importing
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.shard_queue import Queue
from lightrail.shard.queues.tenancy import EverythingHere
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard import captured, invariants
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, batch

Answer = tuple[dict[str, Any], bytes]

QUEUE = "q"
DEAD = "q/$dlq"
BOOT = 7
SEGMENT_BYTES = 4_000
SENDERS = (1, 2)
RECEIVERS = (11, 12, 13)
FROM_DEAD = 22
NOTES = encode({Symbol("x-opt-note"): 1}).hex()
NOTES_MARK = b"x-opt-note"
KEY = "%032x"


def message(chance: random.Random, number: int) -> bytes:
    """A message that every policy finds something in."""
    notes: dict[Any, Any] = {}
    if chance.random() < 0.3:
        notes[Symbol("x-opt-delivery-delay")] = chance.randrange(1, 400)
    properties = b"\x00\x53\x73" + encode_list(
        [f"id-{chance.randrange(60)}", *[None] * 9, chance.choice((None, "a", "b", "c", "d"))]
    )
    said = b"\x00\x53\x72" + encode(notes) if notes else b""
    fields = {"k": chance.randrange(6), "colour": chance.choice(("red", "blue"))}
    body = encode(f"{number}:" + "." * chance.choice((1, 20, 90)))
    return said + properties + b"\x00\x53\x74" + encode(fields) + b"\x00\x53\x77" + body


def encode_list(items: list[Any]) -> bytes:
    """A described list as the sections have it."""
    return encode(items)


class Placed(EverythingHere):
    """Everything is at one shard, in one epoch."""

    def __init__(self, shard: int, epoch: int) -> None:
        super().__init__(shard)
        self._placed = self._placed._replace(epoch=epoch)


def scene_of(
    policy: Policy,
    files: FakeFiles,
    *,
    memory_mark: int,
    now_ms: int = 1_000_000,
    placed: tuple[int, int] = (0, 1),
) -> Scene:
    """A shard, number 0, with a journal on that disk; `placed` is (shard, epoch) of everything."""
    names = EveryName()
    names.give(QUEUE, policy)
    journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES)
    recovered = journal.recover(memory_mark, now_ms)
    if policy["capture"]:
        # What it says can be read to the end.
        journal.oldest_to_clean = lambda: None  # type: ignore[method-assign]
    map = Placed(*placed)
    return Scene(journal, recovered, memory_mark=memory_mark, names=names, now_ms=now_ms, map=map)


def queue_of(scene: Scene, name: str) -> Queue | None:
    return scene.engine._queues.find(name)


def exports_of(scene: Scene, identity: str) -> Exports:
    engine = scene.engine
    return Exports(engine._performer, engine._links, engine.when_synced, identity)


def exporting_of(scene: Scene, name: str, identity: str) -> Exporting:
    queue = scene.engine._queues.find(name)
    assert queue is not None
    return exports_of(scene, identity).of(queue)


def importing_of(scene: Scene, name: str, epoch: int = 2) -> Importing:
    engine = scene.engine
    return Importing(
        engine._queues, engine._performer, engine._store, engine._house.memory, engine._links, name, epoch
    )


def ask(
    source: Scene, exporting: Exporting, first: int, size: int, count: int, *, rewritten: bool = False
) -> Answer:
    """One piece, when it has come."""
    answers: list[Answer] = []
    exporting.piece(first, size, count, lambda said, blob: answers.append((said, blob)), rewritten=rewritten)
    source.settle_down()
    (answer,) = answers
    return answer


class Copying:
    """One queue on its way."""

    def __init__(self, source: Scene, target: Scene, name: str, chance: random.Random) -> None:
        self.source = source
        self.target = target
        self.chance = chance
        self.exporting = exporting_of(source, name, f"{name}/1")
        self.importing = importing_of(target, name)
        self.importing.begin(target.now_ms)

    def piece(self, *, rewritten: bool = False, first: int | None = None) -> int | None:
        """Asks for the next piece, of any size; sometimes for one that came before."""
        start = self.importing.next if first is None else first
        if not rewritten and self.chance.random() < 0.2:
            start = max(0, start - self.chance.randrange(5))
        size, count = self.chance.choice((1, 100, 400, 1 << 20)), self.chance.choice((1, 3, 7, 1_000))
        answer = ask(self.source, self.exporting, start, size, count, rewritten=rewritten)
        return self.importing.take(*answer, self.target.now_ms)

    def complete(self) -> None:
        """After the freeze: all that is left, and the state."""
        while self.piece() is not None:
            pass
        position: int | None = 0
        while position is not None:
            position = self.piece(rewritten=True, first=position)
        self.importing.finish(*self.exporting.state(self.source.now_ms), self.target.now_ms)
        self.target.settle_down()

    def open(self) -> None:
        scene = self.target
        self.exporting.end()
        self.importing.open(scene.engine._queues.names.get(self.importing.name), 2, scene.now_ms)
        scene.engine._links.receiving.serve(self.importing.queue, scene.now_ms)


class Side:
    """One frontend before one shard at a time."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.peer = Peer(scene, "frontend-0", BOOT)
        self.peer.greet()
        self.peer.take()
        self.seen: dict[int, int] = {}

    def move_to(self, scene: Scene, queues: Iterable[Queue]) -> None:
        """Its consumers are taken over as they came."""
        self.scene = scene
        self.peer = Peer(scene, "frontend-0", BOOT)
        self.peer.greet()
        self.peer.take()
        self.seen = {}
        engine = scene.engine
        mine = next(iter(engine._frontends))
        receiving = engine._links.receiving
        for queue in queues:
            for found in receiving.of(queue):
                boot, link = found.key
                assert boot == BOOT
                receiving.attach(found, mine, link, found.opened, scene.now_ms)

    def news(self) -> list[Any]:
        """What it heard since the last time, in an order that does not depend on how it was cut in frames."""
        found: list[Any] = []
        for link, deliveries in sorted(self.peer.delivered.items()):
            # What expires at one moment is dead-lettered in any order.
            where = slice(2 if link == FROM_DEAD else 0, None)
            news = deliveries[self.seen.get(link, 0) :]
            found += [("delivered", link, *tuple(each)[where]) for each in news]
            self.seen[link] = len(deliveries)
        answers = self.peer.take(Kind.ACCEPTED, Kind.STORED, Kind.DRAINED, Kind.REFUSED, Kind.GONE)
        for answer in answers:
            for number in range(answer.number, answer.number + max(answer.count, 1)):
                found.append((answer.kind.name, answer.link, number))
        for link, number, why in self.peer.refusals:
            # Bytes of what is only on disk are shares of their batch's.
            found.append(("refused", link, number, re.sub(r"[0-9]+ bytes", "some bytes", repr(why))))
        self.peer.refusals = []
        found += [("stored", *each) for each in self.peer.stored]
        self.peer.stored = []
        found += [("answer", *each) for each in self.peer.answers.values()]
        self.peer.answers = {}
        return sorted(set(map(_hashable, found)), key=repr)


def _hashable(each: tuple[Any, ...]) -> tuple[Any, ...]:
    """Answers may come twice: to a batch, and to its repetition."""
    return tuple(repr(part) if isinstance(part, dict) else part for part in each)


class Twins:
    """The same history at a shard whose queue stays and at one whose queue moves."""

    def __init__(self, seed: int, policy: dict[str, Any], *, memory_mark: int = 1 << 30) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.memory_mark = memory_mark
        self.policy = Policy.parse({"role": "queue", **policy})
        self.files = FakeFiles()
        self.home = Side(scene_of(self.policy, FakeFiles(), memory_mark=memory_mark))
        self.away = Side(scene_of(self.policy, self.files, memory_mark=memory_mark))
        self.source = self.away.scene
        self.sides = (self.home, self.away)
        self.numbers = dict.fromkeys(SENDERS, 0)
        self.unanswered: dict[int, dict[int, bytes]] = {link: {} for link in SENDERS}
        self.count = 0
        self.receivers: dict[int, int] = {}
        """Next delivery number by link."""
        self.keys: dict[int, str] = {}
        """Of receivers whose locks have names."""
        self.locks: list[tuple[str, int]] = []
        """Names of locks, with the sequences of what they lock."""
        self.held: dict[int, set[int]] = {}
        self.spread = memory_mark >= 1 << 30
        """Whether several consumers may be there: who gets what depends on when it is read."""
        for link in SENDERS:
            self.do(lambda side, link=link: side.peer.produce(link, QUEUE, sequences=link == 2))

    # --- both ------------------------------------------------------------------------------------------

    def do(self, what: Any) -> None:
        """Does the same to both, which must answer the same."""
        said = []
        for side in self.sides:
            what(side)
            said.append(side.news())
        self.heard(*said)

    def heard(self, home: list[Any], away: list[Any]) -> None:
        assert home == away, (
            self.seed,
            self.policy,
            [each for each in home if each not in away][:5],
            [each for each in away if each not in home][:5],
        )
        for kind, link, number, *rest in home:
            if kind == "ACCEPTED" or kind == "stored":
                self.unanswered.get(link, {}).pop(number, None)
            elif kind == "refused" and link in SENDERS:
                self.unanswered[link].pop(number, None)
            elif kind == "delivered" and link != FROM_DEAD:
                self.receivers[link] = number + 1
                self.held.setdefault(link, set()).add(number)
                if link in self.keys:
                    self.locks.append((f"{self.keys[link]}-{number}", rest[0]))
            elif kind == "GONE":
                self.receivers.pop(link, None)
                self.held.pop(link, None)

    def settle_down(self) -> None:
        self.do(lambda side: side.scene.settle_down())

    # --- what may happen -------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        acts = [self.send] * 4 + [self.credit] * 3 + [self.settle] * 4
        acts += [self.attach] * 2 + [self.detach, self.wait, self.wait, self.settle_down] + [self.lock] * 2
        for _ in range(steps):
            self.chance.choice(acts)()

    def send(self) -> None:
        link = self.chance.choice(SENDERS)
        number = self.numbers[link] = self.numbers[link] + 1
        messages = []
        for _ in range(self.chance.randint(1, 5)):
            self.count += 1
            messages.append(message(self.chance, self.count))
        now_ms = self.home.scene.now_ms
        part = batch(
            link,
            number,
            messages,
            durable=self.chance.random() < 0.7,
            afresh=not self.unanswered[link],
            priority=self.chance.randrange(10),
            expires_at_ms=now_ms + self.chance.randrange(1, 900) if self.chance.random() < 0.2 else 0,
        )
        self.unanswered[link][number] = part
        self.do(lambda side: side.peer.say(part))

    def credit(self) -> None:
        if self.receivers:
            link = self.chance.choice(list(self.receivers))
            limit = self.receivers[link] + self.chance.randint(0, 6)
            drain = self.chance.random() < 0.1
            self.do(lambda side: side.peer.credit(link, limit, drain=drain))

    def settle(self) -> None:
        links = [link for link, held in self.held.items() if held]
        if not links:
            return
        link = self.chance.choice(links)
        first = self.chance.choice(sorted(self.held[link]))
        count = self.chance.randint(1, 4)
        self.held[link] -= set(range(first, first + count))
        code = self.chance.choice([OutcomeCode.ACCEPTED] * 3 + list(OutcomeCode))
        detail = None
        if code == OutcomeCode.MODIFIED:
            detail = SettleDetail(
                delivery_failed=self.chance.random() < 0.6,
                undeliverable_here=self.chance.random() < 0.3,
                annotations=NOTES if self.chance.random() < 0.5 else "",
                deferred=self.chance.random() < 0.15,
            )
        self.do(lambda side: side.peer.settle(link, first, count, code, detail))

    def attach(self) -> None:
        free = [link for link in RECEIVERS if link not in self.receivers]
        if not free or (not self.spread and self.receivers):
            return
        link = self.chance.choice(free)
        options: dict[str, Any] = {"priority": self.chance.choice((0, 0, 1))}
        if self.chance.random() < 0.3:
            options["filter"] = {"properties": {"application-properties.colour": "red"}}
        kind = self.chance.random()
        if kind < 0.15:
            options["browse"] = True
        elif kind < 0.25:
            options["presettled"] = True
        elif kind < 0.55:
            self.keys[link] = KEY % self.chance.randrange(3)
            options |= {"lock_ms": 300, "lock_key": self.keys[link], "first": 1_000 * (1 + self.count)}
        elif kind < 0.65:
            options["exclusive"] = True
        if "lock_key" not in options:
            self.keys.pop(link, None)
        self.receivers[link] = options.get("first", 0)
        self.held[link] = set()
        self.do(lambda side: side.peer.consume(link, QUEUE, **options))

    def detach(self) -> None:
        if self.receivers:
            link = self.chance.choice(list(self.receivers))
            del self.receivers[link]
            self.held.pop(link)
            self.do(lambda side: side.peer.close_consumer(link))

    def wait(self) -> None:
        passed = self.chance.choice((1, 30, 120, 400))
        self.do(lambda side: side.scene.tick(passed))

    def lock(self) -> None:
        """Somebody settles or renews by the name of a lock, whether its consumer is there or not."""
        if self.locks:
            lock, sequence = self.chance.choice(self.locks[-12:])
            op = self.chance.choice(("renew", "renew", "settle"))
            self.do(lambda side: side.peer.ask(op, queue=QUEUE, lock=lock, sequence=sequence))

    # --- the move --------------------------------------------------------------------------------------

    def move(self, between: int) -> Scene:
        """Copies with other things going on, stops the world, opens elsewhere. Returns the destination."""
        now_ms = self.home.scene.now_ms
        files = FakeFiles()
        target = scene_of(self.policy, files, memory_mark=self.memory_mark, now_ms=now_ms)
        copying = [Copying(self.source, target, QUEUE, self.chance)]
        for _ in range(between):
            self.run(self.chance.randrange(8))
            target.now_ms = self.home.scene.now_ms
            copying[0].piece()
            self.settle_down()
            target.settle_down()
        self.settle_down()
        self.send_unheard()
        # The freeze: nobody says anything any more, and nobody has credit.
        for link, number in self.receivers.items():
            for side in self.sides:
                side.peer.credit(link, 0)
            self.heard(*(side.news() for side in self.sides))
            assert self.receivers[link] == number
        target.now_ms = self.home.scene.now_ms
        source = self.source
        if queue_of(source, DEAD) is not None:
            copying.insert(0, Copying(source, target, DEAD, self.chance))
        for each in copying:
            each.complete()
        self.compare_journal(files)
        for each in copying:
            each.open()
        target.settle_down()
        self.away.move_to(target, [each.importing.queue for each in copying])

        # Whoever sent says again what was not answered.
        def say_again(side: Side) -> None:
            # How much of each shard is in memory is their own affair, and moves answers by a commit.
            side.scene.engine._house.memory.mark = 1 << 30
            for link in unanswered:
                side.peer.produce(link, QUEUE, sequences=link == 2)
            for parts in unanswered.values():
                if parts:
                    side.peer.say(*parts)
            side.scene.settle_down()

        unanswered = {link: list(parts.values()) for link, parts in self.unanswered.items()}
        self.do(say_again)
        self.check()
        return target

    def send_unheard(self) -> None:
        """Loses the answers to the last batches before the freeze: the batches are repeated afterwards."""
        for link in SENDERS:
            number = self.numbers[link] = self.numbers[link] + 1
            self.count += 1
            part = batch(link, number, [message(self.chance, self.count)], afresh=not self.unanswered[link])
            self.unanswered[link][number] = part
            for side in self.sides:
                side.peer.say(part)
        home, away = (self._deaf(side) for side in self.sides)
        assert home == away

    def _deaf(self, side: Side) -> list[Any]:
        side.scene.settle_down()
        said = side.news()
        for each in said:
            if each[0] == "delivered":
                self.receivers[each[1]] = max(self.receivers[each[1]], each[2] + 1)
                self.held[each[1]].add(each[2])
        return said

    def compare_journal(self, files: FakeFiles) -> None:
        """What is on the destination's disk is all of the queue that is durable."""
        recovered = Journal(files.after_crash(1, "none"), "test", 0, segment_bytes=SEGMENT_BYTES).recover(
            1 << 30, 1
        )
        for each in recovered.queues:
            queue = queue_of(self.source, each.name)
            assert queue is not None
            assert each.next_sequence == queue.machine.contents.next_sequence
            there = [
                (run.sequence + index, run.attempts, one)
                for run in each.runs
                for index, one in enumerate(run.messages())
            ]
            assert there == contents(self.source, queue), self.seed

    def check(self) -> None:
        for side in self.sides:
            for name in (QUEUE, DEAD):
                queue = queue_of(side.scene, name)
                if queue is not None:
                    invariants.check(queue.machine)

    def empty(self) -> None:
        """Whoever is left gets everything, then somebody else the rest: nothing is missing on either side."""
        self.settle_down()
        for link in list(self.receivers):
            del self.receivers[link]
            self.held.pop(link)
            self.do(lambda side, link=link: side.peer.close_consumer(link))
        self.do(lambda side: side.scene.tick(1_000))
        self.do(lambda side: side.peer.consume(21, QUEUE, 1 << 20))
        self.do(lambda side: side.peer.consume(FROM_DEAD, DEAD, 1 << 20))
        self.settle_down()
        self.check()
        if self.policy["capture"]:
            self.compare_captured()

    def compare_captured(self) -> None:
        """The journals of the two shards that had the queue say together what that of the one says."""
        self.source.settle_down()
        home, source, target = (
            captured.read(scene.store.files).events  # type: ignore[attr-defined]
            for scene in (self.home.scene, self.source, self.away.scene)
        )
        for each in (home, source, target):
            assert not captured.broken_laws(each), self.seed
        assert home_of(home) == home_of([*source, *(event for event in target if event.event != "moved")])
        came = {
            event.sequence: event.message
            for event in source
            if (event.queue, event.event) == (QUEUE, "enqueued")
        }
        for moved in target:
            if moved.event == "moved" and moved.queue == QUEUE:
                # Other bytes only where annotations were merged, which is no event.
                assert moved.message == came[moved.sequence] or NOTES_MARK in moved.message


def home_of(found: list[captured.Event]) -> tuple[dict[int, list[Any]], Counter[Any]]:
    """What happened to each message of the queue, in order; and to dead letters, which come in any order."""
    mine: dict[int, list[Any]] = {}
    for each in found:
        if each.queue == QUEUE:
            mine.setdefault(each.sequence, []).append(each[2:])
    return mine, Counter((each.event, each.message) for each in found if each.queue == DEAD)


def contents(scene: Scene, queue: Queue) -> list[tuple[int, int, bytes]]:
    """(sequence, attempts, message) of all that is durable in a queue, wherever it lies."""
    found = []
    for run in queue.machine.contents.runs():
        if not run.batch.durable:
            continue
        pieces = [run]
        if run.batch.data is None:
            assert run.batch.location is not None
            pieces = scene.engine._store.read(run.batch.location, queue.id, run.sequence, run.end)
        for piece in pieces:
            found += [
                (piece.sequence + index, run.attempts, one) for index, one in enumerate(piece.messages())
            ]
    return sorted(found)


__all__ = ["Copying", "ImportFailedError", "Side", "Twins", "ask", "contents", "exporting_of", "importing_of"]
