"""Removals: messages that leave a queue without a consumer's outcome: they expire, or are discarded.

What the end of a consumer means for its unsettled deliveries (ADR 5) is decided here as well.
"""

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappush
from typing import Final

from lightrail.model.attempts import failures
from lightrail.model.links import Ending
from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.lines.line import GONE
from lightrail.shard.queue.lines.merging import parts_of
from lightrail.shard.queue.lines.ready import Ready
from lightrail.shard.queue.timed.aside import Aside
from lightrail.shard.queue.values.commands import RELEASED, Cancel, Delete, Outcome, OutcomeKind
from lightrail.shard.queue.values.counters import LEAVING, LETTER, LETTER_MESSAGE, RUN
from lightrail.shard.queue.values.effects import DeadLetter, Effect, Fetch, Reason, Removed
from lightrail.shard.queue.values.policy import DISCARD_EXISTING, excess
from lightrail.shard.queue.values.runs import Run


def outcome_of_rest(default: Outcome, ending: Ending) -> Outcome:
    """The outcome of the deliveries of a consumer that has ended; not of the oldest one of a failed client.

    Args:
        default: the default-outcome of the source.
    """
    has_decided = ending is Ending.BY_CLIENT and default.kind <= OutcomeKind.REJECTED
    return default if has_decided else RELEASED


def fails_oldest(default: Outcome, ending: Ending) -> bool:
    """Whether the oldest delivery of a consumer that has ended counts as failed (ADR 5).

    It does not if the source names an outcome that does not count (messaging 3.5.3), as one that only looks.
    """
    if default.kind is OutcomeKind.MODIFIED:
        return ending is Ending.FAILED and default.delivery_failed
    return ending is Ending.FAILED and default.kind is not OutcomeKind.RELEASED


EXPIRED_AT_ONCE: Final[int] = 500
"""Messages of one batch that become dead letters in one step."""
_EXPIRED: Final = Outcome(OutcomeKind.REJECTED)
"""The outcome for expired deferred messages whose bytes have to be read first."""


@dataclass(slots=True, eq=False, repr=False)
class Removals:
    """Removes messages from one queue."""

    _contents: Contents
    is_over: bool = False
    """Whether the queue exceeds its bounds because the work of a turn was used up."""

    def expire(
        self,
        ready: Ready,
        first: int,
        last: int,
        now_ms: int,
        effects: list[Effect],
        spared: Collection[int] = (),
    ) -> None:
        """Removes expired messages with these sequences from a line; those that are only on disk are fetched
        first.

        When the work of this turn is used up, the rest stays among the deadlines.

        Args:
            spared: sequences of messages, a run each, whose time to live has not begun.
        """
        contents = self._contents
        index = ready.index(first)
        work = contents.work
        while index < len(ready.runs) and ready.runs[index].sequence < last:
            run = ready.runs[index]
            expires_at_ms = run.batch.expires_at_ms
            if work.left <= 0:
                heappush(contents.deadlines.heap, (now_ms, max(first, run.sequence), last))
                return
            work.left -= RUN
            if expires_at_ms is None or expires_at_ms > now_ms or run.sequence in spared:
                index += 1
            elif run.batch.data is None:
                if contents.eviction.ask(run):
                    effects.append(Fetch(run))
                index += 1
            else:
                if self._buries(Reason.EXPIRED):
                    run, rest = parts_of(run, min(run.count, EXPIRED_AT_ONCE))
                    ready.swap(index, index + 1, [rest] if rest.count else [])
                else:
                    ready.swap(index, index + 1, [])
                index = ready.index(run.end)
                contents.counters.expired += run.count
                if contents.deliveries.order is not None:
                    contents.deliveries.order.removed(run)
                self.discard(run, Reason.EXPIRED, effects)

    def trim(self, effects: list[Effect]) -> None:
        """With discard_existing: removes the oldest ready messages until the rest is within the bounds.

        A message that is dead-lettered and only on disk is fetched first.
        """
        self.is_over = False
        contents = self._contents
        if contents.policy.overflow != DISCARD_EXISTING:
            return
        ready = contents.ready
        buries = contents.policy.discard_to_dead_letter and contents.policy.dead_letter
        index = ready.head
        while ready.count:
            if contents.work.left <= 0:
                self.is_over = True
                return
            messages, size = excess(contents.policy, contents.held, contents.held_bytes)
            if messages <= 0 and size <= 0:
                return
            run = ready.runs[index]
            if run is GONE:
                index += 1
                continue
            if buries and run.batch.data is None:
                if contents.eviction.ask(run):
                    effects.append(Fetch(run))
                return
            count = max(messages, 1)
            while count < run.count and run.cut(0, count).size < size:
                count += 1
            if buries:
                count = min(count, EXPIRED_AT_ONCE)
            oldest, rest = parts_of(run, min(count, run.count))
            contents.work.left -= RUN
            ready.swap(index, index + 1, [rest] if rest.count else [])
            index = ready.index(oldest.end)
            if contents.deliveries.order is not None:
                contents.deliveries.order.removed(oldest)
            contents.eviction.unseen_bytes += oldest.size
            if buries:
                self.discard(oldest, Reason.QUEUE_FULL, effects)
            else:
                discarded = contents.counters.discarded
                discarded[Reason.DISCARDED] = discarded.get(Reason.DISCARDED, 0) + oldest.count
                contents.work.left -= LEAVING
                effects.append(removed(oldest, Reason.DISCARDED))

    def apply(self, command: Cancel | Delete, effects: list[Effect]) -> None:
        """Removes what a client names."""
        if isinstance(command, Delete):
            self._delete(command.first, command.last, effects)
        else:
            self._cancel(command.sequence, effects)

    def _delete(self, first: int, last: int, effects: list[Effect]) -> None:
        """Removes ready messages with sequences from `first` to before `last`."""
        contents = self._contents
        ready = contents.ready
        index = ready.index(first)
        while index < len(ready.runs) and ready.runs[index].sequence < last:
            run = ready.runs[index]
            if run is GONE or run.end <= first:
                index += 1
                continue
            before, run = parts_of(run, max(0, first - run.sequence))
            run, behind = parts_of(run, min(run.end, last) - run.sequence)
            ready.swap(index, index + 1, [part for part in (before, behind) if part.count])
            index = ready.index(run.end)
            contents.work.left -= RUN + LEAVING
            contents.counters.purged += run.count
            contents.eviction.unseen_bytes += run.size
            if contents.deliveries.order is not None:
                contents.deliveries.order.removed(run)
            effects.append(removed(run, Reason.PURGED))

    def _cancel(self, sequence: int, effects: list[Effect]) -> None:
        """Removes a delayed message before its time, if it is (still) delayed."""
        contents = self._contents
        cancelled = None if contents.special is None else contents.special.cancel(sequence)
        if cancelled is not None:
            contents.counters.cancelled += cancelled.count
            effects.append(removed(cancelled, Reason.CANCELLED))

    # --- deferred and waiting messages ------------------------------------------------------------------

    def take_apart(self, apart: Aside) -> list[Run]:
        """Removes and returns all messages of those that are set aside."""
        runs = apart.everything()
        for run in runs:
            self._took_aside(run)
        self._leave_group(apart, runs)
        return runs

    def expire_apart(self, apart: Aside, first: int, last: int, now_ms: int, effects: list[Effect]) -> None:
        """Removes expired messages with these sequences of those that are set aside; see `expire`."""
        contents = self._contents
        for run in apart.consumer.in_flight.between(first, last):
            if run.batch.expires_at_ms is None or run.batch.expires_at_ms > now_ms:
                continue
            start = run.sequence
            while start < run.end:
                if contents.work.left <= 0:
                    heappush(contents.deadlines.heap, (now_ms, start, last))
                    return
                contents.work.left -= RUN
                stop = min(run.end, start + EXPIRED_AT_ONCE)
                for piece in apart.take_between(start, stop):
                    if piece.batch.data is None and contents.policy.dead_letter:
                        contents.deferred.add(apart.consumer, piece, _EXPIRED, unlocked=False)
                        contents.consumers.deferred = contents.deferred.consumer
                    else:
                        if piece.batch.data is None:
                            contents.deliveries.returns(piece)
                        self._forget_keys(piece)
                        self._leave_group(apart, [piece])
                        self.expire_deferred([piece], effects)
                start = stop
        if len(contents.deferred):
            effects.extend(Fetch(run) for run in contents.deferred.wanted())

    def expire_deferred(self, runs: list[Run], effects: list[Effect]) -> None:
        """Removes expired deferred or waiting messages that are no longer aside."""
        contents = self._contents
        for run in runs:
            contents.deliveries.count -= run.count
            contents.deliveries.bytes -= run.size
            contents.counters.expired += run.count
            self.discard(run, Reason.EXPIRED, effects)

    def _leave_group(self, apart: Aside, runs: list[Run]) -> None:
        """Lets the groups of waiting messages go on, which have left the queue."""
        order = self._contents.deliveries.order
        if order is not None and apart is self._contents.retries:
            order.settling(apart.consumer, runs)

    def _took_aside(self, run: Run) -> None:
        """Subtracts messages that were set aside and have left the queue from the sums."""
        self._contents.deliveries.leave(run)
        self._forget_keys(run)

    def _forget_keys(self, run: Run) -> None:
        if self._contents.special is not None:
            self._contents.special.keys.forget(run)

    def take_state(self, sequence: int) -> Run | None:
        """Removes and returns the state of a session; None if it was lost."""
        run = self._contents.states.take(sequence)
        if run is not None:
            self._took_aside(run)
        return run

    # --- dead letters -----------------------------------------------------------------------------------

    def discard(
        self, run: Run, reason: Reason, effects: list[Effect], outcome: Outcome | None = None
    ) -> None:
        """Dead-letters a run if the policy requires it, else removes it."""
        contents = self._contents
        if run.is_aside:
            # The dead letter is not.
            run = Run(run.batch, run.first, run.last, run.sequence, failures(run.attempts), run.barred)
        buries = self._buries(reason)
        counts = contents.counters.dead_lettered if buries else contents.counters.discarded
        counts[reason] = counts.get(reason, 0) + run.count
        contents.work.left -= LEAVING
        if buries:
            contents.work.left -= LETTER + LETTER_MESSAGE * run.count
            why = () if outcome is None else (outcome.condition, outcome.description, outcome.annotations)
            effects.append(DeadLetter(run, reason, *why))
        else:
            effects.append(removed(run, reason))

    def _buries(self, reason: Reason) -> bool:
        """Whether messages that leave for this reason become dead letters."""
        policy = self._contents.policy
        return policy.dead_letter and (policy.expired_to_dead_letter or reason is not Reason.EXPIRED)


def removed(run: Run, reason: Reason) -> Removed:
    return Removed(run.batch, run.sequence, run.end, run.size, reason)
