"""The link endpoint: attach, detach, and what both roles have in common (transport 2.6).

Receiving is in receiver.py, sending in sender.py.

States. A link comes to be by the peer's attach (ATTACHING, until the caller accepts or refuses it) or by ours
(REQUESTED, until the peer's attach comes); then it is ATTACHED. Our detach makes it DETACHING until the
peer's has come, the peer's is answered at once; both end in DETACHED. Commands to a link that is on its way
out do nothing, as the caller can't know yet; only what could never have been right raises LocalError. Where
the caller has work to do before the peer may take a link for closed (`answers_close`), the peer's closing
detach makes it CLOSING, and the caller answers with answer_close.

                R:ATTACH +-----------+ accept                                  S:DETACH
          +------------->| ATTACHING |---------+                          +-------------------+
          |              +-----------+        \\|/                         |                  \\|/
      (nothing)                          +----------+ R:DETACH, S:DETACH +----------+  +-----------+
          |              +-----------+   | ATTACHED |------------------->| DETACHED |<-| DETACHING |
          +------------->| REQUESTED |-->+----------+                    +----------+  +-----------+
                S:ATTACH +-----------+ R:ATTACH  |                         /|\\   R:DETACH
                                                 | R:DETACH +---------+     |
                                                 +--------->| CLOSING |-----+
                                                            +---------+ S:DETACH

Numbers. Deliveries that we send are numbered per link from 0 in order of send(); credit is told to the caller
as the number below which it may send. Inside, delivery-count is an integer that does not wrap; it differs
from that number by where it began and by what drain skipped.

After a detach with an error the specification ends the session with errant-link when anything but the peer's
detach comes for the link (2.6.5). To the letter that is applied to a link that the *peer's* fault ended. One
that the caller ended (a queue deleted, a link stolen) may have transfers on their way that were within
credit: those are dropped, and only what exceeds the credit is errant.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.delivery import WIRE
from lightrail.amqp.encoder import encode
from lightrail.amqp.events import ACCEPTED, Attached, Detached
from lightrail.amqp.faults import LinkFault, LocalError, SessionFault
from lightrail.amqp.performatives import (
    AmqpError,
    Attach,
    Coordinator,
    Detach,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from lightrail.amqp.values import Described, Symbol
from lightrail.model import conditions, limits

if TYPE_CHECKING:
    from lightrail.amqp.session import Session

REQUESTED: Final = 0
ATTACHING: Final = 1
ATTACHED: Final = 2
DETACHING: Final = 3
DETACHED: Final = 4
CLOSING: Final = 5

SETTLE_UNSETTLED: Final = 0
SETTLE_SETTLED: Final = 1
SETTLE_MIXED: Final = 2
SETTLE_FIRST: Final = 0
SETTLE_SECOND: Final = 1


def encode_state(state: Any) -> bytes:
    """A delivery state as it goes into a disposition; b"" for None."""
    if state is None:
        return b""
    if state is ACCEPTED:
        return b"\x00S\x24\x45"
    if type(state) is Described:
        # One that we do not know, given back as the peer said it.
        return encode(state)
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
        "answers_close",
        "attach",
        "available",
        "awaits_answer",
        "context",
        "credit",
        "delivery_count",
        "drain",
        "handle",
        "initial_count",
        "is_sender",
        "kept_bytes",
        "max_message_size",
        "name",
        "output_handle",
        "peer_max_message_size",
        "properties",
        "rcv_settle_mode",
        "session",
        "snd_settle_mode",
        "source",
        "state",
        "target",
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
        self.kept_bytes = 0
        """What we keep of the peer's attach, as its session counts it."""
        self.answers_close = False
        self.awaits_answer = False
        """The peer's closing detach is not answered before the caller calls answer_close."""

        self.delivery_count = 0
        self.initial_count = 0
        self.credit = 0
        """Deliveries that may still be sent, by us or by the peer."""
        self.drain = False
        self.available = 0
        """Messages that wait for credit: the caller sets it on outgoing links, the peer on incoming."""

    def __repr__(self) -> str:
        return f"Link({self.name!r}, {'sender' if self.is_sender else 'receiver'}, handle {self.handle})"

    @property
    def limit(self) -> int:
        """Outgoing: deliveries numbered below this may be sent now."""
        return 0

    @property
    def backlog(self) -> int:
        """Outgoing: messages handed to send() that wait for the peer's session window or for credit."""
        return 0

    def release(self) -> None:
        """Let go of everything that is under way."""

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
        self._keep_little()

    def keep(self, size: int) -> None:
        """So many bytes of the peer's attach are kept from now on."""
        self.session.attach_bytes += size - self.kept_bytes
        self.kept_bytes = size

    def _keep_little(self) -> None:
        """The peer's attach is answered: of what it said a server needs only the addresses, to show them."""
        if not self.session.connection.settings.is_server:
            return
        self.attach = self.properties = None
        size = len(self.name)
        if isinstance(self.source, Source):
            self.source = Source(address=self.source.address)
            size += _size(self.source.address)
        if isinstance(self.target, Target):
            self.target = Target(address=self.target.address)
            size += _size(self.target.address)
        self.keep(size)

    def refuse(self, condition: str, description: str = "", info: dict[Symbol, Any] | None = None) -> None:
        """Answer the peer's attach with one that has no terminus of ours, and a detach with the reason."""
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
        """End the link; only where `awaits_answer` is set, Detached follows with the peer's answer."""
        if self.state in (ATTACHING, ATTACHED, REQUESTED):
            self._detach(closed, make_error(condition, description, info))

    def answer_close(self, condition: str | None = None, description: str = "") -> None:
        """Answer the peer's closing detach, which waited for the caller (see `answers_close`)."""
        if self.state == CLOSING:
            self._write_detach(True, make_error(condition, description))
            self.state = DETACHED

    def begin_count(self, count: int) -> None:
        """Where the delivery-count of a sender begins."""
        self.initial_count = self.delivery_count = count

    def attach_body(
        self,
        offered_capabilities: list[Symbol] | None = None,
        desired_capabilities: list[Symbol] | None = None,
        properties: dict[Symbol, Any] | None = None,
    ) -> bytes:
        """Our attach as a frame body."""
        if self.output_handle < 0:
            self.session.map_output(self)
        return encode_performative(
            Attach(
                name=self.name,
                handle=self.output_handle,
                role=not self.is_sender,
                snd_settle_mode=self.snd_settle_mode,
                rcv_settle_mode=self.rcv_settle_mode,
                source=self.source,
                target=self.target,
                initial_delivery_count=self.initial_count & WIRE if self.is_sender else None,
                max_message_size=self.max_message_size or None,
                offered_capabilities=offered_capabilities or None,
                desired_capabilities=desired_capabilities or None,
                properties=properties or None,
            )
        )

    def _detach(self, closed: bool, error: AmqpError | None) -> None:
        """Write our detach, and before it the attach that is still owed."""
        self._write_owed_attach()
        self._write_detach(closed, error)
        self.state = DETACHING
        self._forget()
        self._keep_little()

    def _write_owed_attach(self) -> None:
        """A link that ends before it was accepted is answered with an attach without our terminus."""
        if self.state != ATTACHING:
            return
        session = self.session
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

    def _write_detach(self, closed: bool, error: AmqpError | None) -> None:
        """Write our detach; our handle is free from then on."""
        session = self.session
        session.write(encode_performative(Detach(handle=self.output_handle, closed=closed, error=error)))
        session.unmap_output(self)

    def _forget(self) -> None:
        """Let go of everything that is under way."""
        session = self.session
        ranges = len(session.incoming.ranges) + len(session.outgoing.ranges)
        session.connection.work -= ranges // limits.DROPPED_RANGES_A_FRAME
        session.incoming.drop(self)
        session.outgoing.drop(self)
        self.release()
        session.connection.forget_name(self)

    def abandon(self) -> None:
        """The session or connection has gone: commands do nothing from here on."""
        self.state = DETACHED
        self.release()
        self._keep_little()
        self.session.connection.forget_name(self)

    @property
    def is_errant(self) -> bool:
        """The peer's fault ended the link, and its detach has not come yet."""
        return self in self.session.errants

    def fail(self, fault: LinkFault, errant: bool = True) -> None:
        """Detach with the fault's condition, and tell the caller; `errant` when it is the peer's (2.6.5)."""
        error = make_error(fault.condition, fault.description)
        self._detach(True, error)
        if errant:
            self.session.errants.append(self)
        self.session.connection.events.append(Detached(self, True, error, False))

    def steal(self) -> None:
        """The same name has been attached again (2.6.1): detach, and tell the caller."""
        error = make_error(
            conditions.STOLEN, f"expected one attach of link {self.name!r}, found another on this connection"
        )
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
            self.initial_count = self.delivery_count
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
        """The peer's detach: answered, now or by answer_close, if it is not the answer to ours."""
        session = self.session
        answer = self.state == DETACHING
        if not answer and detach.closed and self.answers_close:
            self._write_owed_attach()
            self.state = CLOSING
            self._forget()
        else:
            if not answer:
                self._detach(detach.closed, None)
            self.state = DETACHED
        session.unmap_input(self)
        if not answer or self.awaits_answer:
            session.connection.events.append(Detached(self, detach.closed, detach.error, True))

    # --- flow control ------------------------------------------------------------------------------------

    def write_flow(self, drain: bool = False, echo: bool = False) -> None:
        """Our flow state of this link, and the session's."""
        sender = self.is_sender
        self.session.write_flow(
            self.output_handle,
            self.delivery_count & WIRE,
            self.credit if self.credit > 0 else 0,
            self.available if sender else None,
            drain,
            echo,
        )

    # --- what one of the two roles can do ------------------------------------------------------------------

    def grant(self, credit: int, drain: bool = False, echo: bool = False) -> None:
        """Incoming: set the link-credit, counted from the deliveries that have come so far (2.6.7)."""
        raise LocalError(f"{self!r} is a sender: the peer grants its credit")

    def settle(self, first: int, last: int, state: Any = ACCEPTED, settled: bool = True) -> None:
        """Incoming: tell the sender the outcome of deliveries first..last."""
        raise LocalError(f"{self!r} is a sender: its deliveries are settled with settle_sent")

    def send(
        self,
        count: int,
        ends: Sequence[int],
        blob: bytes | bytearray | memoryview,
        base: int = 0,
        settled: bool = False,
        message_format: int = 0,
    ) -> None:
        """Outgoing: send `count` messages."""
        raise LocalError(f"{self!r} is a receiver and can't send")

    def keep_tags(self) -> None:
        """Incoming: Transfers events have the delivery-tags, from now on."""
        raise LocalError(f"{self!r} is a sender: its delivery-tags are its own")

    def mix_headers(self) -> None:
        """Incoming: Transfers events may be mixed, from now on."""
        raise LocalError(f"{self!r} is a sender: no transfers come on it")

    def take_pieces(self) -> None:
        """Incoming: Transfers events may have a message of several frames in pieces, from now on."""
        raise LocalError(f"{self!r} is a sender: no transfers come on it")

    def send_one(self, payload: bytes, message_format: int = 0, settled: bool = False) -> None:
        """Outgoing: send a single message."""
        self.send(1, (len(payload),), payload, 0, settled, message_format)

    def drained(self) -> None:
        """Outgoing: everything available has been sent; use up the credit if the peer still asks for it."""
        raise LocalError(f"{self!r} is a receiver: only a sender answers drain")

    def settle_sent(self, first: int, last: int, state: Any = None) -> None:
        """Outgoing: settle deliveries first..last and tell the receiver."""
        raise LocalError(f"{self!r} is a receiver: its deliveries are settled with settle")

    def unsettled_number(self, tag: bytes) -> int | None:
        """Outgoing: the link's own number of the delivery with this delivery-tag, while it is unsettled."""
        raise LocalError(f"{self!r} is a receiver: its delivery-tags are the peer's")

    def pump(self) -> None:
        """Outgoing: send what waits, as far as credit and window go."""

    def on_flow(
        self,
        delivery_count: int | None,
        link_credit: int | None,
        available: int | None,
        drain: bool,
        echo: bool,
    ) -> None:
        """The peer's flow state for this link; the session's part of the frame has been taken already."""
        raise NotImplementedError

    def on_transfer(self, transfer: Transfer, data: bytes, position: int, payload_at: int, stop: int) -> None:
        """A transfer frame data[position:stop] read by the complete decoder."""
        raise NotImplementedError


def _size(address: Any) -> int:
    return len(address) if isinstance(address, str | bytes) else 0


def errant(link: Link, what: str) -> SessionFault:
    """Input for a link that was detached with an error (2.6.5)."""
    return SessionFault(
        conditions.ERRANT_LINK,
        f"expected nothing but detach for link {link.name!r}, which was detached with an error, found {what}",
    )
