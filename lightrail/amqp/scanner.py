# cython: language_level=3, boundscheck=True, wraparound=False, annotation_typing=False
"""Runs of transfer frames, read in one pass in each common encoding.

Theory. A run is a sequence of whole transfer frames of one link with consecutive delivery-ids that agree in
settled, message-format and header section, and whose absolute-expiry-times, where they have them, are within
EXPIRY_SPAN_MS. Where the caller allows mixed headers, these need to agree in durable alone, and in ttl within
the same span. `take` reads the bytes of each frame once: frame header, the list of the transfer (list8 or
list32, and each encoding of its fields), the header section, annotations, and the properties up to
absolute-expiry-time. An uncommon or malformed frame ends the run, and the complete decoder reads it and names
its error: more, aborted, resume, state, a settle mode of its own, descriptors that are not a small ulong,
sections out of order.

This, transfers.py and redelivery.py are plain Python. A .pxd of each gives types to Cython, which compiles
them where there is a compiler (docs/adr/0034-a-compiled-scanner.md, compiled.py). Interpreted, they have the
same results, and `take` is slower than the learned shapes (shapes.py), which are used before it then.

`take` is one function because of the variables that it compares frames by: they are C's as long as they are
local. Each call into transfers.py does much at once, because a call between modules goes by a pointer and is
never inlined: with a call for each number of the frame header and the tag, a frame cost 8 ns of 130 more.

Bounds: every index is compared with the end of its frame or list before it is read, and the compiled code
checks each index against the buffer once more: a mistake here raises IndexError and never reads foreign
memory.
"""

from lightrail.amqp import transfers
from lightrail.model.limits import EXPIRY_SPAN_MS

Run = tuple[int, list[bytes], bool, int, bytes, int | None, int | None, bool]
"""Result of `take` for a run."""


def _near(one: int, other: int) -> bool:
    """Whether two times, or two ttls, may share a batch."""
    if one < other:
        one, other = other, one
    # Halves first: the difference of two timestamps may need 65 bits.
    return (one >> 1) - (other >> 1) <= EXPIRY_SPAN_MS and one - other <= EXPIRY_SPAN_MS


def take(
    data: bytes,
    position: int,
    end: int,
    lane: int,
    expected: int,
    limit: int,
    frame_max: int,
    message_max: int,
    settlement: int,
    tags: list[bytes] | None,
    mixes: bool = False,
    form: int = 0,
    number: int = 0,
) -> Run | None:
    """The run of transfer frames that begins at `position`.

    Args:
        lane: of the link, as `lane` returns it.
        expected: the delivery-id of the first on the wire.
        limit: most frames.
        frame_max, message_max: octets of a frame and of a message; larger ones end the run.
        settlement: 1 or 0 where deliveries must be settled or unsettled, -1 where both may come.
        tags: the delivery-tags are appended to it; None for none.
        mixes: header sections may differ in what is not durable, and in ttl by EXPIRY_SPAN_MS.
        form, number: the delivery-tags must be number, number + 1 … in this form; 0 where any may come.

    Returns:
        The position after the run, the messages, settled, message-format, the header section that each of
        them begins with, the latest and the earliest absolute-expiry-time in milliseconds or None, and
        whether the header section is that of one message with the longest ttl, and others differ. None for
        an empty run.
    """
    if end > len(data):
        return None
    payloads: list[bytes] = []
    frame = transfers.TransferFrame()
    settled = False
    message_format = 0
    head_at = 0
    head_size = 0
    expires = False
    latest = 0
    earliest = 0
    mixed = False
    durable = False
    longest = 0
    shortest = 0
    count = 0
    while count < limit:
        stop = transfers.read_transfer(frame, data, position, end, frame_max, lane, expected)
        if not stop:
            break
        if form and transfers.tag_number(data, frame.tag_at, frame.tag_end, form) != number + count:
            break
        start = frame.payload_at
        if stop - start > message_max or (settlement >= 0 and frame.settled != (settlement == 1)):
            break
        if not transfers.read_message(frame, data, stop):
            break
        # The first frame says what the others have to agree with.
        if count == 0:
            settled = frame.settled
            message_format = frame.message_format
            head_at = start
            head_size = frame.head_end - start
            expires = frame.expires
            latest = frame.expiry
            earliest = frame.expiry
        else:
            if (
                frame.settled != settled
                or frame.message_format != message_format
                or frame.expires != expires
                or not (_near(frame.expiry, latest) and _near(frame.expiry, earliest))
            ):
                break
            if frame.head_end - start != head_size or not transfers.same(data, start, head_at, head_size):
                if not mixes:
                    break
                # The fields of the first header are read when a second one differs: in most runs none does.
                if not mixed:
                    if not transfers.read_header(frame, data, head_at, head_at + head_size):
                        break
                    durable = frame.durable
                    longest = frame.ttl
                    shortest = frame.ttl
                if (
                    not transfers.read_header(frame, data, start, frame.head_end)
                    or frame.durable != durable
                    or (frame.ttl < 0) != (longest < 0)
                    or not (_near(frame.ttl, longest) and _near(frame.ttl, shortest))
                ):
                    break
                mixed = True
                # The header with the longest ttl stands for all: the queue then keeps none of them too
                # briefly.
                if frame.ttl > longest:
                    longest = frame.ttl
                    head_at = start
                    head_size = frame.head_end - start
                elif frame.ttl < shortest:
                    shortest = frame.ttl
            if frame.expiry > latest:
                latest = frame.expiry
            elif frame.expiry < earliest:
                earliest = frame.expiry
        payloads.append(data[start:stop])
        if tags is not None:
            tags.append(data[frame.tag_at : frame.tag_end])
        count += 1
        expected = (expected + 1) & transfers.UINT_MAX
        position = stop
    if count == 0:
        return None
    head = data[head_at : head_at + head_size]
    if not expires:
        return position, payloads, settled, message_format, head, None, None, mixed
    return position, payloads, settled, message_format, head, latest, earliest, mixed
