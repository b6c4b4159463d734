"""A queue in memory, with the rules of the broker's queues: locks, delays, dead letters, expiry, groups.

Messages are in the order of their arrival; a message that is delivered again returns to its position. Tests
control the clock.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from lightrail.model import limits
from lightrail.transport.clock import Clock, Timer
from lightrail.transport.envelope import Envelope
from lightrail.transport.errors import SendRefusedError
from lightrail.transport.protocol import Handler, Selector
from lightrail.transport.topology import QueueRules

DEAD_LETTERS: Final = "/$dlq"
"""Ends the name of a queue's dead-letter queue."""
MAX_DELIVERY_COUNT: Final = 10
"""max_delivery_count of queues whose rules do not set it: the default of LightRail."""
EXPIRED: Final = "expired"
MAX_DELIVERY_COUNT_REASON: Final = "max-delivery-count"


class MessageState(Enum):
    """State of a message in a queue."""

    READY = "ready"
    LOCKED = "locked"
    DELAYED = "delayed"
    WAITING = "waiting"
    """After a failed delivery, as the retries of the rules say."""
    GONE = "gone"


@dataclass(slots=True, eq=False, repr=False)
class QueuedMessage:
    """One message of a queue."""

    sequence: int
    envelope: Envelope
    until: float | None
    """Timer for the expiry of the message."""
    state: MessageState = MessageState.READY
    failures: int = 0
    """Deliveries that failed."""
    lock: int = 0
    """Number of the current delivery: settlements of earlier deliveries are ignored."""
    receiver: object = None
    """The receiver of the current or last delivery."""
    passed_over: set[object] = field(default_factory=set)
    """Receivers that had no handler for the message, or rejected it where it is a dead letter."""
    timer: Timer | None = None
    """Timer for the end of the lock or of the delay."""


@dataclass(eq=False, repr=False)
class MemoryQueue:
    """A queue.

    Args:
        dead_letter: stores a dead letter, with its annotations.
        on_ready: called whenever a message may have become deliverable.
    """

    name: str
    rules: QueueRules
    _clock: Clock
    _dead_letter: Callable[["MemoryQueue", Envelope], None]
    _on_ready: Callable[[], None]
    _is_dead: bool = field(init=False)
    """Whether its messages are dead letters, which only `accept` removes."""
    _ready: deque[QueuedMessage] = field(default_factory=deque)
    """Entries in order of their sequences."""
    _entries: dict[int, QueuedMessage] = field(default_factory=dict)
    """All entries by sequence."""
    _locked_groups: set[str] = field(default_factory=set)
    _seen: dict[str, float] = field(default_factory=dict)
    """Ids of messages within the duplicate window, with the time of their arrival, oldest first."""
    _sequence: int = 0

    def __post_init__(self) -> None:
        self._is_dead = self.name.endswith(DEAD_LETTERS)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_busy(self) -> bool:
        """Whether a message can be delivered now, or is being handled."""
        return any(
            entry.state in (MessageState.READY, MessageState.LOCKED) for entry in self._entries.values()
        )

    def envelopes(self) -> list[Envelope]:
        """All messages, in order, including locked and delayed ones."""
        return [entry.envelope for entry in self._entries.values()]

    # --- sending ---------------------------------------------------------------------------------------

    def put(self, envelope: Envelope) -> None:
        """Stores a message. Raises SendRefusedError if the queue is full."""
        now = self._clock.time()
        window = self.rules.duplicate_window
        if window is not None and envelope.id is not None:
            while self._seen and next(iter(self._seen.values())) <= now - window:
                del self._seen[next(iter(self._seen))]
            if envelope.id in self._seen:
                return
        self.check_room(1)
        if window is not None and envelope.id is not None:
            self._seen[envelope.id] = now
        ages = [age for age in (envelope.ttl, self.rules.max_age) if age is not None]
        self._sequence += 1
        entry = QueuedMessage(self._sequence, envelope, now + min(ages) if ages else None)
        self._entries[entry.sequence] = entry
        if self.rules.delay and envelope.deliver_at is not None and envelope.deliver_at > now:
            self._delay(entry, envelope.deliver_at)
        else:
            self._ready.append(entry)
            self._on_ready()

    def check_room(self, count: int) -> None:
        """Raises SendRefusedError if the queue has no room for `count` messages."""
        if self.rules.max_length is not None and len(self._entries) + count > self.rules.max_length:
            raise SendRefusedError(
                f"{self.name}: the queue has its max_length of {self.rules.max_length} messages",
                is_passing=True,
            )

    def cancel_delayed(self, id: str) -> bool:
        """Removes a delayed message; returns whether there was one with this id."""
        for entry in self._entries.values():
            if entry.state is MessageState.DELAYED and entry.envelope.id == id:
                self._remove(entry)
                return True
        return False

    # --- receiving -------------------------------------------------------------------------------------

    def take(self, receiver: object, select: Selector) -> tuple[QueuedMessage, Handler] | None:
        """Locks the first message that a receiver has a handler for; an exception of `select` fails it."""
        now = self._clock.time()
        expired: list[QueuedMessage] = []
        try:
            for entry in self._ready:
                if entry.until is not None and entry.until <= now:
                    expired.append(entry)
                    continue
                group = entry.envelope.group if self.rules.groups else None
                if receiver in entry.passed_over or group in self._locked_groups:
                    continue
                try:
                    handler = select(entry.envelope)
                except BaseException:
                    self._lock(entry, group, receiver)
                    self.fail(entry, entry.lock, 0.0)
                    raise
                if handler is None:
                    entry.passed_over.add(receiver)
                    continue
                self._lock(entry, group, receiver)
                return entry, handler
            return None
        finally:
            for entry in expired:
                self._ready.remove(entry)
                self._bury(entry, EXPIRED)

    def _lock(self, entry: QueuedMessage, group: str | None, receiver: object) -> None:
        self._ready.remove(entry)
        entry.receiver = receiver
        entry.state = MessageState.LOCKED
        entry.lock += 1
        if group is not None:
            self._locked_groups.add(group)
        if self.rules.lock_duration is not None:
            self.renew(entry, entry.lock)

    def renew(self, entry: QueuedMessage, lock: int) -> bool:
        """Locks a delivery for the lock_duration from now on; returns whether it was still locked."""
        if not self.is_locked(entry, lock):
            return False
        if self.rules.lock_duration is not None:
            self._stop_timer(entry)
            due = self._clock.time() + self.rules.lock_duration
            entry.timer = self._clock.call_at(due, lambda: self.fail(entry, lock, 0.0))
        return True

    def is_locked(self, entry: QueuedMessage, lock: int) -> bool:
        """Whether a delivery is the message's current one."""
        return entry.state is MessageState.LOCKED and entry.lock == lock

    # --- settling --------------------------------------------------------------------------------------

    def accept(self, entry: QueuedMessage, lock: int) -> None:
        """Removes the message."""
        if self.is_locked(entry, lock):
            self._unlock(entry)
            self._remove(entry)
            self._on_ready()

    def release(self, entry: QueuedMessage, lock: int) -> None:
        """Delivers the message again, without counting this delivery."""
        if self.is_locked(entry, lock):
            self._unlock(entry)
            self._return(entry)

    def fail(self, entry: QueuedMessage, lock: int, delay: float) -> None:
        """Delivers the message again after a delay, or makes it a dead letter if it failed too often.

        Without a delay the retries of the rules count; a group waits with its message (ADR 53).
        """
        if not self.is_locked(entry, lock):
            return
        self._unlock(entry)
        entry.failures += 1
        entry.envelope = entry.envelope.replace(delivery_count=entry.failures)
        most = self.rules.max_delivery_count
        most = MAX_DELIVERY_COUNT if most is None else most
        if 0 < most <= entry.failures and not self._is_dead:
            self._bury(entry, MAX_DELIVERY_COUNT_REASON)
            return
        wait = delay or self._retry(entry.failures)
        if not wait:
            self._return(entry)
            return
        self._delay(entry, self._clock.time() + wait)
        if not delay:
            entry.state = MessageState.WAITING
            if self.rules.groups and entry.envelope.group is not None:
                self._locked_groups.add(entry.envelope.group)
        self._on_ready()

    def _retry(self, failures: int) -> float:
        """Seconds that a message waits whose delivery has failed so often; 0 for not at all."""
        first, growth, longest = self.rules.retry_delay, self.rules.retry_growth, self.rules.retry_delay_max
        if first is None:
            if not self._is_dead:
                return 0.0
            first, growth = limits.DEAD_LETTER_RETRY_MS / 1000, 2
            longest = limits.DEAD_LETTER_RETRY_MS_MAX / 1000
        if longest is None:
            longest = first * limits.RETRY_DELAY_FACTOR_MAX
        try:
            return min(first * float(growth or 1) ** (failures - 1), longest)
        except OverflowError:
            return longest

    def reject(
        self, entry: QueuedMessage, lock: int, reason: str, description: str, notes: Mapping[str, Any]
    ) -> None:
        """Makes the message a dead letter; one that is a dead letter stays for other receivers."""
        if self.is_locked(entry, lock):
            self._unlock(entry)
            if self._is_dead:
                entry.passed_over.add(entry.receiver)
                self._return(entry)
                return
            error = {"x-opt-dead-letter-condition": reason, "x-opt-dead-letter-description": description}
            self._bury(entry, "rejected", error | dict(notes))
            self._on_ready()

    # --- inside ------------------------------------------------------------------------------------------

    def _unlock(self, entry: QueuedMessage) -> None:
        self._stop_timer(entry)
        if self.rules.groups and entry.envelope.group is not None:
            self._locked_groups.discard(entry.envelope.group)

    def _return(self, entry: QueuedMessage) -> None:
        entry.state = MessageState.READY
        index = 0
        while index < len(self._ready) and self._ready[index].sequence < entry.sequence:
            index += 1
        self._ready.insert(index, entry)
        self._on_ready()

    def _delay(self, entry: QueuedMessage, due: float) -> None:
        entry.state = MessageState.DELAYED
        entry.timer = self._clock.call_at(due, lambda: self._due(entry))

    def _due(self, entry: QueuedMessage) -> None:
        entry.timer = None
        if entry.state is MessageState.WAITING:
            self._unlock(entry)
        if entry.state in (MessageState.DELAYED, MessageState.WAITING):
            self._return(entry)

    def _bury(self, entry: QueuedMessage, reason: str, error: Mapping[str, Any] | None = None) -> None:
        self._remove(entry)
        notes = dict(entry.envelope.annotations) | dict(error or {})
        notes |= {
            "x-opt-dead-letter-reason": reason,
            "x-opt-dead-letter-source": self.name,
            "x-opt-dead-letter-time": self._clock.time(),
        }
        self._dead_letter(
            self, entry.envelope.replace(annotations=notes, ttl=None, deliver_at=None, delivery_count=0)
        )

    def _remove(self, entry: QueuedMessage) -> None:
        self._stop_timer(entry)
        entry.state = MessageState.GONE
        del self._entries[entry.sequence]

    def _stop_timer(self, entry: QueuedMessage) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
