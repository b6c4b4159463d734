"""Runs: transfers of one link in a row, read by the scanner or by a learned shape, and delivered at once."""

from lightrail.amqp import sections
from lightrail.amqp.compiled import scanner
from lightrail.amqp.connection_endpoint import ConnectionEndpoint
from lightrail.amqp.link import ATTACHED, SETTLE_MIXED, SETTLE_SETTLED
from lightrail.amqp.receiver import ReceivingLink
from lightrail.amqp.scanner import Run
from lightrail.amqp.serial import WIRE
from lightrail.amqp.shapes import Shape, tags_of, take
from lightrail.amqp.values import DecodeError
from lightrail.amqp.windows import MAPPED


def shape_of_link(
    connection: ConnectionEndpoint, data: bytes, position: int, channel: int
) -> Shape[ReceivingLink] | None:
    """The shape of the link of the transfer at `position`, for a transfer of the common form."""
    session = connection.sessions.get(channel)
    if session is None or data[position + 11] != 0xC0:
        return None
    code = data[position + 14]
    if code == 0x43:
        handle = 0
    elif code == 0x52:
        handle = data[position + 15]
    else:
        return None
    link = session.inputs.get(handle)
    return link.shape if type(link) is ReceivingLink else None


def shape_by_header(shape: Shape[ReceivingLink], data: bytes, position: int) -> Shape[ReceivingLink] | None:
    """The shape of the same link for messages with the header section of the transfer at `position`."""
    at = position + shape.offset
    head = data[at : at + 4]
    if head == b"\x00Sp\xc0":
        head = data[at : at + 5 + int.from_bytes(data[at + 4 : at + 5], "big")]
    elif head != b"\x00Sp\x45":
        head = b""
    return shape.link.shapes.get(head)


def compare_run(shape: Shape[ReceivingLink], data: bytes, position: int, end: int) -> int:
    """Deliver the next transfers of this shape, within credit and window; returns the position after them."""
    link = shape.link
    session = link.session
    first = session.next_incoming_delivery
    if first is None or link.assembly is not None:
        return position
    limit = link.allowed
    if limit > session.incoming_left:
        limit = session.incoming_left
    start = position
    position, payloads = take(shape, data, position, end, first & WIRE, limit)
    if payloads:
        tags = tags_of(shape, data, start, payloads) if link.keeps_tags else None
        _deliver(link, first, payloads, shape.settled, shape.message_format, shape.head, None, tags)
    return position


def scan_run(connection: ConnectionEndpoint, data: bytes, position: int, end: int) -> int:
    """Deliver the run of transfers that begins at `position`; returns the position after it."""
    lane: int = scanner.lane(data, position, end)
    session = connection.sessions.get(lane >> 32)
    if lane == scanner.NO_LANE or session is None or session.state != MAPPED:
        return position
    link = session.inputs.get(lane & WIRE)
    first = session.next_incoming_delivery
    if (
        type(link) is not ReceivingLink
        or link.state != ATTACHED
        or link.assembly is not None
        or first is None
    ):
        return position
    mode = link.snd_settle_mode
    most = connection.settings.max_frame_size
    tags: list[bytes] | None = [] if link.keeps_tags else None
    found: Run | None = scanner.take(
        data,
        position,
        end,
        lane,
        first & WIRE,
        min(link.allowed, session.incoming_left),
        most,
        link.max_message_size or most,
        -1 if mode == SETTLE_MIXED else mode == SETTLE_SETTLED,
        tags,
        link.mixes_headers,
    )
    if found is None:
        return position
    after, payloads, settled, message_format, head, latest, earliest, mixed = found
    if head and head != link.head_known:
        try:
            sections.decode_header(head)
        except DecodeError:
            # The complete decoder names the error.
            return position
        link.head_known = head
    _deliver(
        link, first, payloads, settled, message_format, head, latest, tags, earliest=earliest, mixed=mixed
    )
    return after


def _deliver(
    link: ReceivingLink,
    first: int,
    payloads: list[bytes],
    settled: bool,
    message_format: int,
    head: bytes,
    expiry: int | None,
    tags: list[bytes] | None,
    *,
    earliest: int | None = None,
    mixed: bool = False,
) -> None:
    """Count a run of deliveries for link and session, and make its event."""
    session = link.session
    count = len(payloads)
    session.next_incoming_delivery = first + count
    session.count_incoming(count)
    link.allowed -= count
    link.delivery_count += count
    credit = link.credit - count
    link.credit = credit if credit > 0 else 0
    if link.available:
        link.available = max(0, link.available - count)
    second = link.rcv_settle_mode == 1
    session.deliver(
        link,
        first,
        payloads,
        settled,
        second,
        message_format,
        head,
        expiry,
        tags,
        earliest=earliest,
        mixed=mixed,
    )
