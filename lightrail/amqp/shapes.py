"""Shapes: the bytes that consecutive transfer frames of a link share, learned so that frames are compared.

Theory. A sender's transfers differ in delivery-id, delivery-tag and payload and in nothing else, and the
messages of one sender begin with the same sections. So once the complete decoder has read a transfer of the
common form, all of its other bytes are remembered:

    0     4                 a          a+i   +2                +t          offset    +prefix
    +-----+-----------------+----------+-----+-----------------+-----------+---------+------------+
    |size | doff .. handle, |delivery- |a0 t | delivery-tag    | format .. | sections that repeat |
    |     | id constructor  |id, i=1,4 |     | (t bytes, any)  | (end of   | and the descriptor   |
    |     |                 |          |     |                 |  list)    | of the next section  |
    +-----+-----------------+----------+-----+-----------------+-----------+----------------------+
           same as learned   expected   same      ignored       same as learned      then anything

One `unpack_from` gives the five columns, four comparisons and one slice read the frame. The bytes that are
the same mean the same, so the result is the complete decoder's. What equal bytes alone do not decide is
compared as a number: the delivery-id must be the next one, the size must fit, and of
properties (00 53 73 c0 size count) the count must be at most 8, so that there is no absolute-expiry-time
(messaging 3.2.4), or that field must be null. The sections that repeat are the header, and annotations that
repeat (JMS clients send the same ones with every message).

A link keeps a shape for each of several header sections, for messages whose priorities take turns.

When many frames of one size follow each other, a regular expression made from the shape checks a whole run of
them in C, and one `iter_unpack` reads their payloads, in a third of the time. Compiling costs as much as some
hundred frames, so a size is compiled when it has repeated `UNIFORM_AFTER` times.

Measured by tests/benchmarks/engine_bench.py.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Any, Final, Generic, TypeVar

from lightrail.amqp.link import Link
from lightrail.amqp.survey import MessageSurvey, never_expires

L = TypeVar("L", bound=Link)

PREFIX_BYTES_MAX: Final = 512
"""Longer repeating sections are not compared: the complete decoder reads such messages."""
UNIFORM_AFTER: Final = 1_024
"""Frames of one size in a row before a run is matched as a whole."""
UNIFORM_RUN_MIN: Final = 12
"""Frames of one size in the buffer from which on a run is matched as a whole."""


@lru_cache(maxsize=1024)
def _columns(form: str) -> Struct:
    return Struct(form)


@lru_cache(maxsize=256)
def _run_pattern(pattern: bytes) -> "re.Pattern[bytes]":
    return re.compile(pattern, re.DOTALL)


@dataclass(slots=True, eq=False, repr=False)
class Shape(Generic[L]):
    """One learned form of transfer frame, good for one link."""

    link: L
    head: bytes
    settled: bool
    message_format: int
    most: int
    run: Any = None
    run_payload: Any = None
    run_size: int = 0
    candidate: int = 0
    streak: int = 0
    first_part: bytes = field(init=False)
    tag_number_at: int = field(init=False)
    tag_part: bytes = field(init=False)
    last_part: bytes = field(init=False)
    id_width: int = field(init=False)
    tag_width: int = field(init=False)
    wire_limit: int = field(init=False)
    offset: int = field(init=False)
    count_at: int = field(init=False)
    minimum: int = field(init=False)
    unpack: Any = field(init=False)


def learn(
    link: L,
    data: bytes,
    position: int,
    payload_at: int,
    opening: MessageSurvey | None,
    head: bytes,
    settled: bool,
    message_format: int,
    most: int,
) -> Shape[L] | None:
    """The shape of the transfer frame at data[position], or None when it is not of the common form.

    The frame holds a complete delivery without state, resume, aborted or a settle mode of its own. `most` is
    the largest frame that this shape may read.
    """
    if data[position + 4] != 2 or data[position + 8 : position + 12] != b"\x00S\x14\xc0":
        return None
    at = position + 14
    handle = data[at]
    at += 1 if handle == 0x43 else 2 if handle == 0x52 else 5
    code = data[at]
    if code == 0x52:
        width = 1
    elif code == 0x70:
        width = 4
    else:
        return None
    at += 1
    tag_at = at + width
    if data[tag_at] != 0xA0:
        return None
    tag_width = data[tag_at + 1]
    last_at = tag_at + 2 + tag_width
    if last_at > payload_at:
        return None
    prefix = 0
    counted = False
    if opening is not None:
        prefix = opening.prefix_end
        counted = opening.properties > 0
        if not 0 < prefix <= PREFIX_BYTES_MAX:
            return None
    shape = Shape(link, head, settled, message_format, most)
    shape.first_part = data[position + 4 : at]
    shape.tag_part = data[tag_at : tag_at + 2]
    shape.last_part = data[last_at : payload_at + prefix]
    shape.id_width = width
    shape.tag_width = tag_width
    shape.tag_number_at = tag_at + 2 - position if tag_width in _TAG_NUMBERS else 0
    shape.wire_limit = 0x100 if width == 1 else 0x1_0000_0000
    shape.offset = payload_at - position
    shape.count_at = shape.offset + prefix + 1 if counted else 0
    shape.minimum = shape.offset + prefix + (2 if shape.count_at else 0)
    tag = _TAG_NUMBERS.get(tag_width, f"{tag_width}s")
    form = f">I{at - position - 4}s{'B' if width == 1 else 'I'}2s{tag}{len(shape.last_part)}s"
    shape.unpack = _columns(form).unpack_from
    return shape


def _prepare_run(shape: Shape[Any], size: int) -> None:
    """Compile the pattern that matches a run of frames of `size` bytes."""
    escape = re.escape
    constant = 4 + len(shape.first_part) + shape.id_width + 2 + shape.tag_width + len(shape.last_part)
    pattern = (
        escape(size.to_bytes(4, "big") + shape.first_part)
        + b".{%d}" % shape.id_width
        + escape(shape.tag_part)
        + b".{%d}" % shape.tag_width
        + escape(shape.last_part)
    )
    if shape.count_at:
        pattern += b".[\\x00-\\x08]"
        constant += 2
    pattern += b".{%d}" % (size - constant)
    # Possessive: a run that does not match further ends there, and nothing is tried again.
    shape.run = _run_pattern(b"(?:" + pattern + b")*+").match
    shape.run_payload = _columns(f"{shape.offset}x{size - shape.offset}s").iter_unpack
    shape.run_size = size


def _consecutive(data: bytes, start: int, step: int, width: int, wire: int, count: int) -> int:
    """How many of the numbers at start, start + step … are wire, wire + 1, …, compared by whole columns.

    At most up to where the low byte wraps: the upper bytes must all be as they are in `wire`.
    """
    low = wire & 0xFF
    count = min(count, 256 - low)
    if wire >> (8 * width):
        return 0
    stop = start + width + (count - 1) * step
    column = data[start + width - 1 : stop : step]
    expected = _BYTES[low : low + count]
    if column != expected:
        count = next(index for index in range(count) if column[index] != expected[index])
    for index, octet in enumerate(wire.to_bytes(width, "big")[:-1]):
        column = data[start + index : stop : step][:count]
        if column.count(octet) != count:
            count = next(index for index in range(count) if column[index] != octet)
    return count


_BYTES: Final = bytes(range(256))
_TAG_NUMBERS: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""How delivery-tags of these widths are unpacked as numbers."""


def take(
    shape: Shape[Any], data: bytes, position: int, end: int, expected: int, limit: int, tag: int = -1
) -> tuple[int, list[bytes]]:
    """Payloads of the frames at `position` that have this shape, and the position after the last of them.

    At most `limit` frames, the first with the wire delivery-id `expected`, all of them whole within `end`.
    Their delivery-tags are the numbers from `tag` on; any, where it is -1.
    """
    payloads: list[bytes] = []
    if shape.run is not None and limit >= UNIFORM_RUN_MIN:
        position = _take_runs(shape, data, position, end, expected, limit, payloads, tag)
        expected += len(payloads)
        if tag >= 0:
            tag += len(payloads)
        limit -= len(payloads)
    before = len(payloads)
    append = payloads.append
    unpack = shape.unpack
    first_part = shape.first_part
    tag_part = shape.tag_part
    last_part = shape.last_part
    minimum = shape.minimum
    most = shape.most
    offset = shape.offset
    count_at = shape.count_at
    for _ in range(limit):
        if end - position < minimum:
            break
        size, first, number, tag_head, tag_number, last = unpack(data, position)
        if number != expected or last != last_part or first != first_part or tag_head != tag_part:
            break
        if tag >= 0:
            if tag_number != tag:
                break
            tag += 1
        stop = position + size
        if stop > end or size > most or size < minimum:
            break
        if (
            count_at
            and data[position + count_at] > 8
            and not never_expires(data, position + count_at - 1, stop)
        ):
            break
        append(data[position + offset : stop])
        position = stop
        expected += 1
    singly = len(payloads) - before
    if singly:
        size = len(payloads[-1]) + offset
        if size != shape.candidate:
            shape.candidate = size
            shape.streak = 0
        elif size != shape.run_size:
            # Frames of other sizes in between are counted, too; that costs one needless compilation.
            shape.streak += singly
            if shape.streak > UNIFORM_AFTER:
                _prepare_run(shape, size)
    return position, payloads


def tags_of(shape: Shape[Any], data: bytes, position: int, payloads: list[bytes]) -> list[bytes]:
    """Delivery-tags of the frames at `position` whose payloads `take` returned."""
    at = 4 + len(shape.first_part) + shape.id_width + 2
    tags = []
    for payload in payloads:
        tags.append(data[position + at : position + at + shape.tag_width])
        position += shape.offset + len(payload)
    return tags


def _take_runs(
    shape: Shape[Any],
    data: bytes,
    position: int,
    end: int,
    expected: int,
    limit: int,
    payloads: list[bytes],
    tag: int,
) -> int:
    """Append the payloads of frames of the repeating size, in runs; returns the position after them."""
    size = shape.run_size
    number_at = 4 + len(shape.first_part)
    count = min((end - position) // size, limit)
    if count < UNIFORM_RUN_MIN:
        return position
    stop = shape.run(data, position, position + count * size).end()
    count = (stop - position) // size
    view = memoryview(data)
    # The pattern has matched everything but the numbers, which are compared as columns: 256 ids at a time, up
    # to where their upper bytes change.
    while count and expected < shape.wire_limit:
        some = _consecutive(data, position + number_at, size, shape.id_width, expected, count)
        if tag >= 0 and some:
            some = _consecutive(data, position + shape.tag_number_at, size, shape.tag_width, tag, some)
            tag += some
        if not some:
            break
        after = position + some * size
        payloads += [payload for (payload,) in shape.run_payload(view[position:after])]
        position = after
        expected += some
        count -= some
    return position
