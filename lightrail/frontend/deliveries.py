"""A link that receives from a queue: slices from the shard out to the client, its credit, its outcomes back.

Delivery numbers count from 0 over the life of the link and are the same here, in the engine and at the shard.
The shard never learns of more credit than the client's socket keeps up with: a reader that stalls holds back
a window, not its whole credit.

A drain is asked of the shard in one piece: until its DRAINED has come, no further credit is said to it. The
shard takes all credit away when it answers, so credit that crossed the answer would be understood by one end
and not by the other.

A client that waits for us to settle (receiver-settle-mode second) gets that when the shard has the outcome on
disk: what was confirmed is never delivered again.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lightrail.amqp.compiled import scanner
from lightrail.amqp.events import Credit, Outcome
from lightrail.amqp.link import SETTLE_SECOND
from lightrail.amqp.performatives import Accepted, Modified, Rejected, Released
from lightrail.amqp.sections import decode_header, with_header
from lightrail.amqp.types import encode
from lightrail.amqp.values import DecodeError
from lightrail.frontend.unconfirmed import UNCONFIRMED, Unconfirmed
from lightrail.model import conditions, limits
from lightrail.wire.bodies import ConsumerOpen, Refusal, SettleDetail
from lightrail.wire.frames import (
    ASKED,
    DELIVER_COLUMNS,
    DELIVER_ENDS,
    DRAIN,
    EXACT,
    HEADER_SIZE,
    MORE,
    Kind,
    OutcomeCode,
    frame,
)
from lightrail.wire.links import Consumer, MissingDeliveriesError

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.wire.owner import Owner


OUTCOMES: Final = (Accepted, Rejected, Released, Modified)
"""Terminal states (messaging 3.4): the others settle nothing by themselves."""
UINT_MAX: Final = 0xFFFFFFFF
"""The highest delivery-count that a header can have."""


class ConsumerLink(Consumer):
    """One outgoing link (the client receives) bound to a queue."""

    __slots__ = (
        "_again",
        "_attached",
        "_base",
        "_closed",
        "_credit_bytes",
        "_drain",
        "_draining",
        "_limit",
        "_link",
        "_mean_size",
        "_options",
        "_owner",
        "_presettled",
        "_reserved",
        "_said_limit",
        "_sent",
        "_unconfirmed",
        "_unsettled",
        "_unsettled_bytes",
        "_used_bytes",
        "_wanted",
        "connection",
        "has_large",
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
        self.number = number
        self.connection = connection
        self._link = link
        self._owner = owner
        self._options = options
        self._presettled = options.presettled
        self._attached = False
        self._closed = False
        self._sent = 0
        self._base = 0
        self._limit = 0
        self._said_limit = 0
        """The latest CREDIT lets the shard send deliveries below this number."""
        self._credit_bytes = 0
        """The same CREDIT ends when so many bytes were sent."""
        self._used_bytes = 0
        """Bytes that came since that CREDIT."""
        self._drain = False
        """The client wants what there is, and its credit taken away then."""
        self._draining = False
        """The shard was told so, up to `_said_limit`, and has not answered."""
        self._again = False
        """The client's credit changed meanwhile."""
        self._wanted = 0
        """Bytes of the next message, which the shard reported instead of sending it; 0 for none."""
        self._reserved = 0
        """Bytes for it that the latest CREDIT includes, and that have not come."""
        self.has_large = False
        """It came, and room is reserved for it until the client has read it."""
        self._mean_size = 0.0
        """Of messages, in bytes; 0 before the first."""
        self._unsettled = 0
        """Messages that the client has not settled, and their bytes with those around their slices."""
        self._unsettled_bytes = 0
        self._unconfirmed: Unconfirmed | None = None
        """Made when the client first waits for us to settle."""
        connection.consumers += 1

    # --- from the client -------------------------------------------------------------------------------

    def start(self, limit: int, drain: bool) -> None:
        """The credit that came before the link was bound to its queue."""
        self._limit = limit
        self._drain = drain

    def credit(self, event: Credit) -> None:
        """The client lets us send deliveries numbered below `event.limit`."""
        self._limit = event.limit
        self._drain = event.drain
        self._again = self._draining
        self._say_credit(force=True)

    def outcome(self, event: Outcome) -> None:
        """What the client made of a range of deliveries goes to the shard; unknown ones are long gone."""
        first = event.first
        last = event.last
        if not event.settled and not isinstance(event.state, OUTCOMES):
            # Not an outcome: how far it has come (received, 3.4.1), or nothing at all.
            return
        if self._presettled:
            return
        if first < self._base:
            # Delivered by a shard process that has died since: the message is back in its queue already.
            if not event.settled:
                self._can_not_confirm()
            first = self._base
            if first > last:
                return
        if not event.settled:
            # The receiver waits for us to settle (receiver-settle-mode second, or it only said its state).
            if self._unconfirmed is None:
                self._unconfirmed = Unconfirmed()
            for each in self._unconfirmed.add(first, last, event.state):
                self._settle(*each, ASKED)
        elif self._unconfirmed:
            for each in self._unconfirmed.drop(first, last, event.state):
                self._settle(*each)
        else:
            self._settle(first, last, event.state)

    def _settle(self, first: int, last: int, state: object, asked: int = 0) -> None:
        self._settled(last - first + 1)
        code = self._say_outcome(first, last, state, asked)
        self.connection.frontend.counts.outcomes[code] += last - first + 1

    def _say_outcome(self, first: int, last: int, state: object, asked: int) -> OutcomeCode:
        code, body = self._encode_outcome(state)
        self._owner.post(
            frame(
                Kind.SETTLE,
                flags=code,
                link=self.number,
                epoch=self._owner.epoch,
                count=last - first + 1,
                number=first,
                body=body,
                asked=asked,
            )
        )
        return code

    def _encode_outcome(self, state: object) -> tuple[OutcomeCode, bytes]:
        if isinstance(state, Accepted):
            return OutcomeCode.ACCEPTED, b""
        if isinstance(state, Released):
            return OutcomeCode.RELEASED, b""
        if isinstance(state, Rejected):
            error = state.error
            detail = SettleDetail()
            if error is not None:
                detail.condition = str(error.condition)[:256]
                detail.description = (error.description or "")[:1024]
                notes = {key: value for key, value in (error.info or {}).items() if _is_annotation(key)}
                if notes:
                    detail.annotations = encode(notes).hex()
            return OutcomeCode.REJECTED, detail.encode()
        if isinstance(state, Modified):
            annotations = encode(state.message_annotations).hex() if state.message_annotations else ""
            return OutcomeCode.MODIFIED, SettleDetail(
                delivery_failed=bool(state.delivery_failed),
                undeliverable_here=bool(state.undeliverable_here),
                annotations=annotations,
            ).encode()
        # Settled without an outcome: the source's default-outcome, else modified(delivery-failed) (3.5.3).
        options = self._options
        return OutcomeCode(options.default_outcome), SettleDetail(
            delivery_failed=options.default_failed
        ).encode()

    async def renew_locks(self, tags: Sequence[bytes]) -> list[int | None]:
        """Locks deliveries with these delivery-tags anew, where the shard ends locks by time.

        Returns, tag by tag: milliseconds for which it is locked from now on; 0 where its lock ran out or it
        has an outcome, None where no time ends its lock. Raises ShardDownError, ShardRefusedError.
        """
        numbers = [self._link.unsettled_number(tag) for tag in tags]
        options = self._options
        if options.relay or options.browse:
            return [0 if number is None else None for number in numbers]
        held = [number for number in numbers if number is not None and number >= self._base]
        locked: dict[int, int | None] = {}
        if held:
            asked = {"link": self.number, "numbers": held}
            answer = await self.connection.frontend.ask_shard(options.queue, "renew_deliveries", asked)
            locked = dict(zip(held, answer.fields["locked_ms"], strict=True))
        return [0 if number is None else locked.get(number, 0) for number in numbers]

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this consumer at the shard with the credit that is left.

        Where its queue moved, the client holds what it held. Where the shard was started again, all of that
        is back in the queue.
        """
        if self._closed:
            return
        self._options.first = self._sent
        resumes = self._options.resume = self._owner.resumes(self.number)
        if not resumes:
            self._base = self._sent
            self._settled(self._unsettled)
            if self._unconfirmed:
                # The shard has perhaps stored these outcomes, and perhaps not.
                self._unconfirmed.clear()
                self._can_not_confirm()
        self._owner.post(
            frame(Kind.CONSUMER_OPEN, link=self.number, epoch=self._owner.epoch, body=self._options.encode())
        )
        if self._unconfirmed:
            # Nobody answers for the shard that the queue has left. To say it twice does no harm.
            for each in self._unconfirmed.all():
                self._say_outcome(*each, ASKED)
        self._said_limit = self._sent
        self._credit_bytes = self._used_bytes = 0
        self._draining = self._again = False
        self._wanted = 0
        self._unreserve()
        self._say_credit(force=True)

    def ready(self) -> None:
        """The shard took the consumer: the client's attach is answered."""
        if not self._closed and not self._attached:
            self._attached = True
            self.connection.accept_outgoing(self._link)

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        """A slice of the queue for the client."""
        if self._closed:
            return
        if number != self._sent:
            queue = self._options.queue
            raise MissingDeliveriesError(f"expected delivery {self._sent} of {queue}, found {number}")
        _sequence, expires, _enqueued, attempts, message_format, base, size = DELIVER_COLUMNS.unpack_from(
            part, HEADER_SIZE
        )
        blob_at = DELIVER_ENDS + 4 * count
        ends = memoryview(part)[DELIVER_ENDS:blob_at].cast("I")
        if message_format or not (attempts or expires):
            # Nobody writes into the view, so that the engine may keep it as it is.
            blob = part[blob_at:] if size < limits.COPIED_BYTES else memoryview(part)[blob_at:].toreadonly()
            self._link.send(count, ends, blob, base, self._presettled, message_format)
        elif not (
            self._deliver_again(part, blob_at, count, ends, base, attempts, expires)
            if attempts
            else self._deliver_shortened(part, blob_at, count, ends, base, expires)
        ):
            self._deliver_rewritten(part, blob_at, ends, base, attempts, expires)
        self._sent = number + count
        # One byte more than there is: the mean of messages without any must not come near 0.
        mean = (size + 1) / count
        self._mean_size += (mean - self._mean_size) * 0.25 if self._mean_size else mean
        if not self._presettled:
            self._unsettled += count
            charge = size + limits.UNSETTLED_SLICE_BYTES
            self._unsettled_bytes += charge
            self.connection.unsettled_bytes += charge
        counts = self.connection.frontend.counts
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
        if self._said_limit < self._limit or self._used_bytes >= self._credit_bytes >> 1:
            self._say_credit()

    def _deliver_shortened(
        self, part: bytes | memoryview, blob_at: int, count: int, ends: memoryview, base: int, expires: int
    ) -> bool:
        """Deliveries of which at most the ttl changes, and no size; False where one is uncommon."""
        blob = bytearray(memoryview(part)[blob_at:])
        left_ms = max(0, expires - self.connection.frontend.now_ms())
        if not scanner.shorten_ttl(blob, ends, base, left_ms):
            return False
        self._link.send(count, ends, memoryview(blob).toreadonly(), base, self._presettled)
        return True

    def _deliver_again(
        self,
        part: bytes | memoryview,
        blob_at: int,
        count: int,
        ends: memoryview,
        base: int,
        attempts: int,
        expires: int,
    ) -> bool:
        """Deliveries that failed before, with new headers; False where one is uncommon."""
        left_ms = max(0, expires - self.connection.frontend.now_ms()) if expires else -1
        found = scanner.redeliver(bytes(part), blob_at, ends, base, attempts, left_ms)
        if found is None:
            return False
        blob, after = found
        self._link.send(count, after, blob, 0, self._presettled)
        return True

    def _deliver_rewritten(
        self,
        part: bytes | memoryview,
        blob_at: int,
        ends: memoryview,
        base: int,
        attempts: int,
        expires: int,
    ) -> None:
        """Deliveries whose header a broker must change (messaging 3.2.1), one by one in any encoding."""
        now_ms = self.connection.frontend.now_ms()
        start = blob_at
        for end in ends:
            stop = blob_at + end - base
            message = bytes(part[start:stop])
            start = stop
            try:
                header = decode_header(message)
            except DecodeError:
                # What comes in is checked for sections that can be told apart and no further. An error here
                # would end the link of each receiver that the message comes to.
                self._link.send_one(message, 0, self._presettled)
                continue
            if attempts:
                # A message may have failed elsewhere before it came to us (3.2.1).
                header.delivery_count = min(header.delivery_count + attempts, UINT_MAX)
                header.first_acquirer = False
            if header.ttl is not None and expires:
                header.ttl = max(0, min(header.ttl, expires - now_ms))
            elif not attempts:
                # It expires at a time of its own (3.2.4), and keeps its header to the byte.
                self._link.send_one(message, 0, self._presettled)
                continue
            message = with_header(message, header)
            self._link.send_one(message, 0, self._presettled)

    def larger(self, number: int, size: int) -> None:
        """See Consumer: the message comes when there is room for it."""
        if self._closed or size <= self._credit_bytes - self._used_bytes:
            # The latest CREDIT, which crossed this report, has room for the message.
            return
        if self._reserved:
            # Smaller ones came instead, and used a part of it up.
            self._large_came()
        self._wanted = size
        self._said_limit = self._sent
        if not self._draining:
            self._say_credit()

    def _large_came(self) -> None:
        """The message that room was reserved for is in the output, which leaves at the end of this turn."""
        self._reserved = self._wanted = 0
        self.has_large = True
        connection = self.connection
        connection.frontend.later(0, lambda: connection.frontend.outflow.reservations.read(connection))

    def large_was_read(self) -> None:
        """The socket is free again: so is the room of the message, unless that waits for the session."""
        if self._link.backlog and not self._closed:
            self.connection.starved[self] = None
            return
        self.has_large = False
        self.connection.has_read_large = True
        self.connection.frontend.outflow.reservations.release(self)
        self.writable()

    def reserved(self, size: int) -> None:
        """There is room now for the message that this link waits for."""
        self._reserved = size
        self._say_credit()
        if self._said_limit <= self._sent:
            self._unreserve()

    @property
    def awaits_large(self) -> bool:
        """Whether its credit has room for a large message that has not come."""
        return self._reserved > 0

    def take_back(self) -> None:
        """Others wait for the room that is reserved for a message, and it does not come."""
        self._wanted = 0
        self._unreserve()
        self._credit_bytes = self._used_bytes = 0
        self._say_credit(force=True)

    def _unreserve(self) -> None:
        """No large message comes or waits for room; the room of one that came is kept until it is read."""
        self._reserved = 0
        if not self.has_large:
            self.connection.frontend.outflow.reservations.release(self)

    def drained(self, number: int) -> None:
        """The shard has nothing (more) for the credit that it knew of, and took that away."""
        if self._closed or not self._draining:
            return
        self._draining = False
        again, self._again = self._again, False
        # The shard had no credit left for more, of messages or of bytes.
        window_used_up = (
            number >= self._said_limit or self._used_bytes >= self._credit_bytes or self._wanted > 0
        ) and number < self._limit
        self._said_limit = self._sent
        if window_used_up:
            # There may be more. While the socket is full that is asked when it is `writable`.
            self._say_credit()
        elif again or not self._drain:
            self._say_credit(force=True)
        else:
            self._drain = False
            self._limit = self._sent
            self._link.drained()
            self.connection.touch()

    def settled(self, number: int, count: int, is_certain: bool) -> None:
        """See Consumer: what the client waits for to be settled is."""
        if self._closed or not self._unconfirmed:
            return
        found = self._unconfirmed.take(number, count)
        if found and not is_certain:
            self._can_not_confirm()
            return
        for each in found:
            self._link.settle_sent(*each)
            self.connection.touch()

    def _can_not_confirm(self) -> None:
        """A client that waits for us to settle would wait for ever: its link ends. Others need no answer."""
        if self._link.rcv_settle_mode == SETTLE_SECOND:
            self.connection.frontend.later(0, self._end_unconfirmed)

    def _end_unconfirmed(self) -> None:
        if not self._closed:
            self.connection.lose(self._link, conditions.DETACH_FORCED, UNCONFIRMED)

    def gone(self, refusal: Refusal) -> None:
        """The shard will not have this consumer (any more)."""
        if not self._closed:
            self._leave()
            self.connection.refuse_link(self._link, self._attached, refusal)

    # --- credit towards the shard ----------------------------------------------------------------------

    def writable(self) -> None:
        """What held deliveries back may be over: a full socket, a shut session window, too much unsettled."""
        if self._closed:
            return
        if self.has_large and not self.connection.paused and not self._link.backlog:
            self.large_was_read()
        elif self._sent < self._limit:
            self._say_credit()

    def close(self) -> None:
        """The client's link is gone: the shard takes back what it held."""
        if not self._closed:
            self._leave()
        if not self.connection.frontend.stopping:
            self._owner.close_consumer(self.number)
        # Else our goodbye brings it back: the end of the broker is no failed delivery.

    def _leave(self) -> None:
        self._closed = True
        self._unreserve()
        self.connection.consumers -= 1
        self.connection.starved.pop(self, None)
        self._settled(self._unsettled)

    def _settled(self, count: int) -> None:
        """So many of the unsettled messages are; what each had in bytes is not known, only their sum."""
        if count < self._unsettled:
            size = self._unsettled_bytes * count // self._unsettled
        else:
            count, size = self._unsettled, self._unsettled_bytes
        self._unsettled -= count
        self._unsettled_bytes -= size
        self.connection.unsettled_bytes -= size

    @property
    def sent(self) -> int:
        """Messages that the shard has sent, over the life of this link."""
        return self._sent

    def narrow(self) -> None:
        """The shard may send less ahead from now on: what of its credit is more is taken back."""
        if not self._closed and not self._drain and self._said_limit > self._sent + self._window():
            self._say_credit(force=True)

    def _window(self) -> int:
        """Messages that the shard may send ahead; the links of a connection share its window."""
        whole = self.connection.window_bytes / self._mean_size if self._mean_size else 0.0
        share = (whole or limits.DELIVERY_WINDOW_FIRST) / self.connection.consumers
        return max(1, min(limits.DELIVERY_WINDOW_MAX, int(share)))

    def _say_credit(self, *, force: bool = False) -> None:
        if self._draining:
            return
        connection = self.connection
        window = self._window()
        ahead = self._said_limit - self._sent
        bytes_used = self._used_bytes >= self._credit_bytes >> 1
        starved = bool(self._link.backlog) or connection.unsettled_bytes > limits.CONNECTION_UNSETTLED_BYTES
        if ahead > window >> 1 and not (bytes_used or force or starved or connection.paused):
            return
        # Runs are counted where credit is due, not with each slice.
        starved = starved or connection.has_too_much_unsettled()
        if starved or connection.paused or self.has_large:
            if starved:
                connection.starved[self] = None
            if not force:
                return
            # The client's socket takes no more: the shard keeps what is left of its latest credit.
            size = self._credit_bytes - self._used_bytes
            limit = min(self._limit, max(self._said_limit, self._sent) if size > 0 else self._sent)
        else:
            is_short = not force and self._mean_size and self._sent + window < self._limit
            if is_short and connection.frontend.outflow.grow(connection):
                window = self._window()
            size = connection.window_bytes // connection.consumers
            limit = min(self._limit, self._sent + window)
            if limit == self._sent and (self._wanted or self._reserved):
                # The client wants nothing now.
                self._wanted = 0
                self._unreserve()
            if not force and (limit == self._sent or (limit == self._said_limit and not bytes_used)):
                return
            if self._wanted > size:
                if not self._reserved and not connection.frontend.outflow.reservations.reserve(
                    self, self._wanted
                ):
                    return
                size = self._reserved = self._wanted
            elif self._reserved:
                # The message may be on its way.
                size = max(size, self._credit_bytes - self._used_bytes)
            self._wanted = 0
        kib = max(1, size >> 10)
        self._said_limit = limit
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


def _is_annotation(key: object) -> bool:
    """Whether an entry of an error's info goes on the dead letter: x-opt-, but for the broker's own names."""
    return isinstance(key, str) and key.startswith("x-opt-") and not key.startswith("x-opt-dead-letter-")
