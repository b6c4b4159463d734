"""A link of a client of Azure Service Bus that receives from a queue: deliveries in the form of Service Bus.

Messages are those of messages.py, with the end of their lock. The delivery-tag, of 16 bytes, is the lock
token: 8 bytes of the link's key and 8 of the number of the delivery, under which the shard knows the lock,
whatever becomes of the link (ADR 68).
"""

import secrets
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lightrail.amqp.events import Outcome
from lightrail.amqp.link_endpoint import encode_state
from lightrail.amqp.performatives import Modified, Rejected, TransactionalState
from lightrail.amqp.values import Timestamp
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.outcomes import GROWTH_BYTES_MAX, OUTCOMES, Deferral, rejected
from lightrail.model import conditions, limits
from lightrail.model.links import Ending, LockEnding
from lightrail.model.names import DEAD_LETTER_SEGMENT, is_dead_letter
from lightrail.model.policy import Role
from lightrail.service_bus.messages import (
    LOCKED_UNTIL,
    annotated,
    annotations_of,
    changed_properties,
    life_of,
    with_reason,
)
from lightrail.service_bus.paths import is_of_subscription
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import DELIVER_COLUMNS, DELIVER_ENDS, HEADER_SIZE, Kind, delivered_at, frame

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.namespace.directory import Directory
    from lightrail.shard_client.owners.owner import Owner

LOCK_DOUBT_MS: Final[int] = 1_000
"""Before the end of a lock from which a frontend asks the shard whether it has ended: their clocks differ,
and an outcome is on its way for a while."""
LOCK_ENDS_APART_MS: Final[int] = 250
"""Locks of one link that end within this time of each other have one end at the frontend, the first."""
LOCK_ENDS_MAX: Final[int] = 1_024
"""Ends of locks that a frontend knows for one link; later ones are assumed to be the last of these."""
SHOWN_BYTES_MAX: Final[int] = GROWTH_BYTES_MAX // 2
"""Bytes that a removed message grows by here at most; its delivery-count may add some."""
KEY_BYTES: Final = 8
"""Length of the key of locks, which precedes the number of a delivery in a lock token, a UUID."""


SETTLED: Final = encode_state(
    rejected(
        conditions.MESSAGE_LOCK_LOST,
        "expected a locked message, found that another receiver has settled it by its lock token",
    )
)
"""The answer, encoded, to an outcome of a message that the link no longer has."""
STAYS_DEAD_TEXT: Final = (
    "expected a message of a queue, found a dead letter, which can't be dead-lettered again: it stays in its "
    "dead-letter queue, locked; complete or abandon it"
)
STAYS_DEAD: Final = rejected(conditions.NOT_ALLOWED, STAYS_DEAD_TEXT)
"""The answer to a client that dead-letters a dead letter."""


@dataclass(slots=True, eq=False, repr=False)
class LockEnds:
    """Separates deliveries whose locks have certainly not ended from those of which only the shard knows.

    A renewal is not noted: a delivery whose lock was renewed is of the second kind near its first end.
    """

    _doubtful: int = 0
    _next: int = 0
    """The number of the next delivery."""
    _ends: deque[tuple[int, int]] = field(default_factory=deque)
    """Rising: a delivery number, and the earliest end of the locks from there to the next entry."""

    def add(self, first: int, count: int, until_ms: int) -> None:
        """The deliveries numbered first .. first+count-1, the latest, are locked until `until_ms`."""
        self._next = first + count
        ends = self._ends
        while ends and ends[-1][1] > until_ms:
            # Locks became shorter meanwhile.
            first, _ = ends.pop()
        if ends and (until_ms - ends[-1][1] < LOCK_ENDS_APART_MS or len(ends) == LOCK_ENDS_MAX):
            return
        ends.append((first, until_ms))

    def next_ms(self) -> int | None:
        """The time at which `doubtful` rises; None while no end is known."""
        return self._ends[0][1] - LOCK_DOUBT_MS if self._ends else None

    def doubtful(self, now_ms: int) -> int:
        """The number below which the lock of a delivery may have ended; all others have not."""
        ends = self._ends
        while ends and ends[0][1] - LOCK_DOUBT_MS <= now_ms:
            ends.popleft()
            self._doubtful = ends[0][0] if ends else self._next
        return self._doubtful


def lock_ms_at(directory: "Directory", queue: str) -> int:
    """The time of locks at a queue; at one of dead letters, that of the queue of their origin; 0 for none."""
    policy = directory.get(queue.removesuffix("/" + DEAD_LETTER_SEGMENT)).policy
    return policy.milliseconds("lock_duration") or 0 if policy.role is Role.QUEUE else 0


class BusConsumerLink(ConsumerLink):
    """One outgoing link (the client receives) bound to a queue."""

    __slots__ = (
        "_asks_below",
        "_awaits_lock_end",
        "_bus_link",
        "_bus_queue",
        "_has_timed_locks",
        "_is_dead",
        "_is_subscription",
        "_lock_ends",
        "lock_key",
    )

    def __init__(
        self,
        connection: "ClientConnection",
        link: "Link",
        owner: "Owner",
        *,
        number: int,
        options: ConsumerOpen,
    ) -> None:
        key = secrets.token_bytes(KEY_BYTES)
        # Receive and delete: a message comes once at most, also when a shard is lost.
        options.removes_first = options.presettled
        if not options.presettled:
            directory = connection.frontend.directory
            options.lock_key = key.hex()
            options.lock_ends = directory.get(options.queue).policy["lock_ends"]
            if is_dead_letter(options.queue):
                options.lock_ms = lock_ms_at(directory, options.queue)
        super().__init__(connection, link, owner, number=number, options=options)
        self._bus_link = link
        self._bus_queue = options.queue
        self._is_dead = is_dead_letter(options.queue)
        self._is_subscription = is_of_subscription(options.queue)
        self._lock_ends = LockEnds()
        self._awaits_lock_end = False
        self._has_timed_locks = False
        """Whether it has got messages whose locks have an end, though the queue may have no lock time now."""
        self.lock_key = options.lock_key
        self._asks_below = 0
        """Deliveries below this number are from before the link was opened again at the shard, which knows
        whether they are still locked."""
        link.number_tags(key, 0, wide=True)
        # To these clients an error in the answer would be an error of the broker.
        self.settlements.confirms_plainly = True
        # Another receiver of the connection may settle a message by its token in the meantime.
        link.session.stale = SETTLED
        self.settlements.has_key = not options.presettled
        self.settlements.locks_lapse = self._locks_lapse

    @property
    def queue(self) -> str:
        """The queue that the link receives from."""
        return self._bus_queue

    @property
    def keeps_locks(self) -> bool:
        """Whether locks outlive the link."""
        return self._may_keep_locks and self._lock_ms > 0

    @property
    def _may_keep_locks(self) -> bool:
        """Whether locks with an end outlive the link."""
        options = self.options
        return not options.is_session and bool(options.lock_key) and options.lock_ends == LockEnding.BY_TIME

    @property
    def _lock_ms(self) -> int:
        """The time of locks; 0 for none. For dead letters it is what the link has asked for at its attach."""
        if self._is_dead:
            return self.options.lock_ms
        return lock_ms_at(self.connection.frontend.directory, self._bus_queue)

    def _locks_lapse(self) -> bool:
        """Whether locks end without the client, by time or with their session.

        Azure's client for Java can't settle a message again after a rollback: a lock without an end would
        keep the message until the link ends.
        """
        return self.options.is_session or self._lock_ms > 0

    def ends(self, ending: Ending) -> None:
        """See Bound: locks that outlive the link need nobody who keeps them for transactions."""
        if self.keeps_locks:
            self._ending = ending
        else:
            super().ends(ending)

    def reopen(self) -> None:
        """See ConsumerLink; deliveries from before may still be locked under the key."""
        if not self._owner.resumes(self.number):
            self._asks_below = self._window.next
        super().reopen()

    def _close_at_shard(self) -> None:
        """Returns what was not sent to the client, which is not locked; the shard keeps the rest."""
        if self.keeps_locks or (self._has_timed_locks and self._may_keep_locks):
            unsent = self._window.next - self._not_passed - self._bus_link.backlog
            self._owner.post(
                frame(Kind.CREDIT, link=self.number, epoch=self._owner.epoch, count=1, number=unsent)
            )
            self.settlements.return_unsent(unsent)
            if not self._owner.is_there:
                # The next process of the shard knows no link, but perhaps the locks of what is lost.
                self._owner.ask_late("return_unsent", {"locks": [f"{self.lock_key}-{unsent}"]})
        super()._close_at_shard()

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        """Sends a slice of the queue to the client, each message with its annotations."""
        sequence, expires, enqueued, attempts, message_format, base, _size = DELIVER_COLUMNS.unpack_from(
            part, HEADER_SIZE
        )
        until_ms = 0
        is_locked = not self.options.presettled
        if is_locked:
            until_ms = self._locked_until(part)
            self._lock_ends.add(number, count, until_ms)
        if not message_format:
            blob_at = DELIVER_ENDS + 4 * count
            # These clients add the ttl to the time of enqueueing: it is not reduced by the time in the queue.
            life_ms = life_of(enqueued, expires)
            messages: list[bytes] = []
            removed_max = self.settlements.removed_bytes_max
            start = blob_at
            for index, end in enumerate(memoryview(part)[DELIVER_ENDS:blob_at].cast("I")):
                stop = blob_at + end - base
                notes = annotations_of(sequence + index, enqueued, is_subscription=self._is_subscription)
                if is_locked:
                    notes[LOCKED_UNTIL] = Timestamp(until_ms)
                message = bytes(part[start:stop])
                shown = annotated(message, notes, life_ms=life_ms)
                if len(message) <= removed_max < len(shown) - SHOWN_BYTES_MAX:
                    # The shard has removed it: what might be too large with annotations is sent without.
                    shown = message
                messages.append(shown)
                start = stop
            ends = array("I")
            size = 0
            for message in messages:
                size += len(message)
                ends.append(size)
            columns = DELIVER_COLUMNS.pack(sequence, 0, enqueued, attempts, 0, 0, size)
            part = b"".join((part[:HEADER_SIZE], columns, ends.tobytes(), *messages))
        super().deliver(part, number, count)

    def _locked_until(self, part: bytes | memoryview) -> int:
        """The end of the locks of a slice, in milliseconds since the epoch."""
        lock_ms = self._lock_ms
        self._has_timed_locks = self._has_timed_locks or lock_ms > 0
        return delivered_at(part, self.connection.frontend.now_ms()) + (lock_ms or limits.BUS_LOCK_SHOWN_MS)

    def outcome(self, event: Outcome) -> None:
        """The client's outcome: a dead letter has its reasons, and undeliverable-here defers.

        For one that comes when the lock may have ended, the shard is asked: these clients report a lost lock.
        """
        if (
            self._is_dead
            and isinstance(event.state, Rejected)
            and not (event.settled or self.options.presettled)
        ):
            # The shard gets no outcome: the message stays locked until its lock ends, as in Service Bus.
            self.settlements.retire(event.first, event.last, settled=True)
            event.link.settle_sent(event.first, event.last, STAYS_DEAD)
            self.connection.touch()
            return
        event = _translated(event)
        if not event.settled and not self.options.presettled and isinstance(event.state, OUTCOMES):
            doubtful = self._lock_ends.doubtful(self.connection.frontend.now_ms())
            doubtful = max(doubtful, self._asks_below)
            if event.first < doubtful:
                last = min(event.last, doubtful - 1)
                self.settlements.settle_doubtful(event.first, last, event.state)
                if last == event.last:
                    return
                event = Outcome(event.link, doubtful, event.last, event.state, settled=False)
        elif event.settled:
            self.settlements.recount(event.first, event.last)
        super().outcome(event)

    def not_locked(self, number: int, count: int) -> None:
        """See Consumer."""
        self.settlements.not_locked(number, count)

    def exceeds_share(self) -> bool:
        """See Bound; deliveries whose locks have ended do not count (Settlements.lapse)."""
        if not super().exceeds_share():
            return False
        now_ms = self.connection.frontend.now_ms()
        self.settlements.lapse(self._lock_ends.doubtful(now_ms))
        if not super().exceeds_share():
            return False
        next_ms = self._lock_ends.next_ms()
        if next_ms is not None and not self._awaits_lock_end:
            self._awaits_lock_end = True
            self.connection.frontend.later(max(1, next_ms - now_ms), self._lock_ended)
        return True

    def _lock_ended(self) -> None:
        """The next lock has ended while the link waited for settlements."""
        self._awaits_lock_end = False
        if self in self.connection.starved:
            self.writable()

    def transacted(self, event: Outcome, state: TransactionalState) -> Outcome:
        """See ConsumerLink; these clients commit only after the broker has settled each outcome.

        Raises ConditionError: a dead letter is dead-lettered again.
        """
        if self._is_dead and isinstance(state.outcome, Rejected) and not event.settled:
            self.settlements.retire(event.first, event.last, settled=True)
            answer = TransactionalState(txn_id=state.txn_id, outcome=STAYS_DEAD)
            event.link.settle_sent(event.first, event.last, answer)
            self.connection.touch()
            raise ConditionError(conditions.NOT_ALLOWED, STAYS_DEAD_TEXT)
        if not event.settled:
            # To these clients an error in the answer would be an error of the broker.
            outcome = Rejected() if isinstance(state.outcome, Rejected) else state.outcome
            answer = TransactionalState(txn_id=state.txn_id, outcome=outcome)
            event.link.settle_sent(event.first, event.last, answer)
            self.connection.touch()
        return _translated(Outcome(event.link, event.first, event.last, state.outcome, settled=True))


def _translated(event: Outcome) -> Outcome:
    """The outcome as the shard applies it.

    Reasons become annotations, undeliverable-here defers, and an abandoned message is a failed delivery.
    """
    state = event.state
    if isinstance(state, Rejected):
        state = with_reason(state)
    elif isinstance(state, Modified):
        changes = changed_properties(state.message_annotations)
        if state.undeliverable_here:
            state = Deferral(state, changes)
        else:
            state = Modified(delivery_failed=True, message_annotations=changes)
    return Outcome(event.link, event.first, event.last, state, event.settled)
