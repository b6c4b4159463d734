"""Outcomes: what becomes of messages that were delivered, and how messages leave a queue unasked.

Delivered ones are accepted, rejected, given back or changed (messaging 3.4), or their lock runs out; others
expire, or give way to newer ones where the policy bounds the queue.
"""

from collections.abc import Callable
from heapq import heappush
from typing import Any

from lightrail.model import limits
from lightrail.shard.queue import bounds
from lightrail.shard.queue.commands import FAILED, Fetched, Outcome, OutcomeKind
from lightrail.shard.queue.consumers import Consumer
from lightrail.shard.queue.contents import Contents
from lightrail.shard.queue.effects import (
    DeadLetter,
    Effect,
    Fetch,
    Reason,
    Released,
    Removed,
    Replaced,
    Returned,
)
from lightrail.shard.queue.fetched import gaps_of
from lightrail.shard.queue.keys import Look
from lightrail.shard.queue.line import GONE
from lightrail.shard.queue.merging import parts_of
from lightrail.shard.queue.ready import Ready
from lightrail.shard.queue.runs import Batch, Run, batch_of
from lightrail.shard.queue.work import LEAVING, LETTER, LETTER_MESSAGE, RUN, Work

Annotate = Callable[[bytes, Any], bytes]
"""Merges the annotations of a modified outcome into an encoded message."""


class Outcomes(Contents):
    """The ways out of one queue."""

    __slots__ = ("_annotate",)

    def __init__(self, name: str, annotate: Annotate | None, look: Look | None, work: Work | None) -> None:
        super().__init__(name, look, work)
        self._annotate = annotate

    # --- delivered messages -----------------------------------------------------------------------------

    def _settle_runs(
        self, consumer: Consumer, runs: list[Run], outcome: Outcome, effects: list[Effect]
    ) -> None:
        """Gives runs that were taken out of flight their outcome."""
        deliveries = self.deliveries
        if deliveries.evicted_count:
            runs = self._settle_evicted(consumer, runs, outcome, effects)
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
                    self._discard(run, Reason.REJECTED, effects, outcome)
            case OutcomeKind.RELEASED:
                self.counters.released += sum(run.count for run in runs)
                self._give_back_all(runs)
                if runs and self.policy.captured:
                    effects.append(Released(runs))
            case _:
                self.counters.modified += sum(run.count for run in runs)
                self._modify(consumer, runs, outcome, effects)
        if self.policy.guarded:
            self._trim(effects)

    # --- messages that are only on disk -------------------------------------------------------------------

    def _settle_evicted(
        self,
        consumer: Consumer,
        runs: list[Run],
        outcome: Outcome,
        effects: list[Effect],
        *,
        unlocked: bool = False,
    ) -> list[Run]:
        """Of runs that were taken out of flight those that may have their outcome now; the rest is read."""
        now: list[Run] = []
        special = self.special
        for run in runs:
            if run.batch.data is not None:
                now.append(run)
            elif self._needs_bytes(run, outcome):
                self.deferred.add(consumer, run, outcome, unlocked=unlocked)
                self.consumers.deferred = self.deferred.consumer
            else:
                self.deliveries.returns(run)
                now.append(run)
                if special is not None and outcome.kind <= OutcomeKind.REJECTED:
                    special.keys.forget(run)
        if len(self.deferred):
            effects.extend(Fetch(run) for run in self.deferred.wanted())
        return now

    def _needs_bytes(self, run: Run, outcome: Outcome) -> bool:
        """Whether an outcome is written into the messages, or copies them."""
        if outcome.kind == OutcomeKind.REJECTED:
            return self.policy.dead_letter
        if outcome.kind != OutcomeKind.MODIFIED:
            return False
        if outcome.annotations and self._annotate is not None:
            return True
        count_max = self.policy.max_delivery_count if self.policy.dead_letter else 0
        return outcome.delivery_failed and 0 < count_max <= run.attempts + 1

    def _resume(self, answer: Fetched, effects: list[Effect]) -> bool:
        """Gives what was read back its outcome; returns whether something has to be asked for again."""
        found, missing = self.deferred.fill(answer)
        for consumer, holder, outcome, unlocked, run, pieces in found:
            self.deliveries.returns(run)
            # Of a part whose size had not been known.
            self.deliveries.bytes += sum(piece.size for piece in pieces) - run.size
            if self.special is not None:
                self.special.keys.forget(run)
            if self.deliveries.order is not None:
                # Here, for its holder; the outcome below is that of the one it was delivered to.
                self.deliveries.order.settling(holder, [run])
            for gone in gaps_of(pieces, run):
                # Its bytes are not among those of the pieces.
                self.deliveries.count -= gone.count
                self.counters.lost += gone.count
                effects.append(removed(gone, Reason.LOST))
            if unlocked:
                self._fail(consumer, pieces, effects)
            else:
                self._settle_runs(consumer, pieces, outcome, effects)
        if not len(self.deferred):
            self.consumers.deferred = None
        return missing

    # --- back to the queue --------------------------------------------------------------------------------

    def _modify(self, consumer: Consumer, runs: list[Run], outcome: Outcome, effects: list[Effect]) -> None:
        if self.deliveries.order is not None:
            # Whoever comes here without an outcome of the consumer's tells it too; twice does no harm.
            self.deliveries.order.settling(consumer, runs)
        returned: list[Run] = []
        back: list[Run] = []
        count_max = self.policy.max_delivery_count if self.policy.dead_letter else 0
        captured = self.policy.captured
        room = self._room_to_grow(runs) if outcome.annotations else 0
        for run in runs:
            attempts = run.attempts + outcome.delivery_failed
            barred = run.barred
            if outcome.undeliverable_here and consumer.id not in barred:
                barred = (*barred, consumer.id)
            changed = Run(run.batch, run.first, run.last, run.sequence, attempts, barred)
            if outcome.delivery_failed and count_max and attempts >= count_max:
                why = f"delivery failed {attempts} times, {count_max} are allowed"
                last = outcome._replace(condition="", description=why)
                self._discard(changed, Reason.MAX_DELIVERY_COUNT, effects, last)
                continue
            rewritten = self._rewrite(changed, outcome.annotations, room) if outcome.annotations else None
            if rewritten is not None:
                changed = rewritten
                room -= changed.size - run.size
                effects.append(Replaced(changed, run))
                if captured:
                    returned.append(changed)
                back += self._put_off(changed)
                continue
            if captured or attempts != run.attempts:
                returned.append(changed)
            back.append(changed)
        self._give_back_all(back)
        if returned:
            effects.append(Returned(returned))

    def _put_off(self, run: Run) -> list[Run]:
        """Of messages with new annotations, those that are ready at once."""
        if self.special is None:
            return [run]
        ready = self.special.put_off(run)
        if run.batch.expires_at_ms is not None and sum(each.count for each in ready) < run.count:
            self.deadlines.add(run)
        return ready

    def _room_to_grow(self, runs: list[Run]) -> int:
        """By how many bytes runs that come back may grow within the queue's bounds."""
        if self.policy.max_bytes is None or not bounds.refuses(self.policy):
            return limits.MAX_MESSAGE_BYTES
        return self.policy.max_bytes - self.held_bytes - sum(run.size for run in runs)

    def _rewrite(self, run: Run, annotations: Any, room: int) -> Run | None:
        """The same messages with merged annotations, in a batch of their own; None where nothing changes.

        Of a message that would be larger than the queue takes, or would not fit into it, the annotations
        are left out (messaging 3.4.5 has no error for that): it comes back as it was, and is counted.
        """
        if self._annotate is None:
            return None
        batch = run.batch
        largest = bounds.largest(self.policy) or limits.MAX_MESSAGE_BYTES
        messages = run.messages()
        changes = False
        for index, message in enumerate(messages):
            annotated = self._annotate(message, annotations)
            growth = len(annotated) - len(message)
            if annotated is message or (growth > 0 and (len(annotated) > largest or growth > room)):
                self.counters.unannotated += 1
                continue
            room -= growth
            changes = True
            messages[index] = annotated
        if not changes:
            return None
        merged = batch_of(
            messages,
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
            if run.batch.data is None:
                self.eviction.give_back(run)
            else:
                self.ready.give_back(run)
            if self.deliveries.order is not None:
                self.deliveries.order.returned(run)
        if run.batch.expires_at_ms is not None:
            self.deadlines.add(run)
        if self.consumers.passed_over:
            self.consumers.look_again(run.sequence)

    def _give_back_all(self, runs: list[Run]) -> None:
        """The same of many runs."""
        if len(runs) < limits.GIVEN_BACK_ONE_BY_ONE:
            for run in runs:
                self._give_back(run)
            return
        in_memory: list[Run] = []
        for run in runs:
            if run.batch.data is None:
                # It joins its neighbours on disk; few are left, as those in flight were joined before.
                self._give_back(run)
            else:
                in_memory.append(run)
        if not in_memory:
            return
        runs = sorted(in_memory, key=lambda run: run.sequence)
        if self.special is not None:
            self.special.give_back_all(runs)
        else:
            self.ready.give_back_all(runs)
            if self.deliveries.order is not None:
                for run in runs:
                    self.deliveries.order.returned(run)
        for run in runs:
            if run.batch.expires_at_ms is not None:
                self.deadlines.add(run)
        if self.consumers.passed_over:
            self.consumers.look_again(runs[0].sequence)

    def _unlock(self, consumer: Consumer, first: int, last: int, effects: list[Effect]) -> None:
        """The locks of these deliveries ran out: each counts as a failed one."""
        runs = consumer.in_flight.take(first, last)
        self.work.left -= 4 * RUN * (len(runs) + 1)
        if self.deliveries.evicted_count:
            runs = self._settle_evicted(consumer, runs, FAILED, effects, unlocked=True)
        self._fail(consumer, runs, effects)
        self.locks.settled(consumer)

    def _fail(self, consumer: Consumer, runs: list[Run], effects: list[Effect]) -> None:
        """Runs whose lock ran out, and which may have that outcome now."""
        if self.deliveries.order is not None:
            self.deliveries.order.settling(consumer, runs)
        for run in runs:
            self.deliveries.count -= run.count
            self.deliveries.bytes -= run.size
            self.counters.locks_expired += run.count
        self._modify(consumer, runs, FAILED, effects)
        if self.policy.guarded:
            self._trim(effects)

    # --- messages that leave unasked --------------------------------------------------------------------

    def _expire(self, ready: Ready, first: int, last: int, now_ms: int, effects: list[Effect]) -> None:
        """Takes out what is there and due of these sequences; what is only on disk is fetched first.

        What the work of this turn does not suffice for stays among the deadlines.
        """
        index = ready.index(first)
        work = self.work
        while index < len(ready.runs) and ready.runs[index].sequence < last:
            run = ready.runs[index]
            expires_at_ms = run.batch.expires_at_ms
            if work.left <= 0:
                heappush(self.deadlines.heap, (now_ms, max(first, run.sequence), last))
                return
            work.left -= RUN
            if expires_at_ms is None or expires_at_ms > now_ms:
                index += 1
            elif run.batch.data is None:
                if self.eviction.ask(run):
                    effects.append(Fetch(run))
                index += 1
            else:
                if self.policy.dead_letter:
                    run, rest = parts_of(run, min(run.count, limits.EXPIRED_AT_ONCE))
                    ready.swap(index, index + 1, [rest] if rest.count else [])
                else:
                    ready.swap(index, index + 1, [])
                index = ready.index(run.end)
                self.counters.expired += run.count
                if self.deliveries.order is not None:
                    self.deliveries.order.removed(run)
                self._discard(run, Reason.EXPIRED, effects)

    def room(self, batch: Batch, first: int = 0) -> int:
        """How many messages of a batch, from index `first` on, may be enqueued by the policy's bounds."""
        if not bounds.refuses(self.policy):
            return batch.count - first
        return bounds.room(self.policy, self.held, self.held_bytes, batch, first)

    def _trim(self, effects: list[Effect]) -> None:
        """With discard_existing: the oldest ready messages go until the rest is within the bounds.

        What is to be dead-lettered and only on disk is fetched first; then it goes on.
        """
        self.is_over = False
        if self.policy.overflow != bounds.DISCARD_EXISTING:
            return
        ready = self.ready
        buries = self.policy.discard_to_dead_letter and self.policy.dead_letter
        index = ready.head
        while ready.count:
            if self.work.left <= 0:
                self.is_over = True
                return
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
            if buries:
                count = min(count, limits.EXPIRED_AT_ONCE)
            gone, rest = parts_of(run, min(count, run.count))
            self.work.left -= RUN
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
                self.work.left -= LEAVING
                effects.append(removed(gone, Reason.DISCARDED))

    def _discard(
        self, run: Run, reason: Reason, effects: list[Effect], outcome: Outcome | None = None
    ) -> None:
        """Out of this queue: to the dead-letter queue where there is one, else for good."""
        counts = self.counters.dead_lettered if self.policy.dead_letter else self.counters.discarded
        counts[reason] = counts.get(reason, 0) + run.count
        self.work.left -= LEAVING
        if self.policy.dead_letter:
            self.work.left -= LETTER + LETTER_MESSAGE * run.count
            why = () if outcome is None else (outcome.condition, outcome.description, outcome.annotations)
            effects.append(DeadLetter(run, reason, *why))
        else:
            effects.append(removed(run, reason))


def removed(run: Run, reason: Reason) -> Removed:
    return Removed(run.batch, run.sequence, run.end, run.size, reason)
