"""Locking: commands about single deliveries and sessions, and their answers."""

from collections.abc import Sequence
from typing import Final

from lightrail.model import limits
from lightrail.shard.queue.changes.contents import Contents
from lightrail.shard.queue.changes.outcomes import Outcomes
from lightrail.shard.queue.changes.removals import Removals
from lightrail.shard.queue.changes.states import States
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.timed.locks import holds
from lightrail.shard.queue.values.commands import (
    ConsumerOptions,
    LockDeferred,
    RenewByKeys,
    RenewDeliveries,
    RenewLock,
    RenewSession,
    SetState,
    SettleDeliveries,
    SettleLocked,
)
from lightrail.shard.queue.values.effects import (
    Effect,
    LockAnswer,
    LockedDeferred,
    Renewed,
    SessionRenewed,
    SettledDeliveries,
)

RENEWED_LOCKS_UNCOUNTED_MAX: Final[int] = 1_000
"""Renewed locks of a consumer that count with its next deliveries and settlements, and not at once."""

LockCommand = SettleLocked | RenewLock | RenewByKeys | RenewDeliveries | SettleDeliveries | LockDeferred
"""Commands that are applied after expired locks have ended."""
SessionCommand = RenewSession | SetState


class Locking:
    """Settles and renews single deliveries of one queue."""

    __slots__ = ("_contents", "_outcomes", "states")

    def __init__(self, contents: Contents, outcomes: Outcomes, removals: Removals) -> None:
        self._contents = contents
        self._outcomes = outcomes
        self.states = States(contents, removals)

    def apply(self, command: LockCommand | SessionCommand, now_ms: int, effects: list[Effect]) -> None:
        """Applies a command; the caller has ended expired locks."""
        match command:
            case SettleLocked():
                self._settle_locked(command, now_ms, effects)
            case RenewLock():
                until_ms = self._renew_lock(command.key, command.number, command.sequence, now_ms)
                effects.append(LockAnswer(until_ms is not None, until_ms or 0))
            case RenewByKeys():
                effects.append(Renewed(self._renew_all(command.locks, now_ms)))
            case RenewDeliveries():
                consumer = self._contents.consumers.by_id.get(command.consumer)
                renewed: list[int | None] = [0] * len(command.numbers)
                if consumer is not None:
                    renewed = self._renew_deliveries(consumer, command.numbers, now_ms)
                    if len(consumer.renewed) > RENEWED_LOCKS_UNCOUNTED_MAX:
                        self._contents.deliveries.run_count.outdate()
                effects.append(Renewed(renewed))
            case RenewSession():
                sessions = self._contents.sessions
                lock_ms = self._contents.policy.lock_ms or 0
                locked = None if sessions is None else sessions.renew(command.consumer, lock_ms, now_ms)
                effects.append(SessionRenewed(locked))
            case SettleDeliveries():
                self._settle_deliveries(command, now_ms, effects)
            case SetState():
                self.states.apply(command, effects)
            case LockDeferred():
                self._lock_deferred(command, now_ms, effects)
        self._contents.locks.pack()

    def _settle_locked(self, command: SettleLocked, now_ms: int, effects: list[Effect]) -> None:
        locks = self._contents.locks
        consumer = locks.holder(command.key, command.number, command.sequence)
        sessions = self._contents.sessions
        if consumer is not None and sessions is not None and not sessions.has_lock(consumer, now_ms):
            consumer = None
        if consumer is not None:
            runs = consumer.in_flight.take(command.number, command.number + 1)
            self._outcomes.settle(consumer, runs, command.outcome, now_ms, effects)
            locks.settled(consumer)
        effects.append(LockAnswer(consumer is not None, 0))

    def _settle_deliveries(self, command: SettleDeliveries, now_ms: int, effects: list[Effect]) -> None:
        consumer = self._contents.consumers.by_id.get(command.consumer)
        found = [False] * len(command.numbers)
        if consumer is not None:
            for index, number in enumerate(command.numbers):
                if runs := consumer.in_flight.take(number, number + 1):
                    found[index] = True
                    self._outcomes.settle(consumer, runs, command.outcome, now_ms, effects)
        effects.append(SettledDeliveries(found))

    def _lock_deferred(self, command: LockDeferred, now_ms: int, effects: list[Effect]) -> None:
        """Delivers deferred messages to a consumer that is detached from the beginning, under its key."""
        contents = self._contents
        sequences = sorted(set(command.sequences))
        lock_ms = contents.policy.lock_ms or command.lock_ms
        until_ms = now_ms + lock_ms
        sessions = contents.sessions
        if command.session_of is not None:
            if sessions is None or not sessions.has(command.session_of, now_ms):
                effects.append(LockedDeferred([], 0))
                return
            lock_ms, until_ms = 0, sessions.end_of(command.session_of)
        former = contents.locks.find(command.key)
        if former is not None:
            # The request is repeated, because its answer was lost.
            runs = [run for each in sequences for run in former.in_flight.between(each, each + 1)]
            if command.session_of is None:
                until_ms = min((contents.locks.end_of(former, each) for each in sequences), default=0)
            effects.append(LockedDeferred(runs if len(runs) == len(sequences) else [], until_ms))
            return
        line = contents.aside.consumer.in_flight
        if not sequences or not all(line.between(each, each + 1) for each in sequences):
            effects.append(LockedDeferred([], 0))
            return
        options = ConsumerOptions(first=sequences[-1] + 1, lock_key=command.key)
        holder = Consumer(command.holder, options, None, lock_ms)
        holder.departed = True
        holder.session_of = command.session_of
        contents.locks.restored(holder)
        for sequence in sequences:
            run = contents.aside.take(sequence)
            assert run is not None
            holder.in_flight.append(sequence, run)
            if lock_ms:
                contents.locks.add(holder, sequence, sequence + 1, until_ms)
        contents.deliveries.run_count.outdate()
        effects.append(LockedDeferred(list(holder.in_flight.runs), until_ms))

    def _renew_lock(self, key: str, number: int, sequence: int | None, now_ms: int) -> int | None:
        """Renews the lock of a delivery; returns its end, or None if there is no such lock."""
        consumer = self._contents.locks.holder(key, number, sequence)
        if consumer is None or not consumer.lock_ms:
            return None
        return self._renew(consumer, number, now_ms, consumer.lock_ms)

    def _renew_all(self, locks: Sequence[tuple[str, int]], now_ms: int) -> list[int | None]:
        """Renews locks by key and number; see effects.Renewed for the answer."""
        found: list[int | None] = []
        for key, number in locks:
            consumer = self._contents.locks.find(key)
            found += [0] if consumer is None else self._renew_deliveries(consumer, [number], now_ms)
        return found

    def _renew_deliveries(self, consumer: Consumer, numbers: Sequence[int], now_ms: int) -> list[int | None]:
        """Renews the locks of deliveries of a consumer; see effects.Renewed for the answer.

        If the policy no longer has a lock time, deliveries from the time when it had one are locked for that
        time, and so are later ones, because the two are not distinguished.
        """
        lock_ms = consumer.lock_ms or consumer.lock_ms_before
        locked: list[int | None] = []
        for number in numbers:
            if not holds(consumer, number, number + 1):
                locked.append(0)
            elif not lock_ms:
                locked.append(None)
            else:
                self._renew(consumer, number, now_ms, lock_ms)
                locked.append(lock_ms)
        if not consumer.lock_ms and len(consumer.renewed) > limits.STALE_ENTRIES_MIN:
            # Numbers without an entry in the heap would never be removed.
            consumer.renewed = {
                number: until_ms
                for number, until_ms in consumer.renewed.items()
                if holds(consumer, number, number + 1)
            }
        return locked

    def _renew(self, consumer: Consumer, number: int, now_ms: int, lock_ms: int) -> int:
        until_ms = now_ms + lock_ms
        locks, renewed = self._contents.locks, consumer.renewed
        if consumer.ends is not None:
            given_ms = locks.end_of(consumer, number)
            is_late = not given_ms or until_ms < given_ms
        else:
            is_late = lock_ms < consumer.lock_ms_before and until_ms < renewed.get(number, until_ms + 1)
        if is_late:
            # Its entry may stand for a longer time, and the note beside it be found too late.
            locks.push(consumer, number, number + 1, until_ms)
        renewed[number] = until_ms
        if consumer.blame is not None:
            consumer.blame.renew(number)
        locks.note(consumer, number, number + 1)
        return until_ms
