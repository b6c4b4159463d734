"""A link that receives from a queue: forwards slices to the client and credit to the shard.

Delivery numbers count from 0 over the lifetime of the link and are the same here, in the engine and at the
shard. The shard never receives more credit than the client's socket can handle: for a client that stalls,
messages of one window wait here, not of its whole credit.
A drain is one request to the shard: until its DRAINED has arrived, no further credit is sent. The shard drops
all credit when it answers, so the two ends would disagree about credit that crosses the answer.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from lightrail.amqp.events import Credit, Outcome
from lightrail.amqp.link import ATTACHED
from lightrail.amqp.performatives import TransactionalState
from lightrail.frontend.links.headers import OutgoingLink, send_with_new_headers
from lightrail.frontend.links.retiring import RetirableConsumer
from lightrail.frontend.links.settlements import Settlements
from lightrail.model import limits
from lightrail.model.links import Ending
from lightrail.shard_client.receiving.queue_consumer import ReceiveWindow
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import DELIVER_COLUMNS, DELIVER_ENDS, DRAIN, EXACT, HEADER_SIZE, MORE, Kind, frame

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend
    from lightrail.frontend.links.retiring import RetiringConsumer
    from lightrail.frontend.outflow import Outflow
    from lightrail.shard_client.owners.owner import Owner
    from lightrail.telemetry.frontend import FrontendCounts


@dataclass(slots=True, eq=False, repr=False)
class ConsumerLink(RetirableConsumer):
    """One outgoing link (the client receives) bound to a queue."""

    connection: "ClientConnection"
    _link: "Link"
    _owner: "Owner"
    _: KW_ONLY
    number: int
    options: ConsumerOpen
    _frontend: "Frontend" = field(init=False)
    settlements: Settlements = field(init=False)
    _retiring: "RetiringConsumer | None" = None
    _counts: "FrontendCounts" = field(init=False)
    _outflow: "Outflow" = field(init=False)
    settle: Callable[[Outcome], None] = field(init=False)
    """Applies outcomes that are in no transaction; replaced while deliveries are acquired in one."""
    output: OutgoingLink = field(init=False)
    """Sends messages: the link; replaced while deliveries are acquired in a transaction."""
    _presettled: bool = field(init=False)
    _attached: bool = False
    _closed: bool = False
    _ending: int = Ending.BY_BROKER
    _not_passed: int = 0
    """Deliveries that came between the end of the link and that of this object."""
    _limit: int = 0
    """The client's credit: it accepts deliveries below this number."""
    _window: ReceiveWindow = field(default_factory=ReceiveWindow)
    """The shard's credit: a part of the client's."""
    _credit_bytes: int = 0
    """The credit in bytes of the same CREDIT."""
    _used_bytes: int = 0
    """Bytes that arrived since that CREDIT."""
    _drain: bool = False
    """Whether the client drains: it requests the available messages, and the end of its credit then."""
    _draining: bool = False
    """Whether a drain was sent to the shard, up to `_sent_limit`, and is not answered."""
    _again: bool = False
    """Whether the client's credit has changed since then."""
    _wanted: int = 0
    """Bytes of the next message, which the shard reported instead of sending it; 0 for none."""
    _reserved: int = 0
    """Bytes for that message which the latest CREDIT includes, and which have not arrived."""
    has_large: bool = False
    """Whether the message has arrived, and room is reserved for it until the client has read it."""
    _mean_size: float = field(init=False, default=0.0)
    """Mean size of messages, in bytes; 0 before the first one."""

    def __post_init__(self) -> None:
        frontend = self._frontend = self.connection.frontend
        self._counts, self._outflow = frontend.counts, frontend.outflow
        self.settlements = Settlements(self.connection, self._link, self._owner, self.number, self.options)
        self.settle = self.settlements.outcome
        self.output = self._link
        self._presettled = self.options.presettled
        self._make_way()
        self.connection.consumers += 1

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self.options.queue

    # --- from the client -------------------------------------------------------------------------------

    def start(self, limit: int, drain: bool) -> None:
        """Sets the credit that arrived before the link was bound to its queue."""
        self._limit = limit
        self._drain = drain

    def credit(self, event: Credit) -> None:
        """The client allows deliveries numbered below `event.limit`."""
        self._limit = event.limit
        self._drain = event.drain
        self._again = self._draining
        self._send_credit(force=True)

    def outcome(self, event: Outcome) -> None:
        """The client's outcome for a range of deliveries."""
        self.settle(event)

    def transacted(self, event: Outcome, state: TransactionalState) -> Outcome:
        """The client's outcome in a transaction, in the form for the transaction.

        Raises ConditionError: the transaction can only be rolled back.
        """
        return Outcome(event.link, event.first, event.last, state.outcome, event.settled)

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this consumer at the shard with the remaining credit.

        If the queue has moved, the client keeps its unsettled deliveries. If the shard was restarted, they
        are in the queue again.
        """
        if self._closed:
            return
        self.options.first = self._window.next
        self.options.steals = not self._attached
        resumes = self.options.resume = self._owner.resumes(self.number)
        if not resumes:
            self.settlements.forget(self._window.next)
        body = self.settlements.opening()
        self._owner.post(frame(Kind.CONSUMER_OPEN, link=self.number, epoch=self._owner.epoch, body=body))
        self.settlements.repeat()
        self._window.withdraw()
        self._credit_bytes = self._used_bytes = 0
        self._draining = self._again = False
        self._wanted = 0
        self._unreserve()
        self._send_credit(force=True)

    def ready(self) -> None:
        """The shard has opened the consumer: the client's attach is answered."""
        if not self._closed and not self._attached:
            self._attached = True
            self.connection.links.accept_outgoing(self._link)

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        """Sends a slice of the queue to the client."""
        if self._closed:
            return
        self._window.advance(number, count, self.options.queue)
        if self._link.state > ATTACHED:
            # At the end of this turn it is closed, and the slice returns with the others.
            self._not_passed += count
            return
        _sequence, expires, _enqueued, attempts, message_format, base, size = DELIVER_COLUMNS.unpack_from(
            part, HEADER_SIZE
        )
        blob_at = DELIVER_ENDS + 4 * count
        ends = memoryview(part)[DELIVER_ENDS:blob_at].cast("I")
        if message_format or not (attempts or expires):
            # No code writes into the view, so the engine may keep it without a copy.
            blob = part[blob_at:] if size < limits.COPIED_BYTES else memoryview(part)[blob_at:].toreadonly()
            self.output.send(count, ends, blob, base, self._presettled, message_format)
        else:
            send_with_new_headers(
                self.output,
                part,
                blob_at,
                ends,
                base,
                attempts=attempts,
                expires=expires,
                now_ms=self._frontend.now_ms(),
                presettled=self._presettled,
            )
        # One byte more than received: the mean size of empty messages must not approach 0.
        mean = (size + 1) / count
        self._mean_size += (mean - self._mean_size) * 0.25 if self._mean_size else mean
        self._limit += self.settlements.sent(number, count, size)
        counts = self._counts
        counts.messages_delivered += count
        counts.message_bytes_delivered += size
        if attempts:
            counts.messages_redelivered += count
        if self._presettled:
            counts.messages_presettled += count
        self._used_bytes += size
        self.connection.touch()
        if self._reserved and self._used_bytes >= self._credit_bytes >> 1:
            self._large_came()
        if self._window.limit < self._limit or self._used_bytes >= self._credit_bytes >> 1:
            self._send_credit()

    def larger(self, number: int, size: int) -> None:
        """See Consumer: the shard sends the message as soon as there is room for it."""
        if self._closed or size <= self._credit_bytes - self._used_bytes:
            # The latest CREDIT, which crossed this report, has room for the message.
            return
        if self._reserved:
            # Smaller messages arrived instead, and used a part of the room.
            self._large_came()
        self._wanted = size
        self._window.withdraw()
        if not self._draining:
            self._send_credit()

    def _large_came(self) -> None:
        """The message with the reserved room is in the output, which is written at the end of this turn."""
        self._reserved = self._wanted = 0
        self.has_large = True
        connection = self.connection
        self._frontend.later(0, lambda: self._outflow.reservations.read(connection))

    def large_was_read(self) -> None:
        """The socket is free again: releases the message's room, unless it waits for the session window."""
        if self._link.backlog and not self._closed:
            self.connection.starved[self] = None
            return
        self.has_large = False
        self.connection.has_read_large = True
        self._outflow.reservations.release(self)
        self.writable()

    def reserved(self, size: int) -> None:
        """There is room for the message that this link waits for: sends credit for it."""
        self._reserved = size
        self._send_credit()
        if self._window.limit <= self._window.next:
            self._unreserve()

    @property
    def awaits_large(self) -> bool:
        """Whether the credit includes a large message that has not arrived."""
        return self._reserved > 0

    def take_back(self) -> None:
        """Withdraws credit that brought no message, since other links wait for its room."""
        self._wanted = 0
        self._unreserve()
        self._credit_bytes = self._used_bytes = 0
        self._send_credit(force=True)

    def _unreserve(self) -> None:
        """No large message is expected; the room of one that arrived is kept until it is read."""
        self._reserved = 0
        if not self.has_large:
            self._outflow.reservations.release(self)

    def drained(self, number: int) -> None:
        """The shard has no (more) messages for its credit, and has dropped the credit."""
        if self._closed or not self._draining:
            return
        self._draining = False
        again, self._again = self._again, False
        # The shard had no credit left for more, of messages or of bytes.
        window_used_up = (
            number >= self._window.limit or self._used_bytes >= self._credit_bytes or self._wanted > 0
        ) and number < self._limit
        self._window.withdraw()
        if window_used_up:
            # There may be more messages. The credit for a full socket is sent when it is `writable`.
            self._send_credit()
        elif again or not self._drain:
            self._send_credit(force=True)
        else:
            self._drain = False
            self._limit = self._window.next
            self._link.drained()
            self.connection.touch()

    def settled(self, number: int, count: int, is_certain: bool) -> None:
        """See Consumer."""
        if not self._closed:
            self.settlements.confirmed(number, count, is_certain)

    def ended(self, refusal: Refusal) -> None:
        """The shard refuses this consumer, or has closed it."""
        self.settlements.is_returned = True
        if not self._closed:
            self._leave()
            self.connection.links.refuse(self._link, self._attached, refusal)

    # --- credit towards the shard ----------------------------------------------------------------------

    def writable(self) -> None:
        """Sends credit again after a full socket, a closed session window, or too many unsettled messages."""
        if self._closed:
            return
        if self.has_large and not self.connection.paused and not self._link.backlog:
            self.large_was_read()
        elif self._window.next < self._limit:
            self._send_credit()

    def exceeds_share(self) -> bool:
        """See Bound."""
        return self.settlements.exceeds_share()

    def close(self) -> None:
        """The client's link has ended: its unsettled deliveries return to the queue."""
        if not self._closed:
            self._leave()
        self._close_at_shard()

    def _leave(self) -> None:
        self._closed = True
        self._unreserve()
        self.connection.consumers -= 1
        self.connection.starved.pop(self, None)
        self.settlements.close()

    def delivered(self) -> int:
        """Messages that the shard has sent over the lifetime of the link."""
        return self._window.next

    def narrow(self) -> None:
        """The shard may send fewer messages ahead from now on: withdraws the credit beyond that."""
        if not self._closed and not self._drain and self._window.credit > self._messages_ahead():
            self._send_credit(force=True)

    def _messages_ahead(self) -> int:
        """Messages that the shard may send ahead; the links of a connection share the connection's window."""
        whole = self.connection.window_bytes / self._mean_size if self._mean_size else 0.0
        share = (whole or limits.DELIVERY_WINDOW_FIRST) / self.connection.consumers
        return max(1, min(limits.DELIVERY_WINDOW_MAX, int(share)))

    def _send_credit(self, *, force: bool = False) -> None:
        """Sends a CREDIT frame if it is due, or `force` is set, and the client's socket is not full."""
        if self._draining:
            return
        connection = self.connection
        most = self._messages_ahead()
        sent, sent_limit = self._window.next, self._window.limit
        bytes_used = self._used_bytes >= self._credit_bytes >> 1
        starved = bool(self._link.backlog) or (
            connection.unsettled_bytes > limits.CONNECTION_UNSETTLED_BYTES and self.exceeds_share()
        )
        if sent_limit - sent > most >> 1 and not (bytes_used or force or starved or connection.paused):
            return
        # Runs are counted when credit is due, not with each slice.
        starved = starved or (connection.has_too_much_unsettled() and self.exceeds_share())
        if starved or connection.paused or self.has_large:
            if starved:
                connection.starved[self] = None
            if not force:
                return
            # The client's socket is full: the shard keeps the rest of its latest credit.
            size = self._credit_bytes - self._used_bytes
            limit = min(self._limit, max(sent_limit, sent) if size > 0 else sent)
        else:
            is_short = not force and self._mean_size and sent + most < self._limit
            if is_short and self._outflow.grow(connection):
                most = self._messages_ahead()
            size = connection.window_bytes // connection.consumers
            limit = min(self._limit, sent + most)
            if limit == sent and (self._wanted or self._reserved):
                # The client accepts no message now.
                self._wanted = 0
                self._unreserve()
            if not force and (limit == sent or (limit == sent_limit and not bytes_used)):
                return
            if self._wanted > size:
                if not self._reserved and not self._outflow.reservations.reserve(self, self._wanted):
                    return
                size = self._reserved = self._wanted
            elif self._reserved:
                # The message may be in transit.
                size = max(size, self._credit_bytes - self._used_bytes)
            self._wanted = 0
        self._post_credit(limit, max(1, size >> 10))

    def _post_credit(self, limit: int, kib: int) -> None:
        self._window.limit = limit
        self._credit_bytes = kib << 10
        self._used_bytes = 0
        self._draining = self._drain
        self._owner.post(
            frame(
                Kind.CREDIT,
                flags=EXACT | (DRAIN if self._drain else 0) | (MORE if limit < self._limit else 0),
                link=self.number,
                epoch=self._owner.epoch,
                count=kib,
                number=limit,
            )
        )
