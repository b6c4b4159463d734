# cython: language_level=3, boundscheck=True, wraparound=False, annotation_typing=False
"""Header sections of messages that are delivered: their remaining ttl, and failed deliveries counted."""

from typing import Any

from lightrail.amqp import transfers


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
        # In place, in the encoding that it has: sizes, and the ends of all later messages, stay.
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
    frame = transfers.TransferFrame()
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
        if rest - start != head_size or not transfers.same(data, start, head_at, head_size):
            if not transfers.read_header(frame, data, start, rest):
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
    return at + 4 if data[at + 3] == 0x45 else transfers.list_end(data, at + 3, stop)


def _header_again(frame: transfers.TransferFrame, attempts: int, left_ms: int) -> bytes:
    """The header section after failed deliveries; a field that has its default is null."""
    ttl = frame.ttl
    if ttl > left_ms and left_ms >= 0:
        ttl = left_ms
    count = frame.delivery_count + attempts
    if count > transfers.UINT_MAX:
        count = transfers.UINT_MAX
    section = bytearray(b"\x00\x53\x70\xc0\x00\x05")
    section.append(0x41 if frame.durable else 0x40)
    if frame.priority == transfers.PRIORITY_DEFAULT:
        section.append(0x40)
    else:
        section.append(0x50)
        section.append(frame.priority)
    if ttl < 0:
        section.append(0x40)
    else:
        _append_uint(section, ttl)
    # first-acquirer is false from the second delivery on (messaging 3.2.1); null is false.
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
