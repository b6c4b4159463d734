"""View: what the rest of the shard may read of a queue. Nothing here changes the queue.

Commands (commands.py) change it, by `Machine.apply`; what is in memory and on disk does `Footprint`
(footprint.py), and copying.py builds the copy of a move. Other modules of the shard use these doors only.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from lightrail.model.attempts import waits_until_ms
from lightrail.shard.queue.changes import reserved, scheduling
from lightrail.shard.queue.changes.arrangement import Arrangement
from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.changes.outcomes import Outcomes
from lightrail.shard.queue.changes.states import States
from lightrail.shard.queue.lines.consumers import Consumer, Consumers
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.order.deliveries import Deliveries
from lightrail.shard.queue.order.sessions import Sessions
from lightrail.shard.queue.timed.lock_changes import KeyedLock, all_keyed_locks
from lightrail.shard.queue.timed.windows import Fresh
from lightrail.shard.queue.values.commands import Outcome, Past
from lightrail.shard.queue.values.counters import Counters, Gauges
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Batch, Run


@dataclass(slots=True, eq=False, repr=False)
class View:
    """The present state of one queue, read from its machine at each access.

    Consumers, deliveries, lines and sessions are the machine's own objects: a caller reads them and changes
    none.
    """

    _contents: Contents
    _outcomes: Outcomes
    _states: States
    _arrangement: Arrangement
    deliveries: Deliveries = field(init=False)
    """Sums of unsettled deliveries."""
    counters: Counters = field(init=False)
    """Counts of messages since the machine was made; only the machine writes them."""
    consumers: Consumers = field(init=False)
    """All holders of messages in flight: attached and departed consumers, and the internal consumers of
    deferred messages, of waiting messages and of states."""
    policy: Policy = field(init=False)
    ready: Ready = field(init=False)
    """The line of ready messages."""
    reads_messages: bool = field(init=False)
    """Whether the queue looks into each message that arrives, for its key, its group or its rank."""

    def __post_init__(self) -> None:
        contents = self._contents
        self.deliveries, self.counters = contents.deliveries, contents.counters
        self.consumers = contents.consumers
        self.follow()

    def follow(self) -> None:
        """Follows the arrangement; called by the machine alone.

        Each batch reads these attributes, so they are no properties.
        """
        contents = self._contents
        self.policy = contents.policy
        self.ready = contents.ready
        special = contents.special
        self.reads_messages = special is not None and special.singles

    # --- policy and sums ----------------------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        """The sequence of the next message that is enqueued."""
        return self._contents.next_sequence

    @property
    def held(self) -> int:
        """Number of messages that count against the bounds: ready, delayed, in flight and set apart."""
        return self._contents.held

    @property
    def held_bytes(self) -> int:
        """Bytes of the messages that count against the bounds."""
        return self._contents.held_bytes

    @property
    def in_flight_count(self) -> int:
        """Number of messages that are delivered and not settled."""
        return self._contents.in_flight_count

    @property
    def gauges(self) -> Gauges:
        """The current gauges of the queue."""
        contents = self._contents
        return Gauges(
            contents.ready.count,
            contents.in_flight_count,
            contents.ready.bytes + contents.deliveries.bytes + contents.delayed.bytes,
            contents.resident_message_bytes,
            len(contents.consumers.by_id),
            contents.delayed.count + contents.retries_count,
            contents.aside.count,
        )

    @property
    def locked_count(self) -> int:
        """Number of messages in flight under a timed lock."""
        contents = self._contents
        if not contents.locks.heap:
            return 0
        return contents.locks.ended.count + sum(
            run.count
            for consumer in contents.consumers
            if consumer.lock_ms
            for run in consumer.in_flight.runs[consumer.in_flight.head :]
        )

    @property
    def may_keep(self) -> bool:
        """Whether messages may be ready that no consumer can get, whatever its credit."""
        return self._arrangement.may_keep

    # --- consumers ----------------------------------------------------------------------------------------

    def consumer(self, id: int) -> Consumer | None:
        """An attached consumer."""
        return self._contents.consumers.by_id.get(id)

    @property
    def attached(self) -> Sequence[Consumer]:
        """The attached consumers, in the order of their attaches."""
        return list(self._contents.consumers.by_id.values())

    @property
    def consumer_ids(self) -> Sequence[int]:
        """The numbers of the attached consumers, in the order of their attaches."""
        return list(self._contents.consumers.by_id)

    def holder_of(self, key: str) -> Consumer | None:
        """The consumer whose messages are locked under a key, with a link or without."""
        found = self._contents.locks.seen(key)
        # The locks of an attached link of a gateway are those of requests that wait for their answers.
        is_free = found is not None and (found.departed or found.options.lock_ends)
        return found if is_free else None

    def holders(self) -> Iterator[Consumer]:
        """All consumers with messages in flight, and the attached ones; those of ended links one by one."""
        packed = self.consumers.packed
        for each in self.consumers:
            if each is not packed:
                yield each
        yield from self._contents.locks.ended.copies()

    @property
    def has_departed(self) -> bool:
        """Whether messages are locked for consumers without a link, or reserved."""
        return bool(self.consumers.departed or self.consumers.packed)

    @property
    def lock_state(self) -> tuple[int, ...]:
        """Differs after a lock of an attached consumer has begun or ended."""
        heap = self._contents.locks.heap
        return (len(heap), *heap[0]) if heap else ()

    @property
    def locks(self) -> Sequence[tuple[int, int, int, int]]:
        """Timed locks: end in milliseconds since the epoch, consumer, first and last delivery number."""
        return list(self._contents.locks.entries())

    def keyed_locks(self) -> Iterator[Sequence[KeyedLock]]:
        """The locks of durable messages that outlive their links, a few at a time.

        The queue may change in between. What a transaction reserves meanwhile is found in one of the two
        places, as reservations come last.
        """
        locks = self._contents.locks
        yield from all_keyed_locks([*locks.by_key, *locks.ended.by_key], locks.seen)
        yield from reserved.locks_of(self._contents)

    # --- transactions and outcomes --------------------------------------------------------------------------

    @property
    def is_returning(self) -> bool:
        """Whether deliveries of detached consumers are still being returned, piece by piece."""
        return bool(self._outcomes.returning)

    @property
    def deferring(self) -> int:
        """Number of outcomes that wait for the bytes of their messages."""
        return len(self._contents.deferred)

    @property
    def deferred_number(self) -> int:
        """The number of the last outcome that waits for bytes, of all that did."""
        return self._contents.deferred.number

    @property
    def deferred_oldest(self) -> int:
        """The number of the first outcome that still waits for bytes."""
        return self._contents.deferred.oldest

    def needs_bytes(self, run: Run, outcome: Outcome) -> bool:
        """Whether an outcome needs the bytes of the messages."""
        return self._outcomes.needs_bytes(run, outcome)

    def buries(self, run: Run, outcome: Outcome) -> bool:
        """Whether an outcome makes the messages dead letters."""
        return self._outcomes.buries(run, outcome)

    def may_return(self, holder: int) -> bool:
        """Whether the receiver of reserved deliveries can have them again."""
        return reserved.may_return(self._contents, holder)

    def outlives_link(self, holder: int) -> bool:
        """Whether reserved deliveries are locked under a key: they are again after a rollback."""
        return reserved.outlives_link(self._contents, holder)

    def reserved_runs(self, holder: int) -> Sequence[Run]:
        """The deliveries of a reservation."""
        return reserved.runs_of(self._contents.consumers, holder)

    # --- sessions ---------------------------------------------------------------------------------------

    @property
    def sessions(self) -> Sessions | None:
        """The sessions of a queue whose policy has groups."""
        return self._contents.sessions

    def state_of(self, session: str) -> Run | None:
        """See `States.find`."""
        return self._states.find(session)

    # --- duplicates -------------------------------------------------------------------------------------

    def fresh(
        self, batch: Batch, first: int, end: int, now_ms: int, ahead: Set[bytes] = frozenset()
    ) -> list[Fresh] | None:
        """See `Duplicates.fresh`; None for a queue without a window of duplicates."""
        contents = self._contents
        if contents.duplicates is None or contents.policy.duplicate_window_ms is None:
            return None
        return contents.duplicates.fresh(batch, first, end, now_ms, ahead)

    @property
    def ids(self) -> list[tuple[int, bytes]]:
        """The message-ids of the window of duplicates: its end, and digests, as in Restore."""
        duplicates = self._contents.duplicates
        return [] if duplicates is None else list(duplicates.groups())

    # --- messages ---------------------------------------------------------------------------------------

    def is_delayed(self, sequence: int) -> bool:
        """Whether a message is delayed."""
        return self._contents.delayed.find(sequence, sequence + 1) >= 0

    def is_withheld(self, sequence: int) -> bool:
        """Whether a prepared transaction cancels a message, which is delayed until the decision."""
        delays = scheduling.delays_of(self._contents)
        return delays is not None and sequence in delays.withheld and self.is_delayed(sequence)

    def are_free(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """See scheduling.are_free."""
        return scheduling.are_free(self._contents, ranges)

    @property
    def lines(self) -> list[Ready]:
        """The lines of ready and, if there is one, of delayed messages."""
        special = self._contents.special
        if special is None or special.delays is None:
            return [self._contents.ready]
        return [self._contents.ready, special.delays.line]

    @property
    def past(self) -> Past:
        """What the order of the queue knows of messages that have left."""
        special = self._contents.special
        return Past() if special is None else special.known()

    @property
    def runs(self) -> list[Run]:
        """Every run, ready or in flight."""
        return self._contents.runs()

    def locked_runs(self, first: int, count: int) -> Iterator[tuple[Run, Consumer, int]]:
        """The runs that are in flight at consumers with a link, or that had one, from a sequence on.

        Args:
            count: how many messages are wanted; of those of ended links, no more are visited.

        Returns:
            Each run with its consumer and the key of its first message in the consumer's line.
        """
        contents = self._contents
        internal = (contents.aside.consumer, contents.states.consumer, contents.consumers.retries)
        for consumer in contents.consumers:
            line = consumer.in_flight
            start, stop = line.head, len(line.runs)
            if consumer is contents.consumers.packed:
                start = line.index(first)
                stop = min(stop, start + count)
            for index in range(start, stop) if consumer not in internal else ():
                key, run = line.keys[index], line.runs[index]
                if run.end > first:
                    low = max(first - run.sequence, 0)
                    yield run.cut(low, run.count), consumer, key + low

    def lock_ends(self, consumer: Consumer, key: int, count: int) -> list[int]:
        """The ends of the locks of messages in flight, in milliseconds since the epoch.

        0 for no end, and for links without a lock key, whose clients see no ends.
        """
        contents = self._contents
        if consumer is contents.consumers.packed:
            return [contents.locks.ended.end_of(sequence) for sequence in range(key, key + count)]
        holder = consumer.id if consumer.session_of is None else consumer.session_of
        until_ms = 0 if contents.sessions is None else contents.sessions.end_of(holder)
        if until_ms or consumer.ends is None:
            return [until_ms] * count
        return [contents.locks.end_of(consumer, number) for number in range(key, key + count)]

    def due_ms(self, run: Run) -> int | None:
        """The due time of a delayed or waiting message in memory, in milliseconds since the epoch; None if it
        is neither.
        """
        contents = self._contents
        if contents.retries and (found := contents.retries.consumer.in_flight.between(run.sequence, run.end)):
            return waits_until_ms(found[0].attempts)
        special = contents.special
        if special is None or special.delays is None or not special.delays.line.has(run.sequence):
            return None
        return special.delays.due_ms(run)
