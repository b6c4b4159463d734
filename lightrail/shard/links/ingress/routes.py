"""Routes: stores a batch for several queues of this shard once, and enqueues it in each of them.

The frontend declares the sets of queues that its router's link sends to (TARGETS) and names one of them with
each batch (ROUTE). One Append record with a target per queue keeps them together: after a crash a batch is in
all of them or in none.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from lightrail.journal.record import SPILLED
from lightrail.model import conditions, limits
from lightrail.shard.effects.answers import Answers
from lightrail.shard.effects.peers import Peer, RouteProducer
from lightrail.shard.effects.performer import Performer
from lightrail.shard.journal.record import Append
from lightrail.shard.journal.store import Store, StoreBusyError, StoreError
from lightrail.shard.links.ingress.parking import Holding, Wait, wait_of
from lightrail.shard.links.ingress.routed_records import RoutedRecords, ids_until_ms
from lightrail.shard.links.ingress.selection import fitting, index_full, share
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.runs import Batch, Run, joined
from lightrail.shard.queues.memory import Memory
from lightrail.shard.queues.ownership import OwnershipState
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.shard.queues.tenancy import moved
from lightrail.telemetry.shard import ShardCounts
from lightrail.wire.bodies import Refusal, Targets
from lightrail.wire.frames import AFRESH, DURABLE, ENQUEUE_COLUMNS, ENQUEUE_ENDS, HEADER, HEADER_SIZE, Part

log = logging.getLogger("lightrail.shard.links.ingress.routes")


def batch_in(part: Part, durable: bool, priority: int, count: int, now_ms: int) -> Batch:
    """The batch of an ENQUEUE or ROUTE frame, over the bytes of the frame."""
    expires, message_format, size = ENQUEUE_COLUMNS.unpack_from(part, HEADER_SIZE)
    base = ENQUEUE_ENDS + 4 * count
    ends = memoryview(part)[ENQUEUE_ENDS:base].cast("I")
    return Batch(
        part, ends, count, size, base, durable, priority, expires or None, now_ms, None, message_format
    )


def twin(batch: Batch) -> Batch:
    """A batch with the same messages and bytes that can have another location."""
    return batch.alike(batch.data, batch.ends, batch.count, batch.size, batch.base, None)


@dataclass(slots=True, eq=False, repr=False)
class Routes:
    """Stores the batches of links to routers."""

    _queues: Queues
    _performer: Performer
    _store: Store
    _counts: ShardCounts
    _memory: Memory
    _answers: Answers
    _records: RoutedRecords = field(init=False)
    holding: Holding = field(init=False)

    def __post_init__(self) -> None:
        self._records = RoutedRecords(self._store, self._performer)
        self.holding = Holding(self._memory)

    def targets(self, peer: Peer, link: int, number: int, body: Targets, now_ms: int) -> None:
        """Declares a set of queues; batches for a set with an unknown queue are refused."""
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

    def route(self, peer: Peer, part: Part, now_ms: int) -> int:
        """Stores a batch for the queues of a set; it waits behind others of its link that wait for room.

        Returns:
            Number of looks into its messages.
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
                return int(count) * sum(queue.view.policy.examines for queue in targets)
        elif not self.holding.add(producer, part, None):
            self._no_room(producer, part)
        return 0

    def abandon(self, producer: RouteProducer, now_ms: int) -> None:
        """Ends the wait of batches of a closed link: they are stored if there is room, else refused."""
        producer.abandoned = True
        self.resume(now_ms)

    def resume(self, now_ms: int) -> None:
        """Tries again to store waiting batches, those of each link in order."""
        lines = self.holding.lines
        for producer in list(lines):
            if producer.peer.routers.get(producer.link) is not producer:
                self.holding.drop(producer)
            # A later batch may have been refused; this does not affect batches that waited before it.
            refusing, producer.refusing = producer.refusing, False
            while producer in lines:
                held = lines[producer][0]
                try:
                    if not self._route(producer, held.part, now_ms, self._still):
                        break
                except StoreBusyError:
                    break
                self.holding.take(producer)
                if producer.refusing:
                    for behind in self.holding.drop(producer):
                        self._refuse_behind(producer, HEADER.unpack_from(behind.part)[6])
            producer.refusing = producer.refusing or refusing

    def _hold(self, producer: RouteProducer, part: Part, wait: Wait, _now_ms: int) -> bool:
        """Lets a batch wait that has just arrived; returns whether it can wait."""
        return not producer.abandoned and self.holding.add(producer, part, wait)

    def _still(self, producer: RouteProducer, part: Part, wait: Wait, now_ms: int) -> bool:
        """Lets the head of a line wait, or wait longer; returns whether it may."""
        if producer.abandoned:
            return False
        since = self.holding.lines[producer][0].wait
        if since is None:
            self.holding.begin(producer, wait)
            return True
        return since.until_ms is None or now_ms < since.until_ms

    def _is_wanted(self, producer: RouteProducer, part: Part) -> bool:
        """Whether no batch before this one was refused, or its sender has received the refusal."""
        _kind, flags, _priority, _set, _link, _count, number = HEADER.unpack_from(part)
        if producer.refusing and number > producer.last_number:
            if not flags & AFRESH:
                self._refuse_behind(producer, number)
                return False
            producer.refusing = False
        return True

    def _refuse_behind(self, producer: RouteProducer, number: int) -> None:
        refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "a batch before this one was refused")
        self._answers.refuse(producer, number, refusal, False)

    def _no_room(self, producer: RouteProducer, part: Part) -> None:
        refusal = Refusal(
            conditions.RESOURCE_LIMIT_EXCEEDED, "too many messages wait in this shard for full queues"
        )
        producer.refusing = True
        self._answers.refuse(producer, HEADER.unpack_from(part)[6], refusal, False)

    def _route(
        self,
        producer: RouteProducer,
        part: Part,
        now_ms: int,
        may_wait: Callable[[RouteProducer, Part, Wait, int], bool],
    ) -> bool:
        """Stores or refuses a batch; False if it waits."""
        _kind, flags, priority, set_, _link, count, number = HEADER.unpack_from(part)
        durable = bool(flags & DURABLE)
        if number <= producer.last_number:
            self._answer_again(producer, number, durable)
            return True
        targets = _usable(producer, set_)
        if isinstance(targets, Refusal):
            producer.refusing = True
            self._answers.refuse(producer, number, targets, False)
            return True
        batch = batch_in(part, durable, priority, count, now_ms)
        if number < producer.sent_below:
            for queue in targets:
                queue.repeated(count)
        if any(
            queue.view.policy.guarded or queue.parked or self._memory.must_wait(queue) for queue in targets
        ):
            wait = wait_of(targets, batch, now_ms, self._memory)
            if wait is not None and may_wait(producer, part, wait, now_ms):
                return False
            full = next((queue for queue in targets if self._memory.must_wait(queue)), None)
            if full is not None:
                producer.refusing = True
                self._answers.refuse(producer, number, index_full(full), False)
                return True
            self._share(producer, number, batch, targets, now_ms)
        else:
            self._store_whole(producer, number, batch, targets, now_ms)
        return True

    def _answer_again(self, producer: RouteProducer, number: int, durable: bool) -> None:
        """Answers a batch that was stored before, fully or partially."""
        if producer.part and number == producer.last_number:
            # The rest was refused, or about to be refused, when the connection was lost.
            producer.refusing = True
            refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "a target had no room for the rest of it")
            refusal.accepted = producer.part
            self._answers.refuse(producer, number, refusal, durable)
        else:
            self._counts.batches_duplicate += 1
            self._answers.accept(producer, number, durable)

    def _store_whole(
        self, producer: RouteProducer, number: int, batch: Batch, targets: list[Queue], now_ms: int
    ) -> None:
        """Stores a batch in queues whose policies neither bound nor change it."""
        durable, count = batch.durable, batch.count
        # Transient messages have a record only for captured queues, and one record for all of these.
        kept = targets if durable else [queue for queue in targets if queue.captured]
        if kept:
            try:
                starts = [(queue.id, queue.view.next_sequence) for queue in kept]
                flags = 0 if durable else SPILLED
                batch.location = self._store.append(
                    Append(starts, producer.id, number, batch, 0, count, 0, flags), now_ms
                )
            except StoreBusyError:
                raise
            except (StoreError, ValueError) as error:
                self._not_stored(producer, number, error)
                return
            if durable:
                self._performer.messages_unsynced += count
            else:
                self._performer.captured_bytes += batch.size
        producer.last_number = number
        producer.part = 0
        self._answers.accept(producer, number, durable or bool(kept and self._performer.capture_lags))
        for queue in targets:
            # Other transient messages get a location when their queue spills them, and each queue spills its
            # own.
            mine = batch if durable or queue.captured else twin(batch)
            self._performer.apply(queue, commands.Enqueue(mine), now_ms)

    def _not_stored(self, producer: RouteProducer, number: int, error: Exception) -> None:
        """Refuses a batch for which the store had no room, or that exceeds the size of a record."""
        self._counts.store_failures += 1
        producer.refusing = True
        self._answers.refuse(producer, number, Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, str(error)), False)

    def _share(
        self, producer: RouteProducer, number: int, batch: Batch, targets: list[Queue], now_ms: int
    ) -> None:
        """Stores a batch for queues whose policies bound or change it, as far as it fits into all of them.

        One record has the messages of all queues that store them unchanged; each other queue has a further
        record in the same group.
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
                full.machine.not_stored(refused=left)
                producer.refusing = True
                self._answers.refuse(producer, number, refusal, False)
                return
            batch = joined([Run(batch, 0, taken, 0)], None)
        found = [share(queue, batch, now_ms) for queue in targets]
        try:
            waits = self._records.write(producer, number, batch, found, now_ms, cut=refusal is not None)
        except StoreBusyError:
            raise
        except (StoreError, ValueError) as error:
            self._not_stored(producer, number, error)
            return
        producer.last_number = number
        producer.part = 0 if refusal is None else taken
        if refusal is None:
            self._answers.accept(producer, number, waits)
        else:
            full.machine.not_stored(refused=left)
            producer.refusing = True
            self._answers.refuse(producer, number, refusal, waits)
        for each in found:
            each.queue.machine.not_stored(duplicates=each.duplicates, dropped=each.dropped)
            each.queue.machine.remember(each.digests, ids_until_ms(each.queue, now_ms))
            if each.batch.count:
                self._performer.apply(each.queue, commands.Enqueue(each.batch), now_ms)


def _usable(producer: RouteProducer, set_: int) -> list[Queue] | Refusal:
    """The queues of a set, or why the batch can't be stored."""
    targets = producer.sets.get(set_)
    if targets is None:
        return Refusal(conditions.NOT_FOUND, f"set {set_} of queues was not declared, or was removed")
    if isinstance(targets, Refusal):
        return targets
    for queue in targets:
        if queue.is_away or queue.state is OwnershipState.MOVED:
            return moved(f"{queue.name} is {queue.state.value}; find the targets again")
        if not queue.is_serving:
            return Refusal(conditions.NOT_FOUND, f"{queue.name} was dropped; find the targets again")
    return targets
