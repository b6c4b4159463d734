"""The queue machine: commands in, effects out; no socket, clock, file or chance.

`apply` takes one command and changes the state; `dispatch`, called once after the commands of a step,
hands ready runs to consumers with credit, in large slices. What a message goes through:

    Enqueue -> ready -> Deliver -> in flight -> Settle -> Removed | DeadLetter | ready again
                 \\-> expired, purged

Every transition is in this file; the parts of the state keep their own sums right. Costs are per run and
per range, never per message, except where messages have to be rewritten (annotations).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import heappush
from typing import Any, Final

from lightrail.shard.queue import bounds
from lightrail.shard.queue.commands import (
    FAILED,
    Attach,
    Cancel,
    Change,
    Command,
    Credit,
    Detach,
    Enqueue,
    Fetched,
    Outcome,
    OutcomeKind,
    Peek,
    Purge,
    RenewLock,
    Restore,
    Settle,
    SettleLocked,
    Tick,
)
from lightrail.shard.queue.consumers import Consumer, Consumers
from lightrail.shard.queue.counters import Counters, Gauges
from lightrail.shard.queue.deliveries import Deliveries
from lightrail.shard.queue.duplicates import Duplicates
from lightrail.shard.queue.effects import (
    DeadLetter,
    Effect,
    Fetch,
    LockAnswer,
    Peeked,
    Reason,
    Removed,
    Replaced,
    Returned,
    State,
    Stored,
)
from lightrail.shard.queue.eviction import Eviction
from lightrail.shard.queue.expiry import Deadlines
from lightrail.shard.queue.line import GONE
from lightrail.shard.queue.locks import Locks
from lightrail.shard.queue.merging import (
    JOINED_BYTES,
    join_neighbours,
    merge_evicted,
    on_disk,
    parts_of,
)
from lightrail.shard.queue.order import Order
from lightrail.shard.queue.policy import Policy
from lightrail.shard.queue.ready import Ready, one_run
from lightrail.shard.queue.runs import Batch, Place, Run, batch_of
from lightrail.shard.queue.sparse import Sparse
from lightrail.shard.queue.special import Look, Special

__all__ = ["DEAD_LETTER_SUFFIX", "Annotate", "Machine", "Policy"]

DEAD_LETTER_SUFFIX: Final = "/$dlq"
_JOIN_BACKLOG_BYTES: Final = 8 * JOINED_BYTES
"""Ready bytes below which batches are left as they came: they will be delivered before joining pays."""

_NOTHING: Final = Ready()
"""What is delayed in a queue without delays."""

Annotate = Callable[[bytes, Any], bytes]


class Machine:
    """One queue.

    Args:
        name: of the queue; one that ends with `/$dlq` never dead-letters.
        annotate: merges the annotations of a modified outcome into an encoded message; without it they
            are ignored.
        look: makes of a path what reads that field from an encoded message; without it no message has a
            key, a group or a delay, and none is a duplicate.

    Raises:
        ValueError: the policy asks for what does not go together.
    """

    __slots__ = (
        "_annotate",
        "_joined_to",
        "_joining_bytes",
        "_known_to",
        "_look",
        "_selecting",
        "_untold",
        "consumers",
        "counters",
        "deadlines",
        "deliveries",
        "duplicates",
        "eviction",
        "locks",
        "name",
        "next_sequence",
        "policy",
        "ready",
        "special",
    )

    def __init__(
        self,
        name: str,
        policy: Policy | None = None,
        annotate: Annotate | None = None,
        look: Look | None = None,
    ) -> None:
        self.name = name
        self.policy = Policy()
        self.next_sequence = 0
        """Of the next message that is enqueued."""
        self.ready = Ready()
        self.consumers = Consumers()
        self.deadlines = Deadlines()
        self.eviction = Eviction(self.ready)
        self.counters = Counters()
        self.locks = Locks(self.consumers)
        self.deliveries = Deliveries(self.ready, self.consumers, self.eviction, self.counters, self.locks)
        self.duplicates: Duplicates | None = None
        """The message-ids of the window, where the policy has one."""
        self._annotate = annotate
        self._look = look or _blind
        self.special: Special | None = None
        """The way in, and the order, of a queue that does more than hand out its messages by sequence."""
        self._selecting = 0
        """Consumers that select."""
        self._untold: list[Effect] = []
        """What left the queue under its last policy, for the next dispatch to tell."""
        self._joining_bytes = 0
        """Bytes that came since the tail was last joined."""
        self._joined_to = 0
        self._known_to = 0
        """Sequences below were there in an earlier step: the engine has given them their places."""
        self.change(policy or self.policy, 0)

    # --- commands -------------------------------------------------------------------------------------

    def apply(self, command: Command, now_ms: int) -> list[Effect]:
        """Changes the state by one command; messages are delivered by `dispatch` only."""
        if isinstance(command, Settle):
            return self._settle(command)
        if isinstance(command, Enqueue):
            return self._enqueue(command, now_ms)
        effects: list[Effect] = []
        match command:
            case Credit():
                consumer = self.consumers.by_id.get(command.consumer)
                if consumer is not None:
                    self.consumers.credit(consumer, command.limit, command.drain)
            case Attach():
                self._attach(command, effects)
            case Detach():
                consumer = self.consumers.detach(command.consumer)
                if consumer is not None:
                    if not self.locks.detached(consumer):
                        runs = consumer.in_flight.everything()
                        self._settle_runs(consumer, runs, consumer.options.default_outcome, effects)
                    if self.deliveries.order is not None:
                        self._detached(consumer, self.deliveries.order)
            case SettleLocked():
                self._settle_locked(command, now_ms, effects)
            case RenewLock():
                self._pass_time(now_ms, effects)
                until_ms = self.locks.renew(command.key, command.number, command.sequence, now_ms)
                effects.append(LockAnswer(until_ms is not None, until_ms or 0))
            case Tick():
                self._pass_time(now_ms, effects)
            case Fetched():
                self._fetched(command, now_ms, effects)
            case Purge():
                for run in self.ready.clear() if self.special is None else self.special.clear():
                    self.counters.purged += run.count
                    effects.append(_removed(run, Reason.PURGED))
            case Peek():
                effects.append(self._peek(command))
            case Restore():
                self._restore(command, now_ms)
            case Cancel():
                called_off = None if self.special is None else self.special.cancel(command.sequence)
                if called_off is not None:
                    self.counters.cancelled += called_off.count
                    effects.append(_removed(called_off, Reason.CANCELLED))
            case Change():
                self.change(command.policy, now_ms)
        return effects

    def _enqueue(self, command: Enqueue, now_ms: int) -> list[Effect]:
        batch = command.batch
        sequence = self.next_sequence
        if self.special is None:
            run = self.ready.add_batch(batch, sequence)
            if self.deliveries.order is not None:
                self.deliveries.order.enqueued(run.end)
        else:
            run = self.special.enqueue(batch, sequence, now_ms)
        self.next_sequence = sequence + batch.count
        self.counters.enqueued += batch.count
        self._joining_bytes += batch.size
        if batch.expires_at_ms is not None:
            self.deadlines.add(run)
        effects: list[Effect] = [Stored(run)]
        if self.policy.guarded:
            self._trim(effects)
        return effects

    def _attach(self, command: Attach, effects: list[Effect]) -> None:
        identity, options = command
        refused = self.locks.refusal(identity, options)
        if refused is None:
            refused = self.consumers.attach(identity, options, self.policy)
        if refused is not None:
            effects.append(refused)
            return
        consumer = self.consumers.by_id[identity]
        if self.deliveries.order is not None or options.selects is not None:
            self._attached(consumer)
        if options.lock_key:
            self.locks.attached(consumer)

    def _settle(self, command: Settle) -> list[Effect]:
        effects: list[Effect] = []
        consumer = self.consumers.by_id.get(command.consumer)
        if consumer is not None:
            runs = consumer.in_flight.take(command.first, command.last)
            self._settle_runs(consumer, runs, command.outcome, effects)
        return effects

    def _settle_locked(self, command: SettleLocked, now_ms: int, effects: list[Effect]) -> None:
        self._pass_time(now_ms, effects)
        consumer = self.locks.holder(command.key, command.number, command.sequence)
        if consumer is not None:
            runs = consumer.in_flight.take(command.number, command.number + 1)
            self._settle_runs(consumer, runs, command.outcome, effects)
            self.locks.settled(consumer)
        effects.append(LockAnswer(consumer is not None, 0))

    def _settle_runs(
        self, consumer: Consumer, runs: list[Run], outcome: Outcome, effects: list[Effect]
    ) -> None:
        """Gives runs that were taken out of flight their outcome."""
        deliveries = self.deliveries
        if deliveries.order is not None:
            deliveries.order.settling(consumer, runs)
        if outcome.kind == OutcomeKind.ACCEPTED:
            for run in runs:
                batch = run.batch
                count = run.last - run.first
                size = batch.size if count == batch.count else run.size
                deliveries.count -= count
                deliveries.bytes -= size
                self.counters.accepted += count
                sequence = run.sequence
                effects.append(Removed(batch, sequence, sequence + count, size, Reason.ACCEPTED))
            return
        for run in runs:
            deliveries.count -= run.count
            deliveries.bytes -= run.size
        match outcome.kind:
            case OutcomeKind.REJECTED:
                for run in runs:
                    self.counters.rejected += run.count
                    self._discard(run, Reason.REJECTED, effects, outcome.condition, outcome.description)
            case OutcomeKind.RELEASED:
                for run in runs:
                    self.counters.released += run.count
                    self._give_back(run)
            case _:
                self.counters.modified += sum(run.count for run in runs)
                self._modify(consumer, runs, outcome, effects)

    def _modify(self, consumer: Consumer, runs: list[Run], outcome: Outcome, effects: list[Effect]) -> None:
        if self.deliveries.order is not None:
            # Whoever comes here without an outcome of the consumer's tells it too; twice does no harm.
            self.deliveries.order.settling(consumer, runs)
        returned: list[Run] = []
        count_max = self.policy.max_delivery_count if self.policy.dead_letter else 0
        for run in runs:
            attempts = run.attempts + outcome.delivery_failed
            barred = run.barred
            if outcome.undeliverable_here and consumer.id not in barred:
                barred = (*barred, consumer.id)
            changed = Run(run.batch, run.first, run.last, run.sequence, attempts, barred)
            if outcome.delivery_failed and count_max and attempts >= count_max:
                self._discard(
                    changed,
                    Reason.MAX_DELIVERY_COUNT,
                    effects,
                    description=f"delivery failed {attempts} times, {count_max} are allowed",
                )
                continue
            if outcome.annotations and self._annotate is not None:
                changed = self._rewrite(changed, outcome.annotations)
                effects.append(Replaced(changed, run))
            elif attempts != run.attempts:
                returned.append(changed)
            self._give_back(changed)
        if returned:
            effects.append(Returned(returned))

    def _rewrite(self, run: Run, annotations: Any) -> Run:
        """The same messages with merged annotations, in a batch of their own."""
        assert self._annotate is not None
        batch = run.batch
        merged = batch_of(
            [self._annotate(message, annotations) for message in run.messages()],
            durable=batch.durable,
            priority=batch.priority,
            expires_at_ms=batch.expires_at_ms,
            enqueued_at_ms=batch.enqueued_at_ms,
            message_format=batch.message_format,
        )
        return Run(merged, 0, merged.count, run.sequence, run.attempts, run.barred)

    def _give_back(self, run: Run) -> None:
        """Ready again, at its place by sequence."""
        if self.special is not None:
            self.special.give_back(run)
        else:
            self.ready.give_back(run)
            if self.deliveries.order is not None:
                self.deliveries.order.returned(run)
        if run.batch.expires_at_ms is not None:
            self.deadlines.add(run)
        if self.consumers.passed_over:
            self.consumers.look_again(run.sequence)

    def _discard(
        self, run: Run, reason: Reason, effects: list[Effect], condition: str = "", description: str = ""
    ) -> None:
        """Out of this queue: to the dead-letter queue where there is one, else for good."""
        counts = self.counters.dead_lettered if self.policy.dead_letter else self.counters.discarded
        counts[reason] = counts.get(reason, 0) + run.count
        if self.policy.dead_letter:
            effects.append(DeadLetter(run, reason, condition, description))
        else:
            effects.append(_removed(run, reason))

    # --- time -----------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """When the machine wants a Tick (or a dispatch, which does the same), or None."""
        heap = self.deadlines.heap
        due_ms = heap[0][0] if heap else None
        if self.eviction.retries:
            due_ms = _earlier(due_ms, self.eviction.retries[0][0])
        if self.locks.heap:
            due_ms = _earlier(due_ms, self.locks.next_ms)
        if self.special is not None:
            due_ms = _earlier(due_ms, self.special.next_ms)
        elif self.deliveries.order is not None and self.deliveries.order.unfinished:
            due_ms = 0
        return due_ms

    def _pass_time(self, now_ms: int, effects: list[Effect]) -> None:
        for consumer, first, last in self.locks.due(now_ms):
            self._unlock(consumer, first, last, effects)
        for run in self.eviction.retry(now_ms):
            self.deadlines.add(run)
        if self._untold:
            effects.extend(self._untold)
            self._untold = []
        special = self.special
        if special is not None:
            special.wake(now_ms)
        for first, last in self.deadlines.due(now_ms):
            self._expire(self.ready, first, last, now_ms, effects)
            if special is not None and special.delays is not None:
                self._expire(special.delays.line, first, last, now_ms, effects)
        self.deadlines.thin(self.waiting(), len(self.ready))

    def _expire(self, ready: Ready, first: int, last: int, now_ms: int, effects: list[Effect]) -> None:
        """Takes out what is there and due of these sequences; what is only on disk is fetched first."""
        index = ready.index(first)
        while index < len(ready.runs) and ready.runs[index].sequence < last:
            run = ready.runs[index]
            expires_at_ms = run.batch.expires_at_ms
            if expires_at_ms is None or expires_at_ms > now_ms:
                index += 1
            elif run.batch.data is None:
                if self.eviction.ask(run):
                    effects.append(Fetch(run))
                index += 1
            else:
                ready.swap(index, index + 1, [])
                index = ready.index(run.end)
                self.counters.expired += run.count
                if self.deliveries.order is not None:
                    self.deliveries.order.removed(run)
                self._discard(run, Reason.EXPIRED, effects)

    def _unlock(self, consumer: Consumer, first: int, last: int, effects: list[Effect]) -> None:
        """The locks of these deliveries ran out: each counts as a failed one."""
        runs = consumer.in_flight.take(first, last)
        if self.deliveries.order is not None:
            self.deliveries.order.settling(consumer, runs)
        for run in runs:
            self.deliveries.count -= run.count
            self.deliveries.bytes -= run.size
            self.counters.locks_expired += run.count
        self._modify(consumer, runs, FAILED, effects)
        self.locks.settled(consumer)

    # --- bounds ---------------------------------------------------------------------------------------

    def room(self, batch: Batch, first: int = 0) -> int:
        """How many messages of a batch, from index `first` on, may be enqueued by the policy's bounds."""
        if not bounds.refuses(self.policy):
            return batch.count - first
        return bounds.room(self.policy, self.held, self.held_bytes, batch, first)

    def _trim(self, effects: list[Effect]) -> None:
        """With discard_existing: the oldest ready messages go until the rest is within the bounds.

        What is to be dead-lettered and only on disk is fetched first; then it goes on.
        """
        if self.policy.overflow != bounds.DISCARD_EXISTING:
            return
        ready = self.ready
        buries = self.policy.discard_to_dead_letter and self.policy.dead_letter
        index = ready.head
        while ready.count:
            messages, size = bounds.excess(self.policy, self.held, self.held_bytes)
            if messages <= 0 and size <= 0:
                return
            run = ready.runs[index]
            if run is GONE:
                index += 1
                continue
            if buries and run.batch.data is None:
                if self.eviction.ask(run):
                    effects.append(Fetch(run))
                return
            count = max(messages, 1)
            while count < run.count and run.cut(0, count).size < size:
                count += 1
            gone, rest = parts_of(run, min(count, run.count))
            ready.swap(index, index + 1, [rest] if rest.count else [])
            index = ready.index(gone.end)
            if self.deliveries.order is not None:
                self.deliveries.order.removed(gone)
            self.eviction.unseen_bytes += gone.size
            if buries:
                self._discard(gone, Reason.QUEUE_FULL, effects)
            else:
                discarded = self.counters.discarded
                discarded[Reason.DISCARDED] = discarded.get(Reason.DISCARDED, 0) + gone.count
                effects.append(_removed(gone, Reason.DISCARDED))

    # --- deliveries -----------------------------------------------------------------------------------

    def dispatch(self, now_ms: int) -> list[Effect]:
        """Hands ready runs to consumers with credit; called once per step, after all commands.

        Consumers of the highest priority come first and take turns. A turn brings
        `ceil(ready / consumers with credit)` messages, at most DELIVERY_SLICE_MESSAGES and
        DELIVERY_SLICE_BYTES: everybody gets a share of what is there, in pieces as large as can be.
        """
        effects: list[Effect] = []
        heap = self.deadlines.heap
        locks = self.locks.heap
        if (heap and heap[0][0] <= now_ms) or self.eviction.retries or (locks and locks[0][0] <= now_ms):
            self._pass_time(now_ms, effects)
        if self.special is not None:
            self.special.prepare(now_ms, effects)
        deliveries = self.deliveries
        blocked = deliveries.hand_out(effects, now_ms)
        if self.ready.evicted_runs and (
            blocked or self.eviction.unseen_bytes >= self.eviction.head_bytes >> 3
        ):
            effects.extend(Fetch(run) for run in self.eviction.look_ahead())
        if self.consumers.draining:
            deliveries.drain(effects)
        if self._joining_bytes >= 2 * JOINED_BYTES:
            self._join()
        self._known_to = self.next_sequence
        return effects

    # --- memory and disk ------------------------------------------------------------------------------

    def evict(self, bytes_wanted: int) -> int:
        """Drops messages that are on disk from memory, tail first; returns the bytes that were freed."""
        if self.special is not None and self.special.singles:
            return 0
        return self.eviction.evict(bytes_wanted)

    def spill_candidates(self, bytes_wanted: int) -> list[Run]:
        """Runs that could be evicted if they had a place; the engine writes them and sets it."""
        if self.special is not None and self.special.singles:
            return []
        return self.eviction.spill_candidates(bytes_wanted)

    def runs(self) -> list[Run]:
        """Every run, ready or in flight."""
        return list(self._all_runs())

    def runs_in(self, segment: int) -> list[Run]:
        """Every run, ready or in flight, whose place is in a segment of the journal."""
        return [
            run
            for run in self._all_runs()
            if run.batch.place is not None and run.batch.place.segment == segment
        ]

    def relocate(self, run: Run, place: Place) -> None:
        """The messages of `run` were written again at `place`: whatever is left of them is there now.

        `run` still says the old place. It may be one that `runs_in` named, or a part of it as it was read
        from disk; what was settled in the meantime is passed over.
        """
        old = run.batch.place
        moved = self.eviction.relocate(run, place)
        if self.special is not None and self.special.delays is not None:
            moved += self.special.delays.relocate(run, place)
        if moved == run.count or old is None:
            return
        for consumer in self.consumers:
            consumer.in_flight.relocate(run, old.segment, place)

    def _fetched(self, command: Fetched, now_ms: int, effects: list[Effect]) -> None:
        came, lost = self.eviction.fill(command, now_ms)
        for run in came:
            self.deadlines.add(run)
        for run in lost:
            self.counters.lost += run.count
            effects.append(_removed(run, Reason.LOST))
        if self.policy.guarded:
            self._trim(effects)

    def _restore(self, command: Restore, now_ms: int) -> None:
        assert not self.next_sequence, "expected a new machine to restore into"
        runs = [
            on_disk(run, run.count, run.size, run.batch.place, run.batch.expires_at_ms)
            if run.batch.data is None
            else run
            for run in command.runs
        ]
        special = self.special
        if special is None or not special.singles:
            # Joined messages share the earliest time of arrival: delays count from each one's own.
            runs = join_neighbours(runs)
        for run in merge_evicted(runs, {}):
            self.ready.add(run)
            self.deadlines.add(run)
            self.counters.restored += run.count
        self.next_sequence = self._joined_to = self._known_to = command.next_sequence
        if special is not None:
            special.build(now_ms)
        if self.deliveries.order is not None:
            self.deliveries.order.enqueued(command.next_sequence)
        if command.ids:
            # Whether they are needed is for the policy to say, which may come later.
            self.duplicates = self.duplicates or Duplicates(self._look)
            self.duplicates.restore(command.ids)

    def _peek(self, command: Peek) -> Peeked:
        found: list[Run] = []
        wanted = command.count
        special = self.special
        delays = None if special is None else special.delays
        runs = self.ready.runs[self.ready.index(command.from_sequence) :]
        if delays is not None:
            line = delays.line
            runs = sorted(runs + line.runs[line.index(command.from_sequence) :], key=lambda run: run.sequence)
        for run in runs:
            if wanted <= 0:
                break
            if run.last > run.first:
                skipped = max(command.from_sequence - run.sequence, 0)
                found.append(run.cut(skipped, min(run.count, skipped + wanted)))
                wanted -= found[-1].count
        if delays is None:
            return Peeked(found, [State.READY] * len(found))
        return Peeked(
            found, [State.DELAYED if delays.line.has(run.sequence) else State.READY for run in found]
        )

    def _join(self) -> None:
        """Joins small batches at the tail when a backlog has built up."""
        ready = self.ready
        self._joining_bytes = 0
        if ready.bytes < _JOIN_BACKLOG_BYTES or (self.special is not None and self.special.singles):
            return
        start = ready.index(self._joined_to)
        self._joined_to = self._known_to
        stop = ready.index(self._known_to)
        # The last one of the time before may have room left.
        start = max(start - 1, ready.head)
        runs = ready.runs[start:stop]
        if self.special is not None:
            runs = [run for run in runs if run is not GONE]
        joined = join_neighbours(runs)
        if len(joined) < len(runs):
            ready.swap(start, stop, joined)

    # --- policy and selection -------------------------------------------------------------------------

    def change(self, policy: Policy, now_ms: int) -> None:
        """Follows another policy from now on: what is waiting is arranged as it says.

        What is in flight stays with its consumers. A dispatch should follow. Raises ValueError for a policy
        that asks for what does not go together.
        """
        policy.check()
        if self.name.endswith(DEAD_LETTER_SUFFIX):
            policy = replace(policy, dead_letter=False)
        runs = self.waiting()
        self.policy = policy
        if self.special is not None:
            self.special.tell(self._untold)
            if self._untold:
                # An entry that expires nothing: the next dispatch passes the time, and tells.
                heappush(self.deadlines.heap, (0, 0, 0))
        sparse = Sparse() if policy.is_special else None
        ready = Ready() if sparse is None else sparse
        for run in _rejoined(runs):
            ready.add(run)
        self.ready = self.eviction.ready = self.deliveries.ready = ready
        for consumer in self.consumers:
            if consumer.ring is not None:
                consumer.cursor = 0
        self.consumers.passed_over = False
        self.special = self.deliveries.order = None
        self.eviction.joins = True
        if sparse is not None:
            self.special = Special(
                policy, self._look, sparse, self.consumers, self.eviction, self.deliveries, self.counters
            )
            self.special.build(now_ms)
            self.deliveries.order = self.special.order
            self.special.order.enqueued(self.next_sequence)
        elif self._selecting:
            order = self.deliveries.order = Order(ready, self.eviction, self.deliveries, self.next_sequence)
            for consumer in self.consumers.by_id.values():
                order.attach(consumer)
        self.consumers.follow(policy)
        if policy.duplicate_window_ms is None:
            self.duplicates = None
        elif self.duplicates is None:
            self.duplicates = Duplicates(self._look)

    def _attached(self, consumer: Consumer) -> None:
        """A consumer came that selects, or to a queue with an order of its own."""
        self._selecting += consumer.options.selects is not None
        order = self.deliveries.order
        if order is None:
            order = Order(self.ready, self.eviction, self.deliveries, self.next_sequence)
            self.deliveries.order = order
        order.attach(consumer)

    def _detached(self, consumer: Consumer, order: Order) -> None:
        self._selecting -= consumer.options.selects is not None
        order.detach(consumer)
        if self.special is None and not self._selecting:
            self.deliveries.order = None

    # --- figures --------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Messages that count against the policy's bounds: ready, delayed and in flight."""
        return self.ready.count + self.deliveries.count + self._delayed.count

    @property
    def held_bytes(self) -> int:
        """Their bytes."""
        return self.ready.bytes + self.deliveries.bytes + self._delayed.bytes

    @property
    def locked_count(self) -> int:
        """Messages in flight under a timed lock."""
        if not self.locks.heap:
            return 0
        return sum(
            run.count
            for consumer in self.consumers
            if consumer.lock_ms
            for run in consumer.in_flight.runs[consumer.in_flight.head :]
        )

    @property
    def in_flight_count(self) -> int:
        """Messages delivered and not settled."""
        return self.deliveries.count

    @property
    def in_flight_bytes(self) -> int:
        """Their bytes."""
        return self.deliveries.bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of messages that are in memory, ready or in flight."""
        return self.ready.bytes - self.ready.evicted_bytes + self.deliveries.bytes + self._delayed.bytes

    @property
    def gauges(self) -> Gauges:
        """How much is in the queue now."""
        return Gauges(
            self.ready.count,
            self.in_flight_count,
            self.ready.bytes + self.in_flight_bytes + self._delayed.bytes,
            self.resident_bytes,
            len(self.consumers.by_id),
            self._delayed.count,
        )

    def due_ms(self, run: Run) -> int | None:
        """When a delayed message may be delivered, in milliseconds since the epoch; None if it is not."""
        special = self.special
        if special is None or special.delays is None or not special.delays.line.has(run.sequence):
            return None
        return special.delays.due_ms(run)

    @property
    def delayed_count(self) -> int:
        """Messages that wait for their time."""
        return self._delayed.count

    @property
    def _delayed(self) -> Ready:
        """The line of what is delayed."""
        special = self.special
        return _NOTHING if special is None or special.delays is None else special.delays.line

    def waiting(self) -> list[Run]:
        """Everything that is ready or delayed, by sequence."""
        return self.ready.waiting() if self.special is None else self.special.waiting()

    def _all_runs(self) -> Iterable[Run]:
        yield from _rejoined(self.waiting()) if self.special is not None else self.waiting()
        for consumer in self.consumers:
            yield from consumer.in_flight.runs[consumer.in_flight.head :]


def _removed(run: Run, reason: Reason) -> Removed:
    return Removed(run.batch, run.sequence, run.end, run.size, reason)


def _blind(path: str) -> Callable[[bytes], Any]:
    """Sees nothing in any message."""
    return lambda message: None


def _rejoined(runs: list[Run]) -> list[Run]:
    """The same messages; neighbours that are parts of one batch are one run again."""
    result: list[Run] = []
    for run in runs:
        if result and one_run(result[-1], run):
            before = result[-1]
            run = Run(run.batch, before.first, run.last, before.sequence, run.attempts, run.barred)
            result[-1] = run
        else:
            result.append(run)
    return result


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
