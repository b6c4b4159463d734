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
from typing import Any, Final

from lightrail.shard.queue.commands import (
    Attach,
    Command,
    Credit,
    Detach,
    Enqueue,
    Fetched,
    Outcome,
    OutcomeKind,
    Peek,
    Purge,
    Restore,
    Settle,
    Tick,
)
from lightrail.shard.queue.consumers import Consumer, Consumers
from lightrail.shard.queue.counters import Counters, Gauges
from lightrail.shard.queue.deliveries import Deliveries
from lightrail.shard.queue.effects import (
    DeadLetter,
    Effect,
    Fetch,
    Peeked,
    Reason,
    Removed,
    Replaced,
    Returned,
    Stored,
)
from lightrail.shard.queue.eviction import Eviction
from lightrail.shard.queue.expiry import Deadlines
from lightrail.shard.queue.merging import JOINED_BYTES, join_neighbours, merge_evicted, on_disk
from lightrail.shard.queue.policy import Policy
from lightrail.shard.queue.ready import Ready
from lightrail.shard.queue.runs import Place, Run, batch_of

__all__ = ["DEAD_LETTER_SUFFIX", "Annotate", "Machine", "Policy"]

DEAD_LETTER_SUFFIX: Final = "/$dlq"
_JOIN_BACKLOG_BYTES: Final = 8 * JOINED_BYTES
"""Ready bytes below which batches are left as they came: they will be delivered before joining pays."""

Annotate = Callable[[bytes, Any], bytes]


class Machine:
    """One queue.

    Args:
        name: of the queue; one that ends with `/$dlq` never dead-letters.
        annotate: merges the annotations of a modified outcome into an encoded message; without it they
            are ignored.
    """

    __slots__ = (
        "_annotate",
        "_joined_to",
        "_joining_bytes",
        "_known_to",
        "consumers",
        "counters",
        "deadlines",
        "deliveries",
        "eviction",
        "name",
        "next_sequence",
        "policy",
        "ready",
    )

    def __init__(self, name: str, policy: Policy | None = None, annotate: Annotate | None = None) -> None:
        policy = policy or Policy()
        if name.endswith(DEAD_LETTER_SUFFIX):
            policy = replace(policy, dead_letter=False)
        self.name = name
        self.policy = policy
        self.next_sequence = 0
        """Of the next message that is enqueued."""
        self.ready = Ready()
        self.consumers = Consumers()
        self.deadlines = Deadlines()
        self.eviction = Eviction(self.ready)
        self.counters = Counters()
        self.deliveries = Deliveries(self.ready, self.consumers, self.eviction, self.counters)
        self._annotate = annotate
        self._joining_bytes = 0
        """Bytes that came since the tail was last joined."""
        self._joined_to = 0
        self._known_to = 0
        """Sequences below were there in an earlier step: the engine has given them their places."""

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
                refused = self.consumers.attach(command.consumer, command.options)
                if refused is not None:
                    effects.append(refused)
            case Detach():
                consumer = self.consumers.detach(command.consumer)
                if consumer is not None:
                    runs = consumer.in_flight.everything()
                    self._settle_runs(consumer, runs, consumer.options.default_outcome, effects)
            case Tick():
                self._pass_time(now_ms, effects)
            case Fetched():
                self._fetched(command, now_ms, effects)
            case Purge():
                for run in self.ready.clear():
                    self.counters.purged += run.count
                    effects.append(_removed(run, Reason.PURGED))
            case Peek():
                effects.append(Peeked(self._peek(command)))
            case Restore():
                self._restore(command)
        return effects

    def _enqueue(self, command: Enqueue, now_ms: int) -> list[Effect]:
        batch = command.batch
        sequence = self.next_sequence
        run = self.ready.add_batch(batch, sequence)
        self.next_sequence = sequence + batch.count
        self.counters.enqueued += batch.count
        self._joining_bytes += batch.size
        if batch.expires_at_ms is not None:
            self.deadlines.add(run)
        return [Stored(run)]

    def _settle(self, command: Settle) -> list[Effect]:
        effects: list[Effect] = []
        consumer = self.consumers.by_id.get(command.consumer)
        if consumer is not None:
            runs = consumer.in_flight.take(command.first, command.last)
            self._settle_runs(consumer, runs, command.outcome, effects)
        return effects

    def _settle_runs(
        self, consumer: Consumer, runs: list[Run], outcome: Outcome, effects: list[Effect]
    ) -> None:
        """Gives runs that were taken out of flight their outcome."""
        deliveries = self.deliveries
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
                self._modify(consumer, runs, outcome, effects)

    def _modify(self, consumer: Consumer, runs: list[Run], outcome: Outcome, effects: list[Effect]) -> None:
        returned: list[Run] = []
        count_max = self.policy.max_delivery_count if self.policy.dead_letter else 0
        for run in runs:
            self.counters.modified += run.count
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
        self.ready.give_back(run)
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
        times = [self.deadlines.next_ms, self.eviction.retries[0][0] if self.eviction.retries else None]
        return min((time for time in times if time is not None), default=None)

    def _pass_time(self, now_ms: int, effects: list[Effect]) -> None:
        for run in self.eviction.retry(now_ms):
            self.deadlines.add(run)
        for first, last in self.deadlines.due(now_ms):
            self._expire(first, last, now_ms, effects)
        self.deadlines.thin(self.ready.waiting(), len(self.ready))

    def _expire(self, first: int, last: int, now_ms: int, effects: list[Effect]) -> None:
        """Takes out what is ready and due of these sequences; what is only on disk is fetched first."""
        ready = self.ready
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
                self._discard(run, Reason.EXPIRED, effects)

    # --- deliveries -----------------------------------------------------------------------------------

    def dispatch(self, now_ms: int) -> list[Effect]:
        """Hands ready runs to consumers with credit; called once per step, after all commands.

        Consumers of the highest priority come first and take turns. A turn brings
        `ceil(ready / consumers with credit)` messages, at most DELIVERY_SLICE_MESSAGES and
        DELIVERY_SLICE_BYTES: everybody gets a share of what is there, in pieces as large as can be.
        """
        effects: list[Effect] = []
        heap = self.deadlines.heap
        if (heap and heap[0][0] <= now_ms) or self.eviction.retries:
            self._pass_time(now_ms, effects)
        deliveries = self.deliveries
        blocked = deliveries.hand_out(effects)
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
        return self.eviction.evict(bytes_wanted)

    def spill_candidates(self, bytes_wanted: int) -> list[Run]:
        """Runs that could be evicted if they had a place; the engine writes them and sets it."""
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
        if self.eviction.relocate(run, place) == run.count or old is None:
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

    def _restore(self, command: Restore) -> None:
        assert not self.next_sequence, "expected a new machine to restore into"
        runs = [
            on_disk(run, run.count, run.size, run.batch.place, run.batch.expires_at_ms)
            if run.batch.data is None
            else run
            for run in command.runs
        ]
        for run in merge_evicted(join_neighbours(runs), {}):
            self.ready.add(run)
            self.deadlines.add(run)
            self.counters.restored += run.count
        self.next_sequence = self._joined_to = self._known_to = command.next_sequence

    def _peek(self, command: Peek) -> list[Run]:
        found: list[Run] = []
        wanted = command.count
        for run in self.ready.runs[self.ready.index(command.from_sequence) :]:
            if wanted <= 0:
                break
            skipped = max(command.from_sequence - run.sequence, 0)
            found.append(run.cut(skipped, min(run.count, skipped + wanted)))
            wanted -= found[-1].count
        return found

    def _join(self) -> None:
        """Joins small batches at the tail when a backlog has built up."""
        ready = self.ready
        self._joining_bytes = 0
        if ready.bytes < _JOIN_BACKLOG_BYTES:
            return
        start = ready.index(self._joined_to)
        self._joined_to = self._known_to
        stop = ready.index(self._known_to)
        # The last one of the time before may have room left.
        start = max(start - 1, ready.head)
        runs = ready.runs[start:stop]
        joined = join_neighbours(runs)
        if len(joined) < len(runs):
            ready.swap(start, stop, joined)

    # --- figures --------------------------------------------------------------------------------------

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
        return self.ready.bytes - self.ready.evicted_bytes + self.deliveries.bytes

    @property
    def gauges(self) -> Gauges:
        """How much is in the queue now."""
        return Gauges(
            self.ready.count,
            self.in_flight_count,
            self.ready.bytes + self.in_flight_bytes,
            self.resident_bytes,
            len(self.consumers.by_id),
        )

    def _all_runs(self) -> Iterable[Run]:
        yield from self.ready.waiting()
        for consumer in self.consumers:
            yield from consumer.in_flight.runs[consumer.in_flight.head :]


def _removed(run: Run, reason: Reason) -> Removed:
    return Removed(run.batch, run.sequence, run.end, run.size, reason)
