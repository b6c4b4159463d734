"""The queue machine: commands in, effects out; no socket, clock, file or chance.

`apply` takes one command and changes the state; `dispatch`, called once after the commands of a step,
hands ready runs to consumers with credit, in large slices. What a message goes through:

    Enqueue -> ready -> Deliver -> in flight -> Settle -> Removed | DeadLetter | ready again
                 \\-> expired, purged

The ways in, time and changes of policy are in this file; what becomes of deliveries, and the ways out, are in
outcomes.py; where messages lie, and their sums, in contents.py. Costs are per run and per range, never per
message, except where messages have to be rewritten (annotations).
"""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappush
from typing import Final

from lightrail.model import limits
from lightrail.shard.queue.commands import (
    RELEASED,
    Attach,
    Cancel,
    Change,
    Command,
    Credit,
    Detach,
    Enqueue,
    Fetched,
    Lose,
    Open,
    Past,
    Peek,
    Purge,
    RenewDeliveries,
    RenewLock,
    Restore,
    Settle,
    SettleLocked,
    Tick,
)
from lightrail.shard.queue.consumers import Consumer
from lightrail.shard.queue.copying import holders_of
from lightrail.shard.queue.duplicates import Duplicates
from lightrail.shard.queue.effects import (
    Effect,
    Fetch,
    LockAnswer,
    Purged,
    Reason,
    Renewed,
    Stored,
)
from lightrail.shard.queue.keys import Look
from lightrail.shard.queue.merging import (
    join_neighbours,
    merge_evicted,
    on_disk,
    whole,
)
from lightrail.shard.queue.order import Order
from lightrail.shard.queue.outcomes import Annotate, Outcomes, removed
from lightrail.shard.queue.policy import Policy
from lightrail.shard.queue.ready import Ready, rejoined
from lightrail.shard.queue.sparse import Sparse
from lightrail.shard.queue.special import Special
from lightrail.shard.queue.work import RUN, Work

__all__ = ["DEAD_LETTER_SUFFIX", "Annotate", "Machine", "Policy"]

DEAD_LETTER_SUFFIX: Final = "/$dlq"


class Machine(Outcomes):
    """One queue.

    Args:
        name: of the queue; one that ends with `/$dlq` never dead-letters.
        annotate: merges the annotations of a modified outcome into an encoded message; without it they
            are ignored.
        look: makes of a path what reads that field from an encoded message; without it no message has a
            key, a group or a delay, and none is a duplicate.
        work: what it may do in a turn, which its caller begins; without it everything is done at once.

    Raises:
        ValueError: the policy asks for what does not go together.
    """

    __slots__ = ()

    def __init__(
        self,
        name: str,
        policy: Policy | None = None,
        annotate: Annotate | None = None,
        look: Look | None = None,
        work: Work | None = None,
    ) -> None:
        super().__init__(name, annotate, look, work)
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
                    self.consumers.credit(consumer, command.limit, command.drain, command.size, command.exact)
            case Attach():
                self._attach(command, effects)
            case Detach():
                consumer = self.consumers.detach(command.consumer)
                if consumer is not None:
                    if self.locks.detached(consumer):
                        pass
                    elif is_much(consumer):
                        self._return_later(consumer)
                    else:
                        runs = consumer.in_flight.everything()
                        self._settle_runs(consumer, runs, consumer.options.default_outcome, effects)
                    if self.deliveries.order is not None:
                        self._detached(consumer, self.deliveries.order)
            case Lose():
                self._lose(command, effects)
            case SettleLocked():
                self._settle_locked(command, now_ms, effects)
            case RenewLock():
                self._pass_time(now_ms, effects)
                until_ms = self.locks.renew(command.key, command.number, command.sequence, now_ms)
                effects.append(LockAnswer(until_ms is not None, until_ms or 0))
            case RenewDeliveries():
                self._pass_time(now_ms, effects)
                consumer = self.consumers.by_id.get(command.consumer)
                renewed: list[int | None] = [0] * len(command.numbers)
                if consumer is not None:
                    renewed = self.locks.renew_deliveries(consumer, command.numbers, now_ms)
                effects.append(Renewed(renewed))
            case Tick():
                self._pass_time(now_ms, effects)
            case Fetched():
                self._fetched(command, now_ms, effects)
            case Purge():
                self.counters.purged += self.ready.count + self._delayed.count
                purged = self.ready.clear() if self.special is None else self.special.clear()
                if len(purged) > limits.PURGED_AT_ONCE:
                    effects.append(Purged(purged))
                else:
                    effects.extend(removed(run, Reason.PURGED) for run in purged)
            case Peek():
                effects.append(self._peek(command))
            case Restore():
                self._restore(command, now_ms)
            case Cancel():
                called_off = None if self.special is None else self.special.cancel(command.sequence)
                if called_off is not None:
                    self.counters.cancelled += called_off.count
                    effects.append(removed(called_off, Reason.CANCELLED))
            case Change():
                self.change(command.policy, now_ms)
                if self.policy.guarded:
                    self._trim(effects)
            case Open():
                self._open(command, now_ms)
                if self.policy.guarded:
                    self._trim(effects)
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

    def _lose(self, command: Lose, effects: list[Effect]) -> None:
        """Nobody failed but the broker: what the consumer holds comes back as it was."""
        consumer = self.consumers.by_id.get(command.consumer)
        if consumer is None:
            return
        if not consumer.options.lock_key:
            consumer.options = replace(consumer.options, default_outcome=RELEASED)
        effects.extend(self.apply(Detach(command.consumer), 0))

    def _return_later(self, consumer: Consumer) -> None:
        consumer.departed = True
        self.consumers.departed[consumer.id] = consumer
        self.returning.append(consumer)

    def _bring_back(self, effects: list[Effect]) -> None:
        """Settles some of the messages that detached consumers had in flight, in the order of delivery."""
        while self.returning and self.work.left > 0:
            consumer = self.returning[0]
            line = consumer.in_flight
            if len(line):
                stop = line.head + min(max(1, self.work.left // (2 * RUN)), limits.RETURNED_AT_ONCE)
                last = line.keys[stop] if stop < len(line.keys) else line.keys[-1] + line.runs[-1].count
                last = min(last, line.keys[line.head] + limits.RETURNED_AT_ONCE)
                runs = line.take(line.keys[line.head], last)
                self.work.left -= 2 * RUN * len(runs)
                self._settle_runs(consumer, runs, consumer.options.default_outcome, effects)
            if not len(consumer.in_flight):
                self.returning.pop(0)
                self.consumers.departed.pop(consumer.id, None)

    def _settle_locked(self, command: SettleLocked, now_ms: int, effects: list[Effect]) -> None:
        self._pass_time(now_ms, effects)
        consumer = self.locks.holder(command.key, command.number, command.sequence)
        if consumer is not None:
            runs = consumer.in_flight.take(command.number, command.number + 1)
            self._settle_runs(consumer, runs, command.outcome, effects)
            self.locks.settled(consumer)
        effects.append(LockAnswer(consumer is not None, 0))

    # --- time -----------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """When the machine wants a Tick (or a dispatch, which does the same), or None."""
        if self.returning or self.is_over or self.deliveries.unfinished:
            return 0
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

    @property
    def is_unfinished(self) -> bool:
        """Whether consumers have not seen, or not been given, everything they may: a turn has its end."""
        order = self.deliveries.order
        return self.deliveries.unfinished or (order is not None and order.unfinished)

    def _pass_time(self, now_ms: int, effects: list[Effect]) -> None:
        for consumer, first, last in self.locks.due(now_ms, self.work):
            self._unlock(consumer, first, last, effects)
        for run in self.eviction.retry(now_ms):
            self.deadlines.add(run)
        if len(self.deferred):
            effects.extend(Fetch(run) for run in self.deferred.wanted())
        if self._untold:
            effects.extend(self._untold)
            self._untold = []
        special = self.special
        if special is not None:
            special.wake(now_ms)
            if self.policy.guarded:
                self._trim(effects)
        for first, last in self.deadlines.due(now_ms, self.work):
            self._expire(self.ready, first, last, now_ms, effects)
            if special is not None and special.delays is not None:
                self._expire(special.delays.line, first, last, now_ms, effects)
        self._forget_deadlines(now_ms)

    def _forget_deadlines(self, now_ms: int) -> None:
        """Entries of messages that do not wait any more are not kept until they are due."""
        deadlines = self.deadlines
        if self.special is None:
            ready = self.ready
            first = ready.runs[ready.head].sequence if ready.count else self.next_sequence
            deadlines.forget_before(first, now_ms)
        if len(deadlines.heap) > limits.STALE_ENTRIES_MIN and deadlines.crowded(
            len(self.ready) + len(self._delayed)
        ):
            deadlines.thin(self.waiting())

    def _is_late(self, now_ms: int) -> bool:
        """Whether the work of this turn did not suffice for what has expired, or was locked until now."""
        expiring, locked = self.deadlines.heap, self.locks.heap
        return bool((expiring and expiring[0][0] <= now_ms) or (locked and locked[0][0] <= now_ms))

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
            if self.policy.guarded:
                # What was delayed and is ready now may give way.
                self._trim(effects)
        if self.returning:
            self._bring_back(effects)
        elif self.is_over:
            self._trim(effects)
        deliveries = self.deliveries
        if self.work.left <= 0 and (self.returning or self._is_late(now_ms)):
            # What should have left the queue by now, or should be in it again, comes first.
            return effects
        blocked = deliveries.hand_out(effects, now_ms)
        if self.deadlines.heap:
            self._forget_deadlines(now_ms)
        if self.ready.evicted_runs and (
            blocked or self.eviction.unseen_bytes >= self.eviction.head_bytes >> 3
        ):
            order = deliveries.order
            ahead = self.eviction.look_ahead() if order is None else order.look_ahead()
            effects.extend(Fetch(run) for run in ahead)
        if self.consumers.draining:
            deliveries.drain(effects)
        if self._joining_bytes >= limits.JOIN_AT_BYTES:
            self._join()
        self._known_to = self.next_sequence
        return effects

    # --- memory and disk ------------------------------------------------------------------------------

    def _fetched(self, command: Fetched, now_ms: int, effects: list[Effect]) -> None:
        missing = False
        if len(self.deferred):
            missing = self._resume(command, effects)
        special = self.special
        if special is not None and special.loading.is_active and self.deliveries.evicted_count:
            unread, again = special.loading.learn(command)
            missing |= again
            for run in unread:
                self.deliveries.lost(run)
                self.counters.lost += run.count
                effects.append(removed(run, Reason.LOST))
        came, lost = self.eviction.fill(command, now_ms, missing=missing)
        if len(self.deferred):
            effects.extend(Fetch(run) for run in self.deferred.wanted())
        is_joined = self.eviction.joins or (special is not None and special.loading.is_active)
        for run in came:
            if is_joined or (run.batch.expires_at_ms or now_ms + 1) <= now_ms:
                # What was one run on disk has one entry, for its earliest; a single message that was looked
                # into has its own, until it was due.
                self.deadlines.add(run)
        for run in lost:
            self.counters.lost += run.count
            if self.deliveries.order is not None:
                self.deliveries.order.removed(run)
            effects.append(removed(run, Reason.LOST))
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
        if command.joins and (special is None or not special.singles):
            # Joined messages share the earliest time of arrival: delays count from each one's own.
            runs = join_neighbours(runs)
        for run in merge_evicted(runs, {}):
            self.ready.add(run)
            self.deadlines.add(run)
            self.counters.restored += run.count
        self.next_sequence = self._joined_to = self._known_to = command.next_sequence
        if special is not None:
            special.build(Past(), now_ms)
        if self.deliveries.order is not None:
            self.deliveries.order.enqueued(command.next_sequence)
        self._know(command.ids)

    def _know(self, ids: Sequence[tuple[int, bytes]]) -> None:
        if ids:
            # Whether they are needed is for the policy to say, which may come later.
            self.duplicates = self.duplicates or Duplicates(self._look)
            self.duplicates.restore(ids)

    def _open(self, command: Open, now_ms: int) -> None:
        active: Consumer | None = None
        deliveries = self.deliveries
        for holder, consumer in holders_of(command.holders, self.ready):
            self.consumers.adopt(consumer)
            self._selecting += consumer.options.selects is not None and not consumer.departed
            if consumer.options.lock_key:
                self.locks.by_key[consumer.options.lock_key] = consumer
            if holder.active:
                active = consumer
            for run in consumer.in_flight.runs:
                deliveries.take_over(run)
        self.locks.heap = list(command.locks)
        heapify(self.locks.heap)
        deliveries.seen_to = command.seen_to
        self._know(command.ids)
        self._known_to = self._joined_to = self.next_sequence
        self.change(command.policy, now_ms, command.past)
        if active is not None:
            self.consumers.activate(active)
        self.deadlines.thin(self.waiting())

    # --- policy and selection -------------------------------------------------------------------------

    def change(self, policy: Policy, now_ms: int, past: Past | None = None) -> None:
        """Follows another policy from now on: what is waiting is arranged as it says.

        What is in flight stays with its consumers. A dispatch should follow. Raises ValueError for a policy
        that asks for what does not go together.
        """
        policy.check()
        if self.name.endswith(DEAD_LETTER_SUFFIX):
            policy = replace(policy, dead_letter=False)
        before, self.policy = self.policy, policy
        if past is not None or policy.arrangement != before.arrangement:
            self._arrange(policy, now_ms, past)
        for consumer in self.consumers.follow(policy):
            self.locks.begin(consumer, now_ms)
        if policy.duplicate_window_ms is None:
            self.duplicates = None
        elif self.duplicates is None:
            self.duplicates = Duplicates(self._look)

    def _arrange(self, policy: Policy, now_ms: int, past: Past | None) -> None:
        """What is waiting is put where this policy wants it."""
        runs = self.waiting()
        if self.special is not None:
            self.special.replacing.tell(self._untold)
            if self._untold:
                # An entry that expires nothing: the next dispatch passes the time, and tells.
                heappush(self.deadlines.heap, (0, 0, 0))
        sparse = Sparse() if policy.is_special else None
        ready = Ready() if sparse is None else sparse
        for run in merge_evicted([whole(run) for run in rejoined(runs)], self.eviction.fetching):
            ready.add(run)
        self.ready = self.deliveries.ready = ready
        self.eviction.follow(ready, None, joins=True)
        for consumer in self.consumers:
            consumer.in_flight.evicted_to = 0
            if consumer.ring is not None:
                consumer.cursor = 0
        self.consumers.passed_over = False
        self.special = self.deliveries.order = None
        if policy.groups:
            self.deferred.disown()
        if sparse is not None:
            self.special = Special(
                policy,
                self._look,
                sparse,
                self.consumers,
                self.eviction,
                self.deliveries,
                self.counters,
                self.work,
            )
            self.special.build(past or Past(), now_ms)
            self.deliveries.order = self.special.order
            self.special.order.enqueued(self.next_sequence)
        elif self._selecting:
            order = self.deliveries.order = Order(ready, self.eviction, self.deliveries, self.next_sequence)
            for consumer in self.consumers.by_id.values():
                order.attach(consumer)

    @property
    def may_keep(self) -> bool:
        """Whether messages may be ready that no consumer takes, whatever credit there is."""
        return bool(self._selecting or self.policy.groups or self.ready.barred_runs)

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


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def is_much(consumer: Consumer) -> bool:
    """Whether a consumer has more in flight than comes back at once."""
    line = consumer.in_flight
    return bool(len(line)) and (
        line.keys[-1] - line.keys[line.head] + line.runs[-1].count > limits.RETURNED_AT_ONCE
    )
