"""Links on which a client sends: their common parts, and the credit of links whose messages are stored.

For backpressure the sum of three numbers never exceeds the window: granted credit, received messages that are
not answered, and answered messages whose credit is held. A shard that is slow, full or disconnected does not
answer, so no more credit is granted.
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from lightrail.amqp.events import RELEASED, Transfers
from lightrail.amqp.lifetime import TTL_MAX
from lightrail.amqp.performatives import Modified, Rejected, Released
from lightrail.amqp.sections import decode_header
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.batched import Storable, one_by_one, reject, runs
from lightrail.frontend.links.bound import Bound
from lightrail.frontend.links.outcomes import FAILED
from lightrail.model import conditions, limits
from lightrail.shard_client.links import Producer
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend
    from lightrail.frontend.intake import Intake
    from lightrail.frontend.links.anonymous import OpenAddress
    from lightrail.telemetry.frontend import FrontendCounts

CREDIT_HELD_MS: Final[int] = 500
"""Time without a frame FREED after which a frontend itself frees credit for PACE_FREED_MIN messages."""
LINK_CREDIT_MIN: Final[int] = 20
"""Least credit of a link, whatever the size of its messages."""
LINK_UNANSWERED_BYTES: Final[int] = 8 * 1024 * 1024
"""Target of unanswered bytes of a sending link; credit follows from it and the mean message size."""
REFUSED_PAUSE_MS: Final[int] = 500
"""Time without new credit for a link after one of its batches was refused for lack of room."""


@lru_cache(maxsize=limits.HEADERS_CACHED)
def header_attributes(head: bytes) -> tuple[bool, int, int | None]:
    """(durable, priority, ttl) of a header section, or of none."""
    header = decode_header(head)
    return header.durable, header.priority, header.ttl


def attributes_of(event: Transfers, now_ms: int, *, stores_all: bool) -> tuple[bool, int, int]:
    """(durable, priority, expiry of the last message or 0) of a batch; see SenderLink."""
    durable, priority, ttl = header_attributes(bytes(event.head))
    return durable or stores_all, priority, expiry_of(event, ttl, now_ms, by_ttl=stores_all)


def expiry_of(event: Transfers, ttl: int | None, now_ms: int, *, by_ttl: bool = False) -> int:
    """Expiry of the last message of a batch, in ms since 1970; 0 for none.

    Args:
        by_ttl: the client writes an absolute-expiry-time by its own clock beside a ttl, so that the ttl
            counts alone: those clients whose messages are all stored (frontend/hooks.py). Of a ttl that does
            not fit into its field the absolute-expiry-time counts.

    The ttl and the absolute-expiry-time of an event are the latest of its messages, which are within
    EXPIRY_SPAN_MS. So the earlier of both is not before any message's expiry, and less than this span after.
    """
    expires = 0
    if by_ttl and ttl is not None and event.absolute_expiry_ms is not None:
        if ttl < TTL_MAX:
            return now_ms + ttl
        ttl = None
    if ttl is not None:
        expires = now_ms + ttl
    if event.absolute_expiry_ms is not None:
        # The earlier of both ends the message (messaging 3.2.1, 3.2.4).
        expires = min(expires, event.absolute_expiry_ms) if expires else event.absolute_expiry_ms
        expires = max(expires, 1)
    return expires


@dataclass(slots=True, eq=False, repr=False)
class SenderLink(Bound, Producer):
    """One incoming link (the client sends), whether its messages are stored or forwarded."""

    _connection: "ClientConnection"
    _link: "Link"
    _: KW_ONLY
    number: int
    _frontend: "Frontend" = field(init=False)
    _counts: "FrontendCounts" = field(init=False)
    _intake: "Intake" = field(init=False)
    _attached: bool = False
    _closed: bool = False
    _stores_all: bool = field(init=False)
    _not_stored: Released | Rejected = field(init=False)
    """The outcome of messages that no shard has stored, as it did not answer."""
    _maybe_stored: Modified | Rejected = field(init=False)
    """The outcome of messages that a shard may have stored."""
    _head: bytes | None = None
    _head_attributes: tuple[bool, int, int | None] = (False, 4, None)

    def __post_init__(self) -> None:
        frontend = self._frontend = self._connection.frontend
        self._counts, self._intake = frontend.counts, frontend.intake
        hooks = frontend.hooks
        self._stores_all = hooks.stores_all(self._link)
        lost = hooks.lost(self._link)
        self._not_stored, self._maybe_stored = (RELEASED, FAILED) if lost is None else (lost, lost)
        if hooks.settles_itself(self._link):
            self._link.let_peer_settle()

    def _attributes(self, event: Transfers, now_ms: int) -> tuple[bool, int, int]:
        """(durable, priority, expiry of the last message or 0) of a batch."""
        head = event.head
        if head != self._head:
            # Equal header sections have equal attributes; the engine has checked this one.
            self._head = head
            durable, priority, ttl = header_attributes(bytes(head))
            self._head_attributes = durable or self._stores_all, priority, ttl
        durable, priority, ttl = self._head_attributes
        if ttl is None and event.absolute_expiry_ms is None:
            return durable, priority, 0
        return durable, priority, expiry_of(event, ttl, now_ms, by_ttl=self._stores_all)

    def _unpacked(self, event: Transfers, now_ms: int, *, by_priority: bool) -> Iterator[list[Storable]]:
        """The messages of batched transfers, by transfer; a transfer that can't be read is refused here."""
        for id, payload in one_by_one(event):
            if self._closed and not event.settled:
                # An earlier transfer ended the link. The client sends this one again.
                return
            try:
                yield runs(event, id, payload, now_ms, by_priority=by_priority)
            except ConditionError as error:
                self._counts.messages_refused += 1
                reject(self._connection, self._link, event, id, error)
                self.relieved()

    def _lose(self, refusal: Refusal) -> None:
        """Ends the link, whose queue, router or relay was deleted or refuses it."""
        if not self._closed:
            self._closed = True
            self._connection.links.refuse(self._link, self._attached, refusal)


@dataclass(slots=True, eq=False, repr=False)
class IncomingLink(SenderLink):
    """A link whose messages are stored: its credit is a window of unanswered messages."""

    _: KW_ONLY
    shared: "OpenAddress | None" = None
    """The address whose producer this is, on a link with a producer for each address: that link has the
    credit, and goes on when a producer ends. None if this is the only producer of its link."""
    _held_back: bool = False
    _waits: bool = False
    """Whether its shard is disconnected for longer than senders wait."""
    _unanswered_messages: int = 0
    _unanswered_bytes: int = 0
    _unanswered_batches: int = 0
    _held_messages: int = 0
    """Answered messages for which no new credit was granted yet (shard/queues/pacing.py)."""
    _held_since_ms: int = 0
    """Time since which credit is held, or at which credit for some of them was freed."""
    _held_timer: bool = False
    _mean_size: float = field(init=False, default=1024.0)

    @property
    def unanswered(self) -> int:
        """Received messages that are not answered yet."""
        return self._unanswered_messages

    @property
    def held_back(self) -> bool:
        """Whether its shard has no room for messages at present."""
        return self._held_back

    def _lose(self, refusal: Refusal) -> None:
        if self.shared is None:
            SenderLink._lose(self, refusal)
        else:
            self._closed = True
            self.shared.ended()

    def _take(self, count: int, size: int) -> None:
        """Counts the messages of a received batch until they are answered."""
        self._unanswered_batches += 1
        self._unanswered_messages += count
        self._unanswered_bytes += size
        # One byte more than received: the mean size of empty messages must not approach 0.
        self._mean_size += ((size + 1) / count - self._mean_size) * 0.25
        counts = self._counts
        counts.messages_received += count
        counts.message_bytes_received += size
        self._intake.received(self._connection, size)
        if self._unanswered_bytes > LINK_UNANSWERED_BYTES:
            self._take_back()

    def _take_back(self) -> None:
        """Reduces the remaining credit, since the messages are larger than it was computed for.

        Shared credit is small, and the socket is not read when there are too many bytes.
        """
        if self.shared is None and self._link.credit > LINK_CREDIT_MIN:
            self._link.grant(LINK_CREDIT_MIN)
            self._connection.touch()

    def _attach(self) -> None:
        """Answers the client's attach and grants the first credit; once."""
        if self.shared is not None:
            # The attach was answered before the first message showed an address.
            self._attached = True
            return
        if self._closed or self._attached:
            return
        self._attached = True
        self._connection.links.accept_incoming(self._link)
        self._top_up()

    def _hold_back(self, refusal: Refusal) -> None:
        """After a refusal for lack of room, new credit waits for a pause: the sender may try again then."""
        if refusal.condition == conditions.RESOURCE_LIMIT_EXCEEDED and not self._held_back:
            self._held_back = True
            self._frontend.later(REFUSED_PAUSE_MS, self._resume_credit)

    def relieved(self) -> None:
        """The connection's messages are no longer refused."""
        if self._attached and not self._closed:
            self._top_up()
            self._connection.touch()

    def _resume_credit(self) -> None:
        self._held_back = False
        if not self._closed:
            self._top_up()
            self._connection.touch()

    def _wait(self) -> None:
        """Withdraws the credit until the shard serves; messages that arrive all the same wait for it.

        Other addresses of shared credit may be on shards that serve.
        """
        if self.shared is not None:
            return
        self._waits = True
        if self._attached and not self._closed and self._link.credit:
            self._link.grant(0)
            self._connection.touch()

    def _go_on_after_wait(self) -> None:
        if self._waits:
            self._waits = False
            if self._attached and not self._closed:
                self._top_up()
                self._connection.touch()

    def _keep_credit(self, count: int) -> None:
        """Holds the credit for `count` answered messages until `_free_credit`.

        One slow queue must not reduce the credit that all addresses share.
        """
        if self.shared is not None:
            return
        frontend = self._frontend
        if not self._held_messages:
            self._held_since_ms = frontend.now_ms()
            if not self._held_timer:
                self._held_timer = True
                frontend.later(CREDIT_HELD_MS, self._check_held_credit)
        self._held_messages += count
        self._counts.credit_held += count

    def _check_held_credit(self) -> None:
        """After a long time without FREED, grants a little credit: the shard compares the rates again."""
        self._held_timer = False
        if self._closed:
            return
        frontend = self._frontend
        left_ms = self._held_since_ms + CREDIT_HELD_MS - frontend.now_ms()
        if left_ms <= 0:
            self._free_credit(limits.PACE_FREED_MIN)
            left_ms = CREDIT_HELD_MS
        if self._held_messages:
            self._held_timer = True
            frontend.later(left_ms, self._check_held_credit)

    def _free_credit(self, count: int = 0) -> None:
        """Grants held credit for `count` messages; 0: for all."""
        held = self._held_messages
        if not held:
            return
        count = min(count or held, held)
        self._held_messages = held - count
        self._held_since_ms = self._frontend.now_ms()
        if not self._closed:
            self._top_up(count)
            self._connection.touch()

    def _give(self, batches: int, count: int, size: int) -> None:
        """Subtracts batches, messages and bytes that are answered, or will not be answered."""
        self._unanswered_batches -= batches
        self._unanswered_messages -= count
        self._unanswered_bytes -= size
        self._intake.answered(self._connection, size, batches)
        if not self._closed:
            self._top_up()
            self._connection.touch()

    def _end(self, refusal: Refusal) -> None:
        """Ends the link with a reason: its unanswered messages will not be answered."""
        self._intake.answered(self._connection, self._unanswered_bytes, self._unanswered_batches)
        self._unanswered_messages = self._unanswered_bytes = self._unanswered_batches = 0
        self._lose(refusal)

    def _top_up(self, least: int | None = None) -> None:
        """Grants credit if at least half of the window is free, or `least`: one flow for many messages."""
        if self.shared is not None:
            self.shared.answered()
            return
        if self._frontend.stopping or self._held_back or self._waits:
            return
        window = int(LINK_UNANSWERED_BYTES / self._mean_size)
        window = max(LINK_CREDIT_MIN, min(limits.LINK_CREDIT_MAX, window))
        if self._counts.unanswered_bytes > limits.FRONTEND_UNANSWERED_BYTES:
            window = LINK_CREDIT_MIN
        credit = window - self._unanswered_messages - self._held_messages
        half = window >> 1
        if credit - self._link.credit >= (half if least is None else min(half, least)):
            self._link.grant(credit)
