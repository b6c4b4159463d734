"""The shard's engine: frames of the wire in, queue machines and store driven, frames out; no I/O of its own.

What may leave at once (deliveries, answers to transient batches) goes to the peers' output in the same step;
answers to durable batches wait in `_unsynced` until the commit that holds their records has reached the disk.
A queue is dispatched once per step, after everything that came has been applied, so that slices are large.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from lightrail.model import conditions, limits
from lightrail.model.names import dead_letter_name, is_dead_letter
from lightrail.shard.dead_letters import dead_letter_batch, merge_annotations
from lightrail.shard.journal import record
from lightrail.shard.journal.record import CONTINUED, REWRITTEN, SPILLED, Append, QueueEvent, Settle
from lightrail.shard.journal.store import Recovered, Store, StoreError, StoreFull
from lightrail.shard.memory import Memory
from lightrail.shard.peers import Consumer, Peer, Producer
from lightrail.shard.queue import commands, effects
from lightrail.shard.queue.effects import Effect, Reason
from lightrail.shard.queue.machine import Machine, Policy
from lightrail.shard.queue.runs import Batch, Run
from lightrail.shard.reading import Read
from lightrail.telemetry.families import QueueFigures, ShardCounts
from lightrail.wire.frames import (
    DRAIN,
    DURABLE,
    ENQUEUE_COLUMNS,
    ENQUEUE_ENDS,
    HEADER,
    HEADER_SIZE,
    VERSION,
    Kind,
    deliver,
    frame,
)
from lightrail.wire.messages import ConsumerOpen, Hello, ProducerOpen, Refusal, SettleDetail, Welcome

log = logging.getLogger("lightrail.shard.engine")

ENQUEUE: Final = int(Kind.ENQUEUE)
SETTLE: Final = int(Kind.SETTLE)
CREDIT: Final = int(Kind.CREDIT)
JOURNAL_OUTCOME: Final = {
    Reason.ACCEPTED: record.Outcome.ACCEPTED,
    Reason.REJECTED: record.Outcome.REJECTED,
    Reason.EXPIRED: record.Outcome.EXPIRED,
    Reason.MAX_DELIVERY_COUNT: record.Outcome.DEAD_LETTERED,
    Reason.PURGED: record.Outcome.PURGED,
    Reason.LOST: record.Outcome.PURGED,
}


class Queue:
    """One queue of this shard: its machine, its number in the journal, and what gathered in this step."""

    __slots__ = ("epoch", "id", "machine", "name", "removed", "resident")

    def __init__(self, id: int, name: str, machine: Machine) -> None:
        self.id = id
        self.name = name
        self.machine = machine
        self.epoch = 1
        self.resident = 0
        self.removed: dict[Reason, list[tuple[int, int]]] = {}
        """Sequences that left the queue in this step, by reason: ranges that become one Settle record."""


class Engine:
    """The queues of one shard behind the wire."""

    def __init__(
        self,
        *,
        shard: int,
        boot: int,
        store: Store,
        recovered: Recovered,
        counts: ShardCounts,
        memory_mark: int,
        max_delivery_count: int,
        now_ms: int,
    ) -> None:
        self.shard = shard
        self.boot = boot
        self.deadline_ms: int | None = None
        self._store = store
        self._counts = counts
        self._max_delivery_count = max_delivery_count
        self._memory = Memory(memory_mark)
        self._peers: dict[bytes, Peer] = {}
        self._strangers: dict[bytes, None] = {}
        self._queues: dict[str, Queue] = {}
        self._next_queue = 1
        self._next_consumer = 1
        self._consumers: dict[int, Consumer] = {}
        self._producers: dict[int, int] = dict(recovered.producers)
        self._touched: dict[Queue, None] = {}
        self._unsynced: list[tuple[Producer, int]] = []
        self._committing: list[tuple[Producer, int]] = []
        self._messages_unsynced = 0
        self._messages_committing = 0
        self._reads: list[Read] = []
        self._reading: dict[int, int] = {}
        self._failed: str | None = None
        self._ticked_ms = now_ms
        for found in recovered.queues:
            queue = self._make(found.queue, found.name)
            queue.machine.apply(commands.Restore(found.runs, found.next_sequence), now_ms)
            self._touched[queue] = None
        counts.queues = self._figures
        counts.store_usage = store.usage

    # --- what the server asks --------------------------------------------------------------------------

    def receive(self, identity: bytes, parts: list[bytes], now_ms: int) -> None:
        """One message of a frontend."""
        peer = self._peers.get(identity)
        if peer is None:
            self._stranger(identity, parts, now_ms)
            return
        peer.heard_ms = now_ms
        for part in parts:
            kind = part[0]
            if kind == ENQUEUE:
                self._enqueue(peer, part, now_ms)
            elif kind == SETTLE:
                self._settle(peer, part, now_ms)
            elif kind == CREDIT:
                _, flags, _, _, link, _, number = HEADER.unpack_from(part)
                consumer = peer.consumers.get(link)
                if consumer is not None:
                    queue = consumer.queue
                    self._perform(
                        queue,
                        queue.machine.apply(
                            commands.Credit(consumer.id, number, bool(flags & DRAIN)), now_ms
                        ),
                        now_ms,
                    )
                    self._touched[queue] = None
            else:
                self._rare(peer, part, now_ms)

    def step(self, now_ms: int) -> None:
        """Everything that came has been applied: deliver, journal what was settled, mind the memory."""
        touched = self._touched
        while touched:
            # Dead letters touch further queues; each round takes what is there.
            self._touched = {}
            for queue in touched:
                self._perform(queue, queue.machine.dispatch(now_ms), now_ms)
                if queue.removed:
                    self._journal_removed(queue, now_ms)
                deadline = queue.machine.next_deadline_ms
                if deadline is not None and (self.deadline_ms is None or deadline < self.deadline_ms):
                    self.deadline_ms = deadline
                self._memory.update(queue)
            touched = self._touched
        if self._memory.above_mark:
            self._relieve(now_ms)

    def take_output(self) -> list[tuple[bytes, list[bytes]]]:
        """(identity, parts) for every frontend that has something to be told."""
        output = [(identity, [frame(Kind.ABSENT)]) for identity in self._strangers]
        self._strangers.clear()
        for peer in self._peers.values():
            if peer.out or peer.acking:
                output.append((peer.identity, peer.take()))
        return output

    def take_reads(self) -> list[Read]:
        """Messages that have to be read back from the store, in a thread."""
        reads, self._reads = self._reads, []
        return reads

    def commit_begun(self) -> None:
        """The records so far are in the commit that now runs; answers to them wait for it."""
        self._committing, self._unsynced = self._unsynced, []
        self._messages_committing, self._messages_unsynced = self._messages_unsynced, 0

    def commit_ended(self, now_ms: int) -> int:
        """The commit is on disk: its batches are accepted. Returns the messages it held."""
        for producer, number in self._committing:
            producer.unsynced -= 1
            producer.accept(number)
        self._committing = []
        return self._messages_committing

    def commit_failed(self, error: BaseException) -> None:
        """Nothing after a failed write can be trusted: no answer leaves any more (a restart recovers)."""
        self._failed = str(error)
        self._committing = []
        self._unsynced = []

    def read_ended(self, read: Read, error: BaseException | None, now_ms: int) -> None:
        """Messages came back from the store: the queue goes on where it waited."""
        self._reading[read.segment] -= 1
        queue = self._queues.get(read.queue)
        if queue is None or error is not None:
            return
        self._counts.fetched_bytes += sum(run.size for run in read.runs)
        self._perform(queue, queue.machine.apply(commands.Fetched(read.run.sequence, read.runs), now_ms), now_ms)
        self._touched[queue] = None

    def tick(self, now_ms: int) -> None:
        """Time has passed: expiry, and frontends that have said nothing for too long."""
        stalled = now_ms - self._ticked_ms > limits.PEER_SILENCE_MS // 2
        self._ticked_ms = now_ms
        for peer in list(self._peers.values()):
            if stalled:
                # It was this process that stood still: what the others said waits in the socket.
                peer.heard_ms = now_ms
            elif now_ms - peer.heard_ms > limits.PEER_SILENCE_MS:
                log.warning("frontend %s has said nothing for %d ms", peer.frontend, now_ms - peer.heard_ms)
                self._forget(peer, now_ms)
        if self.deadline_ms is not None and now_ms >= self.deadline_ms:
            self.deadline_ms = None
            for queue in self._queues.values():
                due = queue.machine.next_deadline_ms
                if due is None:
                    continue
                if due <= now_ms:
                    self._perform(queue, queue.machine.apply(commands.Tick(), now_ms), now_ms)
                    self._touched[queue] = None
                elif self.deadline_ms is None or due < self.deadline_ms:
                    self.deadline_ms = due
        self._clean(now_ms)
        self._counts.memory_bytes = self._memory.resident
        self._counts.frontends_connected = len(self._peers)

    def lost(self, identity: bytes) -> None:
        """ZeroMQ has no way to this frontend any more; its silence will end it, or its greeting renew it."""
        peer = self._peers.get(identity)
        if peer is not None:
            self._forget(peer, self._ticked_ms)

    def not_ready(self) -> str | None:
        """Why this shard does not serve, or None."""
        return None if self._failed is None else f"the store failed: {self._failed}"

    # --- frontends come and go -------------------------------------------------------------------------

    def _stranger(self, identity: bytes, parts: list[bytes], now_ms: int) -> None:
        """Only a greeting makes a peer; anything else is answered with ABSENT, and the frontend greets again."""
        if parts and parts[0][:1] == bytes((Kind.HELLO,)):
            hello = Hello.decode(parts[0][HEADER_SIZE:])
            if hello.version != VERSION:
                log.error("frontend %s speaks wire version %d, we speak %d", hello.frontend, hello.version, VERSION)
            else:
                for other in [peer for peer in self._peers.values() if peer.frontend == hello.frontend]:
                    # The same frontend, started again: what its former process held comes back at once.
                    self._forget(other, now_ms)
            peer = Peer(identity, hello.frontend, hello.boot, hello.attempt, now_ms)
            peer.out.append(self._welcome(hello.attempt))
            self._peers[identity] = peer
            self.receive(identity, parts[1:], now_ms)
        else:
            self._strangers[identity] = None

    def _welcome(self, attempt: int) -> bytes:
        return frame(Kind.WELCOME, body=Welcome(VERSION, self.shard, self.boot, attempt).encode())

    def _forget(self, peer: Peer, now_ms: int) -> None:
        """The frontend is gone: what its consumers hold returns to the queues."""
        self._peers.pop(peer.identity, None)
        for consumer in list(peer.consumers.values()):
            self._close_consumer(consumer, now_ms)
        for producer in list(peer.producers.values()):
            self._close_producer(producer)
        peer.acking.clear()

    def _rare(self, peer: Peer, part: bytes, now_ms: int) -> None:
        kind, _flags, _reserved, _epoch, link, _count, _number = HEADER.unpack_from(part)
        if kind == Kind.PING:
            peer.out.append(frame(Kind.PONG, number=self.boot))
        elif kind == Kind.PRODUCER_OPEN:
            self._open_producer(peer, link, ProducerOpen.decode(part[HEADER_SIZE:]), now_ms)
        elif kind == Kind.CONSUMER_OPEN:
            self._open_consumer(peer, link, ConsumerOpen.decode(part[HEADER_SIZE:]), now_ms)
        elif kind == Kind.PRODUCER_CLOSE:
            producer = peer.producers.get(link)
            if producer is not None:
                self._close_producer(producer)
        elif kind == Kind.CONSUMER_CLOSE:
            consumer = peer.consumers.get(link)
            if consumer is not None:
                self._close_consumer(consumer, now_ms)
        elif kind == Kind.HELLO:
            # It lost what we said (or thinks so) and begins anew; its producers keep their numbers.
            hello = Hello.decode(part[HEADER_SIZE:])
            self._forget(peer, now_ms)
            fresh = Peer(peer.identity, hello.frontend, hello.boot, hello.attempt, now_ms)
            fresh.out.append(self._welcome(hello.attempt))
            self._peers[peer.identity] = fresh
        elif kind == Kind.GOODBYE:
            self._forget(peer, now_ms)
        else:
            log.error("a frame of kind %d from frontend %s is not known here", kind, peer.frontend)

    # --- producers -------------------------------------------------------------------------------------

    def _open_producer(self, peer: Peer, link: int, body: ProducerOpen, now_ms: int) -> None:
        queue = self._queue(body.queue, now_ms)
        if queue is None:
            self._refuse_link(peer, link)
            return
        id = peer.boot << 32 | link
        peer.producers[link] = Producer(peer, link, queue, id, self._producers.get(id, 0))
        peer.out.append(frame(Kind.PRODUCER_READY, link=link))

    def _close_producer(self, producer: Producer) -> None:
        producer.peer.producers.pop(producer.link, None)
        if producer.last_number:
            # It may come back under the same number after a greeting; the store bounds how many are kept.
            self._producers[producer.id] = producer.last_number
            while len(self._producers) > limits.PRODUCERS_MAX:
                del self._producers[next(iter(self._producers))]

    def _enqueue(self, peer: Peer, part: bytes, now_ms: int) -> None:
        _kind, flags, priority, _epoch, link, count, number = HEADER.unpack_from(part)
        producer = peer.producers.get(link)
        if producer is None:
            return
        durable = bool(flags & DURABLE)
        if number <= producer.last_number:
            self._counts.batches_duplicate += 1
            self._answer(producer, number, durable)
            return
        if self._failed is not None:
            return
        queue = producer.queue
        machine = queue.machine
        expires, message_format, size = ENQUEUE_COLUMNS.unpack_from(part, HEADER_SIZE)
        base = ENQUEUE_ENDS + 4 * count
        batch = Batch(
            part,
            memoryview(part)[ENQUEUE_ENDS:base].cast("I"),
            count,
            size,
            base,
            durable,
            priority,
            expires or None,
            now_ms,
            None,
            message_format,
        )
        if durable:
            try:
                batch.place = self._store.append(
                    Append([(queue.id, machine.next_sequence)], producer.id, number, batch, 0, count), now_ms
                )
            except StoreFull as full:
                self._counts.store_failures += 1
                refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, str(full))
                producer.last_number = number
                peer.out.append(frame(Kind.REFUSED, link=link, number=number, body=refusal.encode()))
                return
            self._messages_unsynced += count
        producer.last_number = number
        self._answer(producer, number, durable)
        effects_ = machine.apply(commands.Enqueue(batch), now_ms)
        if effects_:
            self._perform(queue, effects_, now_ms)
        self._touched[queue] = None

    def _answer(self, producer: Producer, number: int, durable: bool) -> None:
        """Accepted: now, or with the commit that holds the record."""
        if durable:
            producer.unsynced += 1
            self._unsynced.append((producer, number))
        else:
            producer.accept(number)

    # --- consumers -------------------------------------------------------------------------------------

    def _open_consumer(self, peer: Peer, link: int, body: ConsumerOpen, now_ms: int) -> None:
        queue = self._queue(body.queue, now_ms)
        if queue is None:
            self._refuse_link(peer, link)
            return
        id = self._next_consumer
        self._next_consumer += 1
        consumer = Consumer(peer, link, queue, id)
        options = commands.ConsumerOptions(
            browse=body.browse,
            presettled=body.presettled,
            exclusive=body.exclusive,
            priority=body.priority,
            default_outcome=_outcome(body.default_outcome, SettleDetail(delivery_failed=body.default_failed)),
            first=body.first,
        )
        peer.consumers[link] = consumer
        self._consumers[id] = consumer
        peer.out.append(frame(Kind.CONSUMER_READY, link=link))
        self._perform(queue, queue.machine.apply(commands.Attach(id, options), now_ms), now_ms)

    def _close_consumer(self, consumer: Consumer, now_ms: int) -> None:
        consumer.peer.consumers.pop(consumer.link, None)
        if self._consumers.pop(consumer.id, None) is not None:
            queue = consumer.queue
            self._perform(queue, queue.machine.apply(commands.Detach(consumer.id), now_ms), now_ms)
            self._touched[queue] = None

    def _settle(self, peer: Peer, part: bytes, now_ms: int) -> None:
        _kind, code, _reserved, _epoch, link, count, number = HEADER.unpack_from(part)
        consumer = peer.consumers.get(link)
        if consumer is None:
            return
        if code == 0:
            outcome = commands.ACCEPTED
        else:
            body = part[HEADER_SIZE:]
            outcome = _outcome(code, SettleDetail.decode(body) if body else SettleDetail())
        queue = consumer.queue
        self._perform(queue, queue.machine.apply(commands.Settle(consumer.id, number, number + count, outcome), now_ms), now_ms)
        self._touched[queue] = None

    def _refuse_link(self, peer: Peer, link: int) -> None:
        refusal = Refusal(
            conditions.RESOURCE_LIMIT_EXCEEDED, f"this shard has {limits.QUEUES_MAX} queues, which is the limit"
        )
        peer.out.append(frame(Kind.GONE, link=link, body=refusal.encode()))

    # --- queues ----------------------------------------------------------------------------------------

    def _queue(self, name: str, now_ms: int) -> Queue | None:
        """The queue of this name; made, and written down, where it is not there yet."""
        queue = self._queues.get(name)
        if queue is None:
            if len(self._queues) >= limits.QUEUES_MAX:
                return None
            queue = self._make(self._next_queue, name)
            try:
                self._store.append(record.Queue(QueueEvent.DECLARED, queue.id, name), now_ms)
            except StoreError as error:
                log.error("queue %s could not be written down: %s", name, error)
                del self._queues[name]
                return None
        return queue

    def _make(self, id: int, name: str) -> Queue:
        policy = Policy(
            max_delivery_count=0 if is_dead_letter(name) else self._max_delivery_count,
            dead_letter=not is_dead_letter(name),
        )
        queue = Queue(id, name, Machine(name, policy, merge_annotations))
        self._queues[name] = queue
        self._next_queue = max(self._next_queue, id + 1)
        return queue

    def _figures(self) -> Iterable[tuple[str, QueueFigures]]:
        return [(name, queue.machine.stats) for name, queue in self._queues.items()]

    # --- effects ---------------------------------------------------------------------------------------

    def _perform(self, queue: Queue, found: list[Effect], now_ms: int) -> None:
        """Turns what a machine wants done into frames and records, in its order."""
        for effect in found:
            kind = type(effect)
            if kind is effects.Deliver:
                self._deliver(queue, effect)
            elif kind is effects.Removed:
                self._removed(queue, effect)
            elif kind is effects.Drained:
                consumer = self._consumers.get(effect.consumer)
                if consumer is not None:
                    consumer.peer.out.append(frame(Kind.DRAINED, link=consumer.link, number=effect.number))
            elif kind is effects.Returned:
                self._returned(queue, effect.runs, now_ms)
            elif kind is effects.Replaced:
                self._replaced(queue, effect, now_ms)
            elif kind is effects.DeadLetter:
                self._dead_letter(queue, effect, now_ms)
            elif kind is effects.Fetch:
                self._fetch(queue, effect.run)
            elif kind is effects.Refused:
                self._refused(effect)

    def _deliver(self, queue: Queue, effect: effects.Deliver) -> None:
        consumer = self._consumers.get(effect.consumer)
        if consumer is None:
            return
        run = effect.run
        batch = run.batch
        first, last = run.first, run.last
        ends = batch.ends
        data = batch.data
        assert ends is not None and data is not None
        base = ends[first - 1] if first else 0
        start = batch.base + base
        consumer.peer.out.append(
            deliver(
                consumer.link,
                queue.epoch,
                effect.first_number,
                last - first,
                run.sequence,
                run.attempts,
                batch.expires_at_ms or 0,
                batch.enqueued_at_ms,
                batch.message_format,
                base,
                ends[first:last],
                memoryview(data)[start : batch.base + ends[last - 1]],
            )
        )

    def _removed(self, queue: Queue, effect: effects.Removed) -> None:
        batch, first, last, size, reason = effect
        place = batch.place
        if place is not None:
            self._store.release(place.segment, size)
        if not batch.durable:
            return
        ranges = queue.removed.get(reason)
        if ranges is None:
            queue.removed[reason] = [(first, last)]
        elif ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
        self._touched[queue] = None

    def _journal_removed(self, queue: Queue, now_ms: int) -> None:
        """One Settle record for all that left the queue in this step by the same reason."""
        for reason, ranges in queue.removed.items():
            try:
                self._store.append(Settle(queue.id, ranges, JOURNAL_OUTCOME[reason], str(reason)), now_ms)
            except StoreError as error:
                # It stays on disk and comes back after a restart: delivered twice at worst, never lost.
                self._counts.store_failures += 1
                log.error("settlements of queue %s could not be written: %s", queue.name, error)
        queue.removed.clear()

    def _returned(self, queue: Queue, runs: list[Run], now_ms: int) -> None:
        for run in runs:
            if run.batch.durable:
                try:
                    self._store.append(
                        Settle(
                            queue.id,
                            [(run.sequence, run.end)],
                            record.Outcome.MODIFIED,
                            attempts=run.attempts,
                        ),
                        now_ms,
                    )
                except StoreError as error:
                    self._counts.store_failures += 1
                    log.error("delivery counts of queue %s could not be written: %s", queue.name, error)

    def _replaced(self, queue: Queue, effect: effects.Replaced, now_ms: int) -> None:
        run = effect.run
        batch = run.batch
        if not batch.durable:
            return
        try:
            batch.place = self._store.append(
                Append([(queue.id, run.sequence)], 0, 0, batch, run.first, run.last, run.attempts, REWRITTEN),
                now_ms,
            )
        except StoreError as error:
            self._counts.store_failures += 1
            log.error("annotations of queue %s could not be written: %s", queue.name, error)
            return
        old = effect.old.batch.place
        if old is not None:
            self._store.release(old.segment, effect.old.size)

    def _dead_letter(self, queue: Queue, effect: effects.DeadLetter, now_ms: int) -> None:
        """The messages go on `NAME/$dlq`, saying why, and leave this queue: one group in the journal."""
        run = effect.run
        count = run.last - run.first
        reasons = self._counts.dead_lettered
        reasons[effect.reason] = reasons.get(effect.reason, 0) + count
        target = self._queue(dead_letter_name(queue.name), now_ms)
        if target is None:
            log.error("%d messages of %s have no dead-letter queue to go to", count, queue.name)
            return
        batch = dead_letter_batch(run, queue.name, effect, now_ms)
        if batch.durable:
            settle = Settle(
                queue.id,
                [(run.sequence, run.end)],
                record.Outcome.DEAD_LETTERED,
                str(effect.reason),
            )
            try:
                batch.place = self._store.append(
                    Append(
                        [(target.id, target.machine.next_sequence)],
                        0,
                        0,
                        batch,
                        0,
                        batch.count,
                        run.attempts,
                        CONTINUED,
                    ),
                    now_ms,
                )
                self._store.append(settle, now_ms)
                self._messages_unsynced += count
            except StoreError as error:
                # In memory it is where it belongs; on disk it is still in its queue. Nothing is lost.
                self._counts.store_failures += 1
                log.error("dead letters of queue %s could not be written: %s", queue.name, error)
        place = run.batch.place
        if place is not None:
            self._store.release(place.segment, run.size)
        self._perform(target, target.machine.apply(commands.Enqueue(batch), now_ms), now_ms)
        self._touched[target] = None

    def _fetch(self, queue: Queue, run: Run) -> None:
        place = run.batch.place
        assert place is not None
        self._reading[place.segment] = self._reading.get(place.segment, 0) + 1
        self._reads.append(Read(queue.name, queue.id, run, place))

    def _refused(self, effect: effects.Refused) -> None:
        consumer = self._consumers.pop(effect.consumer or 0, None)
        if consumer is None:
            return
        consumer.peer.consumers.pop(consumer.link, None)
        refusal = Refusal(effect.condition, effect.description)
        consumer.peer.out.append(frame(Kind.GONE, link=consumer.link, body=refusal.encode()))

    # --- memory and disk -------------------------------------------------------------------------------

    def _relieve(self, now_ms: int) -> None:
        """Above the memory mark: the longest queues keep their heads, the rest flows to disk."""
        for queue, wanted in self._memory.plan():
            machine = queue.machine
            for run in machine.spill_candidates(wanted):
                batch = run.batch
                try:
                    place = self._store.append(
                        Append(
                            [(queue.id, run.sequence)], 0, 0, batch, run.first, run.last, run.attempts, SPILLED
                        ),
                        now_ms,
                    )
                except StoreError as error:
                    self._counts.store_failures += 1
                    log.error("queue %s could not flow to disk: %s", queue.name, error)
                    break
                batch.place = place
            freed = machine.evict(wanted)
            if freed:
                self._counts.evictions += 1
                self._counts.evicted_bytes += freed
            self._memory.update(queue)

    def _clean(self, now_ms: int) -> None:
        """One segment at a time: its live messages are written again at the tail, then it goes."""


def _outcome(code: int, detail: SettleDetail) -> commands.Outcome:
    return commands.Outcome(
        commands.OutcomeKind(code),
        detail.condition,
        detail.description,
        detail.delivery_failed,
        detail.undeliverable_here,
        bytes.fromhex(detail.annotations) if detail.annotations else None,
    )
