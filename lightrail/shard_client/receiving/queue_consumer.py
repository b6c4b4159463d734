"""Queue consumer: receives messages from one queue for a listener in this process, which settles them.

Receive window: the deliveries of one consumer by number, and the credit that its shard has for them.

Delivery numbers count from 0 over the lifetime of a link, and a CREDIT frame has the first number that the
shard must not send yet. So a repeated CREDIT grants no credit twice.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from lightrail.model.links import Ending
from lightrail.shard_client.links import Consumer, MissingDeliveriesError
from lightrail.shard_client.owners.owner import Owner
from lightrail.wire.bodies import ConsumerOpen, Refusal, SettleDetail
from lightrail.wire.frames import (
    ASKED,
    COUNT_MASK,
    DELIVER_COLUMNS,
    DELIVER_ENDS,
    DRAIN,
    HEADER_SIZE,
    REPEATED,
    Kind,
    OutcomeCode,
    delivered_at,
    frame,
    is_stored,
)


@dataclass(slots=True, eq=False, repr=False)
class ReceiveWindow:
    """Deliveries below `next` have arrived; the shard may send those below `limit`."""

    next: int = 0
    limit: int = 0

    @property
    def credit(self) -> int:
        """Deliveries that may still arrive."""
        return self.limit - self.next

    def advance(self, number: int, count: int, queue: str) -> None:
        """A slice of `queue` arrived. Raises MissingDeliveriesError: it does not follow the one before."""
        if number != self.next:
            raise MissingDeliveriesError(f"expected delivery {self.next} of {queue}, found {number}")
        self.next = number + count

    def withdraw(self) -> None:
        """The shard has no credit left, because it answered a drain, or the link was opened again."""
        self.limit = self.next


class Slice(NamedTuple):
    """The messages of a DELIVER frame, and their common fields."""

    sequence: int
    """Sequence of the first message; those of the others follow."""
    expires_at_ms: int
    """0: the messages do not expire."""
    enqueued_at_ms: int
    attempts: int
    """Failed deliveries before this one."""
    message_format: int
    messages: list[bytes]


def decode_slice(part: bytes | memoryview, count: int) -> Slice:
    """The content of a DELIVER frame with `count` messages, whose bytes are copied."""
    sequence, expires, enqueued, attempts, message_format, base, _ = DELIVER_COLUMNS.unpack_from(
        part, HEADER_SIZE
    )
    blob_at = DELIVER_ENDS + 4 * count
    start = blob_at
    messages = []
    for end in memoryview(part)[DELIVER_ENDS:blob_at].cast("I"):
        stop = blob_at + end - base
        messages.append(bytes(part[start:stop]))
        start = stop
    return Slice(sequence, expires, enqueued, attempts, message_format, messages)


class Delivery(NamedTuple):
    """A message that is locked for a consumer until it is settled."""

    generation: int
    """Number of times the consumer was opened; deliveries of earlier generations are in their queue again."""
    number: int
    sequence: int
    attempts: int
    """Failed deliveries of this message before this one."""
    expires_at_ms: int
    enqueued_at_ms: int
    message_format: int
    message: bytes
    delivered_at_ms: int = 0
    """Time of the delivery by the shard: locks begin then."""
    is_stored: bool = False
    """Whether the shard has it on disk, whatever its header says."""


class Listener(Protocol):
    """Receives the events of a consumer."""

    def opened(self, generation: int) -> None:
        """The consumer is open: grant credit. Deliveries of earlier generations are in the queue again."""
        ...

    def arrived(self, deliveries: list[Delivery]) -> None:
        """Messages in the order of the queue; each is locked until it is settled or the consumer closes."""
        ...

    def drained(self, is_empty: bool) -> None:
        """Answers a grant with drain: the queue is empty, or the whole grant was delivered."""
        ...

    def ended(self, refusal: Refusal) -> None:
        """The shard refused or closed this consumer; its unsettled deliveries are in the queue again."""
        ...


@dataclass(slots=True, eq=False, repr=False)
class QueueConsumer(Consumer):
    """A consumer; closing it releases its unsettled deliveries as if they had never been delivered.

    Where `options` have `lock_ms`, each opening has a new random lock key. The lock of a delivery is
    KEY-NUMBER and outlives the consumer: any process may settle the delivery by that id. What has not arrived
    when the consumer closes, or when its shard is lost, is locked for nobody and returns.

    Args:
        number: of the link, unique in the lifetime of this process.
        options: of the consumer; its queue, browsing, filter, label.
        now_ms: wall clock, for shards that do not send the times of deliveries.
    """

    _owner: Owner
    number: int
    _options: ConsumerOpen
    _listener: Listener
    _now_ms: Callable[[], int]
    generation: int = 0
    _window: ReceiveWindow = field(default_factory=ReceiveWindow)
    _drains: bool = False
    """Whether the last grant had the drain flag and is not answered."""
    is_closed: bool = False
    _removals: dict[int, "asyncio.Future[bool]"] = field(default_factory=dict)
    """By delivery number: see `remove`."""

    def __post_init__(self) -> None:
        self._options.default_outcome = OutcomeCode.RELEASED
        self._options.default_failed = False

    @property
    def lock_key(self) -> str:
        """The present key of locks; "" before the first opening, or without locks."""
        return self._options.lock_key

    @property
    def granted(self) -> int:
        """Messages that may still arrive."""
        return self._window.credit

    def open(self) -> None:
        """Opens now, or once the shard is connected."""
        self._owner.open_consumer(self)

    def grant(self, count: int, *, drain: bool = False, withdraws: bool = False) -> None:
        """Grants credit for `count` messages beyond those that have arrived.

        Args:
            withdraws: whether credit above `count` ends; else the larger one stays.
        """
        window = self._window
        limit = window.next + count
        if not withdraws:
            limit = max(limit, window.limit)
        if self.is_closed or (limit == window.limit and not drain):
            return
        window.limit = limit
        self._drains = drain
        self._post_credit()

    def _post_credit(self) -> None:
        flags = DRAIN if self._drains else 0
        self._owner.post(
            frame(
                Kind.CREDIT,
                flags=flags,
                link=self.number,
                epoch=self._owner.epoch,
                number=self._window.limit,
            )
        )

    def settle(
        self, deliveries: Iterable[Delivery], code: OutcomeCode, detail: SettleDetail | None = None
    ) -> None:
        """Settles deliveries, in rising order, with one outcome; those of earlier generations are skipped."""
        if self.is_closed:
            return
        body = detail.encode() if detail is not None else b""
        first = count = 0
        for delivery in deliveries:
            if delivery.generation != self.generation:
                continue
            if count and delivery.number == first + count:
                count += 1
                continue
            if count:
                self._post_settle(first, count, code, body)
            first, count = delivery.number, 1
        if count:
            self._post_settle(first, count, code, body)

    def remove(self, delivery: Delivery) -> "asyncio.Future[bool]":
        """Accepts a delivery of the present generation.

        The result is whether the removal is on disk. It is not if the lock has ended, and nobody can tell if
        the shard is lost or its store fails.
        """
        removal = self._removals[delivery.number] = asyncio.get_running_loop().create_future()
        self._post_settle(delivery.number, 1, OutcomeCode.ACCEPTED, b"", ASKED)
        return removal

    def _end_removals(self) -> None:
        for number in [*self._removals]:
            self._removed(number, False)

    def _removed(self, number: int, is_certain: bool) -> None:
        removal = self._removals.pop(number, None)
        if removal is not None and not removal.done():
            removal.set_result(is_certain)

    def _post_settle(self, first: int, count: int, code: OutcomeCode, body: bytes, asked: int = 0) -> None:
        self._owner.post(
            frame(
                Kind.SETTLE,
                flags=code,
                link=self.number,
                epoch=self._owner.epoch,
                count=count,
                number=first,
                body=body,
                asked=asked,
            )
        )

    def close(self) -> None:
        """Ends deliveries; unsettled messages return to the queue, unless they have locks.

        The link ends when the removals that are under way are on disk.
        """
        if self.is_closed:
            return
        self.is_closed = True
        if self.lock_key:
            # Locks outlive the consumer, also of what is on its way.
            self._window.withdraw()
            self._drains = False
            self._post_credit()
            self._post_settle(self._window.next, COUNT_MASK, OutcomeCode.RELEASED, b"")
            if not self._owner.is_there:
                self._return_unsent()
        self._close_link()

    def _close_link(self) -> None:
        if not self._removals:
            self._owner.close_consumer(self.number, Ending.BY_BROKER)

    def _return_unsent(self) -> None:
        """The shard was lost, and with it perhaps deliveries on their way."""
        self._owner.ask_late("return_unsent", {"locks": [f"{self.lock_key}-{self._window.next}"]})

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens the consumer. Its unsettled deliveries are in the queue again, unless the queue has moved."""
        options = self._options
        resumes = options.resume = self._owner.resumes(self.number) and self.generation > 0
        if not resumes:
            self._end_removals()
            if self.is_closed:
                self._close_link()
                return
        if not resumes and options.lock_ms:
            if self.lock_key:
                self._return_unsent()
            options.lock_key = secrets.token_hex(16)
            self._window = ReceiveWindow()
        options.first = self._window.next
        self._owner.post(
            frame(Kind.CONSUMER_OPEN, link=self.number, epoch=self._owner.epoch, body=options.encode())
        )
        if resumes:
            for number in self._removals:
                self._post_settle(number, 1, OutcomeCode.ACCEPTED, b"", ASKED | REPEATED)
            if self._drains or self._window.credit:
                self._post_credit()
            return
        self.generation += 1
        self._window.withdraw()
        self._drains = False
        self._listener.opened(self.generation)

    def ready(self) -> None:
        """No action: credit was granted with the opening."""

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        """Passes a slice of messages to the listener."""
        if self.is_closed:
            return
        self._window.advance(number, count, self._options.queue)
        found = decode_slice(part, count)
        at_ms, stored = delivered_at(part, self._now_ms()), is_stored(part)
        self._listener.arrived(
            [
                Delivery(
                    self.generation,
                    number + index,
                    found.sequence + index,
                    found.attempts,
                    found.expires_at_ms,
                    found.enqueued_at_ms,
                    found.message_format,
                    message,
                    at_ms,
                    stored,
                )
                for index, message in enumerate(found.messages)
            ]
        )

    def settled(self, number: int, count: int, is_certain: bool) -> None:
        """A removal is on disk."""
        self._removed(number, is_certain)
        if self.is_closed:
            self._close_link()

    def not_locked(self, number: int, count: int) -> None:
        """The lock of a message had ended before its removal."""
        self.settled(number, count, False)

    def drained(self, number: int) -> None:
        """The shard has used or dropped all credit."""
        if not self.is_closed:
            self._drains = False
            is_empty = self._window.credit > 0
            self._window.withdraw()
            self._listener.drained(is_empty)

    def ended(self, refusal: Refusal) -> None:
        """The shard refused or closed this consumer."""
        self._end_removals()
        if not self.is_closed:
            self.is_closed = True
            self._listener.ended(refusal)
