# cython: language_level=3, boundscheck=True, wraparound=False, annotation_typing=False
"""One transfer frame, read where it stands among received bytes: its fields, and those of its message.

Compiled as scanner.py is, which tells how and has the theory. Results for what is uncommon or malformed are
-1, 0 or False: the complete decoder reads it then.
"""

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
"""By name, because Cython computes with Python objects where a number is too large for a C int."""


def u32(data: bytes, at: int) -> int:
    # One by one: a C int has no room for what the first octet is shifted to.
    number = data[at]
    number = (number << 8) | data[at + 1]
    number = (number << 8) | data[at + 2]
    return (number << 8) | data[at + 3]


def uint(data: bytes, at: int, stop: int) -> int:
    """The uint at `at`, below `stop`; -1 for anything else."""
    if at >= stop:
        return -1
    code = data[at]
    if code == 0x43:
        return 0
    if code == 0x52 and at + 1 < stop:
        return data[at + 1]
    if code == 0x70 and at + 4 < stop:
        return u32(data, at + 1)
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
        at += 5 + u32(data, at + 1)
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


def list_end(data: bytes, at: int, stop: int) -> int:
    """The end of the list whose constructor is at `at`, list8 or list32; -1 where it is none, or too long."""
    code = data[at]
    if code == 0xC0:
        if at + 3 > stop:
            return -1
        after = at + 2 + data[at + 1]
    elif code == 0xD0:
        if at + 9 > stop:
            return -1
        after = at + 5 + u32(data, at + 1)
    else:
        return -1
    return after if after <= stop else -1


def tag_number(data: bytes, at: int, stop: int, form: int) -> int:
    """The number of the delivery-tag data[at:stop] in this form; -1 for none, or one above TAG_NUMBER_MAX."""
    if at >= stop:
        return -1
    if form == 4:
        # The two most common forms, without a loop.
        return u32(data, at) if stop - at == 4 else -1
    if form == 8:
        # Numbers that follow have at most 62 bits.
        return -1 if stop - at != 8 or data[at] >= 0x40 else u32(data, at) << 32 | u32(data, at + 4)
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
    if stop - at != form or form > TAG_NUMBER_BYTES_MAX:
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
    size = u32(data, position)
    if size < SHORTEST or size > end - position:
        return NO_LANE
    if data[position + 4] != 2 or data[position + 5] != 0:
        return NO_LANE
    if data[position + 8] != 0 or data[position + 9] != 0x53 or data[position + 10] != 0x14:
        return NO_LANE
    code = data[position + 11]
    at = position + 14 if code == 0xC0 else position + 20 if code == 0xD0 else end
    handle = uint(data, at, position + size)
    if handle < 0:
        return NO_LANE
    channel = (data[position + 6] << 8) | data[position + 7]
    return (channel << 32) | handle


class TransferFrame:
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


def read_transfer(
    frame: TransferFrame, data: bytes, position: int, end: int, frame_max: int, lane: int, expected: int
) -> int:
    """The performative of the frame at `position`.

    Returns the position after the frame; 0 where it is no whole transfer frame of this link and delivery, or
    is uncommon.
    """
    if end - position < SHORTEST:
        return 0
    size = u32(data, position)
    if size < SHORTEST or size > frame_max or size > end - position:
        return 0
    if data[position + 4] != 2 or data[position + 5] != 0:
        return 0
    if (data[position + 6] << 8 | data[position + 7]) != lane >> 32:
        return 0
    if data[position + 8] != 0 or data[position + 9] != 0x53 or data[position + 10] != 0x14:
        return 0
    at = position + 11
    stop = position + size
    fields_end = list_end(data, at, stop)
    if fields_end < 0:
        return 0
    if data[at] == 0xC0:
        count = data[at + 2]
        at += 3
    else:
        count = u32(data, at + 5)
        at += 9
    if count < 3 or count > FIELDS_MAX:
        return 0
    if uint(data, at, fields_end) != lane & UINT_MAX:
        return 0
    at += _uint_width(data[at])
    if uint(data, at, fields_end) != expected:
        return 0
    at += _uint_width(data[at])
    if at + 2 > fields_end or data[at] != 0xA0:
        return 0
    frame.tag_at = at + 2
    at += 2 + data[at + 1]
    if at > fields_end or at - frame.tag_at > TAG_BYTES_MAX:
        return 0
    frame.tag_end = at
    frame.message_format = 0
    frame.settled = False
    if count > 3:
        if at >= fields_end:
            return 0
        if data[at] == 0x40:
            at += 1
        else:
            number = uint(data, at, fields_end)
            if number < 0:
                return 0
            frame.message_format = number
            at += _uint_width(data[at])
    for index in range(4, count):
        if index == 6 or index == 7:
            # rcv-settle-mode and state.
            if at >= fields_end or data[at] != 0x40:
                return 0
            at += 1
            continue
        flag = _boolean(data, at, fields_end)
        if flag < 0:
            return 0
        if index == 4:
            frame.settled = flag == 1
        elif index != 10 and flag:
            # more, resume and aborted; batchable means nothing to a receiver.
            return 0
        at += 2 if data[at] == 0x56 else 1
    frame.payload_at = at
    return stop if at == fields_end else 0


def read_message(frame: TransferFrame, data: bytes, stop: int) -> bool:
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
            at += 4 + u32(data, at)
        elif code != 0x45 or section != 0x70:
            return False
        if at > stop:
            return False
        if section == 0x70:
            frame.head_end = at
    return True


def _read_properties(frame: TransferFrame, data: bytes, at: int, stop: int) -> bool:
    """The expiry in the properties whose list begins at `at` (messaging 3.2.4)."""
    code = data[at]
    if code == 0x45:
        return True
    fields_end = list_end(data, at, stop)
    if fields_end < 0:
        return False
    if code == 0xC0:
        count = data[at + 2]
        at += 3
    else:
        count = u32(data, at + 5)
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
    high = u32(data, at + 1)
    if high > 0x7FFFFFFF:
        high -= UINT_MAX + 1
    frame.expires = True
    frame.expiry = high * (UINT_MAX + 1) + u32(data, at + 5)
    return True


def read_header(frame: TransferFrame, data: bytes, at: int, stop: int) -> bool:
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
    fields_end = list_end(data, at + 3, stop)
    if fields_end != stop:
        return False
    if data[at + 3] == 0xC0:
        count = data[at + 5]
        at += 6
    else:
        count = u32(data, at + 8)
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
            number = uint(data, at, stop)
            if number < 0:
                return False
            if index == 2:
                frame.ttl = number
            else:
                frame.delivery_count = number
            at += _uint_width(code)
    return at == stop


def same(data: bytes, at: int, other: int, count: int) -> bool:
    """Whether `count` octets are the same at both positions."""
    for index in range(count):  # noqa: SIM110 - a generator would cost the compiled code an object
        if data[at + index] != data[other + index]:
            return False
    return True
