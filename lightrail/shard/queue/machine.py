"""The queue machine: commands in, effects out; no socket, clock, file or randomness.

`apply` takes one command and changes the state; `dispatch`, called once after the commands of a step,
delivers ready runs to consumers with credit, in large slices. The life of a message:

    Enqueue -> ready -> Deliver -> in flight -> Settle -> Removed | DeadLetter | ready again
                 \\-> expired, purged

The messages, and their sums, are the machine's contents (contents.py); outcomes of deliveries are in
outcomes.py, other ways out in removals.py, restarts, moves and changes of policy in arrangement.py. Costs
are per run and per range, never per message, except where messages are rewritten (annotations).
"""

from lightrail.model import limits
from lightrail.model.links import Ending
from lightrail.shard.queue.changes import reserved, scheduling
from lightrail.shard.queue.changes.arrangement import Arrangement
from lightrail.shard.queue.changes.contents import Contents, Joining
from lightrail.shard.queue.changes.copying import Copy
from lightrail.shard.queue.changes.departures import depart
from lightrail.shard.queue.changes.locking import LockCommand, Locking, SessionCommand
from lightrail.shard.queue.changes.outcomes import Annotate, Outcomes
from lightrail.shard.queue.changes.refilling import refill
from lightrail.shard.queue.changes.removals import Removals, removed
from lightrail.shard.queue.changes.reserved import ReservedCommand
from lightrail.shard.queue.footprint import Footprint
from lightrail.shard.queue.order import sessions
from lightrail.shard.queue.timed.lock_changes import LockChanges
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.commands import (
    RELEASED,
    Attach,
    Cancel,
    Change,
    Command,
    Credit,
    Delete,
    Detach,
    Enqueue,
    Open,
    Peek,
    Purge,
    Restore,
    Settle,
)
from lightrail.shard.queue.values.counters import TurnWork, unlimited
from lightrail.shard.queue.values.effects import Effect, Fetch, Purged, Reason, SessionLost, Stored
from lightrail.shard.queue.values.keys import Look
from lightrail.shard.queue.values.policy import PLAIN, Policy
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queue.values.schedules import ScheduleCommand
from lightrail.shard.queue.view import View


class Machine:
    """One queue.

    Args:
        name: of the queue; one that ends with `/$dlq` never dead-letters.
        annotate: merges the annotations of a modified outcome into an encoded message; without it they are
            ignored.
        look: returns a function that reads the field of a path from an encoded message; without it no message
            has a key, a group or a delay, and none is a duplicate.
        work: the budget of a turn, which the caller begins; without it all work is done at once.
        lock_changes: notes the changes of locks under a key; without it they are not noted.

    Raises:
        ValueError: the policy has features that do not combine.
    """

    __slots__ = (
        "_arrangement",
        "_joining",
        "_removals",
        "contents",
        "footprint",
        "locking",
        "outcomes",
        "view",
    )

    def __init__(
        self,
        name: str,
        policy: Policy | None = None,
        annotate: Annotate | None = None,
        look: Look | None = None,
        work: TurnWork | None = None,
        lock_changes: LockChanges | None = None,
    ) -> None:
        self.contents = Contents(unlimited() if work is None else work, lock_changes)
        self._joining = Joining()
        self._arrangement = Arrangement(name, self.contents, self._joining, look)
        self._removals = Removals(self.contents)
        self.outcomes = Outcomes(self.contents, self._removals, annotate)
        self.locking = Locking(self.contents, self.outcomes, self._removals)
        self._arrangement.follow(policy or PLAIN, 0)
        self.view = View(self.contents, self.outcomes, self.locking.states, self._arrangement)
        self.footprint = Footprint(self.contents)

    # --- commands -------------------------------------------------------------------------------------

    def apply(self, command: Command, now_ms: int) -> list[Effect]:
        """Changes the state by one command; messages are delivered by `dispatch` only."""
        if isinstance(command, Settle):
            return self._settle(command, now_ms)
        if isinstance(command, Enqueue):
            return self._enqueue(command, now_ms)
        effects: list[Effect] = []
        match command:
            case Credit():
                consumers = self.contents.consumers
                consumer = consumers.by_id.get(command.consumer)
                if consumer is not None:
                    consumers.credit(consumer, command.limit, command.drain, command.size, command.exact)
            case Attach():
                self._attach(command, now_ms, effects)
            case Detach():
                self._detach(command, now_ms, effects)
            case commands.Suspend():
                self.contents.consumers.suspend(command.consumer)
            case commands.Resume():
                self.contents.consumers.resume(command.consumer)
            case commands.Tick():
                self._pass_time(now_ms, effects)
            case commands.Fetched():
                refill(self.contents, self.outcomes, command, now_ms, effects)
                self._trim(effects)
            case _ if isinstance(command, ReservedCommand):
                found = reserved.apply(self.contents, command, now_ms)
                self.contents.deliveries.run_count.outdate()
                if found is not None:
                    self.outcomes.settle(*found, now_ms, effects)
            case _ if isinstance(command, SessionCommand):
                self.locking.apply(command, now_ms, effects)
            case _ if isinstance(command, LockCommand):
                self._pass_time(now_ms, effects)
                self.locking.apply(command, now_ms, effects)
            case Purge():
                self._purge(effects)
            case Peek():
                effects.append(self.contents.peek(command))
            case _ if isinstance(command, ScheduleCommand):
                scheduling.apply(self.contents, command, effects)
                self._trim(effects)
            case Cancel() | Delete():
                self._removals.apply(command, effects)
            case Restore():
                self._arrangement.restore(command, now_ms)
            case Change() | Open():
                if isinstance(command, Change):
                    self._arrangement.follow(command.policy, now_ms)
                else:
                    self._arrangement.open(command, now_ms)
                self.view.follow()
                self._end_sessions(now_ms, effects)
                self._trim(effects)
        return effects

    def _enqueue(self, command: Enqueue, now_ms: int) -> list[Effect]:
        contents = self.contents
        batch = command.batch
        sequence = contents.next_sequence
        special = contents.special
        if special is None:
            run = contents.ready.add_batch(batch, sequence)
            if (order := contents.deliveries.order) is not None:
                order.enqueued(run.end)
        else:
            run = special.enqueue(batch, sequence, now_ms)
        contents.next_sequence = sequence + batch.count
        contents.counters.enqueued += batch.count
        self._joining.bytes += batch.size
        if batch.expires_at_ms is not None:
            contents.deadlines.add(run)
        effects: list[Effect] = [Stored(run)]
        if contents.policy.guarded:
            self._removals.trim(effects)
        return effects

    def _settle(self, command: Settle, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        consumer = self.contents.consumers.by_id.get(command.consumer)
        if consumer is not None:
            runs = consumer.in_flight.take(command.first, command.last)
            self.outcomes.settle(consumer, runs, command.outcome, now_ms, effects)
        return effects

    def _attach(self, command: Attach, now_ms: int, effects: list[Effect]) -> None:
        contents = self.contents
        identity, options = command
        refused = contents.locks.refusal(identity, options)
        if refused is None and options.is_session:
            refused = sessions.refusal(contents.deliveries.order, identity, options)
        if refused is None:
            refused = contents.consumers.attach(identity, options, contents.policy)
        if refused is not None:
            effects.append(refused)
            return
        if options.lock_key:
            reserved.disown_unsent(contents, options)
            former, unsent = contents.locks.unsent(options)
            if former is not None:
                self.outcomes.settle(former, unsent, RELEASED, now_ms, effects)
        consumer = contents.consumers.by_id[identity]
        if contents.deliveries.order is not None or options.selects is not None:
            self._arrangement.attached(consumer)
        if options.lock_key:
            contents.locks.attached(consumer)

    def _detach(
        self, command: Detach, now_ms: int, effects: list[Effect], *, has_timed_out: bool = False
    ) -> None:
        contents = self.contents
        if (consumer := contents.consumers.detach(command.consumer)) is None:
            return
        depart(
            contents, self.outcomes, consumer, command.ending, now_ms, effects, has_timed_out=has_timed_out
        )
        if contents.deliveries.order is not None:
            self._arrangement.detached(consumer, contents.deliveries.order)

    def _lose_session(self, identity: int, ending: Ending, now_ms: int, effects: list[Effect]) -> None:
        # The broker ends it for another reason: the queue has no sessions any more.
        self._detach(Detach(identity, ending), now_ms, effects, has_timed_out=ending is Ending.FAILED)
        effects.append(SessionLost(identity))

    def _end_sessions(self, now_ms: int, effects: list[Effect]) -> None:
        """Detaches the consumers of sessions if the queue has no groups any more."""
        if not self.contents.policy.groups:
            for consumer in list(self.contents.consumers.by_id.values()):
                if consumer.options.is_session:
                    self._lose_session(consumer.id, Ending.BY_BROKER, now_ms, effects)

    def _purge(self, effects: list[Effect]) -> None:
        contents = self.contents
        contents.counters.purged += contents.ready.count + contents.delayed.count
        purged = contents.ready.clear() if contents.special is None else contents.special.clear()
        for apart in contents.set_apart:
            contents.counters.purged += apart.count
            purged += self._removals.take_apart(apart)
        if len(purged) > limits.PURGED_AT_ONCE:
            effects.append(Purged(purged))
        else:
            effects.extend(removed(run, Reason.PURGED) for run in purged)

    def _trim(self, effects: list[Effect]) -> None:
        if self.contents.policy.guarded:
            self._removals.trim(effects)

    def not_stored(self, *, refused: int = 0, duplicates: int = 0, dropped: int = 0) -> None:
        """Counts messages that arrived and were never in the queue; see Counters."""
        counters = self.contents.counters
        counters.refused += refused
        counters.duplicates += duplicates
        counters.dropped += dropped

    def remember(self, digests: list[bytes], until_ms: int) -> None:
        """Notes message-ids in the window of duplicates, if the policy has one."""
        if digests and self.contents.duplicates is not None:
            self.contents.duplicates.remember(digests, until_ms)

    def surrender(self) -> list[Run]:
        """Removes and returns all messages, because the queue ends."""
        return self.contents.surrender()

    def as_copy(self) -> Copy:
        """What builds this machine from the same queue at another shard, before it is opened; see Open."""
        return Copy(self.contents)

    # --- time -----------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """Time at which the machine needs a Tick (or a dispatch, which does the same), or None."""
        contents = self.contents
        deliveries = contents.deliveries
        if self.outcomes.returning or self._removals.is_over or deliveries.unfinished:
            return 0
        heap = contents.deadlines.heap
        due_ms = heap[0][0] if heap and not contents.spares_all else None
        if contents.eviction.retries:
            due_ms = _earlier(due_ms, contents.eviction.retries[0][0])
        if contents.locks.heap:
            due_ms = _earlier(due_ms, contents.locks.next_ms)
        if contents.special is not None:
            due_ms = _earlier(due_ms, contents.special.next_ms)
        elif deliveries.order is not None and deliveries.order.unfinished:
            due_ms = 0
        return due_ms

    @property
    def is_unfinished(self) -> bool:
        """Whether the next turn may deliver more, because this turn's budget was used up."""
        deliveries = self.contents.deliveries
        return deliveries.unfinished or (deliveries.order is not None and deliveries.order.unfinished)

    def _pass_time(self, now_ms: int, effects: list[Effect]) -> None:
        contents = self.contents
        deadlines, special = contents.deadlines, contents.special
        for consumer, first, last in contents.locks.due(now_ms, contents.work):
            self.outcomes.unlock(consumer, first, last, now_ms, effects)
        for run in contents.eviction.retry(now_ms):
            deadlines.add(run)
            if special is not None:
                special.fetched()
        if len(contents.deferred):
            effects.extend(Fetch(run) for run in contents.deferred.wanted())
        if self._arrangement.effects:
            effects.extend(self._arrangement.effects)
            self._arrangement.effects = []
        if special is not None:
            special.wake(now_ms)
            self._trim(effects)
        for first, last in () if contents.spares_all else deadlines.due(now_ms, contents.work):
            self._removals.expire(contents.ready, first, last, now_ms, effects)
            if special is not None and (delays := special.delays) is not None:
                self._removals.expire(delays.line, first, last, now_ms, effects, delays.scheduled)
            if contents.aside.count or contents.retries:
                for apart in contents.set_apart:
                    self._removals.expire_apart(apart, first, last, now_ms, effects)
        self._forget_deadlines(now_ms)

    def _forget_deadlines(self, now_ms: int) -> None:
        """Drops entries of messages that no longer wait, before they are due."""
        contents = self.contents
        deadlines = contents.deadlines
        if contents.special is None:
            ready = contents.ready
            first = ready.runs[ready.head].sequence if ready.count else contents.next_sequence
            if (lowest := contents.lowest_apart) is not None:
                first = min(first, lowest)
            deadlines.forget_before(first, now_ms)
        if len(deadlines.heap) > limits.STALE_ENTRIES_MIN and deadlines.crowded(
            len(contents.ready) + len(contents.delayed) + sum(map(len, contents.set_apart))
        ):
            deadlines.thin(contents.expiring())

    def _is_late(self, now_ms: int) -> bool:
        """Whether expired messages or locks are left for the next turn, because the work is used up."""
        expiring, locked = self.contents.deadlines.heap, self.contents.locks.heap
        return bool((expiring and expiring[0][0] <= now_ms) or (locked and locked[0][0] <= now_ms))

    # --- deliveries -----------------------------------------------------------------------------------

    def dispatch(self, now_ms: int) -> list[Effect]:
        """Delivers ready runs to consumers with credit; called once per step, after all commands.

        Consumers of the highest priority come first and take turns. A turn brings `ceil(ready / consumers
        with credit)` messages, at most DELIVERY_SLICE_MESSAGES and DELIVERY_SLICE_BYTES: each gets a share
        of what is ready, in slices as large as can be.
        """
        effects: list[Effect] = []
        contents = self.contents
        heap = contents.deadlines.heap
        locks = contents.locks.heap
        eviction = contents.eviction
        if (heap and heap[0][0] <= now_ms) or eviction.retries or (locks and locks[0][0] <= now_ms):
            self._pass_time(now_ms, effects)
        special = contents.special
        if special is not None:
            special.prepare(now_ms, effects)
            if special.sessions is not None:
                for identity in special.sessions.assign_free(contents.policy.lock_ms or 0, now_ms, effects):
                    self._lose_session(identity, Ending.FAILED, now_ms, effects)
                self.locking.states.settle_outdated(effects)
            # Messages that are no longer delayed may be discarded now.
            self._trim(effects)
        returning = self.outcomes.returning
        if returning:
            self.outcomes.settle_returned(now_ms, effects)
        elif self._removals.is_over:
            self._removals.trim(effects)
        if contents.work.left <= 0 and (returning or self._is_late(now_ms)):
            # Removals and returns that are due come before deliveries.
            return effects
        deliveries = contents.deliveries
        blocked = deliveries.hand_out(effects, now_ms)
        if deliveries.spare_bytes and (deliveries.spare_bytes > limits.SLIM_AT_BYTES or not deliveries.count):
            deliveries.slim()
        ready = contents.ready
        if ready.spare_bytes and (ready.spare_bytes > ready.slim_at or not ready.count):
            ready.slim()
        if contents.deadlines.heap:
            self._forget_deadlines(now_ms)
        if contents.ready.evicted_runs and (blocked or eviction.unseen_bytes >= eviction.head_bytes >> 3):
            order = deliveries.order
            ahead = eviction.look_ahead() if order is None else order.look_ahead()
            effects.extend(Fetch(run) for run in ahead)
        if contents.consumers.draining:
            deliveries.drain(effects)
        joining = self._joining
        if joining.bytes >= limits.JOIN_AT_BYTES:
            joining.join(contents.ready, special)
        joining.known_to = contents.next_sequence
        return effects


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
