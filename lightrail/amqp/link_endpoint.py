r"""The link endpoint: attach, detach, and what both roles (receiver.py, sender.py) have in common (2.6).

States. A link begins with the peer's attach (ATTACHING, until the caller accepts or refuses it) or with our
attach (REQUESTED, until the peer's attach arrives); then it is ATTACHED. Our detach makes it DETACHING until
the peer's arrives, the peer's is answered at once; both end in DETACHED. Where the caller has work to do
before the peer may take the link for closed (`answers_close`), the peer's closing detach makes it CLOSING,
and the caller answers with answer_close.

                R:ATTACH +-----------+ accept                                  S:DETACH
          +------------->| ATTACHING |---------+                          +-------------------+
          |              +-----------+        \|/                         |                  \|/
      (nothing)                          +----------+ R:DETACH, S:DETACH +----------+  +-----------+
          |              +-----------+   | ATTACHED |------------------->| DETACHED |<-| DETACHING |
          +------------->| REQUESTED |-->+----------+                    +----------+  +-----------+
                S:ATTACH +-----------+ R:ATTACH  |                         /|\   R:DETACH
                                                 | R:DETACH +---------+     |
                                                 +--------->| CLOSING |-----+
                                                            +---------+ S:DETACH

After a detach with an error the specification ends the session with errant-link when anything but the peer's
detach arrives for the link (2.6.5). That is applied to the letter to a link that the *peer's* error ended. A
link that the caller ended (a queue deleted, a link stolen) may have transfers on their way that were within
credit: those are dropped, and only transfers beyond the credit are errant.
"""

from typing import TYPE_CHECKING, Any, Final, Unpack

from lightrail.amqp.encoder import encode
from lightrail.amqp.errors import LinkProtocolError, LocalError, SessionProtocolError
from lightrail.amqp.events import ACCEPTED, Attached, Detached
from lightrail.amqp.link import (
    ATTACHED,
    ATTACHING,
    CLOSING,
    DETACHED,
    DETACHING,
    REQUESTED,
    AttachAnswer,
    Link,
)
from lightrail.amqp.performatives import (
    AmqpError,
    Attach,
    Coordinator,
    Detach,
    Rejected,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
    make_error,
)
from lightrail.amqp.unsettled import WIRE
from lightrail.amqp.values import Described, Symbol
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.amqp.connection_endpoint import ConnectionEndpoint
    from lightrail.amqp.performatives import Attach
    from lightrail.amqp.session import Session

DROPPED_RANGES_A_FRAME: Final[int] = 256
"""Ranges searched for those of a link that ends, in the time of one frame."""


def encode_state(state: Any) -> bytes:
    """A delivery state as it goes into a disposition; b"" for None."""
    if state is None:
        return b""
    if state is ACCEPTED:
        return b"\x00S\x24\x45"
    if type(state) is Described:
        # A state of an unknown type goes back as the peer sent it.
        return encode(state)
    return encode_performative(state)


def with_info(state: Any) -> Any:
    """The state, of a rejection with an error one whose error has an info, empty where there is none."""
    error = state.error if isinstance(state, Rejected) else None
    if error is None or error.info is not None:
        return state
    return Rejected(error=AmqpError(condition=error.condition, description=error.description, info={}))


def scope_of(attach: "Attach", connection: "ConnectionEndpoint") -> str:
    """The address within which the peer's link has its name; "" for the connection."""
    if not connection.settings.names_at_termini(connection.peer_open, attach):
        return ""
    terminus = attach.source if attach.role else attach.target
    return str(getattr(terminus, "address", None) or "")


class LinkEndpoint(Link):
    """A link that attaches and detaches; its session calls the methods that the caller of a link does not."""

    __slots__ = ()

    def __init__(self, session: "Session", name: str, is_sender: bool) -> None:
        super().__init__(session, name, is_sender, session.connection.settings.max_message_size)

    def release(self) -> None:
        """Drop every message that is being sent or received."""

    # --- attach and detach: commands ---------------------------------------------------------------------

    def accept(self, **answer: Unpack[AttachAnswer]) -> None:
        if self.state != ATTACHING:
            if self.state == ATTACHED:
                raise LocalError(f"{self!r} is attached already")
            return
        self.source = answer.get("source", self.source)
        self.target = answer.get("target", self.target)
        self.snd_settle_mode = answer.get("snd_settle_mode", self.snd_settle_mode)
        self.rcv_settle_mode = answer.get("rcv_settle_mode", self.rcv_settle_mode)
        self.max_message_size = answer.get("max_message_size", self.max_message_size)
        body = self.attach_body(
            answer.get("offered_capabilities"), answer.get("desired_capabilities"), answer.get("properties")
        )
        unsettled = answer.get("unsettled")
        if unsettled is not None:
            body = self.with_unsettled(body, unsettled)
        # Only transfers may take several frames: a peer whose frames are too small for it can't have this
        # session.
        if len(body) + 8 > self.session.connection.peer_max_frame_size:
            self.session.fail(
                SessionProtocolError(
                    conditions.FRAME_SIZE_TOO_SMALL,
                    f"expected a max-frame-size of at least {len(body) + 8} bytes for our attach of link"
                    f" {self.name!r}, found {self.session.connection.peer_max_frame_size}",
                )
            )
            return
        self.state = ATTACHED
        self.session.write(body)
        self._keep_little()

    def with_unsettled(self, body: bytes, unsettled: dict[bytes, Any]) -> bytes:
        """Our attach with as much of the map as a frame has room for; the deliveries in it may be resumed."""
        attach, _ = decode_performative(body, 0, len(body))
        # The header of a frame, that of a map, and incomplete-unsettled.
        room = self.session.connection.peer_max_frame_size - len(body) - 20
        attach.unsettled = {}
        for tag, state in unsettled.items():
            # A tag has up to five octets before its own, and null is one.
            room -= len(tag) + 5 + (1 if state is None else len(encode_state(state)))
            if room < 0:
                attach.incomplete_unsettled = self.incomplete_unsettled = True
                break
            attach.unsettled[tag] = state
        self.resume(attach.unsettled)
        return encode_performative(attach)

    def resume(self, unsettled: dict[bytes, Any]) -> None:
        """Our attach has announced these deliveries."""

    def keep(self, size: int) -> None:
        """Count so many bytes of the peer's attach for this link."""
        self.session.attach_bytes += size - self.kept_bytes
        self.kept_bytes = size

    def _keep_little(self) -> None:
        """Once its attach is answered, a server keeps only the addresses of it, for lists of links."""
        if not self.session.connection.settings.is_server:
            return
        # Maps of a peer may be large, and a broker has many links: addresses are all that is shown of one
        # later.
        self.attach = self.properties = None
        if isinstance(self.source, Source):
            self.source = Source(address=self.source.address)
        if isinstance(self.target, Target):
            self.target = Target(address=self.target.address)
        kept = (self.name, getattr(self.source, "address", None), getattr(self.target, "address", None))
        self.keep(sum(len(text) for text in kept if isinstance(text, str | bytes)))

    def refuse(self, condition: str, description: str = "", info: dict[Symbol, Any] | None = None) -> None:
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
        if self.state in (ATTACHING, ATTACHED, REQUESTED):
            self._detach(closed, make_error(condition, description, info))

    def answer_close(self, condition: str | None = None, description: str = "") -> None:
        if self.state == CLOSING:
            self._write_detach(True, make_error(condition, description))
            self.state = DETACHED

    def begin_count(self, count: int) -> None:
        """Set the first delivery-count of a sender."""
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
        """Write our detach, after the attach if the peer's is unanswered."""
        # A detach names a handle, which only an attach gives it (2.6.3): so a refused link is attached first.
        self._write_owed_attach()
        self._write_detach(closed, error)
        self.state = DETACHING
        self._forget()
        self._keep_little()

    def _write_owed_attach(self) -> None:
        """Answer the attach of a link that ends before it was accepted, without our terminus."""
        if self.state != ATTACHING:
            return
        session = self.session
        source, target = self.source, self.target
        # The terminus at our end is null in the attach that refuses a link (2.6.3).
        if self.is_sender:
            self.source = None
            self.target = None if not isinstance(target, Target | Coordinator) else target
        else:
            self.target = None
        body = self.attach_body()
        if len(body) + 8 > session.connection.peer_max_frame_size:
            # The peer's own addresses may be what is too large; a refusal has no need of them.
            self.source = self.target = None
            body = self.attach_body()
        self.source, self.target = source, target
        session.write(body)

    def _write_detach(self, closed: bool, error: AmqpError | None) -> None:
        """Write our detach, which frees our handle."""
        session = self.session
        session.write(encode_performative(Detach(handle=self.output_handle, closed=closed, error=error)))
        session.unmap_output(self)

    def _forget(self) -> None:
        """Drop unsettled deliveries, messages under way and the name."""
        session = self.session
        ranges = len(session.incoming.ranges) + len(session.outgoing.ranges)
        # Each link that ends walks over the ranges of all: a session of many links could use up the turn of
        # others by detaching them (ADR 21).
        session.connection.work -= ranges // DROPPED_RANGES_A_FRAME
        session.incoming.drop(self)
        session.outgoing.drop(self)
        self.release()
        session.connection.forget_name(self)

    def abandon(self) -> None:
        """The session or connection has ended: commands do nothing from here on."""
        self.state = DETACHED
        self.release()
        self._keep_little()
        self.session.connection.forget_name(self)

    @property
    def is_errant(self) -> bool:
        """Whether an error of the peer ended the link, and the peer's detach has not arrived."""
        return self in self.session.errants

    def fail(self, fault: LinkProtocolError, errant: bool = True) -> None:
        """Detach with the condition of the error, with an event; `errant` when the peer made it (2.6.5)."""
        error = make_error(fault.condition, fault.description)
        self._detach(True, error)
        if errant:
            self.session.errants.append(self)
        self.session.connection.events.append(Detached(self, True, error, False))

    def steal(self) -> None:
        """Detach a link whose name the peer attaches again (2.6.1)."""
        text = f"expected one attach of link {self.name!r}, found another on this connection"
        self.fail(LinkProtocolError(conditions.STOLEN, text), errant=False)

    # --- attach and detach: from the peer ----------------------------------------------------------------

    def on_attach(self, attach: Attach) -> None:
        """Adopt the fields of the peer's attach."""
        self.attach = attach
        self.handle = attach.handle
        self.properties = attach.properties
        self.source = attach.source
        self.target = attach.target
        self.peer_max_message_size = attach.max_message_size or 0
        self.snd_settle_mode = attach.snd_settle_mode
        self.rcv_settle_mode = attach.rcv_settle_mode
        if not self.is_sender:
            # Microsoft.Azure.Amqp up to 2.7.0 sends none, though a sender must (2.7.3; ADR 51).
            self.delivery_count = self.initial_count = attach.initial_delivery_count or 0
        connection = self.session.connection
        if self.state == REQUESTED:
            self.state = ATTACHED
        else:
            if self.is_sender:
                self.begin_count(connection.settings.initial_delivery_count)
        connection.events.append(Attached(self))

    def on_detach(self, detach: Detach) -> None:
        """Apply the peer's detach; answer it, now or by answer_close, unless it answers our detach."""
        session = self.session
        # The peer answers a detach of this endpoint; another one would name a handle that is free (2.6.4).
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
        """Write the flow of this link and its session."""
        sender = self.is_sender
        self.session.write_flow(
            self.output_handle,
            self.delivery_count & WIRE,
            self.credit if self.credit > 0 else 0,
            self.available if sender else None,
            drain,
            echo,
        )

    # --- what each role does -------------------------------------------------------------------------------

    def pump(self) -> None:
        """Outgoing: send messages that wait, as far as credit and window allow."""

    def on_flow(
        self, delivery_count: int | None, credit: int | None, available: int | None, drain: bool, echo: bool
    ) -> None:
        """Apply the peer's flow for this link; the session's part is applied already."""
        raise NotImplementedError

    def on_transfer(self, transfer: Transfer, data: bytes, position: int, payload_at: int, stop: int) -> None:
        """Apply a transfer frame data[position:stop], read by the complete decoder."""
        raise NotImplementedError


def errant(link: Link, what: str) -> SessionProtocolError:
    """The error of a frame for a link that was detached with an error (2.6.5)."""
    return SessionProtocolError(
        conditions.ERRANT_LINK,
        f"expected nothing but detach for link {link.name!r}, which was detached with an error, found {what}",
    )
