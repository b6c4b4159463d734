# cython: language_level=3, boundscheck=True, wraparound=False, annotation_typing=False
"""Runs of transfer frames, read in one pass in each common encoding; and new headers for redeliveries.

This stays one file, and `take` one function, because Cython compiles it as one unit with the calls and
variables of C; between modules and for state that functions share, they would be Python's.

Theory. A run is a sequence of whole transfer frames of one link with consecutive delivery-ids that agree in
settled, message-format and header section, and whose absolute-expiry-times, where they have them, are within
EXPIRY_SPAN_MS. Where the caller allows mixed headers, these need to agree in durable alone, and in ttl within
the same span. `take` reads the bytes of each frame once: frame header, the list of the transfer (list8 or
list32, and each encoding of its fields), the header section, annotations, and the properties up to
absolute-expiry-time. An uncommon or malformed frame ends the run, and the complete decoder reads it and names
its error: more, aborted, resume, state, a settle mode of its own, descriptors that are not a small ulong,
sections out of order.

This is plain Python, and _scanner.pxd gives types to Cython, which compiles it where there is a compiler
(docs/adr/0034-a-compiled-scanner.md, compiled.py). Interpreted, it has the same results, and is slower than
the learned shapes (shapes.py), which are used before it then.

Bounds: every index is compared with the end of its frame or list before it is read, and the compiled code
checks each index against the buffer once more: a mistake here raises IndexError and never reads foreign
memory.
"""

from typing import Any

from lightrail.model.limits import EXPIRY_SPAN_MS

Run = tuple[int, list[bytes], bool, int, bytes, int | None, int | None, bool]
"""Result of `take` for a run."""
NO_LANE = -1
"""Result of `lane` without a transfer of a common encoding."""

SHORTEST = 16
TAG_BYTES_MAX = 32
TAG_DECIMAL = 16
"""Form of delivery-tags that are decimal digits; other forms are the width of a big-endian number."""
TAG_DIGITS_MAX = 18
TAG_NUMBER_BYTES_MAX = 8
TAG_NUMBER_MAX = (1 << 62) - 1
"""With the deliveries of a run it stays below what a C integer has room for."""
FIELDS_MAX = 11
EXPIRY_INDEX = 8
HEADER_FIELDS = 5
PRIORITY_DEFAULT = 4
UINT_MAX = 0xFFFFFFFF


def _u32(data: bytes, at: int) -> int:
    # One by one: a C int has no room for what the first octet is shifted to.
    number = data[at]
    number = (number << 8) | data[at + 1]
    number = (number << 8) | data[at + 2]
    return (number << 8) | data[at + 3]


def _uint(data: bytes, at: int, stop: int) -> int:
    """The uint at `at`, below `stop`; -1 for anything else."""
    if at >= stop:
        return -1
    code = data[at]
    if code == 0x43:
        return 0
    if code == 0x52 and at + 1 < stop:
        return data[at + 1]
    if code == 0x70 and at + 4 < stop:
        return _u32(data, at + 1)
    return -1


def _uint_width(code: int) -> int:
    return 1 if code == 0x43 else 2 if code == 0x52 else 5


def _boolean(data: bytes, at: int, stop: int) -> int:
    """1 for true, 0 for false and null, -1 for anything else."""
    if at >= stop:
        return -1
    code = data[at]
    if code == 0x42 or code == 0x40:
        return 0
    if code == 0x41:
        return 1
    if code == 0x56 and at + 1 < stop and data[at + 1] <= 1:
        return data[at + 1]
    return -1


def _after(data: bytes, at: int, stop: int) -> int:
    """The position after the simple value at `at`; -1 where it is uncommon or ends beyond `stop`."""
    if at >= stop:
        return -1
    code = data[at]
    group = code >> 4
    if group == 0x4:
        if code > 0x45:
            return -1
        at += 1
    elif group == 0xA:
        if at + 1 >= stop or (code != 0xA0 and code != 0xA1 and code != 0xA3):
            return -1
        at += 2 + data[at + 1]
    elif group == 0xB:
        if at + 4 >= stop or (code != 0xB0 and code != 0xB1 and code != 0xB3):
            return -1
        at += 5 + _u32(data, at + 1)
    elif code == 0x52 or code == 0x53 or code == 0x50 or code == 0x56:
        at += 2
    elif code == 0x70:
        at += 5
    elif code == 0x80 or code == 0x83:
        at += 9
    elif code == 0x98:
        at += 17
    else:
        return -1
    return at if at <= stop else -1


def tag_number(data: bytes, at: int, stop: int, form: int) -> int:
    """The number of the delivery-tag data[at:stop] in this form; -1 for none, or one above TAG_NUMBER_MAX."""
    if at >= stop:
        return -1
    number = 0
    if form == TAG_DECIMAL:
        if stop - at > TAG_DIGITS_MAX or (data[at] == 0x30 and stop - at > 1):
            return -1
        for index in range(at, stop):
            octet = data[index]
            if octet < 0x30 or octet > 0x39:
                return -1
            number = number * 10 + (octet - 0x30)
        return number
    if stop - at != form or form > TAG_NUMBER_BYTES_MAX or (form == 8 and data[at] >= 0x40):
        return -1
    for index in range(at, stop):
        number = (number << 8) | data[index]
    return number


def lane(data: bytes, position: int, end: int) -> int:
    """Channel << 32 | handle of the transfer frame at `position`.

    NO_LANE where there is no whole frame of a transfer, or one of an uncommon encoding.
    """
    if end - position < SHORTEST or end > len(data):
        return NO_LANE
    size = _u32(data, position)
    if size < SHORTEST or size > end - position:
        return NO_LANE
    if data[position + 4] != 2 or data[position + 5] != 0:
        return NO_LANE
    if data[position + 8] != 0 or data[position + 9] != 0x53 or data[position + 10] != 0x14:
        return NO_LANE
    code = data[position + 11]
    at = position + 14 if code == 0xC0 else position + 20 if code == 0xD0 else end
    handle = _uint(data, at, position + size)
    if handle < 0:
        return NO_LANE
    channel = (data[position + 6] << 8) | data[position + 7]
    return (channel << 32) | handle


def _fields_end(data: bytes, at: int, stop: int) -> int:
    """The end of the list whose constructor is at `at`, list8 or list32; -1 where it is none, or too long."""
    code = data[at]
    if code == 0xC0:
        if at + 3 > stop:
            return -1
        after = at + 2 + data[at + 1]
    elif code == 0xD0:
        if at + 9 > stop:
            return -1
        after = at + 5 + _u32(data, at + 1)
    else:
        return -1
    return after if after <= stop else -1


class _Frame:
    """Fields and offsets of one transfer frame."""

    def __init__(self) -> None:
        # The compiled scanner sets them in C (_scanner.pxd); a dataclass would read them from arguments.
        self.tag_at = 0
        self.tag_end = 0
        self.payload_at = 0
        self.message_format = 0
        self.settled = False
        self.head_end = 0
        self.expires = False
        self.expiry = 0
        self.durable = False
        self.priority = 0
        self.ttl = 0
        self.delivery_count = 0


def _read_transfer(frame: _Frame, data: bytes, at: int, stop: int, handle: int, expected: int) -> bool:
    """The performative whose list begins at `at`; whether it is a common one of this link and delivery."""
    fields_end = _fields_end(data, at, stop)
    if fields_end < 0:
        return False
    if data[at] == 0xC0:
        count = data[at + 2]
        at += 3
    else:
        count = _u32(data, at + 5)
        at += 9
    if count < 3 or count > FIELDS_MAX:
        return False
    if _uint(data, at, fields_end) != handle:
        return False
    at += _uint_width(data[at])
    if _uint(data, at, fields_end) != expected:
        return False
    at += _uint_width(data[at])
    if at + 2 > fields_end or data[at] != 0xA0:
        return False
    frame.tag_at = at + 2
    at += 2 + data[at + 1]
    if at > fields_end or at - frame.tag_at > TAG_BYTES_MAX:
        return False
    frame.tag_end = at
    frame.message_format = 0
    frame.settled = False
    if count > 3:
        if at >= fields_end:
            return False
        if data[at] == 0x40:
            at += 1
        else:
            number = _uint(data, at, fields_end)
            if number < 0:
                return False
            frame.message_format = number
            at += _uint_width(data[at])
    for index in range(4, count):
        if index == 6 or index == 7:
            # rcv-settle-mode and state.
            if at >= fields_end or data[at] != 0x40:
                return False
            at += 1
            continue
        flag = _boolean(data, at, fields_end)
        if flag < 0:
            return False
        if index == 4:
            frame.settled = flag == 1
        elif index != 10 and flag:
            # more, resume and aborted; batchable means nothing to a receiver.
            return False
        at += 2 if data[at] == 0x56 else 1
    frame.payload_at = at
    return at == fields_end


def _read_message(frame: _Frame, data: bytes, stop: int) -> bool:
    """The sections up to the properties (messaging 3.2); whether they are common and in order."""
    start = frame.payload_at
    frame.head_end = start
    frame.expires = False
    frame.expiry = 0
    if frame.message_format:
        return True
    at = start
    newest = 0
    while at < stop:
        if stop - at < 4 or data[at] != 0 or data[at + 1] != 0x53:
            return False
        section = data[at + 2]
        if section >= 0x73:
            return section <= 0x78 and (section != 0x73 or _read_properties(frame, data, at + 3, stop))
        # The complete reader removes delivery-annotations (0x71).
        if section < 0x70 or section <= newest or section == 0x71:
            return False
        newest = section
        code = data[at + 3]
        at += 4
        # A header is a list, annotations are maps.
        if code == (0xC0 if section == 0x70 else 0xC1):
            if at >= stop:
                return False
            at += 1 + data[at]
        elif code == (0xD0 if section == 0x70 else 0xD1):
            if at + 4 > stop:
                return False
            at += 4 + _u32(data, at)
        elif code != 0x45 or section != 0x70:
            return False
        if at > stop:
            return False
        if section == 0x70:
            frame.head_end = at
    return True


def _read_properties(frame: _Frame, data: bytes, at: int, stop: int) -> bool:
    """The expiry in the properties whose list begins at `at` (messaging 3.2.4)."""
    code = data[at]
    if code == 0x45:
        return True
    fields_end = _fields_end(data, at, stop)
    if fields_end < 0:
        return False
    if code == 0xC0:
        count = data[at + 2]
        at += 3
    else:
        count = _u32(data, at + 5)
        at += 9
    if count <= EXPIRY_INDEX:
        return True
    for _ in range(EXPIRY_INDEX):
        at = _after(data, at, fields_end)
        if at < 0:
            return False
    if at >= fields_end:
        return False
    if data[at] == 0x40:
        return True
    if data[at] != 0x83 or at + 9 > fields_end:
        return False
    high = _u32(data, at + 1)
    if high >= 0x80000000:
        high -= 0x100000000
    frame.expires = True
    frame.expiry = high * 0x100000000 + _u32(data, at + 5)
    return True


def _read_header(frame: _Frame, data: bytes, at: int, stop: int) -> bool:
    """The fields of the header section data[at:stop], empty for none; whether it is common (3.2.1).

    Only what `sections.decode_header` takes as well is common. The ttl is -1 for none; first-acquirer is
    checked and not kept.
    """
    frame.durable = False
    frame.priority = PRIORITY_DEFAULT
    frame.ttl = -1
    frame.delivery_count = 0
    if at == stop or data[at + 3] == 0x45:
        return True
    fields_end = _fields_end(data, at + 3, stop)
    if fields_end != stop:
        return False
    if data[at + 3] == 0xC0:
        count = data[at + 5]
        at += 6
    else:
        count = _u32(data, at + 8)
        at += 12
    if count > HEADER_FIELDS:
        return False
    for index in range(count):
        if at >= stop:
            return False
        code = data[at]
        if code == 0x40:
            at += 1
        elif index == 0 or index == 3:
            flag = _boolean(data, at, stop)
            if flag < 0:
                return False
            if index == 0:
                frame.durable = flag == 1
            at += 2 if code == 0x56 else 1
        elif index == 1:
            if code != 0x50 or at + 1 >= stop:
                return False
            frame.priority = data[at + 1]
            at += 2
        else:
            number = _uint(data, at, stop)
            if number < 0:
                return False
            if index == 2:
                frame.ttl = number
            else:
                frame.delivery_count = number
            at += _uint_width(code)
    return at == stop


def _same(data: bytes, at: int, other: int, count: int) -> bool:
    for index in range(count):  # noqa: SIM110 - a generator would cost the compiled code an object
        if data[at + index] != data[other + index]:
            return False
    return True


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
    frame = _Frame()
    channel = lane >> 32
    handle = lane & 0xFFFFFFFF
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
    while count < limit and end - position >= SHORTEST:
        size = _u32(data, position)
        if size < SHORTEST or size > frame_max or size > end - position:
            break
        stop = position + size
        if _u32(data, position + 4) != (0x02000000 | channel):
            break
        if data[position + 8] != 0 or data[position + 9] != 0x53 or data[position + 10] != 0x14:
            break
        if not _read_transfer(frame, data, position + 11, stop, handle, expected):
            break
        if form == 4:
            # The two most common forms, without a call and a loop.
            at = frame.tag_at
            if frame.tag_end != at + 4 or _u32(data, at) != number + count:
                break
        elif form == 8:
            at = frame.tag_at
            if frame.tag_end != at + 8:
                break
            # Numbers that follow have at most 62 bits.
            if data[at] >= 0x40 or (_u32(data, at) << 32 | _u32(data, at + 4)) != number + count:
                break
        elif form and tag_number(data, frame.tag_at, frame.tag_end, form) != number + count:
            break
        start = frame.payload_at
        if stop - start > message_max or (settlement >= 0 and frame.settled != (settlement == 1)):
            break
        if not _read_message(frame, data, stop):
            break
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
            if frame.head_end - start != head_size or not _same(data, start, head_at, head_size):
                if not mixes:
                    break
                if not mixed:
                    if not _read_header(frame, data, head_at, head_at + head_size):
                        break
                    durable = frame.durable
                    longest = frame.ttl
                    shortest = frame.ttl
                if (
                    not _read_header(frame, data, start, frame.head_end)
                    or frame.durable != durable
                    or (frame.ttl < 0) != (longest < 0)
                    or not (_near(frame.ttl, longest) and _near(frame.ttl, shortest))
                ):
                    break
                mixed = True
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
        expected = (expected + 1) & 0xFFFFFFFF
        position = stop
    if count == 0:
        return None
    head = data[head_at : head_at + head_size]
    if not expires:
        return position, payloads, settled, message_format, head, None, None, mixed
    return position, payloads, settled, message_format, head, latest, earliest, mixed


def shorten_ttl(data: bytearray, ends: Any, base: int, left_ms: int) -> bool:
    """Lowers the ttl in each message's header to `left_ms` at most (messaging 3.2.1); sizes stay.

    Args:
        data: the messages one after another; message i ends at ends[i] - base.

    Returns:
        False where a header is not of a common form: then some were changed, and some were not.
    """
    start = 0
    size = len(data)
    for end in ends:
        stop = end - base
        if stop < start or stop > size or not _shorten(data, start, stop, left_ms):
            return False
        start = stop
    return True


def _shorten(data: bytearray, at: int, stop: int, left_ms: int) -> bool:
    if stop - at < 4 or data[at] != 0 or data[at + 1] != 0x53:
        return at == stop
    if data[at + 2] != 0x70:
        # Another section comes first: there is no header.
        return True
    code = data[at + 3]
    if code == 0x45:
        return True
    if code == 0xC0:
        fields = at + 6
        count = data[at + 5] if fields <= stop else 0
    elif code == 0xD0:
        fields = at + 12
        count = data[at + 11] if fields <= stop else 0
    else:
        return False
    if fields > stop:
        return False
    at = fields
    for index in range(3 if count > 3 else count):
        if at >= stop:
            return False
        code = data[at]
        if code == 0x40:
            at += 1
        elif index < 2:
            # durable, and priority.
            if code == 0x50 or code == 0x56:
                at += 2
            elif code == 0x41 or code == 0x42:
                at += 1
            else:
                return False
        elif code == 0x70:
            if at + 4 >= stop:
                return False
            ttl = data[at + 1]
            ttl = (ttl << 8) | data[at + 2]
            ttl = (ttl << 8) | data[at + 3]
            ttl = (ttl << 8) | data[at + 4]
            if ttl > left_ms:
                data[at + 1] = left_ms >> 24 & 0xFF
                data[at + 2] = left_ms >> 16 & 0xFF
                data[at + 3] = left_ms >> 8 & 0xFF
                data[at + 4] = left_ms & 0xFF
        elif code == 0x52:
            if at + 1 >= stop:
                return False
            if data[at + 1] > left_ms:
                data[at + 1] = left_ms
        elif code != 0x43:
            return False
    return True


def redeliver(
    data: bytes, position: int, ends: Any, base: int, attempts: int, left_ms: int
) -> tuple[bytes, list[int]] | None:
    """The messages with new headers for delivery after failed deliveries (messaging 3.2.1).

    The delivery-count is higher by `attempts`, first-acquirer is false, a ttl is `left_ms` at most. The
    header is to the byte what `sections.encode_header` makes of it, and all behind it stays.

    Args:
        data: from `position` on the messages, one after another; message i ends at position + ends[i] - base.
        attempts: 1 or more.
        left_ms: what a ttl may be at most; -1 for any.

    Returns:
        The new messages one after another, and where each ends in them. None where a message does not begin
        with a header or another section of a common form.
    """
    if attempts < 1:
        return None
    parts: list[bytes] = []
    after: list[int] = []
    frame = _Frame()
    size = len(data)
    start = position
    head = b""
    head_at = 0
    head_size = -1
    total = 0
    for end in ends:
        stop = position + (end - base)
        if stop < start or stop > size:
            return None
        rest = _head_end(data, start, stop)
        if rest < 0:
            return None
        # The messages of a batch mostly have the same header.
        if rest - start != head_size or not _same(data, start, head_at, head_size):
            if not _read_header(frame, data, start, rest):
                return None
            head = _header_again(frame, attempts, left_ms)
            head_at = start
            head_size = rest - start
        parts.append(head)
        parts.append(data[rest:stop])
        total += len(head) + stop - rest
        after.append(total)
        start = stop
    return b"".join(parts), after


def _head_end(data: bytes, at: int, stop: int) -> int:
    """The position after the header section of the message at `at`, `at` itself where it has none.

    -1 where the message does not begin with a section of a common form.
    """
    if at == stop:
        return at
    if stop - at < 4 or data[at] != 0 or data[at + 1] != 0x53:
        return -1
    section = data[at + 2]
    if section < 0x70 or section > 0x78:
        return -1
    if section != 0x70:
        return at
    return at + 4 if data[at + 3] == 0x45 else _fields_end(data, at + 3, stop)


def _header_again(frame: _Frame, attempts: int, left_ms: int) -> bytes:
    """The header section after failed deliveries; a field that has its default is null."""
    ttl = frame.ttl
    if ttl > left_ms and left_ms >= 0:
        ttl = left_ms
    count = frame.delivery_count + attempts
    if count > UINT_MAX:
        count = UINT_MAX
    section = bytearray(b"\x00\x53\x70\xc0\x00\x05")
    section.append(0x41 if frame.durable else 0x40)
    if frame.priority == PRIORITY_DEFAULT:
        section.append(0x40)
    else:
        section.append(0x50)
        section.append(frame.priority)
    if ttl < 0:
        section.append(0x40)
    else:
        _append_uint(section, ttl)
    section.append(0x40)
    _append_uint(section, count)
    section[4] = len(section) - 5
    return bytes(section)


def _append_uint(section: bytearray, number: int) -> None:
    if number == 0:
        section.append(0x43)
    elif number < 0x100:
        section.append(0x52)
        section.append(number)
    else:
        section.append(0x70)
        section.append(number >> 24 & 0xFF)
        section.append(number >> 16 & 0xFF)
        section.append(number >> 8 & 0xFF)
        section.append(number & 0xFF)
