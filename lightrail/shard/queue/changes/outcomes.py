"""Outcomes: how delivered messages are settled.

They are accepted, rejected, released or modified (messaging 3.4), or their lock expires.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lightrail.model import limits
from lightrail.model.attempts import DEFERRED, failures
from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.changes.removals import Removals, removed
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.memory.disk import gaps_of
from lightrail.shard.queue.timed.aside import ready_again
from lightrail.shard.queue.values.commands import FAILED, RELEASED, Fetched, Outcome, OutcomeKind
from lightrail.shard.queue.values.counters import RUN
from lightrail.shard.queue.values.effects import Effect, Fetch, Reason, Released, Removed, Replaced, Returned
from lightrail.shard.queue.values.policy import largest_message, refuses_batches
from lightrail.shard.queue.values.runs import Run, batch_of

RETURNED_AT_ONCE: Final[int] = 4_000
"""Deliveries that a closing consumer returns at once; more return in several steps."""

Annotate = Callable[[bytes, Any], bytes]
"""Merges the annotations of a modified outcome into an encoded message."""


KEPT: Final = Outcome(OutcomeKind.MODIFIED, undeliverable_here=True)
"""The outcome of rejected messages in a queue of dead letters."""


@dataclass(slots=True, eq=False, repr=False)
class Outcomes:
    """Gives deliveries of one queue their outcomes.

    Args:
        annotate: see `Annotate`; without it annotations are ignored.
    """

    _contents: Contents
    _removals: Removals
    _annotate: Annotate | None
    returning: list[Consumer] = field(default_factory=list)
    """Consumers that detached with very many messages in flight. These return to the queue in pieces;
    nothing is delivered meanwhile, so that they keep their order."""

    # --- delivered messages -----------------------------------------------------------------------------

    def settle(
        self, consumer: Consumer, runs: list[Run], outcome: Outcome, now_ms: int, effects: list[Effect]
    ) -> None:
        """Applies an outcome to runs that were removed from flight."""
        contents = self._contents
        deliveries, counters = contents.deliveries, contents.counters
        if outcome.kind == OutcomeKind.REJECTED and not contents.policy.dead_letter:
            # Only accepted removes a dead letter. It waits for other consumers, so that it does not loop.
            counters.rejected += sum(run.count for run in runs)
            outcome = KEPT
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
                counters.accepted += count
                sequence = run.sequence
                effects.append(Removed(batch, sequence, sequence + count, size, Reason.ACCEPTED))
            return
        if consumer.ends is not None:
            contents.locks.freed(consumer, runs)
        for run in runs:
            deliveries.count -= run.count
            deliveries.bytes -= run.size
        match outcome.kind:
            case OutcomeKind.REJECTED:
                for run in runs:
                    self._contents.counters.rejected += run.count
                    self._removals.discard(run, Reason.REJECTED, effects, outcome)
            case OutcomeKind.RELEASED:
                self._contents.counters.released += sum(run.count for run in runs)
                self._give_back_all(runs)
                if runs and self._contents.policy.captured:
                    effects.append(Released(runs))
            case _:
                self._contents.counters.modified += sum(run.count for run in runs)
                self._modify(consumer, runs, outcome, now_ms, effects)
        if self._contents.policy.guarded:
            self._removals.trim(effects)

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
        """Of runs that were removed from flight, those whose outcome needs no bytes; the others are
        fetched."""
        now: list[Run] = []
        special = self._contents.special
        for run in runs:
            if run.batch.data is not None:
                now.append(run)
            elif self.needs_bytes(run, outcome):
                self._contents.deferred.add(consumer, run, outcome, unlocked=unlocked)
                self._contents.consumers.deferred = self._contents.deferred.consumer
            else:
                self._contents.deliveries.returns(run)
                now.append(run)
                if special is not None and outcome.kind <= OutcomeKind.REJECTED:
                    special.keys.forget(run)
        if len(self._contents.deferred):
            effects.extend(Fetch(run) for run in self._contents.deferred.wanted())
        return now

    def needs_bytes(self, run: Run, outcome: Outcome) -> bool:
        """Whether an outcome changes the messages or copies them."""
        annotates = outcome.kind == OutcomeKind.MODIFIED and outcome.annotations
        return bool(annotates and self._annotate is not None) or self.buries(run, outcome)

    def buries(self, run: Run, outcome: Outcome) -> bool:
        """Whether an outcome moves the messages to the dead-letter queue."""
        policy = self._contents.policy
        if not policy.dead_letter or outcome.kind == OutcomeKind.REJECTED:
            return policy.dead_letter
        fails = outcome.kind == OutcomeKind.MODIFIED and outcome.delivery_failed
        return fails and 0 < policy.max_delivery_count <= failures(run.attempts) + 1

    def resume(self, answer: Fetched, now_ms: int, effects: list[Effect]) -> bool:
        """Applies the outcome to fetched deliveries; returns whether some have to be fetched again."""
        found, missing = self._contents.deferred.fill(answer)
        for consumer, holder, outcome, unlocked, run, pieces in found:
            self._contents.deliveries.returns(run)
            # The size of a part of a batch on disk was an estimate.
            self._contents.deliveries.bytes += sum(piece.size for piece in pieces) - run.size
            if self._contents.special is not None:
                self._contents.special.keys.forget(run)
            if self._contents.deliveries.order is not None:
                # This is for its holder; the outcome below is that of the consumer that received it.
                self._contents.deliveries.order.settling(holder, [run])
            for gone in gaps_of(pieces, run):
                # Its bytes are not in the pieces.
                self._contents.deliveries.count -= gone.count
                self._contents.counters.lost += gone.count
                effects.append(removed(gone, Reason.LOST))
            if unlocked:
                self._fail(consumer, pieces, now_ms, effects)
            elif any(consumer is apart.consumer for apart in self._contents.set_apart):
                self._removals.expire_deferred(pieces, effects)
            else:
                self.settle(consumer, pieces, outcome, now_ms, effects)
        if not len(self._contents.deferred):
            self._contents.consumers.deferred = None
        return missing

    # --- consumers that detached -----------------------------------------------------------------------

    def return_later(self, consumer: Consumer, outcome: Outcome) -> None:
        """Settles the deliveries of a detached consumer, of which there are very many, in later steps."""
        consumer.departed = True
        consumer.options = replace(consumer.options, default_outcome=outcome)
        self._contents.consumers.departed[consumer.id] = consumer
        self.returning.append(consumer)

    def settle_returned(self, now_ms: int, effects: list[Effect]) -> None:
        """Settles some of the deliveries of detached consumers, in their order."""
        while self.returning and self._contents.work.left > 0:
            consumer = self.returning[0]
            line = consumer.in_flight
            if len(line):
                stop = line.head + min(max(1, self._contents.work.left // (2 * RUN)), RETURNED_AT_ONCE)
                last = line.keys[stop] if stop < len(line.keys) else line.keys[-1] + line.runs[-1].count
                last = min(last, line.keys[line.head] + RETURNED_AT_ONCE)
                runs = line.take(line.keys[line.head], last)
                self._contents.work.left -= 2 * RUN * len(runs)
                self.settle(consumer, runs, consumer.options.default_outcome, now_ms, effects)
            if not len(consumer.in_flight):
                self.returning.pop(0)
                self._contents.consumers.departed.pop(consumer.id, None)

    # --- back to the queue --------------------------------------------------------------------------------

    def _modify(
        self, consumer: Consumer, runs: list[Run], outcome: Outcome, now_ms: int, effects: list[Effect]
    ) -> None:
        if self._contents.deliveries.order is not None:
            # Callers without an outcome of the consumer have not called it; a second call has no effect.
            self._contents.deliveries.order.settling(consumer, runs)
        returned: list[Run] = []
        back: list[Run] = []
        policy = self._contents.policy
        count_max = policy.max_delivery_count if policy.dead_letter else 0
        captured = policy.captured
        room = self._room_to_grow(runs) if outcome.annotations else 0
        for run in runs:
            attempts = run.attempts + outcome.delivery_failed | DEFERRED * outcome.defers
            barred = run.barred
            if outcome.undeliverable_here and consumer.id not in barred:
                barred = (*barred, consumer.id)
            changed = Run(run.batch, run.first, run.last, run.sequence, attempts, barred)
            if outcome.delivery_failed and count_max and failures(attempts) >= count_max:
                why = f"delivery failed {failures(attempts)} times, {count_max} are allowed"
                last = outcome._replace(condition="", description=why)
                self._removals.discard(changed, Reason.MAX_DELIVERY_COUNT, effects, last)
                continue
            rewritten = self._rewrite(changed, outcome.annotations, room) if outcome.annotations else None
            staying = [changed]
            if rewritten is not None:
                changed = rewritten
                room -= changed.size - run.size
                effects.append(Replaced(changed, run))
                staying = self._put_off(changed, now_ms)
            waits = outcome.delivery_failed and policy.retry_delay_ms and not changed.is_deferred
            if waits and self._may_wait:
                until_ms = now_ms + policy.retry_ms(failures(attempts))
                staying = [piece.until(until_ms) for piece in staying]
                returned += staying
            elif captured or (rewritten is None and attempts != run.attempts):
                returned.append(changed)
            back += staying
        self._give_back_all(back)
        if returned:
            effects.append(Returned(returned))

    @property
    def _may_wait(self) -> bool:
        """Whether failed messages wait by themselves.

        If memory is short and many wait, the next ones are ready at once, and their consumers get none before
        some have waited (ADR 54): a ready message is one run with its neighbours.
        """
        retries = self._contents.retries
        return retries is None or len(retries) < self._contents.work.unsettled_runs_max

    def _put_off(self, run: Run, now_ms: int) -> list[Run]:
        """Delays messages whose new annotations require it; returns the others."""
        if self._contents.special is None or run.is_deferred:
            return [run]
        ready = self._contents.special.put_off(run, now_ms)
        if run.batch.expires_at_ms is not None and sum(each.count for each in ready) < run.count:
            self._contents.deadlines.add(run)
        return ready

    def _room_to_grow(self, runs: list[Run]) -> int:
        """Number of bytes by which returned runs may grow within the queue's bounds."""
        if self._contents.policy.max_bytes is None or not refuses_batches(self._contents.policy):
            return limits.MAX_MESSAGE_BYTES
        return self._contents.policy.max_bytes - self._contents.held_bytes - sum(run.size for run in runs)

    def _rewrite(self, run: Run, annotations: Any, room: int) -> Run | None:
        """The same messages with merged annotations, in a separate batch; None if nothing changes.

        A message that would be larger than the queue takes, or would not fit into it, is not annotated
        (messaging 3.4.5 has no error for that): it returns as it was, and is counted.
        """
        if self._annotate is None:
            return None
        batch = run.batch
        largest = largest_message(self._contents.policy) or limits.MAX_MESSAGE_BYTES
        messages = run.messages()
        changes = False
        for index, message in enumerate(messages):
            annotated = self._annotate(message, annotations)
            growth = len(annotated) - len(message)
            if annotated is message or (growth > 0 and (len(annotated) > largest or growth > room)):
                self._contents.counters.unannotated += 1
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
        """Makes a run ready again, at its position by sequence, or sets it aside."""
        if run.is_aside:
            self._contents.set_aside(run)
            if run.waits and self._contents.special is not None and self._contents.retries is not None:
                self._contents.special.hold_group(self._contents.retries.consumer, run)
            return
        if self._contents.special is not None:
            self._contents.special.give_back(run)
        else:
            if run.batch.data is None:
                self._contents.eviction.give_back(run)
            else:
                self._contents.ready.give_back(run)
            if self._contents.deliveries.order is not None:
                self._contents.deliveries.order.returned(run)
        if run.batch.expires_at_ms is not None:
            self._contents.deadlines.add(run)
        if self._contents.consumers.passed_over:
            self._contents.consumers.look_again(run.sequence)

    def _give_back_all(self, runs: list[Run]) -> None:
        """Like `_give_back` for many runs."""
        if len(runs) < limits.GIVEN_BACK_ONE_BY_ONE:
            for run in runs:
                self._give_back(run)
            return
        in_memory: list[Run] = []
        for run in runs:
            if run.batch.data is None or run.is_aside:
                # It joins its neighbours on disk; few are left, as those in flight were joined before.
                self._give_back(run)
            else:
                in_memory.append(run)
        if not in_memory:
            return
        runs = sorted(in_memory, key=lambda run: run.sequence)
        if self._contents.special is not None:
            self._contents.special.give_back_all(runs)
        else:
            self._contents.ready.give_back_all(runs)
            if self._contents.deliveries.order is not None:
                for run in runs:
                    self._contents.deliveries.order.returned(run)
        for run in runs:
            if run.batch.expires_at_ms is not None:
                self._contents.deadlines.add(run)
        if self._contents.consumers.passed_over:
            self._contents.consumers.look_again(runs[0].sequence)

    def unlock(self, consumer: Consumer, first: int, last: int, now_ms: int, effects: list[Effect]) -> None:
        """Ends deliveries whose locks expired: each counts as a failed delivery; or the wait after one."""
        if consumer is self._contents.consumers.retries:
            self._end_wait(first, last, now_ms, effects)
            return
        blame = consumer.blame
        parts = ((first, last, True),) if blame is None else blame.parts(first, last)
        for start, stop, counts in parts:
            runs = consumer.in_flight.take(start, stop)
            self._contents.work.left -= 4 * RUN * (len(runs) + 1)
            if not counts:
                self._contents.counters.locks_expired += sum(run.count for run in runs)
                self.settle(consumer, runs, RELEASED, now_ms, effects)
                continue
            if self._contents.deliveries.evicted_count:
                runs = self._settle_evicted(consumer, runs, FAILED, effects, unlocked=True)
            self._fail(consumer, runs, now_ms, effects)
        self._contents.locks.settled(consumer)

    def _end_wait(self, first: int, last: int, now_ms: int, effects: list[Effect]) -> None:
        """Makes messages ready that have waited after a failed delivery."""
        contents = self._contents
        deliveries, special, retries = contents.deliveries, contents.special, contents.retries
        assert retries is not None, "only waiting messages are locked for this consumer"
        runs = retries.take_ended(first, last, now_ms)
        contents.work.left -= 4 * RUN * (len(runs) + 1)
        for run in runs:
            deliveries.leave(run)
        if deliveries.order is not None:
            deliveries.order.settling(retries.consumer, runs)
        singles = special is not None and special.singles
        self._give_back_all([piece for run in runs for piece in ready_again(run, singles=singles)])
        if contents.policy.guarded:
            self._removals.trim(effects)

    def _fail(self, consumer: Consumer, runs: list[Run], now_ms: int, effects: list[Effect]) -> None:
        """Returns runs whose lock expired."""
        if consumer.ends is not None:
            self._contents.locks.freed(consumer, runs)
        if self._contents.deliveries.order is not None:
            self._contents.deliveries.order.settling(consumer, runs)
        for run in runs:
            self._contents.deliveries.count -= run.count
            self._contents.deliveries.bytes -= run.size
            self._contents.counters.locks_expired += run.count
        self._modify(consumer, runs, FAILED, now_ms, effects)
        if self._contents.policy.guarded:
            self._removals.trim(effects)


def is_much(consumer: Consumer) -> bool:
    """Whether a consumer has more in flight than returns to the queue at once."""
    line = consumer.in_flight
    return bool(len(line)) and (line.keys[-1] - line.keys[line.head] + line.runs[-1].count > RETURNED_AT_ONCE)
