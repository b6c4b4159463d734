"""The binary form of records, drawn in docs/formats/journal.md.

Little-endian throughout. A record is a header of 32 bytes and a body; its checksum covers everything after
the checksum itself. Encoding returns the bytes *from the type on* ("the rest"): the commit thread puts length
and checksum before them, so that the event loop never computes a checksum. All types of record are in this
file, as in that document, so that the two can be compared side by side, but for the bodies of
Terminus and Receiver (record.py).
"""

from array import array
from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812  # the exception's own name says nothing
from typing import Final, NamedTuple
from zlib import crc32

from lightrail.journal import record as records
from lightrail.journal.record import (
    Close,
    Delivered,
    Epoch,
    Gap,
    Ids,
    Numbers,
    Queue,
    QueueEntry,
    ReceiverChange,
    Seal,
    Settle,
    Snapshot,
    Taken,
    Terminus,
    TransactionStep,
)
from lightrail.journal.segment_header import FORMAT_VERSION
from lightrail.model.attempts import of_journal, waiting, waits_until_ms

FRONT: Final = Struct("<II")
"""length of the whole record u32, crc32 u32 of what follows."""
FRONT_SIZE: Final = FRONT.size
HEADER: Final = Struct("<IIBBHIQQ")
"""length, crc32, type u8, flags u8, mark u16, unsynced u32, lsn u64, timestamp u64 (ms)."""
HEADER_SIZE: Final = HEADER.size
REST: Final = Struct("<BBHIQQ")
"""A header without its front."""
MARK: Final = 0x524C
MARK_BYTES: Final = b"LR"
MARK_OFFSET: Final = 10
"""Offset of the mark in a record: the search for the next whole record looks for it."""
RECORD_SIZE_MIN: Final = 40
"""Every type has a body of at least 8 bytes, so that a Gap fits in place of any record."""
RECORD_SIZE_MAX: Final = 1 << 31
UNSYNCED_MAX: Final = (1 << 32) - 1

APPEND: Final = 1
SETTLE: Final = 2
QUEUE: Final = 3
SNAPSHOT: Final = 4
SEAL: Final = 5
EPOCH: Final = 6
CLOSE: Final = 7
GAP: Final = 8
IDS: Final = 9
TAKEN: Final = 10
NUMBERS: Final = 11
DELIVERED: Final = 12
TRANSACTION: Final = 13
TERMINUS: Final = 14
RECEIVER: Final = 15

APPEND_FIXED: Final = Struct("<QQqqIIIIHBB")
"""producer, number, enqueued_at_ms, expires_at_ms (0: never), message_format, count, size of the blob,
attempts, number of targets u16, priority u8, attributes u8 (bit 0: durable, bit 1: see WAITING)."""
WAITING: Final = 2
"""Attribute of an Append: its messages wait until the time in `number`; they are of no producer."""
TARGET: Final = Struct("<QQ")
APPEND_ONE: Final = Struct("<BBHIQQQQqqIIIIHBBQQ")
"""REST, APPEND_FIXED and one TARGET in one call, for an Append with one target, which is nearly every one."""
APPEND_BODY: Final = HEADER_SIZE + APPEND_FIXED.size
"""Offset of the targets in an Append record."""
SETTLE_FIXED: Final = Struct("<QIIHBB")
"""queue, number of ranges u32, attempts u32, length of the reason u16, outcome u8, waits u8 (1: the messages
wait until the time behind the reason, u64)."""
QUEUE_FIXED: Final = Struct("<QIHBB")
"""queue, length of the policy u32, length of the name u16, event u8, reserved u8."""
SNAPSHOT_FIXED: Final = Struct("<QII")
"""epoch, number of queues u32, number of producers u32."""
SNAPSHOT_QUEUE: Final = Struct("<QQIH")
"""queue, next sequence, length of the policy u32, length of the name u16."""
SNAPSHOT_PARTS: Final = Struct("<I")
"""number of parts u32; absent if it is 0."""
IDS_FIXED: Final = Struct("<QQI")
"""queue, until_ms, bytes of the digests u32."""
TAKEN_FIXED: Final = Struct("<QQI")
"""producer, number, messages taken u32."""
NUMBERS_FIXED: Final = Struct("<QQI")
"""queue, next sequence, number of producers u32."""
TRANSACTION_FIXED: Final = Struct("<16sIIII")
"""id, state u32, shard u32, length of the detail u32, length of the blob u32."""
DELIVERED_FIXED: Final = Struct("<QQII")
"""queue, consumer, number of ranges u32, reserved u32."""
DIGEST_BYTES: Final = 16
U64: Final = Struct("<Q")

Bytes = bytes | memoryview


class LayoutError(Exception):
    """A record with a correct checksum and an invalid body: a newer format, or a defect of the writer."""


class AppendHead(NamedTuple):
    """The fixed part of an Append record's body, in the order of the bytes."""

    producer: int
    number: int
    enqueued_at_ms: int
    expires_at_ms: int
    """0: never."""
    message_format: int
    messages: int
    size: int
    attempts: int
    """See model/attempts.py; the field of the record has its lower 32 bits."""
    target_count: int
    priority: int
    attributes: int


def encode_settle(record: Settle) -> bytes:
    """Body of a Settle record."""
    reason = record.reason.encode()[:65_535]
    until_ms = waits_until_ms(record.attempts)
    attempts = of_journal(record.attempts)
    fixed = SETTLE_FIXED.pack(
        record.queue, len(record.ranges), attempts, len(reason), record.outcome, until_ms > 0
    )
    until = U64.pack(until_ms) if until_ms else b""
    if len(record.ranges) == 1:
        first, last = record.ranges[0]
        return fixed + TARGET.pack(first, last) + reason + until
    column = array("Q", [edge for range_ in record.ranges for edge in range_])
    return b"".join((fixed, column.tobytes(), reason, until))


def decode_settle(data: Bytes, start: int, end: int, flags: int) -> Settle:
    """The Settle record whose body is data[start:end]."""
    queue, count, attempts, reason_size, outcome, waits = SETTLE_FIXED.unpack_from(data, start)
    position = start + SETTLE_FIXED.size
    if waits:
        end -= U64.size
        attempts = waiting(attempts, _number(data, end))
    if position + 16 * count + reason_size != end:
        raise LayoutError(f"a Settle of {count} ranges has {end - start} bytes")
    ranges: list[tuple[int, int]] = [
        TARGET.unpack_from(data, position + 16 * index) for index in range(count)
    ]
    reason = bytes(data[end - reason_size : end]).decode(errors="replace")
    return Settle(queue, ranges, outcome, reason, attempts, flags)


def encode_queue(record: Queue) -> bytes:
    """Body of a Queue record."""
    name, policy = record.name.encode(), record.policy.encode()
    return QUEUE_FIXED.pack(record.queue, len(policy), len(name), record.event, 0) + name + policy


def decode_queue(data: Bytes, start: int, end: int, flags: int) -> Queue:
    """The Queue record whose body is data[start:end]."""
    queue, policy_size, name_size, event, _ = QUEUE_FIXED.unpack_from(data, start)
    position = start + QUEUE_FIXED.size
    if position + name_size + policy_size != end:
        raise LayoutError(f"a Queue of {name_size} + {policy_size} bytes of text has {end - start} bytes")
    name = bytes(data[position : position + name_size]).decode()
    return Queue(event, queue, name, bytes(data[position + name_size : end]).decode(), flags)


def encode_snapshot(record: Snapshot) -> bytes:
    """Body of a Snapshot record."""
    pieces = [SNAPSHOT_FIXED.pack(record.epoch, len(record.queues), len(record.producers))]
    for entry in record.queues:
        name, policy = entry.name.encode(), entry.policy.encode()
        pieces += (
            SNAPSHOT_QUEUE.pack(entry.queue, entry.next_sequence, len(policy), len(name)),
            name,
            policy,
        )
    pieces += (array("Q", record.producers.keys()).tobytes(), array("Q", record.producers.values()).tobytes())
    if record.parts:
        pieces += (
            SNAPSHOT_PARTS.pack(len(record.parts)),
            array("Q", record.parts.keys()).tobytes(),
            array("Q", record.parts.values()).tobytes(),
        )
    return b"".join(pieces)


def decode_snapshot(data: Bytes, start: int, end: int, flags: int) -> Snapshot:
    """The Snapshot record whose body is data[start:end]."""
    epoch, queue_count, producer_count = SNAPSHOT_FIXED.unpack_from(data, start)
    position = start + SNAPSHOT_FIXED.size
    queues = []
    for _ in range(queue_count):
        queue, next_sequence, policy_size, name_size = SNAPSHOT_QUEUE.unpack_from(data, position)
        position += SNAPSHOT_QUEUE.size
        name = bytes(data[position : position + name_size]).decode()
        position += name_size
        policy = bytes(data[position : position + policy_size]).decode()
        position += policy_size
        queues.append(QueueEntry(queue, name, policy, next_sequence))
    producers, position = _decode_columns(data, position, end, producer_count)
    if position == end:
        return Snapshot(epoch, queues, producers, flags=flags)
    (part_count,) = SNAPSHOT_PARTS.unpack_from(data, position)
    parts, position = _decode_columns(data, position + SNAPSHOT_PARTS.size, end, part_count)
    if position != end:
        raise LayoutError(f"a Snapshot ends at {end}, its entries at {position}")
    return Snapshot(epoch, queues, producers, parts, flags)


def _decode_columns(data: Bytes, start: int, end: int, count: int) -> tuple[dict[int, int], int]:
    """(values of a second column by the u64 of a first one, each of `count` entries; offset of their end)."""
    middle, stop = start + 8 * count, start + 16 * count
    if stop > end:
        raise LayoutError(f"a Snapshot ends at {end}, its columns at {stop}")
    names, numbers = array("Q"), array("Q")
    names.frombytes(data[start:middle])
    numbers.frombytes(data[middle:stop])
    return dict(zip(names, numbers, strict=True)), stop


def decode_ids(data: Bytes, start: int, end: int, flags: int) -> Ids:
    """The Ids record whose body is data[start:end]."""
    queue, until_ms, size = IDS_FIXED.unpack_from(data, start)
    position = start + IDS_FIXED.size
    if position + size != end or size % DIGEST_BYTES:
        raise LayoutError(f"an Ids of {size} bytes of digests has {end - start} bytes")
    return Ids(queue, until_ms, bytes(data[position:end]), flags)


def decode_taken(data: Bytes, start: int, end: int, flags: int) -> Taken:
    """The Taken record whose body is data[start:end]."""
    if start + TAKEN_FIXED.size != end:
        raise LayoutError(f"a Taken has {end - start} bytes")
    producer, number, taken = TAKEN_FIXED.unpack_from(data, start)
    return Taken(producer, number, taken, flags)


def encode_numbers(record: Numbers) -> bytes:
    """Body of a Numbers record."""
    producers, numbers, parts = array("Q"), array("Q"), array("I")
    for producer, number, part in record.producers:
        producers.append(producer)
        numbers.append(number)
        parts.append(part)
    fixed = NUMBERS_FIXED.pack(record.queue, record.next_sequence, len(producers))
    return b"".join((fixed, producers.tobytes(), numbers.tobytes(), parts.tobytes()))


def decode_numbers(data: Bytes, start: int, end: int, flags: int) -> Numbers:
    """The Numbers record whose body is data[start:end]."""
    queue, next_sequence, count = NUMBERS_FIXED.unpack_from(data, start)
    position = start + NUMBERS_FIXED.size
    if position + 20 * count != end:
        raise LayoutError(f"a Numbers of {count} producers has {end - start} bytes")
    producers, numbers, parts = array("Q"), array("Q"), array("I")
    for column in (producers, numbers, parts):
        size = column.itemsize * count
        column.frombytes(data[position : position + size])
        position += size
    return Numbers(queue, next_sequence, list(zip(producers, numbers, parts, strict=True)), flags)


def encode_delivered(record: Delivered) -> bytes:
    """Body of a Delivered record."""
    fixed = DELIVERED_FIXED.pack(record.queue, record.consumer, len(record.ranges), 0)
    column = array("Q", [edge for range_ in record.ranges for edge in range_])
    return fixed + column.tobytes()


def decode_delivered(data: Bytes, start: int, end: int, flags: int) -> Delivered:
    """The Delivered record whose body is data[start:end]."""
    queue, consumer, count, _ = DELIVERED_FIXED.unpack_from(data, start)
    position = start + DELIVERED_FIXED.size
    if position + 16 * count != end:
        raise LayoutError(f"a Delivered of {count} ranges has {end - start} bytes")
    ranges: list[tuple[int, int]] = [
        TARGET.unpack_from(data, position + 16 * index) for index in range(count)
    ]
    return Delivered(queue, consumer, ranges, flags)


def encode_transaction(record: TransactionStep) -> bytes:
    """Body of a Transaction record."""
    detail = record.detail.encode()
    fixed = TRANSACTION_FIXED.pack(record.id, record.state, record.shard, len(detail), len(record.blob))
    return b"".join((fixed, detail, record.blob))


def decode_transaction(data: Bytes, start: int, end: int, flags: int) -> TransactionStep:
    """The Transaction record whose body is data[start:end]."""
    id, state, shard, detail_size, blob_size = TRANSACTION_FIXED.unpack_from(data, start)
    position = start + TRANSACTION_FIXED.size
    middle = position + detail_size
    if middle + blob_size != end:
        raise LayoutError(f"a Transaction of {detail_size} + {blob_size} bytes has {end - start} bytes")
    detail = bytes(data[position:middle]).decode()
    return TransactionStep(id, state, shard, detail, bytes(data[middle:end]), flags)


def decode_append_head(data: Bytes, start: int, length: int) -> tuple[AppendHead, list[tuple[int, int]], int]:
    """Head, targets, and offset of the ends column of the Append record at `start`.

    Raises:
        LayoutError: the columns do not fill the record.
    """
    if length < APPEND_BODY:
        raise LayoutError(f"an Append has {length} bytes, fewer than its fixed part")
    head = AppendHead._make(APPEND_FIXED.unpack_from(data, start + HEADER_SIZE))
    position = start + APPEND_BODY
    column = position + 16 * head.target_count
    if column + 4 * head.messages + head.size != start + length:
        raise LayoutError(f"an Append of {head.messages} messages of {head.size} bytes has {length} bytes")
    if head.attributes & WAITING:
        attempts = waiting(head.attempts, head.number)
        head = head._replace(attempts=attempts, attributes=head.attributes - WAITING)
    targets: list[tuple[int, int]] = [
        TARGET.unpack_from(data, position + 16 * index) for index in range(head.target_count)
    ]
    return head, targets, column


def _number(data: Bytes, start: int) -> int:
    number: int = U64.unpack_from(data, start)[0]
    return number


_OfQueue = Settle | Delivered | Queue | Ids | Numbers | Terminus | ReceiverChange
_Small = _OfQueue | Snapshot | Taken | TransactionStep | Seal | Epoch | Close | Gap

_ENCODERS: Final[dict[type, tuple[int, Callable[..., bytes]]]] = {
    Settle: (SETTLE, encode_settle),
    Delivered: (DELIVERED, encode_delivered),
    Queue: (QUEUE, encode_queue),
    Snapshot: (SNAPSHOT, encode_snapshot),
    Ids: (IDS, lambda ids: IDS_FIXED.pack(ids.queue, ids.until_ms, len(ids.digests)) + ids.digests),
    Taken: (TAKEN, lambda record: TAKEN_FIXED.pack(record.producer, record.number, record.taken)),
    Numbers: (NUMBERS, encode_numbers),
    TransactionStep: (TRANSACTION, encode_transaction),
    Terminus: (TERMINUS, records.encode_terminus),
    ReceiverChange: (RECEIVER, records.encode_receiver),
    Seal: (SEAL, lambda record: U64.pack(record.epoch)),
    Epoch: (EPOCH, lambda record: U64.pack(record.epoch)),
    Close: (CLOSE, lambda record: U64.pack(0)),
    Gap: (GAP, lambda record: U64.pack(record.next_lsn)),
}

_DECODERS: Final[dict[int, Callable[[Bytes, int, int, int], "_Small"]]] = {
    SETTLE: decode_settle,
    QUEUE: decode_queue,
    SNAPSHOT: decode_snapshot,
    IDS: decode_ids,
    TAKEN: decode_taken,
    NUMBERS: decode_numbers,
    TRANSACTION: decode_transaction,
    TERMINUS: records.decode_terminus,
    RECEIVER: records.decode_receiver,
    DELIVERED: decode_delivered,
    SEAL: lambda data, body, _, flags: Seal(_number(data, body), flags),
    EPOCH: lambda data, body, _, flags: Epoch(_number(data, body), flags),
    CLOSE: lambda _data, _body, _end, flags: Close(flags),
    GAP: lambda data, body, _, flags: Gap(_number(data, body), flags),
}


def encode_small(record: _Small, lsn: int, unsynced: int, now_ms: int) -> bytes:
    """The rest (see above) of any record but an Append."""
    code, encode = _ENCODERS[type(record)]
    return REST.pack(code, record.flags, MARK, unsynced, lsn, now_ms) + encode(record)


def decode_small(data: Bytes, start: int, length: int) -> _Small:
    """Decodes any record but an Append.

    Raises:
        LayoutError: an unknown type, or a body that does not have the format.
    """
    code, flags = data[start + FRONT_SIZE], data[start + FRONT_SIZE + 1]
    decode = _DECODERS.get(code)
    if decode is None:
        raise LayoutError(f"a record of type {code}, which format version {FORMAT_VERSION} does not have")
    try:
        return decode(data, start + HEADER_SIZE, start + length, flags)
    except (StructError, UnicodeDecodeError, ValueError) as error:
        raise LayoutError(f"a record of type {code} with {length} bytes: {error}") from error


def finished(rest: bytes, salt: int) -> bytes:
    """A whole record: front and rest."""
    return FRONT.pack(FRONT_SIZE + len(rest), crc32(rest, salt)) + rest
