"""The session endpoint: begin, end, and the links by their handles (transport 2.5).

States. The peer's begin is answered at once, so a session that the peer begins is MAPPED from its first
moment; a session that we begin is BEGIN_SENT until the answer arrives. After our end it is END_SENT: frames
are dropped until the peer's end arrives (DISCARDING and END_SENT of 2.5.5 alike). Then it is ENDED and
forgotten.

Windows of transfers are in windows.py, the deliveries in settlement.py.
"""

from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import frames
from lightrail.amqp.errors import (
    ConnectionProtocolError,
    EndedError,
    LinkProtocolError,
    LocalError,
    SessionProtocolError,
)
from lightrail.amqp.events import Begun, Ended, Posting
from lightrail.amqp.link import ATTACHED, CLOSING, REQUESTED
from lightrail.amqp.link_endpoint import LinkEndpoint, errant, scope_of
from lightrail.amqp.performatives import (
    AmqpError,
    Attach,
    Begin,
    Detach,
    End,
    TransactionalState,
    Transfer,
    encode_performative,
    make_error,
)
from lightrail.amqp.receiver import ReceivingLink
from lightrail.amqp.sender import SendingLink
from lightrail.amqp.settlement import Settlement
from lightrail.amqp.unsettled import WIRE
from lightrail.amqp.values import Symbol
from lightrail.amqp.windows import BEGIN_SENT, END_SENT, ENDED, MAPPED, OUTGOING_WINDOW
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.amqp.connection_endpoint import ConnectionEndpoint

ATTACH_FRAMES: Final[int] = 6
"""Frames that an attach counts for, including the broker's work for it in the next turn."""


class Session(Settlement):
    """One session. `context` belongs to the caller."""

    __slots__ = (
        "_leaving",
        "_owes_end",
        "_requests",
        "answers_end",
        "attach_bytes",
        "begin",
        "context",
        "continuation",
        "errants",
        "inputs",
        "outputs",
        "peer_handle_max",
        "remote_channel",
        "waiting",
    )

    def __init__(self, connection: "ConnectionEndpoint", channel: int) -> None:
        super().__init__(connection, channel)
        self.remote_channel = -1
        self.begin: Begin | None = None
        """The peer's begin."""
        self.context: Any = None
        self.answers_end = False
        """The peer's end waits for the caller's answer_end, which follows Ended."""
        self._owes_end = False
        self.inputs: dict[int, LinkEndpoint] = {}
        """Links by the peer's handle."""
        self.outputs: dict[int, LinkEndpoint] = {}
        """Links by our handle."""
        self._requests: dict[tuple[str, bool], LinkEndpoint] | None = None
        """Links that we attached and the peer has not answered."""
        self._leaving: dict[tuple[str, bool], list[LinkEndpoint]] | None = None
        """Links that we detached before the peer answered our attach: its attach and detach will follow."""
        self.peer_handle_max = 0xFFFFFFFF
        self.continuation: tuple[bytes, Transfer] | None = None
        """The latest transfer with `more`, encoded and decoded: most transfers of its delivery repeat it."""
        self.errants: list[LinkEndpoint] = []
        """Links that an error of the peer ended and whose detach it still owes."""
        self.attach_bytes = 0
        """Bytes of attaches that are kept for its links."""
        self.waiting: list[LinkEndpoint] = []
        """Outgoing links with messages that wait for the window or for credit."""

    def __repr__(self) -> str:
        return f"Session(channel {self.channel}, remote channel {self.remote_channel})"

    @property
    def links(self) -> list[LinkEndpoint]:
        """All links that the peer has attached and not detached, in order of attaching."""
        return list(self.inputs.values())

    # --- commands ----------------------------------------------------------------------------------------

    def attach(
        self,
        name: str,
        is_sender: bool,
        source: Any = None,
        target: Any = None,
        snd_settle_mode: int = 2,
        rcv_settle_mode: int = 0,
        properties: dict[Symbol, Any] | None = None,
        desired_capabilities: list[Symbol] | None = None,
        unsettled: dict[bytes, Any] | None = None,
    ) -> LinkEndpoint:
        """Attach a link from our side; the event Attached follows the peer's answer.

        Args:
            unsettled: tags and our states of deliveries of a former attach (2.6.13); see AttachAnswer.

        Raises EndedError when the session has ended.
        """
        if self.state not in (MAPPED, BEGIN_SENT):
            raise EndedError(f"{self!r} has ended: no link can be attached")
        key = (name, is_sender)
        if self._requests is None:
            self._requests = {}
        if len(self.outputs) > self.peer_handle_max:
            raise LocalError(f"the peer takes {self.peer_handle_max + 1} links on this session")
        if key in self._requests:
            raise LocalError(f"a link {name!r} of this direction is being attached already")
        link = self._new_link(name, is_sender)
        link.state = REQUESTED
        link.source = source
        link.target = target
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        self._requests[key] = link
        if is_sender:
            link.begin_count(self.connection.settings.initial_delivery_count)
        body = link.attach_body(None, desired_capabilities, properties)
        self.write(body if unsettled is None else link.with_unsettled(body, unsettled))
        return link

    def end(
        self, condition: str | None = None, description: str = "", info: dict[Symbol, Any] | None = None
    ) -> None:
        """End the session and its links; no event follows."""
        if self.state in (MAPPED, BEGIN_SENT):
            self._end(make_error(condition, description, info))

    def answer_end(self) -> None:
        """Answer the peer's end, which waited for the caller (see `answers_end`)."""
        if self._owes_end:
            self._owes_end = False
            self.connection.output.append(frames.frame(self.channel, encode_performative(End())))
            self.connection.unmap_channel(self)

    # --- begin and end -----------------------------------------------------------------------------------

    def on_begin(self, channel: int, begin: Begin) -> None:
        """Apply the peer's begin on its channel; answer it unless it answers our begin."""
        self.remote_channel = channel
        self.begin = begin
        self.next_incoming_id = begin.next_outgoing_id
        self.remote_incoming_window = begin.incoming_window
        self.remote_outgoing_window = begin.outgoing_window
        self.peer_handle_max = begin.handle_max
        answered = self.state == BEGIN_SENT and begin.remote_channel is not None
        self.state = MAPPED
        if not answered:
            self.write_begin(channel)
        self.connection.events.append(Begun(self))
        if self.waiting:
            self.pump()

    def write_begin(self, remote_channel: int | None) -> None:
        """Write our begin; `remote_channel` is the peer's when we answer."""
        self.write(
            encode_performative(
                Begin(
                    remote_channel=remote_channel,
                    next_outgoing_id=self.next_outgoing_id & WIRE,
                    incoming_window=self.incoming_window,
                    outgoing_window=OUTGOING_WINDOW,
                    handle_max=self.connection.settings.handle_max,
                )
            )
        )

    def _end(self, error: AmqpError | None) -> None:
        self.write(encode_performative(End(error=error)))
        self.state = END_SENT
        self.connection.unmap_channel(self)
        self.forget()

    def forget(self) -> None:
        """Abandon all links and deliveries; `links` still lists the links for the caller."""
        self._owes_end = False
        for link in self.inputs.values():
            link.abandon()
        for link in self.outputs.values():
            if link.state == CLOSING:
                link.abandon()
        if self._requests:
            for link in self._requests.values():
                link.abandon()
        self._leaving = None
        self.incoming.ranges = []
        self.outgoing.ranges = []
        self.waiting = []
        self.errants = []
        self.refresh_due = False

    def fail(self, fault: SessionProtocolError) -> None:
        """End with the condition of the peer's error, with an event."""
        error = make_error(fault.condition, fault.description)
        self._end(error)
        self.connection.events.append(Ended(self, error, False))

    def on_end(self, end: End) -> None:
        """Apply the peer's end; answer it, now or by answer_end, unless it answers our end."""
        answer = self.state == END_SENT
        if not answer and self.answers_end:
            self.forget()
            self._owes_end = True
        elif not answer:
            self._end(None)
        self.state = ENDED
        self.connection.unmap_remote_channel(self)
        if not answer:
            self.connection.events.append(Ended(self, end.error, True))

    # --- links -------------------------------------------------------------------------------------------

    def _new_link(self, name: str, is_sender: bool) -> LinkEndpoint:
        return SendingLink(self, name) if is_sender else ReceivingLink(self, name)

    def map_output(self, link: LinkEndpoint) -> None:
        """Give the link the lowest handle that is free (2.7.3)."""
        handle = len(self.outputs)
        if handle in self.outputs or handle > self.peer_handle_max:
            handle = next(number for number in range(handle + 1) if number not in self.outputs)
        self.outputs[handle] = link
        link.output_handle = handle

    def unmap_output(self, link: LinkEndpoint) -> None:
        """Our detach is written: our handle is free."""
        self.outputs.pop(link.output_handle, None)
        key = (link.name, link.is_sender)
        if self._requests and self._requests.get(key) is link:
            del self._requests[key]
            if self._leaving is None:
                self._leaving = {}
            self._leaving.setdefault(key, []).append(link)

    def unmap_input(self, link: LinkEndpoint) -> None:
        """The peer's detach has arrived: its handle is free."""
        if self.inputs.get(link.handle) is link:
            del self.inputs[link.handle]
            link.keep(0)
        if link in self.errants:
            self.errants.remove(link)

    def on_attach(self, attach: Attach, size: int) -> None:
        """The peer attaches a link, anew or in answer to our attach; `size` is that of the frame's body."""
        settings = self.connection.settings
        handle = attach.handle
        if handle > settings.handle_max:
            raise ConnectionProtocolError(
                conditions.FRAMING_ERROR,
                f"expected handles up to handle-max {settings.handle_max}, found attach with {handle}",
            )
        # Our role is the opposite of the peer's: true means receiver there, so sender here.
        is_sender = attach.role
        key = (attach.name, is_sender)
        scope = scope_of(attach, self.connection)
        holder = self.inputs.get(handle)
        for earlier in self.errants:
            # A link that was detached with an error can only be resumed, with an unsettled map (2.6.5).
            is_same = (earlier.name, earlier.is_sender, earlier.scope) == (*key, scope)
            if is_same and attach.unsettled is None:
                raise errant(earlier, "attach")
        if holder is not None:
            raise ConnectionProtocolError(
                conditions.HANDLE_IN_USE,
                f"expected a free handle, found attach of {attach.name!r} with handle {handle} of"
                f" link {holder.name!r}",
            )
        if self._leaving and key in self._leaving:
            # Attaches are answered in order, so this answers the earliest.
            leaving = self._leaving[key]
            earliest = self.inputs[handle] = leaving.pop(0)
            earliest.handle = handle
            if not leaving:
                del self._leaving[key]
            return
        link = self._requests.pop(key, None) if self._requests else None
        if link is None:
            self.connection.steal((*key, scope))
            self.connection.work -= ATTACH_FRAMES
            # A link whose closing detach waits for our answer has no handle of the peer, but our handle.
            most = min(self.peer_handle_max, settings.handle_max) + 1
            if len(self.outputs) >= most:
                raise SessionProtocolError(
                    conditions.RESOURCE_LIMIT_EXCEEDED,
                    f"expected at most {most} links by the two handle-max, found one more",
                )
            refusal = self.connection.admit(size)
            link = self._new_link(attach.name, is_sender)
            if refusal is not None:
                self.inputs[handle] = link
                link.handle = handle
                link.keep(len(attach.name))
                link.fail(LinkProtocolError(conditions.RESOURCE_LIMIT_EXCEEDED, refusal), errant=False)
                return
        self.inputs[handle] = link
        link.scope = scope
        self.connection.names[(*key, link.scope)] = link
        link.keep(size)
        try:
            link.on_attach(attach)
        except LinkProtocolError as fault:
            link.handle = handle
            link.fail(fault)

    def link_of(self, handle: int, what: str) -> LinkEndpoint:
        """The link of the peer's handle; raises SessionProtocolError for a handle that is not attached."""
        link = self.inputs.get(handle)
        if link is None:
            raise SessionProtocolError(
                conditions.UNATTACHED_HANDLE,
                f"expected a handle that is attached, found {what} with handle {handle}",
            )
        return link

    def on_detach(self, detach: Detach) -> None:
        """Apply the peer's detach of a link."""
        self.link_of(detach.handle, "detach").on_detach(detach)

    # --- flow control ------------------------------------------------------------------------------------

    def on_flow(
        self,
        next_incoming_id: int | None,
        incoming_window: int,
        next_outgoing_id: int,
        outgoing_window: int,
        handle: int | None,
        delivery_count: int | None,
        link_credit: int | None,
        available: int | None,
        drain: bool,
        echo: bool,
    ) -> None:
        """Apply the peer's flow (2.5.6): its windows, and the state of a link when it names a handle.

        Without a handle the fields of a link apply to none, and are passed over (ADR 51).
        """
        link = None if handle is None else self.link_of(handle, "flow")
        # The session's part first: the link's credit is used at once, and must find the new window.
        self.take_windows(next_incoming_id, incoming_window, next_outgoing_id, outgoing_window)
        if link is not None:
            link.on_flow(delivery_count, link_credit, available, drain, echo)
        elif echo:
            self.write_flow()
        if self.waiting and self.remote_incoming_window:
            self.pump()

    def pump(self) -> None:
        """Send messages that wait; the link that used up the window is the last in the next turn."""
        for link in list(self.waiting):
            link.pump()
            if self.remote_incoming_window <= 0:
                break
        waiting = self.waiting
        # Links take turns, or the first would use up each window that the peer opens.
        if len(waiting) > 1 and self.remote_incoming_window <= 0:
            waiting.append(waiting.pop(0))

    # --- transfers and dispositions ----------------------------------------------------------------------

    def on_transfer(self, transfer: Transfer, data: bytes, position: int, payload_at: int, stop: int) -> None:
        """A transfer frame data[position:stop] read by the complete decoder."""
        self.count_incoming(1)
        link = self.link_of(transfer.handle, "transfer")
        try:
            link.on_transfer(transfer, data, position, payload_at, stop)
        except LinkProtocolError as fault:
            link.fail(fault)
        state, connection = transfer.state, self.connection
        if link.state != ATTACHED and type(state) is TransactionalState and connection.settings.is_server:
            # A transaction must not be committed without it (transactions 4.4.1).
            connection.events.append(Posting(link, state.txn_id, Posting.LOST))
