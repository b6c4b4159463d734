"""A shard's engine and its frontends without any I/O: frames go by hand, commits when the test says.

`Scene` plays the server, `Peer` a frontend that says exactly what the test wants.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from lightrail.journal.record import Settle
from lightrail.model.links import Ending
from lightrail.shard.effects.actions import Actions, Read
from lightrail.shard.effects.receiving_link import ReceivingLink, ReceivingState
from lightrail.shard.engine.engine import Engine
from lightrail.shard.journal.memory import MemoryStore
from lightrail.shard.journal.record import Append, Record
from lightrail.shard.journal.store import Commit, Recovered, Store, StoreFullError
from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.values.runs import Location, Run
from lightrail.shard.queue.view import View
from lightrail.shard.queues.declarations import EveryName, ExpiredName, Names
from lightrail.shard.queues.delivery_marks import DeliveryMarks
from lightrail.shard.queues.lock_file import KeptLocks
from lightrail.shard.queues.tenancy import ClusterMap
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import (
    ConsumerOpen,
    Hello,
    ProducerOpen,
    Refusal,
    SettleDetail,
    Targets,
    Welcome,
    decode_request,
    encode_request,
)
from lightrail.wire.columns import Range, decode_suspended, decode_tags, encode_ranges
from lightrail.wire.frames import (
    DELIVER_COLUMNS,
    DELIVER_ENDS,
    DRAIN,
    DURABILITY_SHIFT,
    HEADER,
    HEADER_SIZE,
    KEPT,
    NOT_LOCKED,
    SEQUENCE,
    VERSION,
    Kind,
    OutcomeCode,
    enqueue,
    frame,
)
from tests.support.shard import link_laws


@dataclass(frozen=True)
class Answer:
    """A frame of the shard, without its body."""

    kind: Kind
    link: int
    number: int
    count: int


class Delivered(NamedTuple):
    """One message as a frontend gets it."""

    number: int
    sequence: int
    attempts: int
    message: bytes


@dataclass(frozen=True)
class Outcome:
    """What a connection point's listener made of messages of a batch."""

    link: int
    number: int
    first: int
    count: int
    code: int
    detail: SettleDetail | None = None


class SmallStore(MemoryStore):
    """In memory; full for messages, or for everything, when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.full_for_all = False
        self.records: list[Record] = []

    def append(self, record: Record, now_ms: int = 0) -> Location | None:
        if self.full_for_all or (self.full and isinstance(record, Append)):
            raise StoreFullError("there is no room")
        self.records.append(record)
        return super().append(record, now_ms)

    def appends(self) -> list[Append]:
        return [record for record in self.records if isinstance(record, Append)]

    def settles(self) -> list[Settle]:
        return [record for record in self.records if isinstance(record, Settle)]


class Scene:
    """One shard. Time stands still until the test moves it."""

    @property
    def unattached(self) -> list[ReceivingLink]:
        """Receiving links that no frontend has open."""
        links = self.engine._performer.links.values()
        return [found for found in links if found.state is not ReceivingState.ATTACHED]

    def __init__(
        self,
        store: Store | None = None,
        recovered: Recovered | None = None,
        *,
        memory_mark: int = 1 << 30,
        max_delivery_count: int = 10,
        boot: int = 1,
        now_ms: int = 1_000_000,
        names: Names | None = None,
        shard: int = 0,
        map: ClusterMap | None = None,
        marks: DeliveryMarks | None = None,
        kept_locks: KeptLocks | None = None,
    ) -> None:
        self.store: Store = store if store is not None else SmallStore()
        self.counts = ShardCounts(memory_mark)
        self.now_ms = now_ms
        self.names: Names = EveryName() if names is None else names
        self.wishes: list[str] = []
        """Names that the shard would like to be dropped."""
        self.retired: list[ExpiredName] = []
        """The same, with what guards their deletion."""
        self.wishes_to_keep: list[str] = []
        """Names that the shard would like to be kept."""
        self.wishes_back: list[str] = []
        """Queues that the shard would like to have back."""
        self.engine = Engine(
            shard=shard,
            boot=boot,
            store=self.store,
            recovered=recovered or Recovered(),
            counts=self.counts,
            memory_mark=memory_mark,
            max_delivery_count=max_delivery_count,
            now_ms=now_ms,
            names=self.names,
            map=map,
            marks=marks,
            kept_locks=kept_locks,
        )
        self.reads: list[Read] = []
        """Messages to read back that no turn has read."""
        self.peers: dict[bytes, Peer] = {}
        self.commit: Commit | None = None
        self.reading = True

    def peer(self, name: str = "frontend-0", boot: int = 7) -> "Peer":
        """A frontend that has been welcomed."""
        peer = Peer(self, name, boot)
        peer.greet()
        return peer

    def receive(self, identity: bytes, parts: Sequence[bytes]) -> None:
        rest = self.engine.receive(identity, list(parts), self.now_ms)
        while rest:
            # The server would take a turn in between.
            self.turn()
            rest = self.engine.receive(identity, rest, self.now_ms)

    def turn(self) -> None:
        """The end of a turn without any commit: what need not wait leaves."""
        self.step()
        while self.reading and self.reads:
            for read in self.take_reads():
                read.perform(self.store)
                self.engine.read_ended(read, None, self.now_ms)
            self.step()

    def step(self) -> Actions:
        actions = self.engine.step(self.now_ms)
        link_laws.check(self.engine)
        self._deliver(actions.output)
        self.reads += actions.reads
        self.wishes += [each.record.name for each in actions.expired]
        self.retired += actions.expired
        self.wishes_to_keep += [record.name for record in actions.kept]
        self.wishes_back += actions.wanted
        return actions

    def take_reads(self) -> list[Read]:
        reads, self.reads = self.reads, []
        return reads

    def begin_commit(self) -> None:
        assert self.commit is None
        self.commit = self.store.begin_commit()
        self.engine.commit_begun()

    def end_commit(self) -> None:
        commit = self.commit
        assert commit is not None
        commit.perform()
        self.commit = None
        self.store.end_commit(commit)
        self.engine.commit_ended(self.now_ms)
        self.turn()

    def settle_down(self) -> None:
        """Turns and commits until nothing is left to do."""
        self.turn()
        while self.store.pending or self.commit is not None:
            if self.commit is None:
                self.begin_commit()
            self.end_commit()

    def tick(self, wait_ms: int = 0) -> None:
        self.now_ms += wait_ms
        self.engine.tick(self.now_ms)
        self.turn()

    def refresh(self) -> None:
        """The shard looks into the directory."""
        self.engine.refresh(self.now_ms)
        self.turn()

    def queue(self, name: str) -> dict[str, int]:
        """Ready, in flight and bytes of a queue."""
        figures = dict(self.engine._queues.figures(""))[name]()
        return {"ready": figures.ready, "in_flight": figures.in_flight}

    def queue_contents(self, name: str) -> Contents:
        """What the machine of a queue has."""
        queue = self.engine._queues.find(name)
        assert queue is not None
        return queue.machine.contents

    def queue_view(self, name: str) -> View:
        """What the machine of a queue shows."""
        queue = self.engine._queues.find(name)
        assert queue is not None
        return queue.view

    def has_queue(self, name: str) -> bool:
        return self.engine._queues.find(name) is not None

    def everything(self, name: str) -> list[tuple[int | None, int, int, bytes]]:
        """Consumer, delivery number, attempts and bytes of each message of a queue; ready ones have no
        consumer."""
        queue = self.engine._queues.find(name)
        assert queue is not None
        contents = queue.machine.contents
        found: list[tuple[int | None, int, Run]] = [(None, 0, run) for run in contents.ready.waiting()]
        for consumer in queue.machine.view.holders():
            line = consumer.in_flight
            numbers = zip(line.keys[line.head :], line.runs[line.head :], strict=True)
            found += [(consumer.id, number, run) for number, run in numbers]
        messages = []
        for identity, number, run in found:
            pieces = [run]
            if run.batch.data is None:
                assert run.batch.location is not None
                pieces = self.store.read(run.batch.location, queue.id, run.sequence, run.end)
            for piece in pieces:
                first = number + piece.sequence - run.sequence
                messages += [
                    (identity, first + at, run.attempts, message)
                    for at, message in enumerate(piece.messages())
                ]
        return messages

    def _deliver(self, output: list[tuple[bytes, list[bytes]]]) -> None:
        for identity, parts in output:
            peer = self.peers.get(identity)
            if peer is not None:
                peer.hear(parts)


class PeerScene(Protocol):
    """What a peer sends to, and is given the answers by."""

    @property
    def peers(self) -> dict[bytes, "Peer"]: ...
    def receive(self, identity: bytes, parts: Sequence[bytes]) -> None: ...
    def turn(self) -> None: ...
    def settle_down(self) -> None: ...


class Peer:
    """A frontend, in the hands of the test."""

    def __init__(self, scene: PeerScene, name: str = "frontend-0", boot: int = 7) -> None:
        self.scene = scene
        self.name = name
        self.boot = boot
        self.identity = boot.to_bytes(4, "little") + name.encode()
        self.attempt = 0
        self.heard: list[Answer] = []
        self.refusals: list[tuple[int, int, Refusal]] = []
        """(link, number of the batch, why)."""
        self.welcome: Welcome | None = None
        self.delivered: dict[int, list[Delivered]] = {}
        self.granted: dict[int, int] = {}
        """By link of a sender of a connection point."""
        self.outcomes: list[Outcome] = []
        self.not_locked: list[tuple[int, int, int]] = []
        """(link, first, count) of settlements that changed nothing."""
        self.uncertain: list[tuple[int, int, int]] = []
        """(link, first, count) of settlements that the store perhaps does not have."""
        self.stored: list[tuple[int, int, int]] = []
        """(link, number of the batch, first sequence)."""
        self.unsettled: dict[int, tuple[bool, list[bytes]]] = {}
        """By link: whether tags are kept, and those that are."""
        self.attaches: dict[int, int] = {}
        """By link: the number of its client's attach."""
        self.durability: dict[int, int] = {}
        """By link: what of this is in the store."""
        self.consumed: set[int] = set()
        """Links of which a consumer was opened."""
        self.recovered: dict[int, tuple[int, int, list[Range]]] = {}
        """Terminus, next number and unsettled deliveries of links that were opened to be resumed."""
        self.bounced: list[tuple[dict[str, Any], bytes]] = []
        """Queue and epoch, and the frame that came back."""
        self.requests = 0
        self.yields = True
        """It answers YIELD at once, as a frontend that runs does."""
        self.late: list[bytes] | None = None
        """Settlements and closes on their way, in order; None where they arrive at once."""
        self.answers: dict[int, tuple[dict[str, Any], bytes]] = {}
        """(fields, blob) of each request that was answered."""
        scene.peers[self.identity] = self

    # --- saying ----------------------------------------------------------------------------------------

    def say(self, *parts: bytes) -> None:
        """One message; the turn ends after it. What is on its way arrives before."""
        if self.late:
            parts, self.late = (*self.late, *parts), []
        self.scene.receive(self.identity, parts)
        self.scene.turn()

    def say_late(self, part: bytes) -> None:
        """Sends a frame that may arrive late."""
        if self.late is None:
            self.say(part)
        else:
            self.late.append(part)

    def greet(self) -> None:
        self.attempt += 1
        self.say(frame(Kind.HELLO, body=Hello(VERSION, self.name, self.boot, self.attempt).encode()))

    def produce(self, link: int, queue: str = "", *, epoch: int = 0, number: int = 0, **options: Any) -> None:
        """Opens a link that sends; `number` is that of its next new batch."""
        body = ProducerOpen(queue, **options)
        self.say(frame(Kind.PRODUCER_OPEN, epoch=epoch, link=link, number=number, body=body.encode()))

    def route(self, link: int, number: int, set_: int, messages: Sequence[bytes], **options: Any) -> None:
        self.say(batch(link, number, messages, set_=set_, **options))

    def targets(self, link: int, number: int, *queues: str) -> None:
        self.say(frame(Kind.TARGETS, link=link, number=number, body=Targets(list(queues)).encode()))

    def send(self, link: int, number: int, messages: Sequence[bytes], **options: Any) -> None:
        self.say(batch(link, number, messages, **options))

    def consume(self, link: int, queue: str, credit: int = 0, *, epoch: int = 0, **options: Any) -> None:
        body = ConsumerOpen(queue, **options)
        self.consumed.add(link)
        self.say(frame(Kind.CONSUMER_OPEN, epoch=epoch, link=link, body=body.encode()))
        if credit:
            self.credit(link, credit)

    def close_producer(self, link: int) -> None:
        self.say(frame(Kind.PRODUCER_CLOSE, link=link))

    def close_consumer(self, link: int, flags: int = Ending.BY_CLIENT) -> None:
        self.say_late(frame(Kind.CONSUMER_CLOSE, flags=flags, link=link))

    def resend(self, link: int, *ranges: Range) -> None:
        self.say(frame(Kind.RESEND, link=link, body=encode_ranges(ranges)))

    def yielded(self, link: int) -> None:
        self.say(frame(Kind.YIELDED, link=link))

    def ping(self) -> None:
        self.say(frame(Kind.PING))

    def credit(self, link: int, limit: int, *, drain: bool = False) -> None:
        self.say(frame(Kind.CREDIT, link=link, number=limit, flags=DRAIN if drain else 0))

    def settle(
        self,
        link: int,
        first: int,
        count: int,
        code: OutcomeCode = OutcomeCode.ACCEPTED,
        detail: SettleDetail | None = None,
        *,
        asked: int = 0,
    ) -> None:
        body = b"" if detail is None else detail.encode()
        settle = frame(Kind.SETTLE, flags=code, link=link, number=first, count=count, body=body, asked=asked)
        self.say_late(settle)

    def ask(self, op: str, blob: bytes = b"", **fields: Any) -> int:
        """A request; returns its number."""
        self.requests += 1
        body = encode_request({"op": op, **fields}, blob)
        self.say(frame(Kind.REQUEST, number=self.requests, body=body))
        return self.requests

    # --- hearing ---------------------------------------------------------------------------------------

    def hear(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            code, flags, _, _, link, count, number = HEADER.unpack_from(part)
            kind = Kind(code)
            if kind == Kind.DELIVER:
                self.delivered.setdefault(link, []).extend(delivered(part))
            elif kind in (Kind.REFUSED, Kind.GONE):
                self.refusals.append((link, number, Refusal.decode(part[HEADER_SIZE:])))
            elif kind == Kind.RESPONSE:
                fields, blob = decode_request(memoryview(part)[HEADER_SIZE:])
                self.answers[number] = (fields, bytes(blob))
            elif kind == Kind.BOUNCED:
                fields, back = decode_request(memoryview(part)[HEADER_SIZE:])
                self.bounced.append((fields, bytes(back)))
            elif kind == Kind.SETTLED and flags:
                (self.not_locked if flags & NOT_LOCKED else self.uncertain).append((link, number, count))
            elif kind == Kind.GRANT:
                self.granted[link] = number
            elif kind == Kind.OUTCOME:
                _, code, _, first, _, _, _ = HEADER.unpack_from(part)
                body = part[HEADER_SIZE:]
                detail = SettleDetail.decode(body) if body else None
                self.outcomes.append(Outcome(link, number, first, count, code, detail))
            elif kind == Kind.STORED:
                self.stored.append((link, number, SEQUENCE.unpack_from(part, HEADER_SIZE)[0]))
            elif kind == Kind.UNSETTLED and link in self.consumed:
                self.recovered[link] = decode_suspended(part[HEADER_SIZE:])
                self.durability[link] = flags >> DURABILITY_SHIFT
            elif kind == Kind.UNSETTLED:
                self.unsettled[link] = (bool(flags & KEPT), decode_tags(part[HEADER_SIZE:]))
                self.attaches[link] = number
                self.durability[link] = flags >> DURABILITY_SHIFT
            elif kind == Kind.WELCOME:
                self.welcome = Welcome.decode(part[HEADER_SIZE:])
            self.heard.append(Answer(kind, link, number, count))
            if kind == Kind.YIELD and self.yields:
                self.yielded(link)

    def take(self, *kinds: Kind) -> list[Answer]:
        """What was heard since the last time, of these kinds (all, without any); the rest is forgotten."""
        heard, self.heard = self.heard, []
        return [answer for answer in heard if not kinds or answer.kind in kinds]

    def accepted(self, link: int) -> list[int]:
        """Numbers of the batches of a link that were accepted since the last `take`."""
        return [
            number
            for answer in self.take(Kind.ACCEPTED)
            if answer.link == link
            for number in range(answer.number, answer.number + answer.count)
        ]

    def messages(self, link: int) -> list[bytes]:
        """Everything that was delivered on a link."""
        return [each.message for each in self.delivered.get(link, [])]


def batch(
    link: int,
    number: int,
    messages: Sequence[bytes],
    *,
    durable: bool = True,
    afresh: bool = False,
    priority: int = 4,
    expires_at_ms: int = 0,
    message_format: int = 0,
    set_: int | None = None,
    whole: bool = False,
) -> bytes:
    """An ENQUEUE frame, or a ROUTE to a set."""
    ends = array("I", accumulate(map(len, messages)))
    return enqueue(
        link,
        1 if set_ is None else set_,
        number,
        ends.tobytes(),
        list(messages),
        durable=durable,
        afresh=afresh,
        whole=whole,
        priority=priority,
        expires_at_ms=expires_at_ms,
        message_format=message_format,
        size=ends[-1],
        kind=Kind.ENQUEUE if set_ is None else Kind.ROUTE,
    )


def delivered(part: bytes | memoryview) -> list[Delivered]:
    """The messages of a DELIVER frame."""
    _, _, _, _, _, count, number = HEADER.unpack_from(part)
    sequence, _, _, attempts, _, base, size = DELIVER_COLUMNS.unpack_from(part, HEADER_SIZE)
    at = DELIVER_ENDS + 4 * count
    ends = memoryview(part)[DELIVER_ENDS:at].cast("I")
    assert len(part) == at + size
    found = []
    start = 0
    for index, end in enumerate(ends):
        stop = end - base
        body = bytes(part[at + start : at + stop])
        found.append(Delivered(number + index, sequence + index, attempts, body))
        start = stop
    return found


def numbered_messages(count: int, first: int = 0) -> list[bytes]:
    """Messages that are told apart by a number, with a body that is well-formed."""
    texts = [b"m%d" % number for number in range(first, first + count)]
    return [b"\x00\x53\x75\xa0" + bytes((len(text),)) + text for text in texts]
