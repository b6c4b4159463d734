"""Routes: a batch for several queues of this shard is stored once and enqueued to each of them.

The frontend declares the sets of queues that its router's link sends to (TARGETS) and names one of them with
each batch (ROUTE). One Append record with a target per queue keeps them together: after a crash a batch is in
all of them or in none.
"""

import logging
from collections.abc import Callable, Sequence

from lightrail.journal.record import CONTINUED, SPILLED, Ids, Outcome, Settle, Taken
from lightrail.model import conditions, limits
from lightrail.shard.admission import Share, fitting, index_full, share
from lightrail.shard.holding import Holding, Wait, looks_and_full, wait_of
from lightrail.shard.journal.record import Append, Record
from lightrail.shard.journal.store import Store, StoreBusy, StoreError
from lightrail.shard.memory import Memory
from lightrail.shard.moving.tenancy import moved
from lightrail.shard.peers import Numbered, Peer, RouteProducer
from lightrail.shard.performer import Performer
from lightrail.shard.queue import commands
from lightrail.shard.queue.runs import Batch, Run, joined
from lightrail.shard.queues import Queue, Queues
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Refusal, Targets
from lightrail.wire.frames import AFRESH, DURABLE, ENQUEUE_COLUMNS, ENQUEUE_ENDS, HEADER, HEADER_SIZE

log = logging.getLogger("lightrail.shard.routes")


class Routes:
    """Stores what routers' links send."""

    __slots__ = ("_answer", "_counts", "_memory", "_performer", "_queues", "_refuse", "_store", "holding")

    def __init__(
        self,
        queues: Queues,
        performer: Performer,
        store: Store,
        counts: ShardCounts,
        memory: Memory,
        answer: Callable[[Numbered, int, bool], None],
        refuse: Callable[[Numbered, int, Refusal, bool], None],
    ) -> None:
        self._queues = queues
        self._performer = performer
        self._store = store
        self._counts = counts
        self._answer = answer
        self._refuse = refuse
        self._memory = memory
        self.holding = Holding(memory)

    def targets(self, peer: Peer, link: int, number: int, body: Targets, now_ms: int) -> None:
        """A set is declared, or declared anew; with a name that is no queue its batches are refused."""
        producer = peer.routers.get(link)
        if producer is None:
            return
        sets = producer.sets
        sets.pop(number, None)
        sets[number] = self._resolve(body.queues, now_ms)
        if len(sets) > limits.ROUTE_SETS_MAX:
            del sets[next(iter(sets))]

    def _resolve(self, names: list[str], now_ms: int) -> list[Queue] | Refusal:
        if not 0 < len(names) <= limits.ROUTE_TARGETS_MAX:
            return Refusal(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"a set of {len(names)} queues; expected 1 to {limits.ROUTE_TARGETS_MAX}",
            )
        found: list[Queue] = []
        for name in dict.fromkeys(names):
            queue = self._queues.open(name, now_ms)
            if isinstance(queue, Refusal):
                return queue
            found.append(queue)
        return found

    def route(self, peer: Peer, part: bytes, now_ms: int) -> int:
        """A batch for the queues of a set; it waits behind others of its link that wait for room.

        Returns:
            How often one of its messages was looked into.
        """
        _kind, _flags, _priority, set_, link, count, number = HEADER.unpack_from(part)
        producer = peer.routers.get(link)
        if producer is None:
            return 0
        if number == producer.next_number:
            producer.next_number = number + 1
        elif number > producer.next_number:
            producer.missed(number)
        if not self._is_wanted(producer, part):
            return 0
        if producer not in self.holding.lines:
            self._route(producer, part, now_ms, self._hold)
            targets = producer.sets.get(set_)
            if isinstance(targets, list):
                return int(count) * sum(queue.machine.policy.examines for queue in targets)
        elif not self.holding.add(producer, part, None):
            self._no_room(producer, part)
        return 0

    def abandon(self, producer: RouteProducer, now_ms: int) -> None:
        """Who sent has gone: what waits is stored where there is room, and refused where there is none."""
        producer.abandoned = True
        self.resume(now_ms)

    def resume(self, now_ms: int) -> None:
        """Something may have changed: what waits is looked at again, each link's in order."""
        lines = self.holding.lines
        for producer in list(lines):
            if producer.peer.routers.get(producer.link) is not producer:
                self.holding.drop(producer)
            # What came later may have been refused; that is nothing against those that waited before it.
            refusing, producer.refusing = producer.refusing, False
            while producer in lines:
                held = lines[producer][0]
                try:
                    if not self._route(producer, held.part, now_ms, self._still):
                        break
                except StoreBusy:
                    break
                self.holding.take(producer)
                if producer.refusing:
                    for behind in self.holding.drop(producer):
                        self._refuse_behind(producer, HEADER.unpack_from(behind.part)[6])
            producer.refusing = producer.refusing or refusing

    def _hold(self, producer: RouteProducer, part: bytes, wait: Wait, _now_ms: int) -> bool:
        """A batch that just came has to wait; returns whether it can."""
        return not producer.abandoned and self.holding.add(producer, part, wait)

    def _still(self, producer: RouteProducer, part: bytes, wait: Wait, now_ms: int) -> bool:
        """The head of a line has to wait (on); returns whether it may."""
        if producer.abandoned:
            return False
        since = self.holding.lines[producer][0].wait
        if since is None:
            self.holding.begin(producer, wait)
            return True
        return since.until_ms is None or now_ms < since.until_ms

    def _is_wanted(self, producer: RouteProducer, part: bytes) -> bool:
        """Whether nothing before this batch was refused, or its sender knows of that."""
        _kind, flags, _priority, _set, _link, _count, number = HEADER.unpack_from(part)
        if producer.refusing and number > producer.last_number:
            if not flags & AFRESH:
                self._refuse_behind(producer, number)
                return False
            producer.refusing = False
        return True

    def _refuse_behind(self, producer: RouteProducer, number: int) -> None:
        refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "a batch before this one was refused")
        self._refuse(producer, number, refusal, False)

    def _no_room(self, producer: RouteProducer, part: bytes) -> None:
        refusal = Refusal(
            conditions.RESOURCE_LIMIT_EXCEEDED, "too much waits in this shard for queues that are full"
        )
        producer.refusing = True
        self._refuse(producer, HEADER.unpack_from(part)[6], refusal, False)

    def _route(
        self,
        producer: RouteProducer,
        part: bytes,
        now_ms: int,
        may_wait: Callable[[RouteProducer, bytes, Wait, int], bool],
    ) -> bool:
        """Stores a batch, or answers why not; False when it waits."""
        _kind, flags, priority, set_, _link, count, number = HEADER.unpack_from(part)
        durable = bool(flags & DURABLE)
        if producer.part and number == producer.last_number:
            # It was answered so before the connection went, or was about to be.
            producer.refusing = True
            refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "a target took no more of it when it came")
            refusal.accepted = producer.part
            self._refuse(producer, number, refusal, durable)
            return True
        if number <= producer.last_number:
            self._counts.batches_duplicate += 1
            self._answer(producer, number, durable)
            return True
        targets = _usable(producer, set_)
        if isinstance(targets, Refusal):
            producer.refusing = True
            self._refuse(producer, number, targets, False)
            return True
        batch = batch_in(part, durable, priority, count, now_ms)
        if any(
            queue.machine.policy.guarded or queue.parked or looks_and_full(queue, self._memory)
            for queue in targets
        ):
            wait = wait_of(targets, batch, now_ms, self._memory)
            if wait is not None and may_wait(producer, part, wait, now_ms):
                return False
            full = next((queue for queue in targets if looks_and_full(queue, self._memory)), None)
            if full is not None:
                producer.refusing = True
                self._refuse(producer, number, index_full(full), False)
                return True
            self._share(producer, number, batch, targets, now_ms)
            return True
        # Of transient messages only captured queues keep a record, and one place for all of them.
        kept = targets if durable else [queue for queue in targets if queue.captured]
        if kept:
            try:
                places = [(queue.id, queue.machine.next_sequence) for queue in kept]
                flags = 0 if durable else SPILLED
                batch.place = self._store.append(
                    Append(places, producer.id, number, batch, 0, count, 0, flags), now_ms
                )
            except StoreBusy:
                raise
            except (StoreError, ValueError) as error:
                # No room, or more than a record may hold.
                self._counts.store_failures += 1
                producer.refusing = True
                self._refuse(producer, number, Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, str(error)), False)
                return True
            if durable:
                self._performer.messages_unsynced += count
            else:
                self._performer.captured_bytes += batch.size
        producer.last_number = number
        producer.part = 0
        self._answer(producer, number, durable or bool(kept and self._performer.capture_lags))
        for queue in targets:
            # Other transient messages get their places when they flow to disk, and each queue writes its own.
            mine = batch if durable or queue.captured else _twin(batch)
            found = queue.machine.apply(commands.Enqueue(mine), now_ms)
            if found:
                self._performer.perform(queue, found, now_ms)
            self._performer.touched[queue] = None
        return True

    def _share(
        self, producer: RouteProducer, number: int, batch: Batch, targets: list[Queue], now_ms: int
    ) -> None:
        """A batch for queues whose policies have a say: each takes its share of what fits into all of them.

        What they take unchanged is one record still; a share of its own is one more in the same group.
        """
        taken, refusal = batch.count, None
        for queue in targets:
            fits, why = fitting(queue, batch, now_ms)
            if fits < taken:
                taken, refusal, full = fits, why, queue
        left = batch.count - taken
        if refusal is not None:
            refusal.accepted = taken
            if not taken:
                full.machine.counters.refused += left
                producer.refusing = True
                self._refuse(producer, number, refusal, False)
                return
            batch = joined([Run(batch, 0, taken, 0)], None)
        found = [share(queue, batch, now_ms) for queue in targets]
        try:
            waits = self._write(producer, number, batch, found, now_ms, cut=refusal is not None)
        except StoreBusy:
            raise
        except (StoreError, ValueError) as error:
            # No room, or more than a record may hold.
            self._counts.store_failures += 1
            producer.refusing = True
            self._refuse(producer, number, Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, str(error)), False)
            return
        producer.last_number = number
        producer.part = 0 if refusal is None else taken
        if refusal is None:
            self._answer(producer, number, waits)
        else:
            full.machine.counters.refused += left
            producer.refusing = True
            self._refuse(producer, number, refusal, waits)
        for each in found:
            machine = each.queue.machine
            machine.counters.duplicates += each.duplicates
            machine.counters.dropped += each.dropped
            if each.digests and machine.duplicates is not None:
                machine.duplicates.remember(each.digests, _until(each.queue, now_ms))
            if each.batch.count:
                effects = machine.apply(commands.Enqueue(each.batch), now_ms)
                self._performer.perform(each.queue, effects, now_ms)
            self._performer.touched[each.queue] = None

    def _write(
        self,
        producer: RouteProducer,
        number: int,
        batch: Batch,
        found: list[Share],
        now_ms: int,
        *,
        cut: bool,
    ) -> bool:
        """One group for all that is durable or captured; returns whether the answer waits for a commit.

        Args:
            cut: the batch is only the first messages of what came under this number.
        """
        records: list[Append | Ids | Taken] = []
        captured: list[Append] = []
        """Transient ones; their number counts for nobody who recovers, so they come first."""
        together = [each.queue for each in found if each.batch is batch]
        if together:
            places = [(queue.id, queue.machine.next_sequence) for queue in together]
            records.append(Append(places, producer.id, number, batch, 0, batch.count))
        for queue, mine, digests, _, _ in found:
            place = (queue.id, queue.machine.next_sequence)
            if mine.durable and mine.count and mine is not batch:
                records.append(Append([place], producer.id, number, mine, 0, mine.count))
            elif queue.captured and mine.count and mine is not batch:
                captured.append(Append([place], producer.id, number, mine, 0, mine.count, 0, SPILLED))
            if digests and mine.durable:
                records.append(Ids(queue.id, _until(queue, now_ms), b"".join(digests)))
        for each_ in [record for record in records if isinstance(record, Append)][:-1]:
            # The last one says that all of them were written.
            each_.producer = each_.number = 0
        if cut and records:
            records.append(Taken(producer.id, number, batch.count))
        records = [*captured, *records]
        for record in records[:-1]:
            record.flags |= CONTINUED
        for at, record in enumerate(records):
            try:
                place_ = self._store.append(record, now_ms)
            except StoreError:
                self._take_back(records[:at], now_ms)
                raise
            if isinstance(record, Append):
                record.batch.place = place_
                if record.flags & SPILLED:
                    self._performer.captured_bytes += record.batch.size
                else:
                    self._performer.messages_unsynced += record.batch.count
        durable = batch.durable or any(each.batch.durable for each in found)
        return durable or bool(captured and self._performer.capture_lags)

    def _take_back(self, records: Sequence[Record], now_ms: int) -> None:
        """The rest of a group found no room: what was written of it is settled, as if it had never come."""
        for record in records:
            if not isinstance(record, Append) or record.batch.place is None:
                continue
            for queue, first in record.targets:
                self._store.release(record.batch.place.segment, record.batch.size)
                settled = Settle(queue, [(first, first + record.batch.count)], Outcome.PURGED)
                try:
                    self._store.append(settled, now_ms)
                except StoreError as error:
                    self._counts.store_failures += 1
                    log.error("a batch that was refused may be in a queue after a restart: %s", error)
            record.batch.place = None


def _until(queue: Queue, now_ms: int) -> int:
    """When message-ids that come now are forgotten."""
    return now_ms + (queue.machine.policy.duplicate_window_ms or 0)


def batch_in(part: bytes, durable: bool, priority: int, count: int, now_ms: int) -> Batch:
    """The batch that an ENQUEUE or ROUTE frame is: its messages stay where they lie."""
    expires, message_format, size = ENQUEUE_COLUMNS.unpack_from(part, HEADER_SIZE)
    base = ENQUEUE_ENDS + 4 * count
    ends = memoryview(part)[ENQUEUE_ENDS:base].cast("I")
    return Batch(
        part, ends, count, size, base, durable, priority, expires or None, now_ms, None, message_format
    )


def _twin(batch: Batch) -> Batch:
    """The same messages, in the same bytes."""
    return Batch(
        batch.data,
        batch.ends,
        batch.count,
        batch.size,
        batch.base,
        batch.durable,
        batch.priority,
        batch.expires_at_ms,
        batch.enqueued_at_ms,
        None,
        batch.message_format,
    )


def _usable(producer: RouteProducer, set_: int) -> list[Queue] | Refusal:
    """The queues of a set, or why the batch can't be stored."""
    targets = producer.sets.get(set_)
    if targets is None:
        return Refusal(conditions.NOT_FOUND, f"set {set_} of queues was not declared, or is forgotten")
    if isinstance(targets, Refusal):
        return targets
    for queue in targets:
        if queue.sealed:
            return moved(f"{queue.name} is on its way to another shard; find the targets anew")
        if not queue.served:
            return Refusal(conditions.NOT_FOUND, f"{queue.name} was dropped; find the targets anew")
    return targets
