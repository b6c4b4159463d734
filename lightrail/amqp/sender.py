"""The sending end of a link: uses credit, cuts messages into transfers, settles outcomes (transport 2.6).

Messages are numbered from 0 in order of send(). They leave while there is credit and the session's window is
open, and wait in order otherwise. A message that is larger than a frame becomes several transfers; between
two of them other links of the session may send, this link may not (2.6.14).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import frames
from lightrail.amqp.again import AgainSender, Backlog
from lightrail.amqp.errors import EndedError, LinkProtocolError, LocalError
from lightrail.amqp.events import Acquire, Credit
from lightrail.amqp.frames import NumberedTemplate, Template, WideTemplate
from lightrail.amqp.link import ATTACHED, ATTACHING, DETACHING, SETTLE_MIXED, SETTLE_SETTLED
from lightrail.amqp.link_endpoint import encode_state, errant
from lightrail.amqp.performatives import Flow, TransactionalState, Transfer, encode_performative
from lightrail.amqp.unsettled import WIRE, unwrap
from lightrail.amqp.values import Symbol
from lightrail.model import conditions, limits

if TYPE_CHECKING:
    from lightrail.amqp.session import Session

TXN_ID: Final = Symbol("txn-id")
"""Key in the properties of a flow: the transaction that its credit is for."""
CONTINUATION_OVERHEAD: Final = 8 + 4 + 2 + 5 + 5
"""Frame header, descriptor, list head, handle, and up to `more` of a transfer that continues a delivery."""


class SendingLink(AgainSender):
    """A link on which we send."""

    __slots__ = (
        "_continuation",
        "_continuation_last",
        "_drain_due",
        "txn_id",
    )

    def __init__(self, session: "Session", name: str) -> None:
        super().__init__(session, name)
        self._drain_due = False
        self.txn_id: bytes | None = None
        """The transaction in which the receiver acquires further deliveries (transactions 4.4.3)."""
        self._continuation = b""
        """The transfer that continues a delivery; each but the last is the same."""
        self._continuation_last = b""
        """The transfer that ends a delivery of several frames."""

    @property
    def limit(self) -> int:
        if self._again:
            return self.transmitted + max(0, self.credit - len(self._again) + self._again[0].is_begun)
        found = self.transmitted + self.credit
        if self.passed_over is not None and self._backlog is not None:
            found += sum(entry.is_passed_over for entry in self._backlog)
        return found

    @property
    def backlog(self) -> int:
        return self.sent - self.transmitted

    def release(self) -> None:
        self._template = None
        self._continuation = self._continuation_last = b""
        self._again = None
        if self._backlog is not None:
            # The receiver drops a message of which it has a part.
            self.transmitted -= self.unfinished is not None
            self._backlog = None
            if self in self.session.waiting:
                self.session.waiting.remove(self)

    # --- credit ------------------------------------------------------------------------------------------

    def on_flow(
        self, delivery_count: int | None, credit: int | None, available: int | None, drain: bool, echo: bool
    ) -> None:
        """Apply the receiver's flow: link-credit counts from the receiver's delivery-count (2.6.7)."""
        if self.state == DETACHING:
            if self.is_errant:
                raise errant(self, "flow")
            return
        known = self.initial_count if delivery_count is None else unwrap(delivery_count, self.delivery_count)
        if credit is not None:
            # A receiver that counts more deliveries than were sent gets the credit that it names.
            self.credit = max(0, min(known, self.delivery_count) + credit - self.delivery_count)
        self.drain = drain
        # The caller answers each drain anew: an earlier answer that waits must not answer this one.
        self._drain_due = False
        # Never lower: the caller may have acted by an earlier, higher limit.
        if self.limit > self._limit_max:
            self._limit_max = self.limit
        if self._backlog is not None:
            self.pump()
        self.session.connection.events.append(Credit(self, self.limit, drain, echo))
        if echo and self.state == ATTACHED:
            self.write_flow(drain)

    def acquire(self, txn_id: bytes | None) -> None:
        """The receiver acquires further deliveries in a transaction, or in none."""
        if self.state in (ATTACHING, ATTACHED):
            self.txn_id = txn_id
            self.session.connection.events.append(Acquire(self, txn_id))

    def write_flow(self, drain: bool = False, echo: bool = False) -> None:
        if self.txn_id is None:
            super().write_flow(drain, echo)
            return
        flow = Flow(
            handle=self.output_handle,
            delivery_count=self.delivery_count & WIRE,
            link_credit=max(0, self.credit),
            available=self.available,
            drain=drain,
            echo=echo,
            properties={TXN_ID: self.txn_id},
        )
        self.session.write_flow_with(flow)

    def drained(self) -> None:
        if self.state != ATTACHED or not self.drain:
            return
        if self._backlog is not None and (self.credit or not self._again):
            self._drain_due = True
            return
        self._drain_due = False
        self.delivery_count += self.credit
        self.credit = 0
        # Drain has used up the credit at both ends (2.6.7): no message may be sent by an earlier limit.
        self._limit_max = self.sent
        self.available = 0
        self.write_flow(drain=True)
        # More messages may be stored in the next moment, and without credit the receiver is not notified.
        self.available = None

    # --- transfers ---------------------------------------------------------------------------------------

    def on_transfer(self, transfer: Transfer, data: bytes, position: int, payload_at: int, stop: int) -> None:
        """Refuse a transfer against the direction of the link."""
        if transfer.delivery_id is not None:
            self.session.begin_delivery(transfer.delivery_id)
        if self.state == DETACHING:
            raise errant(self, "transfer")
        raise LinkProtocolError(
            conditions.NOT_ALLOWED,
            f"expected transfers from the sender of link {self.name!r} only, found one from its receiver",
        )

    def send(
        self,
        count: int,
        ends: Sequence[int],
        blob: bytes | bytearray | memoryview,
        base: int = 0,
        settled: bool = False,
        message_format: int = 0,
        state: Any = None,
    ) -> None:
        if self.state != ATTACHED:
            if self.state < ATTACHED:
                raise LocalError(f"{self!r} is not attached yet")
            raise EndedError(f"{self!r} has ended, and sends nothing")
        if self.sent + count > self._limit_max:
            raise LocalError(
                f"{self!r} may send deliveries below {self._limit_max}, found {count} more after {self.sent}"
            )
        if self.snd_settle_mode != SETTLE_MIXED and settled is not (self.snd_settle_mode == SETTLE_SETTLED):
            raise LocalError(f"{self!r} was attached with snd-settle-mode {self.snd_settle_mode}")
        if not count:
            return
        largest = self.peer_max_message_size
        if largest and ends[count - 1] - base > largest:
            large = _larger(ends[:count], base, largest)
            if large and self.passed_over is None:
                text = f"expected messages of at most {largest} bytes (max-message-size), found larger ones"
                self.fail(LinkProtocolError(conditions.MESSAGE_SIZE_EXCEEDED, text), errant=False)
                return
            if large:
                self._send_beside(large, ends[:count], blob, base, settled, message_format, state)
                return
        if type(blob) is not bytes and not (type(blob) is memoryview and blob.readonly):
            blob = bytes(memoryview(blob)[: ends[count - 1] - base])
        self.sent += count
        entry = Backlog(count, ends, blob, base, settled, message_format, state)
        if self._backlog is None:
            if not self._transmit(entry):
                self._backlog = [entry]
                self.session.waiting.append(self)
        else:
            self._backlog.append(entry)

    def _send_beside(
        self,
        large: Sequence[int],
        ends: Sequence[int],
        blob: bytes | bytearray | memoryview,
        base: int,
        settled: bool,
        message_format: int,
        state: Any,
    ) -> None:
        """Send messages but for `large`, whose numbers are passed over."""
        assert self.passed_over is not None
        view, first = memoryview(blob), 0
        for index in (*large, len(ends)):
            start = ends[first - 1] if first else base
            if index > first:
                part = view[start - base : ends[index - 1] - base].toreadonly()
                self.send(index - first, ends[first:index], part, start, settled, message_format, state)
                start = ends[index - 1]
            if index < len(ends):
                self.passed_over.append((self.sent, ends[index] - start))
                self._pass_over()
            first = index + 1

    def _pass_over(self) -> None:
        """Use up the next number, behind the messages that wait, without a delivery or credit."""
        self.sent += 1
        self._limit_max += 1
        if self._backlog is None:
            self.transmitted += 1
        else:
            self._backlog.append(Backlog(1, (), b"", 0, False, 0))

    def pump(self) -> None:
        backlog = self._backlog
        if backlog is None or self.state != ATTACHED:
            return
        if self._again and not self._transmit_again():
            if self._drain_due and not self.credit:
                self.drained()
            return
        done = 0
        for entry in backlog:
            if entry.is_passed_over:
                self.transmitted += 1
            elif not self._transmit(entry):
                break
            done += 1
        if done == len(backlog):
            self._backlog = None
            self.session.waiting.remove(self)
            if self._drain_due:
                self.drained()
        elif done:
            del backlog[:done]

    def _transmit(self, entry: Backlog) -> bool:
        """Write frames for `entry`; False when credit or the session's window is used up before its end."""
        session = self.session
        template = self._template
        if (
            template is None
            or template.settled is not entry.settled
            or template.message_format != entry.message_format
            or template.state is not entry.state
        ):
            self._continuation = b""
            template = self._template = self._template_of(entry)
        most = session.connection.peer_max_frame_size - template.overhead
        count = entry.count
        ends = entry.ends
        if ends[count - 1] - entry.base >= count * limits.LARGE_PIECE_BYTES:
            session.connection.has_large_output = True
        while True:
            if entry.offset == 0:
                index = entry.index
                first = session.next_delivery_id
                wire = first & WIRE
                # `put` counts ids without a mask, so it must not pass the wrap.
                some = min(count - index, self.credit, session.remote_incoming_window, WIRE + 1 - wire)
                if some <= 0:
                    return index == count
                start = ends[index - 1] - entry.base if index else 0
                part = ends if some == count else ends[index : index + some]
                done = template.put(
                    session.connection.output, part, entry.blob, entry.base, start, wire, most
                )
                if done:
                    session.sent_transfers(done)
                    self._number(entry, done)
                    if entry.index == count:
                        return True
                if done == some:
                    continue
            if not self._transmit_frame(entry, template, most):
                return False
            if entry.index == count:
                return True

    def _template_of(self, entry: Backlog) -> Template:
        kind = Template
        if self.numbers_tags:
            kind = WideTemplate if self.has_wide_tags else NumberedTemplate
        template = kind(
            self.session.channel,
            frames.uint(self.output_handle),
            entry.settled,
            entry.message_format,
            entry.state,
            b"" if entry.state is None else encode_state(entry.state),
            self.tag_prefix,
        )
        if isinstance(template, NumberedTemplate):
            template.numbered = self
        return template

    def _number(self, entry: Backlog, done: int) -> None:
        """Count `done` messages of the entry as sent, with the next delivery-ids."""
        session = self.session
        first = session.next_delivery_id
        session.next_delivery_id = first + done
        if not entry.settled:
            session.outgoing.add(self, first, first + done - 1, first - self.transmitted)
        self.transmitted += done
        self.delivery_count += done
        self.credit -= done
        entry.index += done

    def _transmit_frame(self, entry: Backlog, template: Template, most: int) -> bool:
        """Write one frame of a message that is larger than a frame; False when the window is closed."""
        session = self.session
        if session.remote_incoming_window <= 0:
            return False
        index = entry.index
        if entry.offset == 0:
            start = entry.start_of(index)
            size = most - 1
            entry.delivery_id = session.next_delivery_id
            number = self.transmitted if self.numbers_tags else entry.delivery_id
            body = encode_performative(
                Transfer(
                    handle=self.output_handle,
                    delivery_id=entry.delivery_id & WIRE,
                    delivery_tag=self.tag_of(number),
                    message_format=entry.message_format,
                    settled=entry.settled,
                    more=True,
                    state=entry.state,
                )
            )
            self._number(entry, 1)
            entry.index = index
            entry.offset = size
            session.write_part(body, memoryview(entry.blob)[start : start + size])
            session.sent_transfers(1)
            return True
        start = entry.start_of(index) + entry.offset
        end = entry.ends[index] - entry.base
        size = session.connection.peer_max_frame_size - CONTINUATION_OVERHEAD
        more = end - start > size
        if not self._continuation:
            self._continuation = encode_performative(Transfer(handle=self.output_handle, more=True))
            self._continuation_last = encode_performative(Transfer(handle=self.output_handle))
        body = self._continuation if more else self._continuation_last
        session.write_part(body, memoryview(entry.blob)[start : start + size if more else end])
        session.sent_transfers(1)
        if more:
            entry.offset += size
        else:
            entry.offset = 0
            entry.index = index + 1
        return True

    def settle_sent(self, first: int, last: int, state: Any = None) -> int:
        if self.state != ATTACHED:
            return 0
        session = self.session
        encoded = encode_state(state)
        count = 0
        for part in session.outgoing.take_numbered(self, first, last):
            session.write_disposition(False, part.first, part.last, True, encoded)
            count += part.last - part.first + 1
        return count

    def forget_state(self, state: TransactionalState) -> None:
        if self.txn_id == state.txn_id:
            self.txn_id = None
        for entry in self._backlog or ():
            if entry.state is state:
                # Further frames of a message that is begun have no state.
                entry.state = None

    @property
    def unfinished(self) -> int | None:
        return self.transmitted - 1 if self._backlog and self._backlog[0].offset else None

    def forget_sent(self, first: int, last: int) -> int:
        parts = self.session.outgoing.take_numbered(self, first, last)
        return sum(part.last - part.first + 1 for part in parts)


def _larger(ends: Sequence[int], base: int, largest: int) -> list[int]:
    """The indexes of messages above a size."""
    starts = (base, *ends)
    return [index for index, end in enumerate(ends) if end - starts[index] > largest]
