"""Frames of the stream: finds each frame, decodes it, and passes it to its session or connection.

The hot path of the broker. Transfers of the common forms are read in runs (runs.py): by the compiled scanner
(scanner.py), or where nothing could be compiled, by comparison with the shape of earlier transfers
(shapes.py). The complete decoder reads everything else.
"""

from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import frames
from lightrail.amqp.errors import (
    ConnectionProtocolError,
    FramingError,
    LinkProtocolError,
    SessionProtocolError,
)
from lightrail.amqp.events import ACCEPTED, RELEASED
from lightrail.amqp.link_endpoint import LinkEndpoint
from lightrail.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
    decode_performative,
)
from lightrail.amqp.phases import OPENING
from lightrail.amqp.runs import compare_run, scan_run, shape_by_header, shape_of_link
from lightrail.amqp.sender import TXN_ID, SendingLink
from lightrail.amqp.session import Session
from lightrail.amqp.values import DecodeError
from lightrail.amqp.windows import END_SENT
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.amqp.connection_endpoint import ConnectionEndpoint

SHORTEST_TRANSFER: Final = 16
"""Bytes of a transfer frame up to the handle."""

CONTINUATION_BYTES_MAX: Final = 128
"""Largest encoding of a transfer that is remembered; common ones have at most 64 bytes."""
LIST32: Final = 0xD0
TRANSACTION_ID_BYTES: Final = 32
"""Largest id of a transaction (transactions 4.5.5)."""
_UNPACK = frames.FRAME_HEADER.unpack_from


def read_frames(connection: "ConnectionEndpoint", data: bytes, position: int, end: int) -> int:
    """Read frames until the phase changes or the work of the turn is used up; the hot path of the broker."""
    most = connection.settings.max_frame_size
    phase = connection.phase
    while end - position >= 8:
        # The shape that matched last goes first: one `startswith` decides for a whole run of the same sender,
        # before any field of a frame is looked at.
        shape = connection.shape
        if shape is not None and data.startswith(shape.first_part, position + 4):
            position = compare_run(shape, data, position, end)
            if end - position < 8:
                break
        size, offset, kind, channel = _UNPACK(data, position)
        # Before anything is awaited: a size that lies would be waited for, and nothing tells where the next
        # frame begins (2.3.1). So after a FramingError alone nothing more is read.
        if size > most or size < 8:
            raise FramingError(f"expected a frame of 8 to {most} bytes, found size {size}")
        stop = position + size
        if stop > end:
            connection.needed = size
            break
        # An extended header (2.3.1) is allowed, and nobody sends one: the shortcuts below count on its
        # absence.
        if kind == 0 and offset == 2:
            if size > SHORTEST_TRANSFER and data[position + 8 : position + 11] == b"\x00S\x14":
                learns = connection.settings.learn_shapes
                other = shape_of_link(connection, data, position, channel) if learns else None
                # It is the link's latest shape, which has not matched: one of another header section may,
                # where messages of several priorities take turns.
                if other is not None and other is shape:
                    other = shape_by_header(other, data, position)
                if other is not None and other is not shape:
                    connection.shape = other.link.shape = other
                    after = compare_run(other, data, position, end)
                    if after != position:
                        position = after
                        continue
                # The complete decoder learns shapes of what is encoded as list8.
                if connection.settings.scans and (not learns or data[position + 11] == LIST32):
                    after = scan_run(connection, data, position, end)
                    if after != position:
                        position = after
                        # A run counts as a frame: where each message differs, runs are as many as frames.
                        connection.work -= 1
                        if connection.work <= 0:
                            break
                        continue
        elif kind != 0:
            raise FramingError(f"expected an AMQP frame (type 0), found type {kind}")
        elif offset < 2 or offset * 4 > size:
            raise FramingError(f"expected a data offset of 2 to {size // 4} words, found {offset}")
        try:
            _read_frame(connection, data, position, position + offset * 4, stop, channel)
        except DecodeError as error:
            text = _explain(data[position:stop], error)
            connection.fail(ConnectionProtocolError(conditions.DECODE_ERROR, text))
        except ConnectionProtocolError as fault:
            # The next frame begins where this one ends: the peer's close is looked for from there.
            connection.fail(fault)
        position = stop
        # Another phase has another reader of frames: after close only the peer's close counts (2.4.6).
        connection.work -= 1
        if connection.work <= 0 or connection.phase != phase:
            break
    return position


def _explain(frame: bytes, error: DecodeError) -> str:
    """The error's text with offsets from the start of the frame, not of the bytes read."""
    try:
        decode_performative(frame, frame[4] * 4, len(frame))
    except DecodeError as again:
        return f"{again} of the frame"
    return str(error)


def _read_frame(
    connection: "ConnectionEndpoint", data: bytes, start: int, position: int, stop: int, channel: int
) -> None:
    """Read one frame data[start:stop] whose body begins at `position`."""
    # An empty frame says that the peer lives (2.4.5), on whatever channel.
    if position == stop:
        if connection.phase == OPENING:
            raise ConnectionProtocolError(conditions.NOT_ALLOWED, "expected open, found an empty frame")
        return
    session = connection.sessions.get(channel)
    if session is not None:
        if session.state == END_SENT:
            _discard_session_frame(connection, session, data, position, stop)
            return
        try:
            # By hand what answers batches, and what continues a message: the complete decoder makes an object
            # of each performative and of each state.
            if data[position : position + 2] == b"\x00S":
                code = data[position + 2] if position + 2 < stop else 0
                if code == frames.DISPOSITION and _quick_disposition(session, data, position, stop):
                    return
                if code == frames.FLOW and _quick_flow(session, data, position, stop):
                    return
                if code == frames.TRANSFER and _quick_continuation(session, data, start, position, stop):
                    return
            body, after = decode_performative(data, position, stop)
            if type(body) is Transfer:
                if body.more and after - position <= CONTINUATION_BYTES_MAX:
                    session.continuation = (data[position:after], body)
                session.on_transfer(body, data, start, after, stop)
                return
            _check_no_payload(body, after, stop)
            # Apart from the table, as an attach alone is counted by its size: what a link keeps of it is
            # bounded (links_max, attach_bytes_max).
            if type(body) is Attach:
                session.on_attach(body, stop - position)
                return
            handler = _SESSION_FRAMES.get(type(body))
            if handler is not None:
                handler(session, body)
                return
        except SessionProtocolError as fault:
            session.fail(fault)
            return
    else:
        body, after = decode_performative(data, position, stop)
        if type(body) is not Transfer:
            _check_no_payload(body, after, stop)
    _read_connection_frame(connection, body, channel)


def _read_connection_frame(connection: "ConnectionEndpoint", body: Any, channel: int) -> None:
    """Read a frame body that is for no session."""
    kind = type(body)
    if kind is Open:
        connection.on_open(channel, body)
    elif connection.phase == OPENING and kind in _FRAMES:
        raise ConnectionProtocolError(conditions.NOT_ALLOWED, f"expected open, found {kind.__name__.lower()}")
    elif kind is Close:
        connection.on_close(body)
    # After open, which looks at its channel itself, and close, which is obeyed on any: a channel above
    # channel-max is a framing error (2.7.1) whatever frame it has.
    elif channel > connection.settings.channel_max:
        raise ConnectionProtocolError(
            conditions.FRAMING_ERROR,
            f"expected channels up to channel-max {connection.settings.channel_max}, found {channel}",
        )
    elif kind is Begin:
        connection.on_begin(channel, body)
    elif kind in (Flow, Detach) and channel in connection.ended:
        pass  # rhea writes credit of links after the end of their session; ADR 51
    elif kind in _FRAMES:
        raise ConnectionProtocolError(
            conditions.NOT_ALLOWED,
            f"expected a channel with a session, found {kind.__name__.lower()} on channel {channel}",
        )
    else:
        raise ConnectionProtocolError(
            conditions.DECODE_ERROR, f"expected a performative as frame body, found {kind.__name__}"
        )


def _quick_continuation(session: Session, data: bytes, start: int, position: int, stop: int) -> bool:
    """Read a transfer whose encoding is that of the latest one with `more`; only its payload differs.

    An encoding says where it ends, so that no other performative begins with these bytes.
    """
    if session.continuation is None:
        return False
    encoded, transfer = session.continuation
    after = position + len(encoded)
    if after > stop or not data.startswith(encoded, position):
        return False
    session.on_transfer(transfer, data, start, after, stop)
    return True


def _quick_disposition(session: Session, data: bytes, position: int, stop: int) -> bool:
    found = frames.read_disposition(data, position + 3, stop)
    if found is None:
        return False
    receiver, first, last, settled, code = found
    state = ACCEPTED if code == 0x24 else RELEASED if code == 0x26 else None
    session.on_disposition(receiver, first, last, settled, state)
    return True


def _quick_flow(session: Session, data: bytes, position: int, stop: int) -> bool:
    found = frames.read_small_fields(data, position + 3, stop)
    if found is None or not 4 <= len(found) <= 10:
        return False
    # read_small_fields takes booleans and uints alike: what is in the wrong place goes to the complete
    # decoder, which names the error.
    for value in found[:8]:
        if type(value) is bool:
            return False
    for value in found[8:]:
        if type(value) is int:
            return False
    # incoming-window, next-outgoing-id and outgoing-window are mandatory (2.7.4).
    if found[1] is None or found[2] is None or found[3] is None:
        return False
    if len(found) < 10:
        found += (None,) * (10 - len(found))
    a, b, c, d, handle, count, credit, available, drain, echo = found
    session.on_flow(a, b, c, d, handle, count, credit, available, bool(drain), bool(echo))  # type: ignore[arg-type]
    return True


def _discard_session_frame(
    connection: "ConnectionEndpoint", session: Session, data: bytes, position: int, stop: int
) -> None:
    """After our end, drop frames until the peer's end (2.5.4)."""
    # Decoded, though it is dropped: only so the peer's end or close is found among the frames that were on
    # their way.
    body, _ = decode_performative(data, position, stop)
    kind = type(body)
    if kind is End:
        session.on_end(body)
    elif kind is Close:
        connection.on_close(body)
    elif kind is Open:
        connection.on_open(0, body)


def discard_frames(connection: "ConnectionEndpoint", data: bytes, position: int, end: int) -> int:
    """After our close, drop frames until the peer's close (2.4.6)."""
    while end - position >= 8:
        size, offset, _, _ = _UNPACK(data, position)
        # Our close is written already: there is no frame left in which an error could be named.
        if size < 8 or size > connection.settings.max_frame_size or offset < 2:
            connection.terminate()
            return end
        stop = position + size
        if stop > end:
            connection.needed = size
            break
        if data[position + offset * 4 : stop]:
            try:
                body, _ = decode_performative(data, position + offset * 4, stop)
            except DecodeError:
                body = None
            if type(body) is Close:
                connection.terminate()
                return end
        position = stop
    return position


def _check_no_payload(body: Any, after: int, stop: int) -> None:
    if after != stop:
        raise DecodeError(
            f"expected nothing after {type(body).__name__.lower()} in its frame, found {stop - after} bytes"
        )


def _on_flow(session: Session, flow: Flow) -> None:
    if (
        flow.handle is not None
        and flow.properties
        and TXN_ID in flow.properties
        and not _acquire(session, session.link_of(flow.handle, "flow"), flow.properties[TXN_ID])
    ):
        # Credit that is not meant for all deliveries must not be used as if it were (transactions 4.4.3).
        session.take_windows(
            flow.next_incoming_id, flow.incoming_window, flow.next_outgoing_id, flow.outgoing_window
        )
        return
    session.on_flow(
        flow.next_incoming_id,
        flow.incoming_window,
        flow.next_outgoing_id,
        flow.outgoing_window,
        flow.handle,
        flow.delivery_count,
        flow.link_credit,
        flow.available,
        flow.drain,
        flow.echo,
    )


def _acquire(session: Session, link: LinkEndpoint, txn_id: Any) -> bool:
    """Read the transaction of a flow; False if the link was detached because it can't be used."""
    if not (isinstance(link, SendingLink) and session.connection.settings.transactions):
        why = "deliveries are acquired in transactions by receivers of a broker; settle them in transactions"
        link.fail(LinkProtocolError(conditions.NOT_IMPLEMENTED, why), errant=False)
        return False
    if not (txn_id is None or (type(txn_id) is bytes and len(txn_id) <= TRANSACTION_ID_BYTES)):
        why = f"expected a binary txn-id of at most {TRANSACTION_ID_BYTES} bytes, found {txn_id!r:.80}"
        link.fail(LinkProtocolError(conditions.INVALID_FIELD, why))
        return False
    link.acquire(txn_id)
    return True


def _on_disposition(session: Session, disposition: Disposition) -> None:
    last = disposition.first if disposition.last is None else disposition.last
    session.on_disposition(disposition.role, disposition.first, last, disposition.settled, disposition.state)


_SESSION_FRAMES: Final[dict[type, Any]] = {
    Flow: _on_flow,
    Disposition: _on_disposition,
    Detach: Session.on_detach,
    End: Session.on_end,
}
_FRAMES: Final = (Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close)
