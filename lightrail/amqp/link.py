"""The link endpoint: flow control, transfers in and out, settlement, detach (transport 2.6).

States. A link comes to be by the peer's attach (ATTACHING, until the caller accepts or refuses it) or by ours
(REQUESTED, until the peer's attach comes); then it is ATTACHED. Our detach makes it DETACHING until the peer's
has come, the peer's is answered at once; both end in DETACHED. Commands to a link that is on its way out do
nothing, as the caller can't know yet; only what could never have been right raises LocalError.

                R:ATTACH +-----------+ accept                                  S:DETACH
          +------------->| ATTACHING |---------+                          +-------------------+
          |              +-----------+        \\|/                         |                  \\|/
      (nothing)                          +----------+ R:DETACH, S:DETACH +----------+  +-----------+
          |              +-----------+   | ATTACHED |------------------->| DETACHED |<-| DETACHING |
          +------------->| REQUESTED |-->+----------+                    +----------+  +-----------+
                S:ATTACH +-----------+ R:ATTACH                              R:DETACH

Numbers. Deliveries that we send are numbered per link from 0 in order of send(); credit is told to the caller
as the number below which it may send. Inside, delivery-count is an integer that does not wrap; it differs from
that number by where it began and by what drain skipped.

After a detach with an error the specification ends the session with errant-link when anything but the peer's
detach comes for the link (2.6.5). To the letter that is applied to a link that the *peer's* fault ended. One
that the caller ended (a queue deleted, a link stolen) may have transfers on their way that were within credit:
those are dropped, and only what exceeds the credit is errant.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import frames, sections
from lightrail.amqp.delivery import WIRE, Assembly, Backlog, unwrap
from lightrail.amqp.events import ACCEPTED, Attached, Credit, Detached
from lightrail.amqp.faults import LinkFault, LocalError, SessionFault
from lightrail.amqp.performatives import (
    AmqpError,
    Attach,
    Coordinator,
    Detach,
    Target,
    TransactionalState,
    Transfer,
    encode_performative,
)
from lightrail.amqp.shapes import Shape, Template, learn, put, survey
from lightrail.amqp.values import DecodeError, Symbol
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.amqp.session import Session

REQUESTED: Final = 0
ATTACHING: Final = 1
ATTACHED: Final = 2
DETACHING: Final = 3
DETACHED: Final = 4

SETTLE_UNSETTLED: Final = 0
SETTLE_SETTLED: Final = 1
SETTLE_MIXED: Final = 2
SETTLE_FIRST: Final = 0
SETTLE_SECOND: Final = 1

CONTINUATION_OVERHEAD: Final = 8 + 4 + 2 + 5 + 5
"""Frame header, descriptor, list head, handle, and up to `more` of a transfer that continues a delivery."""


def encode_state(state: Any) -> bytes:
    """A delivery state as it goes into a disposition; b"" for None."""
    if state is None:
        return b""
    if state is ACCEPTED:
        return b"\x00S\x24\x45"
    return encode_performative(state)


def make_error(condition: str | None, description: str | None, info: dict[Symbol, Any] | None = None) -> Any:
    """An error performative, or None without a condition; long descriptions are cut to fit any frame."""
    if condition is None:
        return None
    text = description or None
    if text is not None and len(text.encode("utf-8", "replace")) > 300:
        text = text.encode("utf-8", "replace")[:297].decode("utf-8", "ignore") + "..."
    return AmqpError(condition=Symbol(condition), description=text, info=info)


class Link:
    """One end of a link. `context` is the caller's own."""

    __slots__ = (
        "_backlog",
        "_drain_due",
        "_errant",
        "_head_known",
        "_initial_count",
        "_limit_max",
        "_template",
        "allowed",
        "assembly",
        "attach",
        "available",
        "context",
        "credit",
        "delivery_count",
        "drain",
        "handle",
        "is_sender",
        "max_message_size",
        "name",
        "output_handle",
        "peer_max_message_size",
        "properties",
        "rcv_settle_mode",
        "sent",
        "session",
        "shape",
        "snd_settle_mode",
        "source",
        "state",
        "target",
        "transmitted",
    )

    def __init__(self, session: "Session", name: str, is_sender: bool) -> None:
        self.session = session
        self.name = name
        self.is_sender = is_sender
        """Our own role: True when we send on this link."""
        self.state = ATTACHING
        self.handle: int = -1
        """The peer's handle (input handle)."""
        self.output_handle = -1
        self.attach: Attach | None = None
        """The peer's attach, as it came."""
        self.source: Any = None
        self.target: Any = None
        self.snd_settle_mode = SETTLE_MIXED
        self.rcv_settle_mode = SETTLE_FIRST
        self.properties: dict[Symbol, Any] | None = None
        self.max_message_size = session.connection.settings.max_message_size
        """Largest message that we take, in bytes."""
        self.peer_max_message_size = 0
        """Largest message that the peer takes, in bytes; 0 when it sets no bound."""
        self.context: Any = None

        self.delivery_count = 0
        self._initial_count = 0
        self.credit = 0
        """Deliveries that may still be sent, by us or by the peer."""
        self.drain = False
        self.available = 0
        """Messages that wait for credit: the caller sets it for outgoing links, the peer for incoming ones."""

        # incoming
        self.allowed = 0
        """Deliveries that the peer may still send by any credit that it ever was given."""
        self.assembly: Assembly | None = None
        self.shape: Shape | None = None
        self._head_known = b""
        self._errant = False

        # outgoing
        self.sent = 0
        """Messages handed to send()."""
        self.transmitted = 0
        """Those of them whose first frame is in the output."""
        self._limit_max = 0
        self._backlog: list[Backlog] | None = None
        self._drain_due = False
        self._template: Template | None = None

    def __repr__(self) -> str:
        return f"Link({self.name!r}, {'sender' if self.is_sender else 'receiver'}, handle {self.handle})"

    @property
    def limit(self) -> int:
        """Outgoing: deliveries numbered below this may be sent now."""
        return self.transmitted + self.credit

    # --- attach and detach: commands ---------------------------------------------------------------------

    def accept(
        self,
        source: Any = ...,
        target: Any = ...,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
        max_message_size: int | None = None,
        offered_capabilities: list[Symbol] | None = None,
        desired_capabilities: list[Symbol] | None = None,
        properties: dict[Symbol, Any] | None = None,
    ) -> None:
        """Answer the peer's attach: termini default to the ones it asked for, modes to its wishes (2.6.3)."""
        if self.state != ATTACHING:
            if self.state == ATTACHED:
                raise LocalError(f"{self!r} is attached already")
            return
        if source is not ...:
            self.source = source
        if target is not ...:
            self.target = target
        if snd_settle_mode is not None:
            self.snd_settle_mode = snd_settle_mode
        if rcv_settle_mode is not None:
            self.rcv_settle_mode = rcv_settle_mode
        if max_message_size is not None:
            self.max_message_size = max_message_size
        body = self.attach_body(offered_capabilities, desired_capabilities, properties)
        if len(body) + 8 > self.session.connection.peer_max_frame_size:
            self.session.fail(
                SessionFault(
                    conditions.FRAME_SIZE_TOO_SMALL,
                    f"expected a max-frame-size of at least {len(body) + 8} bytes for our attach of link"
                    f" {self.name!r}, found {self.session.connection.peer_max_frame_size}",
                )
            )
            return
        self.state = ATTACHED
        self.session.write(body)

    def refuse(self, condition: str, description: str = "", info: dict[Symbol, Any] | None = None) -> None:
        """Answer the peer's attach with one that has no terminus on our side, and a detach with the reason."""
        if self.state != ATTACHING:
            if self.state == ATTACHED:
                raise LocalError(f"{self!r} is attached already: detach it")
            return
        self._detach(True, make_error(condition, description, info))

    def detach(
        self,
        condition: str | None = None,
        description: str = "",
        closed: bool = True,
        info: dict[Symbol, Any] | None = None,
    ) -> None:
        """End the link; no event follows."""
        if self.state in (ATTACHING, ATTACHED, REQUESTED):
            self._detach(closed, make_error(condition, description, info))

    def begin_count(self, count: int) -> None:
        """Where the delivery-count of a sender begins."""
        self._initial_count = self.delivery_count = count

    def attach_body(
        self,
        offered_capabilities: list[Symbol] | None = None,
        desired_capabilities: list[Symbol] | None = None,
        properties: dict[Symbol, Any] | None = None,
    ) -> bytes:
        """Our attach as a frame body."""
        if self.output_handle < 0:
            self.output_handle = self.session.map_output(self)
        return encode_performative(
            Attach(
                name=self.name,
                handle=self.output_handle,
                role=not self.is_sender,
                snd_settle_mode=self.snd_settle_mode,
                rcv_settle_mode=self.rcv_settle_mode,
                source=self.source,
                target=self.target,
                initial_delivery_count=self._initial_count & WIRE if self.is_sender else None,
                max_message_size=self.max_message_size or None,
                offered_capabilities=offered_capabilities or None,
                desired_capabilities=desired_capabilities or None,
                properties=properties or None,
            )
        )

    def _detach(self, closed: bool, error: AmqpError | None) -> None:
        """Write our detach, and before it the attach that is still owed."""
        session = self.session
        if self.state == ATTACHING:
            source, target = self.source, self.target
            if self.is_sender:
                self.source = None
                self.target = None if not isinstance(target, Target | Coordinator) else target
            else:
                self.target = None
            body = self.attach_body()
            if len(body) + 8 > session.connection.peer_max_frame_size:
                self.source = self.target = None
                body = self.attach_body()
            self.source, self.target = source, target
            session.write(body)
        session.write(
            encode_performative(Detach(handle=self.output_handle, closed=closed, error=error))
        )
        self.state = DETACHING
        session.unmap_output(self)
        self._forget()

    def _forget(self) -> None:
        """Let go of everything that is under way."""
        session = self.session
        session.incoming.drop(self)
        session.outgoing.drop(self)
        self.assembly = None
        self.shape = None
        self._template = None
        if self._backlog is not None:
            self._backlog = None
            session.waiting.remove(self)
        session.connection.forget_shape(self)
        session.connection.forget_name(self)

    def abandon(self) -> None:
        """The session or connection has gone: commands do nothing from here on."""
        self.state = DETACHED
        self.assembly = None
        self.shape = None
        self._template = None
        self._backlog = None
        self.session.connection.forget_shape(self)
        self.session.connection.forget_name(self)

    @property
    def is_errant(self) -> bool:
        """The peer's fault ended the link, and its detach has not come yet."""
        return self._errant and self.state == DETACHING

    def fail(self, fault: LinkFault) -> None:
        """The peer's fault: detach with its condition, and tell the caller."""
        error = make_error(fault.condition, fault.description)
        self._detach(True, error)
        self._errant = True
        self.session.connection.events.append(Detached(self, True, error, False))

    def steal(self) -> None:
        """The same name has been attached again (2.6.1): detach, and tell the caller."""
        error = make_error(conditions.STOLEN, f"link {self.name!r} has been attached again on this connection")
        self._detach(True, error)
        self.session.connection.events.append(Detached(self, True, error, False))

    # --- attach and detach: from the peer ----------------------------------------------------------------

    def on_attach(self, attach: Attach) -> None:
        """Take over what the peer's attach says."""
        self.attach = attach
        self.handle = attach.handle
        self.properties = attach.properties
        self.source = attach.source
        self.target = attach.target
        self.peer_max_message_size = attach.max_message_size or 0
        self.snd_settle_mode = attach.snd_settle_mode
        self.rcv_settle_mode = attach.rcv_settle_mode
        if not self.is_sender and attach.initial_delivery_count is not None:
            self.delivery_count = attach.initial_delivery_count
            self._initial_count = self.delivery_count
        connection = self.session.connection
        if self.state == REQUESTED:
            self.state = ATTACHED
        else:
            if self.is_sender:
                self.begin_count(connection.settings.initial_delivery_count)
            if not self.is_sender and attach.initial_delivery_count is None:
                raise LinkFault(
                    conditions.INVALID_FIELD,
                    "expected initial-delivery-count in the attach of a sender, found null",
                )
        connection.events.append(Attached(self))

    def on_detach(self, detach: Detach) -> None:
        """The peer's detach: answered if it is not the answer to ours."""
        session = self.session
        answer = self.state == DETACHING
        if not answer:
            self._detach(detach.closed, None)
        self.state = DETACHED
        session.unmap_input(self)
        if not answer:
            session.connection.events.append(Detached(self, detach.closed, detach.error, True))

    # --- flow control ------------------------------------------------------------------------------------

    def grant(self, credit: int, drain: bool = False, echo: bool = False) -> None:
        """Incoming: set the link-credit, counted from the deliveries that have come so far (2.6.7)."""
        if self.is_sender:
            raise LocalError(f"{self!r} is a sender: the peer grants its credit")
        if self.state == ATTACHING:
            raise LocalError(f"{self!r} is not accepted yet: no flow before the attach")
        if self.state != ATTACHED:
            return
        self.credit = credit
        self.drain = drain
        if credit > self.allowed:
            self.allowed = credit
        self._write_flow(drain, echo)

    def _write_flow(self, drain: bool = False, echo: bool = False) -> None:
        sender = self.is_sender
        self.session.write_flow(
            self.output_handle,
            self.delivery_count & WIRE,
            self.credit if self.credit > 0 else 0,
            self.available if sender else None,
            drain,
            echo,
        )

    def drained(self) -> None:
        """Outgoing: everything available has been sent; use up the credit if the peer still asks for it."""
        if not self.is_sender:
            raise LocalError(f"{self!r} is a receiver: only a sender answers drain")
        if self.state != ATTACHED or not self.drain:
            return
        if self._backlog is not None:
            self._drain_due = True
            return
        self._drain_due = False
        self.delivery_count += self.credit
        self.credit = 0
        self._limit_max = self.sent
        self.available = 0
        self._write_flow(drain=True)

    def on_flow(
        self,
        delivery_count: int | None,
        link_credit: int | None,
        available: int | None,
        drain: bool,
        echo: bool,
    ) -> None:
        """The peer's flow state for this link; the session's part of the frame has been taken already."""
        if self.state == DETACHING:
            if self._errant:
                raise errant(self, "flow")
            return
        if self.is_sender:
            known = self._initial_count if delivery_count is None else unwrap(delivery_count, self.delivery_count)
            if link_credit is not None:
                self.credit = max(0, known + link_credit - self.delivery_count)
            self.drain = drain
            limit = self.transmitted + self.credit
            if limit > self._limit_max:
                self._limit_max = limit
            if self._backlog is not None:
                self.pump()
            self.session.connection.events.append(Credit(self, self.transmitted + self.credit, drain, echo))
        else:
            if delivery_count is not None:
                count = unwrap(delivery_count, self.delivery_count)
                skipped = count - self.delivery_count
                if skipped > 0:
                    self.delivery_count = count
                    self.credit = max(0, self.credit - skipped)
                    self.allowed = max(0, self.allowed - skipped)
            if available is not None:
                self.available = available
        if echo and self.state == ATTACHED:
            self._write_flow(self.drain)

    # --- incoming transfers ------------------------------------------------------------------------------

    def on_transfer(self, transfer: Transfer, data: bytes, position: int, payload_at: int, stop: int) -> None:
        """A transfer frame data[position:stop] read by the complete decoder."""
        session = self.session
        wire = transfer.delivery_id
        if self.state == DETACHING:
            if wire is not None:
                session.saw_delivery(wire)
            self.allowed -= 1
            if self._errant or self.allowed < 0:
                raise errant(self, "transfer")
            return
        if self.is_sender:
            raise LinkFault(
                conditions.NOT_ALLOWED,
                f"expected transfers from the sender of link {self.name!r} only, found one from its receiver",
            )
        assembly = self.assembly
        if assembly is None:
            assembly = self._begin_delivery(transfer)
        else:
            self._check_continuation(assembly, transfer)
        if transfer.settled:
            assembly.settled = True
        if transfer.rcv_settle_mode is not None:
            if transfer.rcv_settle_mode == SETTLE_SECOND and self.rcv_settle_mode == SETTLE_FIRST:
                raise LinkFault(
                    conditions.INVALID_FIELD,
                    "expected rcv-settle-mode first, as negotiated for the link, found second in a transfer",
                )
            assembly.second = transfer.rcv_settle_mode == SETTLE_SECOND
        if isinstance(transfer.state, TransactionalState):
            raise LinkFault(
                conditions.TRANSACTION_UNKNOWN_ID,
                f"expected a transaction that was declared, found transaction {transfer.state.txn_id!r}",
            )
        if transfer.aborted:
            self.assembly = None
            return
        size = assembly.size + stop - payload_at
        if self.max_message_size and size > self.max_message_size:
            raise LinkFault(
                conditions.MESSAGE_SIZE_EXCEEDED,
                f"expected messages of at most {self.max_message_size} bytes, found one of {size}"
                f" {'or more ' if transfer.more else ''}on link {self.name!r}",
            )
        if transfer.more:
            assembly.parts.append(data[payload_at:stop])
            assembly.size = size
            self.assembly = assembly
            return
        self.assembly = None
        single = not assembly.parts
        if single:
            payload = data[payload_at:stop]
        else:
            assembly.parts.append(data[payload_at:stop])
            payload = b"".join(assembly.parts)
        if assembly.resumed:
            return
        self._check_settled(assembly)
        head = b""
        expiry: int | None = None
        opening = None
        if assembly.message_format == 0:
            try:
                opening = survey(payload)
                head = payload[: opening.head_end]
                if head != self._head_known:
                    sections.decode_header(head)
                    self._head_known = head
                if opening.may_expire:
                    expiry = sections.attributes(payload)[3]
            except DecodeError as error:
                raise LinkFault(conditions.DECODE_ERROR, str(error)) from None
        session.deliver(
            self,
            assembly.delivery_id,
            [payload],
            assembly.settled,
            assembly.second,
            assembly.message_format,
            self._head_known if head else b"",
            expiry,
        )
        if (
            single
            and expiry is None
            and transfer.state is None
            and transfer.rcv_settle_mode is None
            and session.connection.settings.learn_shapes
        ):
            most = session.connection.settings.max_frame_size
            if self.max_message_size:
                most = min(most, payload_at - position + self.max_message_size)
            self.shape = learn(
                self,
                data,
                position,
                payload_at,
                opening,
                self._head_known if head else b"",
                assembly.settled,
                assembly.message_format,
                most,
            )
            session.connection.use_shape(self.shape)

    def _begin_delivery(self, transfer: Transfer) -> Assembly:
        """The first frame of a delivery: what it must carry (2.7.5), and whether credit allows it."""
        if transfer.delivery_id is None or transfer.delivery_tag is None:
            missing = "delivery-id" if transfer.delivery_id is None else "delivery-tag"
            raise LinkFault(
                conditions.INVALID_FIELD,
                f"expected {missing} in the first transfer of a delivery on link {self.name!r}, found null",
            )
        delivery_id = self.session.saw_delivery(transfer.delivery_id)
        if self.allowed <= 0:
            raise LinkFault(
                conditions.TRANSFER_LIMIT_EXCEEDED,
                f"expected no transfer on link {self.name!r} before more credit is granted, found delivery"
                f" {transfer.delivery_id}",
            )
        self.allowed -= 1
        self.delivery_count += 1
        if self.credit > 0:
            self.credit -= 1
        if self.available > 0:
            self.available -= 1
        assembly = Assembly(delivery_id, transfer.delivery_tag, transfer.message_format or 0)
        assembly.second = self.rcv_settle_mode == SETTLE_SECOND
        assembly.resumed = transfer.resume
        return assembly

    def _check_continuation(self, assembly: Assembly, transfer: Transfer) -> None:
        """What a continuation repeats it must not change (2.7.5)."""
        if transfer.delivery_id is not None and transfer.delivery_id != assembly.delivery_id & WIRE:
            self.session.saw_delivery(transfer.delivery_id)
            found, expected = f"delivery-id {transfer.delivery_id}", str(assembly.delivery_id & WIRE)
        elif transfer.delivery_tag is not None and transfer.delivery_tag != assembly.tag:
            found, expected = f"delivery-tag {transfer.delivery_tag!r}", repr(assembly.tag)
        elif transfer.message_format is not None and transfer.message_format != assembly.message_format:
            found, expected = f"message-format {transfer.message_format}", str(assembly.message_format)
        else:
            return
        raise LinkFault(
            conditions.NOT_ALLOWED,
            f"expected a continuation of the delivery under way on link {self.name!r} ({expected}), found {found}",
        )

    def _check_settled(self, assembly: Assembly) -> None:
        """The sender keeps to the snd-settle-mode that it announced (2.7.5)."""
        mode = self.snd_settle_mode
        if mode == SETTLE_MIXED or assembly.settled is (mode == SETTLE_SETTLED):
            return
        expected, found = ("settled", "unsettled") if mode == SETTLE_SETTLED else ("unsettled", "settled")
        raise LinkFault(
            conditions.NOT_ALLOWED,
            f"expected {expected} deliveries on link {self.name!r} by its snd-settle-mode, found one {found}",
        )

    def settle(self, first: int, last: int, state: Any = ACCEPTED, settled: bool = True) -> None:
        """Incoming: tell the sender the outcome of deliveries first..last (delivery-ids of Transfers events).

        With rcv-settle-mode second the disposition is sent unsettled, and SenderSettled follows. What the
        sender has settled itself meanwhile is passed over: it has forgotten it.
        """
        if self.is_sender:
            raise LocalError(f"{self!r} is a sender: its deliveries are settled with settle_sent")
        if last < first:
            raise LocalError(f"expected a range of delivery-ids, found {first}..{last}")
        if self.state != ATTACHED:
            return
        session = self.session
        unsettled = session.incoming
        encoded = encode_state(state)
        if self.rcv_settle_mode == SETTLE_FIRST and settled:
            for taken in unsettled.take(first, last, self):
                session.write_disposition(True, taken.first, taken.last, True, encoded)
            return
        for found in unsettled.find(first, last):
            if found.link is self:
                done = settled and not found.second
                if done:
                    unsettled.take(found.first, found.last, self)
                session.write_disposition(True, found.first, found.last, done, encoded)

    # --- outgoing transfers ------------------------------------------------------------------------------

    def send(
        self,
        count: int,
        ends: Sequence[int],
        blob: bytes | bytearray | memoryview,
        base: int = 0,
        settled: bool = False,
        message_format: int = 0,
    ) -> None:
        """Send `count` messages: message i is blob[ends[i-1]-base : ends[i]-base], with ends[-1] taken as base.

        The caller stays below the limit of the newest Credit event. What the peer's session window does not
        let out yet waits inside, and goes when its flow comes.
        """
        if not self.is_sender:
            raise LocalError(f"{self!r} is a receiver and can't send")
        if self.state != ATTACHED:
            if self.state < ATTACHED:
                raise LocalError(f"{self!r} is not attached yet")
            return
        if self.sent + count > self._limit_max:
            raise LocalError(
                f"{self!r} may send deliveries below {self._limit_max}, found {count} more after {self.sent}"
            )
        if self.snd_settle_mode != SETTLE_MIXED and settled is not (self.snd_settle_mode == SETTLE_SETTLED):
            raise LocalError(f"{self!r} was attached with snd-settle-mode {self.snd_settle_mode}")
        if not count:
            return
        if type(blob) is not bytes:
            blob = bytes(memoryview(blob)[: ends[count - 1] - base])
        self.sent += count
        entry = Backlog(count, ends, blob, base, settled, message_format)
        if self._backlog is None:
            if not self._transmit(entry):
                self._backlog = [entry]
                self.session.waiting.append(self)
        else:
            self._backlog.append(entry)

    def send_one(self, payload: bytes, message_format: int = 0, settled: bool = False) -> None:
        """Send a single message."""
        self.send(1, (len(payload),), payload, 0, settled, message_format)

    def pump(self) -> None:
        """Send what waits, as far as credit and window go."""
        backlog = self._backlog
        if backlog is None or self.state != ATTACHED:
            return
        done = 0
        for entry in backlog:
            if not self._transmit(entry):
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
        """Write frames for `entry` until it is done (True) or credit or the session's window is used up."""
        session = self.session
        template = self._template
        if (
            template is None
            or template.settled is not entry.settled
            or template.message_format != entry.message_format
        ):
            template = self._template = Template(
                session.channel, frames.uint(self.output_handle), entry.settled, entry.message_format
            )
        most = session.connection.peer_max_frame_size - template.overhead
        count = entry.count
        ends = entry.ends
        while True:
            if entry.offset == 0:
                index = entry.index
                first = session.next_delivery_id
                wire = first & WIRE
                some = min(count - index, self.credit, session.remote_incoming_window, WIRE + 1 - wire)
                if some <= 0:
                    return index == count
                start = ends[index - 1] - entry.base if index else 0
                part = ends if some == count else ends[index : index + some]
                done = put(
                    template, session.connection.output, part, entry.blob, entry.base, start, wire, most
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

    def _number(self, entry: Backlog, done: int) -> None:
        """Give `done` messages of the entry their delivery-ids."""
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
        """Write one frame of a message that is larger than a frame; False when the window is shut."""
        session = self.session
        if session.remote_incoming_window <= 0:
            return False
        index = entry.index
        if entry.offset == 0:
            start = ends_start(entry, index)
            size = most - 1
            entry.delivery_id = session.next_delivery_id
            body = encode_performative(
                Transfer(
                    handle=self.output_handle,
                    delivery_id=entry.delivery_id & WIRE,
                    delivery_tag=(entry.delivery_id & WIRE).to_bytes(4, "big"),
                    message_format=entry.message_format,
                    settled=entry.settled,
                    more=True,
                )
            )
            self._number(entry, 1)
            entry.index = index
            entry.offset = size
            session.write(body + entry.blob[start : start + size])
            session.sent_transfers(1)
            return True
        start = ends_start(entry, index) + entry.offset
        end = entry.ends[index] - entry.base
        size = session.connection.peer_max_frame_size - CONTINUATION_OVERHEAD
        more = end - start > size
        body = encode_performative(Transfer(handle=self.output_handle, more=more))
        session.write(body + entry.blob[start : start + size if more else end])
        session.sent_transfers(1)
        if more:
            entry.offset += size
        else:
            entry.offset = 0
            entry.index = index + 1
        return True

    def settle_sent(self, first: int, last: int, state: Any = None) -> None:
        """Outgoing: settle deliveries first..last (the link's own numbers) and tell the receiver."""
        if not self.is_sender:
            raise LocalError(f"{self!r} is a receiver: its deliveries are settled with settle")
        if self.state != ATTACHED:
            return
        session = self.session
        encoded = encode_state(state)
        for taken in session.outgoing.take_numbered(self, first, last):
            session.write_disposition(False, taken.first, taken.last, True, encoded)


def ends_start(entry: Backlog, index: int) -> int:
    """Offset in the blob where message `index` begins."""
    return entry.ends[index - 1] - entry.base if index else 0


def errant(link: Link, what: str) -> SessionFault:
    """Input for a link that was detached with an error (2.6.5)."""
    return SessionFault(
        conditions.ERRANT_LINK,
        f"expected nothing but detach for link {link.name!r}, which was detached with an error, found {what}",
    )


