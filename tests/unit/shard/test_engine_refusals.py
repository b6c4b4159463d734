"""The engine on a full store: what was refused is never called accepted later, however often it is sent."""

from array import array

from lightrail.shard.engine.engine import Engine
from lightrail.shard.journal.memory import MemoryStore
from lightrail.shard.journal.record import Append, Record
from lightrail.shard.journal.store import Recovered, StoreFullError
from lightrail.shard.queue.values.runs import Location
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Hello, ProducerOpen
from lightrail.wire.frames import HEADER, VERSION, Kind, enqueue, frame

IDENTITY = b"frontend"


class SmallStore(MemoryStore):
    """A store that is full when the test says so."""

    full = False

    def append(self, record: Record, now_ms: int = 0) -> Location | None:
        if self.full and isinstance(record, Append):
            raise StoreFullError("full")
        return super().append(record, now_ms)


class Wire:
    """One frontend with one producer, on an engine."""

    def __init__(self) -> None:
        self.store = SmallStore()
        self.engine = Engine(
            shard=0,
            boot=1,
            store=self.store,
            recovered=Recovered(),
            counts=ShardCounts(),
            memory_mark=1 << 30,
            max_delivery_count=10,
            now_ms=0,
        )
        self.greet(1)

    def greet(self, attempt: int) -> None:
        hello = Hello(VERSION, "frontend-0", 7, attempt)
        self.say(frame(Kind.HELLO, body=hello.encode()))
        self.say(frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))

    def say(self, *parts: bytes) -> list[tuple[Kind, int, int]]:
        """(kind, number, count) of what was answered after a commit."""
        self.engine.receive(IDENTITY, list(parts), 0)
        output = self.engine.step(0).output
        if self.store.pending:
            commit = self.store.begin_commit()
            self.engine.commit_begun()
            self.store.end_commit(commit)
            self.engine.commit_ended(0)
            output += self.engine.step(0).output
        found = []
        for _, answers in output:
            for part in answers:
                kind, _, _, _, _, count, number = HEADER.unpack_from(part)
                if kind in (Kind.ACCEPTED, Kind.REFUSED):
                    found.append((Kind(kind), number, count))
        return found

    def send(self, number: int, *, afresh: bool) -> list[tuple[Kind, int, int]]:
        return self.say(self.batch(number, afresh=afresh))

    @staticmethod
    def batch(number: int, *, afresh: bool = False, durable: bool = True) -> bytes:
        return enqueue(
            1,
            1,
            number,
            array("I", [1]).tobytes(),
            [b"m"],
            durable=durable,
            afresh=afresh,
            priority=4,
            expires_at_ms=0,
            message_format=0,
            size=1,
        )

    @property
    def stored(self) -> int:
        return sum(figures().ready for _, figures in self.engine._queues.figures(""))


def test_refused_and_sent_again_is_stored() -> None:
    """The refusal got lost between the processes: the batch that comes again is not taken for a known one."""
    wire = Wire()
    assert wire.send(1, afresh=True) == [(Kind.ACCEPTED, 1, 1)]
    wire.store.full = True
    assert wire.send(2, afresh=True) == [(Kind.REFUSED, 2, 0)]
    wire.store.full = False
    wire.greet(2)
    assert wire.send(2, afresh=True) == [(Kind.ACCEPTED, 2, 1)]
    assert wire.stored == 2


def test_batches_behind_a_refused_one_are_refused() -> None:
    """Were 3 stored, its number would cover 2; a transient one as well."""
    wire = Wire()
    wire.store.full = True
    assert wire.send(1, afresh=True) == [(Kind.REFUSED, 1, 0)]
    wire.store.full = False
    assert wire.send(2, afresh=False) == [(Kind.REFUSED, 2, 0)]
    assert wire.say(wire.batch(3, durable=False)) == [(Kind.REFUSED, 3, 0)]
    assert wire.send(4, afresh=True) == [(Kind.ACCEPTED, 4, 1)]
    assert wire.send(5, afresh=False) == [(Kind.ACCEPTED, 5, 1)]
    assert wire.stored == 2
