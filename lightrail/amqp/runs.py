"""Runs: transfers of one link in a row, read by the scanner or by a learned shape, and delivered at once."""

from typing import TYPE_CHECKING

from lightrail.amqp import sections
from lightrail.amqp.compiled import scanner, transfers
from lightrail.amqp.errors import LinkProtocolError
from lightrail.amqp.link import ATTACHED, SETTLE_MIXED, SETTLE_SETTLED
from lightrail.amqp.receiver import ReceivingLink
from lightrail.amqp.scanner import Run
from lightrail.amqp.shapes import Shape, tags_of, take
from lightrail.amqp.tags import Tags
from lightrail.amqp.transfers import NO_LANE, TAG_NUMBER_MAX
from lightrail.amqp.unsettled import WIRE
from lightrail.amqp.values import DecodeError
from lightrail.amqp.windows import MAPPED

if TYPE_CHECKING:
    from lightrail.amqp.connection_endpoint import ConnectionEndpoint


def shape_of_link(
    connection: "ConnectionEndpoint", data: bytes, position: int, channel: int
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
    # Without a first delivery-id the next one can be any (2.6.12). While a delivery of several frames is
    # open, each transfer of the link belongs to it (2.6.14).
    if first is None or link.assembly is not None:
        return position
    limit = link.allowed
    if limit > session.incoming_left:
        limit = session.incoming_left
    book = None if link.snd_settle_mode == SETTLE_SETTLED else link.tags
    number = -1
    # Tags that go on from the last one are compared as numbers by `take`, so that no tag is made into an
    # object.
    if book is not None and shape.tag_number_at and book.form == shape.tag_width:
        number = book.following if book.following <= TAG_NUMBER_MAX else -1
    after, payloads = take(shape, data, position, end, first & WIRE, limit, number)
    if not payloads:
        return position
    tags = None
    if link.keeps_tags or (book is not None and number < 0):
        tags = tags_of(shape, data, position, payloads)
    if book is not None:
        fit = _record_tags(book, None if number >= 0 else tags, first, len(payloads), shape.settled)
        if fit == 0:
            # The complete decoder names the error.
            return position
        # Read again, and fewer: nothing was recorded of a run whose tag is in use, and the complete decoder
        # has to begin exactly at the delivery that has it.
        if fit < len(payloads):
            after, payloads = take(shape, data, position, end, first & WIRE, fit)
            tags = tags_of(shape, data, position, payloads)
            _record_tags(book, tags, first, fit, shape.settled)
    kept = tags if link.keeps_tags else None
    _deliver(link, first, payloads, shape.settled, shape.message_format, shape.head, None, kept)
    return after


def scan_run(connection: "ConnectionEndpoint", data: bytes, position: int, end: int) -> int:
    """Deliver the run of transfers that begins at `position`; returns the position after it."""
    lane: int = transfers.lane(data, position, end)
    session = connection.sessions.get(lane >> 32)
    if lane == NO_LANE or session is None or session.state != MAPPED:
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
    # Credit counts deliveries (2.6.7) and the window frames (2.5.6): here each delivery is one frame. Beyond
    # either one the complete decoder names the error.
    limit = min(link.allowed, session.incoming_left)
    mode = link.snd_settle_mode
    most = connection.settings.max_frame_size
    book = None if mode == SETTLE_SETTLED else link.tags
    form = book.form if book is not None else 0
    tags: list[bytes] | None = None
    # At most twice: the second time the run ends before the tag that is in use.
    while True:
        if link.keeps_tags or (book is not None and not form):
            tags = []
        found: Run | None = scanner.take(
            data,
            position,
            end,
            lane,
            first & WIRE,
            limit,
            most,
            link.max_message_size or most,
            -1 if mode == SETTLE_MIXED else mode == SETTLE_SETTLED,
            tags,
            link.mixes_headers,
            form,
            book.following if form else 0,  # type: ignore[union-attr]
        )
        if found is None:
            return position
        after, payloads, settled, message_format, head, latest, earliest, mixed = found
        if book is None:
            break
        limit = _record_tags(book, None if form else tags, first, len(payloads), settled)
        if limit == len(payloads):
            break
        if limit == 0:
            # The complete decoder names the error.
            return position
    # Once for each new header section, not for each run: the scanner only compares its octets.
    if head and head != link.head_known and not _learn_head(link, head):
        return position
    kept = tags if link.keeps_tags else None
    _deliver(
        link, first, payloads, settled, message_format, head, latest, kept, earliest=earliest, mixed=mixed
    )
    return after


def _learn_head(link: ReceivingLink, head: bytes) -> bool:
    """Whether a header section has no error; otherwise the complete decoder names it."""
    try:
        sections.decode_header(head)
    except DecodeError:
        return False
    link.head_known = head
    return True


def _record_tags(book: Tags, tags: list[bytes] | None, first: int, count: int, settled: bool) -> int:
    """Record the delivery-tags of a run, None where they are the numbers that follow.

    Returns how many deliveries the run may have: fewer than `count` where the tag of the next one is in use,
    or where too many are; then nothing is recorded.
    """
    if tags is None:
        book.following += count
        return count
    try:
        return book.admit(tags, first, settled)
    except LinkProtocolError:
        return 0


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
    book = link.tags
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
        shift=first + count - book.following if book is not None and book.form else 0,
    )
