"""Ordering: handles the messages of a queue with priorities, keys, groups or delays before they are ready.

It cuts batches into single messages if the queue reads them, keeps delayed ones until they are due, and lets
newer messages replace older ones. The fields that the order needs are read once and kept as long as the
message is in the queue, so that its bytes may be evicted at any time (eviction.py). After a restart or a
change of policy the order is built again (loading.py).
"""

from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from typing import Final

from lightrail.model import limits, orders
from lightrail.shard.queue.lines.consumers import Consumer, Consumers
from lightrail.shard.queue.lines.line import GONE
from lightrail.shard.queue.lines.merging import slim_singles, whole
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.memory.eviction import Eviction
from lightrail.shard.queue.order.deliveries import Deliveries
from lightrail.shard.queue.order.keyed import Delays, LastValues, Replacing
from lightrail.shard.queue.order.loading import Loading
from lightrail.shard.queue.order.message_keys import MessageKeys
from lightrail.shard.queue.order.order import Order
from lightrail.shard.queue.order.ranked import Ranked
from lightrail.shard.queue.order.sessions import Sessions
from lightrail.shard.queue.values.commands import Past
from lightrail.shard.queue.values.counters import Counters, TurnWork
from lightrail.shard.queue.values.effects import Due, Effect, Fetch
from lightrail.shard.queue.values.keys import Look
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Batch, Run, sequence_of

SCHEDULED_BYTES: Final = 160
"""Bytes of memory of a message that is enqueued when it is due, beyond those of a delayed one."""


@dataclass(slots=True, eq=False, repr=False)
class Ordering:
    """Handles new and returning messages of one special queue, and adds them to its order."""

    policy: InitVar[Policy]
    look: InitVar[Look]
    ready: Sparse
    _consumers: Consumers
    _eviction: Eviction
    deliveries: InitVar[Deliveries]
    _counters: Counters
    _work: TurnWork
    singles: bool = field(init=False)
    """Whether every message is a separate run."""
    _came_bytes: int = field(init=False)
    """Bytes of all messages that were added, also of those that have left."""
    _swept_bytes: int = 0
    """Bytes of messages that had left the lines when these were last searched for sparse batches."""
    _swept_to: dict[Sparse, int] = field(default_factory=dict)
    """By line, the sequence at which the next search begins."""
    keys: MessageKeys = field(init=False)
    delays: Delays | None = field(init=False)
    replacing: Replacing = field(init=False)
    order: Order = field(init=False)
    sessions: Sessions | None = None
    """The order of a queue with groups."""
    loading: Loading = field(init=False)

    def __post_init__(self, policy: Policy, look: Look, deliveries: Deliveries) -> None:
        ready, consumers, eviction = self.ready, self._consumers, self._eviction
        self.singles = policy.reads_messages
        self._came_bytes = ready.bytes
        self.keys = MessageKeys(policy, look)
        self.delays = Delays(look, enqueues_due=policy.enqueues_due) if policy.delay else None
        values = LastValues() if policy.order == orders.LAST_VALUE else None
        self.replacing = Replacing(values, self.keys, ready, self._counters)
        if policy.groups:
            self.order = self.sessions = Sessions(ready, eviction, deliveries, self.keys.group_of)
        elif policy.order == orders.SORTED:
            self.order = Ranked(ready, eviction, deliveries, self.keys.key_of, joins=False)
        elif policy.priorities > 1:
            ranks = orders.ranks(policy.priorities)
            self.order = Ranked(ready, eviction, deliveries, lambda run: ranks[run.batch.priority])
        else:
            self.order = Order(ready, eviction, deliveries)
        self.loading = Loading(
            ready, self.keys, self.delays, self.replacing, self.order, consumers, eviction, deliveries
        )
        eviction.follow(ready, None if self.delays is None else self.delays.line, joins=not self.singles)
        for consumer in consumers.by_id.values():
            self.order.attach(consumer)

    def build(self, past: Past, now_ms: int) -> None:
        """Puts the messages of the ready line into the order; `past` is the state of a former owner."""
        if self.singles:
            self.loading.begin(past, now_ms)
        else:
            # With priorities alone, all messages stay where they are in the line.
            self.order.begin_with(self.ready.waiting())

    def known(self) -> Past:
        """The state that the next owner can't read from the messages."""
        return self.loading.known(self._held_back())

    def _held_back(self) -> Iterator[Run]:
        """Messages that are in flight or delayed."""
        for consumer in self._consumers:
            yield from consumer.in_flight.ordered()
        if self.delays is not None:
            yield from self.delays.line.waiting()

    # --- memory -----------------------------------------------------------------------------------------

    @property
    def batch_bytes(self) -> int:
        """Bytes in memory of the batches around single messages."""
        delayed = 0 if self.delays is None else self.delays.line.batch_bytes
        return self.ready.batch_bytes + delayed

    @property
    def index_bytes(self) -> int:
        """Bytes of memory for each message, whether it is in memory or on disk."""
        if not self.singles:
            return limits.RUN_ON_DISK_BYTES * self.ready.evicted_runs
        delayed = 0 if self.delays is None else len(self.delays.line)
        return (
            limits.SINGLE_BYTES * (len(self.ready) + delayed)
            + (0 if self.delays is None else SCHEDULED_BYTES * len(self.delays.scheduled))
            + self.order.index_bytes
            + self.keys.bytes_of(self.order.keys + len(self.replacing))
        )

    def sweep(self) -> None:
        """Frees batches of which messages have left: a part of each line at a time, in turns.

        Messages leave by a delivery, and without one: they are due, replaced, expired or discarded.
        """
        lines = [self.ready] if self.delays is None else [self.ready, self.delays.line]
        left = self._came_bytes - sum(line.bytes for line in lines)
        if left < self._swept_bytes + limits.SLIM_AT_BYTES:
            # Messages that have returned to a line may leave it again.
            self._swept_bytes = min(self._swept_bytes, left)
            return
        self._swept_bytes = left
        for line in lines:
            start = line.index(self._swept_to.get(line, 0))
            if start >= len(line.runs):
                start = line.head
            stop = min(start + limits.LOOK_AHEAD_MESSAGES, len(line.runs))
            runs = [run for run in line.runs[start:stop] if run is not GONE]
            self._swept_to[line] = runs[-1].end if runs else 0
            found = slim_singles(runs)
            if any(one is not other for one, other in zip(runs, found, strict=True)):
                line.swap(start, stop, found)

    # --- adding messages ------------------------------------------------------------------------------

    def enqueue(self, batch: Batch, sequence: int, now_ms: int) -> Run:
        """Adds a batch under its first sequence."""
        self.order.enqueued(sequence + batch.count)
        self._came_bytes += batch.size
        run = Run(batch, 0, batch.count, sequence)
        if self.loading.is_active and self.loading.awaits(sequence):
            self.ready.add(run)
            return run
        delays, replacing = self.delays, self.replacing
        for piece in self.keys.pieces(run):
            if delays is not None and delays.hold_back(piece, now_ms, self.keys):
                continue
            if replacing.values is None or not replacing.add(piece):
                self.ready.add(piece)
                self.order.arrived(piece)
        return run

    def enqueue_under(self, batch: Batch, sequence: int, delays: Delays) -> Run:
        """Adds a batch under sequences below the next one, to the delayed messages."""
        self._came_bytes += batch.size
        run = Run(batch, 0, batch.count, sequence)
        if self.loading.awaits(sequence):
            self.ready.give_back(run)
            return run
        for piece in self.keys.pieces(run):
            self.keys.keep(piece)
            delays.add(piece, delays.due_ms(piece))
        return run

    def give_back(self, run: Run) -> None:
        """Adds a run that was in flight or delayed; it is not delayed again."""
        keys = self.keys
        if self.loading.awaits(run.sequence):
            self.ready.give_back(whole(run))
            keys.forget(run)
            return
        for piece in keys.pieces(run if self.singles else whole(run)):
            if not self.replacing.add(piece):
                self.ready.give_back(piece)
                self.order.returned(piece)
        keys.forget(run)

    def give_back_all(self, runs: list[Run]) -> None:
        """Like `give_back` for many runs, by sequence."""
        if self.replacing.values is not None or len(runs) < limits.GIVEN_BACK_ONE_BY_ONE:
            # In a queue of last values one of the messages may replace the one before it.
            for run in runs:
                self.give_back(run)
            return
        pieces: list[Run] = []
        read: list[Run] = []
        for run in runs:
            if self.loading.awaits(run.sequence):
                pieces.append(run)
            else:
                cut = self.keys.pieces(run)
                pieces += cut
                read += cut
        self.ready.give_back_all(pieces)
        for piece in read:
            self.order.returned(piece)

    def put_off(self, run: Run, now_ms: int) -> list[Run]:
        """Delays messages that return with annotations of a delay; returns the others of the run."""
        delays = self.delays
        if delays is None or run.batch.message_format or self.loading.awaits(run.sequence):
            return [run]
        ready: list[Run] = []
        for piece in self.keys.pieces(run):
            due_ms = delays.due_ms(piece)
            if due_ms <= now_ms:
                ready.append(piece)
                continue
            self.keys.forget(piece)
            self.keys.keep(piece)
            delays.add(piece, due_ms)
        return ready

    def hold_group(self, consumer: Consumer, run: Run) -> None:
        """Keeps the groups of messages that wait at an internal consumer: no message of them is offered."""
        if self.sessions is not None and self.loading.has_in_flight:
            for piece in self.keys.pieces(run):
                self.sessions.held(consumer, piece, stays=False)

    # --- removing messages ----------------------------------------------------------------------------

    def cancel(self, sequence: int) -> Run | None:
        """Removes and returns a delayed message; None if it is not delayed."""
        found = None if self.delays is None else self.delays.take(sequence)
        if found is not None:
            self.keys.drop(sequence)
        return found

    def clear(self) -> list[Run]:
        """Removes and returns all ready and delayed messages."""
        runs = self.waiting()
        self.ready.clear()
        if self.delays is not None:
            self.delays.clear()
        self.keys.cleared()
        self.replacing.cleared()
        self.order.cleared()
        return runs

    def waiting(self) -> list[Run]:
        """All ready and delayed messages, by sequence."""
        runs = self.ready.waiting()
        if self.delays is not None:
            runs = sorted(runs + self.delays.line.waiting(), key=sequence_of)
        return runs

    # --- time -----------------------------------------------------------------------------------------

    def prepare(self, now_ms: int, effects: list[Effect]) -> None:
        """Before a dispatch: wakes due messages, fetches missing ones, adds the effects of replaced ones."""
        self.wake(now_ms)
        loading = self.loading
        if loading.is_active:
            loading.read_next(now_ms)
        if loading.is_active:
            loading.fetch(effects)
            return
        if self.replacing.values is not None:
            self.replacing.thin(self._held_back())
        if self.singles:
            self.sweep()
        if self.delays is not None:
            self._enqueue_due(self.delays, now_ms, effects)
            self.keys.thin(self.delays.line)
        self.replacing.tell(effects)

    def _enqueue_due(self, delays: Delays, now_ms: int, effects: list[Effect]) -> None:
        """Takes scheduled messages that are due out of the queue: the performer enqueues them anew."""
        if not delays.scheduled:
            return
        for run in delays.take_scheduled(now_ms, self._work):
            self.keys.drop(run.sequence)
            # It arrives a second time.
            self._counters.enqueued -= run.count
            effects.append(Due(run))
        if delays.awaits:
            runs = delays.on_disk(limits.FETCHES_AHEAD_MAX)
            effects.extend(Fetch(run) for run in self._eviction.want_runs(runs))

    @property
    def spares_all(self) -> bool:
        """Whether no message expires now: for some that were not read yet, the time to live has not begun."""
        return self.loading.is_active and self.delays is not None and self.delays.enqueues_due

    def lost(self, run: Run) -> None:
        """A message that was only on disk can't be read, and has left its line."""
        if self.delays is not None:
            self.delays.scheduled.difference_update(range(run.sequence, run.end))

    def fetched(self) -> None:
        """Something was read from disk, or a read may be repeated: scheduled messages that are due go on."""
        if self.delays is not None:
            self.delays.awaits = False

    def wake(self, now_ms: int) -> None:
        """Makes delayed messages ready that are due, at their positions by sequence."""
        if self.delays is not None and (due := self.delays.take_due(now_ms, self._work)):
            due.sort(key=sequence_of)
            self.give_back_all(due)
            for run in due:
                self.keys.drop(run.sequence)
            if self._consumers.passed_over:
                self._consumers.look_again(due[0].sequence)

    @property
    def next_ms(self) -> int | None:
        """Time of the next work; 0 for at once."""
        if self.replacing.has_effects or self.order.unfinished or self.loading.is_due:
            return 0
        due_ms = None if self.delays is None else self.delays.next_ms
        if self.delays is not None and self.delays.scheduled and not self.loading.is_active:
            scheduled_ms = self.delays.next_scheduled_ms
            due_ms = min((each for each in (due_ms, scheduled_ms) if each is not None), default=None)
        ends_ms = None if self.sessions is None else self.sessions.next_ms
        return due_ms if ends_ms is None else ends_ms if due_ms is None else min(due_ms, ends_ms)
