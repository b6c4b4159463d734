"""The frames between frontends and shards: one fixed header, then columns; drawn in docs/formats/wire.md.

A ZeroMQ message is a list of parts and each part is one frame, so that all frames for a peer in one turn of
the loop are sent as one message. All integers are little-endian: both ends of an `ipc://` or `tcp://`
connection are LightRail processes, and the columns are used in place (memoryview, no conversion).

Header, 24 bytes: kind u8, flags u8, reserved u16, epoch u32, link u32, count u32, number u64.
"""

from array import array
from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

VERSION: Final = 5
"""Version of this layout; exchanged in HELLO and WELCOME, which keep their shape in every version. See
versions.py for the rule."""

HEADER: Final = Struct("<BBHIIIQ")
HEADER_SIZE: Final = HEADER.size
EPOCHS: Final = (1 << 32) - 1
"""The bits of an epoch that a header has; an epoch may be larger."""
ENQUEUE_COLUMNS: Final = Struct("<qII")
"""expires_at_ms i64 (0: never), message_format u32, bytes of the blob u32."""
ENQUEUE_ENDS: Final = HEADER_SIZE + ENQUEUE_COLUMNS.size
DELIVER_COLUMNS: Final = Struct("<QqqIIII")
"""First sequence u64, expires_at_ms and enqueued_at_ms i64; attempts, message_format, base, bytes u32."""
DELIVER_ENDS: Final = HEADER_SIZE + DELIVER_COLUMNS.size
SEQUENCE: Final = Struct("<Q")
"""Body of STORED: the sequence of the batch's first message."""
UNKNOWN_SEQUENCE: Final = (1 << 64) - 1
"""In STORED: the batch is stored, and the shard has lost its sequence by a restart."""

IDENTITY: Final = 1 << 63
"""Set in a producer's id that its client chose; ids of links, boot << 32 | link, have 63 bits."""
COUNT_MASK: Final = (1 << 32) - 1
"""Largest value of a count."""

Part = bytes | memoryview
"""A frame as it arrived; a large one is a view of the memory into which it was received."""
Buffer = bytes | bytearray | memoryview | array  # type: ignore[type-arg]  # the ends are u32 items


class Kind(IntEnum):
    """Kinds of frames; the first group goes to the shard, the second to the frontend."""

    HELLO = 1
    PRODUCER_OPEN = 2
    PRODUCER_CLOSE = 3
    ENQUEUE = 4
    CONSUMER_OPEN = 5
    CONSUMER_CLOSE = 6
    CREDIT = 7
    SETTLE = 8
    PING = 9
    GOODBYE = 10
    REQUEST = 11
    TARGETS = 12
    ROUTE = 13
    PRODUCER_ABANDON = 14
    COUNT = 15
    TAGS = 24
    FORGET = 25
    RESEND = 26
    YIELDED = 27

    WELCOME = 65
    PRODUCER_READY = 66
    ACCEPTED = 67
    REFUSED = 68
    CONSUMER_READY = 69
    DELIVER = 70
    DRAINED = 71
    GONE = 72
    PONG = 73
    ABSENT = 74
    RESPONSE = 75
    STORED = 76
    GRANT = 77
    OUTCOME = 78
    MOVED = 79
    BOUNCED = 80
    SETTLED = 81
    LARGER = 82
    FREED = 83
    UNSETTLED = 92
    RESENT = 93
    YIELD = 94
    SESSION = 95


# Flags of CONSUMER_CLOSE.
ENDING: Final = 3
"""The bits of a number of model/links.py; former versions send 0."""
FOR_GOOD: Final = 4
"""The client does not resume the link, whose deliveries return at once; former versions suspend it."""
# Flags of FORGET.
CLOSED: Final = 1
"""The client has closed the link: no state of it is kept."""
# Flags of UNSETTLED.
KEPT: Final = 1
"""The shard keeps unsettled messages when the link is detached."""
DURABILITY_SHIFT: Final = 1
"""The two bits above KEPT: what of the state is in the store of the shard (model/links.py)."""
# Flags of ENQUEUE.
DURABLE: Final = 1
AFRESH: Final = 2
"""Every earlier batch of the producer was answered: after a refusal, batches are accepted again from here."""
WHOLE: Final = 4
"""The batch is one transfer of its client: the queue stores all of it, or refuses all of it."""
# Flags of CREDIT.
DRAIN: Final = 1
EXACT: Final = 2
"""Deliveries stay within the bytes of the credit: a larger next message is answered with LARGER."""
MORE: Final = 4
"""The client has granted credit beyond `number`, at which the frontend's window ends now; it will advance."""
# The reserved field of SETTLE.
ASKED: Final = 1
"""The frame is answered with SETTLED when the outcomes are on disk."""
REPEATED: Final = 2
"""The frame was sent before, so that what is not in flight may have got its outcome by that."""
# Flags of ACCEPTED.
HELD: Final = 1
"""The sender receives no new credit for these batches until FREED."""
# Flags of REQUEST and PRODUCER_OPEN.
DUE: Final = 1
"""The field `epoch` of REQUEST, `count` of PRODUCER_OPEN, has the lower 32 bits of the time of the shard's
clock, in ms, after which the frame is not executed."""
# Flags of DELIVER, WELCOME and PONG.
TIMED: Final = 1
"""The reserved field has the lower 16 bits of the shard's clock, in ms, when it delivered the messages; in
WELCOME and PONG `epoch` has the lower 32 bits of that clock."""
STORED: Final = 2
"""The shard has the messages on disk, whatever their headers say; former versions never set it."""
CLOCK_BEHIND_MS: Final = 5_000
"""How far a shard's clock may be ahead of the clock of the process that reads a DELIVER."""
# Flags of SETTLED.
UNCERTAIN: Final = 1
"""The store has failed meanwhile: after a restart some of the messages may be in their queue again."""
NOT_LOCKED: Final = 2
"""The messages were not locked for the link any more, so that the SETTLE changed nothing; former versions
never set it, and take it for a success."""
# Flags of RESPONSE.
BLOB_FOLLOWS: Final = 1
"""The blob is the next part of the ZeroMQ message: only for operations with this in their documentation."""


class OutcomeCode(IntEnum):
    """Flags byte of SETTLE: the outcome of the range (messaging 3.4)."""

    ACCEPTED = 0
    REJECTED = 1
    RELEASED = 2
    MODIFIED = 3


class WireError(Exception):
    """A body without the layout of this version; the message has what was expected and found."""


def frame(
    kind: Kind,
    *,
    flags: int = 0,
    epoch: int = 0,
    link: int = 0,
    count: int = 0,
    number: int = 0,
    body: bytes = b"",
    asked: int = 0,
) -> bytes:
    """Any frame that is not on the hot path: header and a body of bytes (text or JSON).

    Args:
        asked: ASKED in a SETTLE that is to be answered, with REPEATED if it was sent before.
    """
    return HEADER.pack(kind, flags, asked, epoch & EPOCHS, link, count, number) + body


def enqueue(
    link: int,
    epoch: int,
    number: int,
    ends: bytes,
    blob: Sequence[Buffer],
    *,
    durable: bool,
    afresh: bool,
    priority: int,
    expires_at_ms: int,
    message_format: int,
    size: int,
    kind: int = Kind.ENQUEUE,
    whole: bool = False,
) -> bytes:
    """A batch of messages for a queue, or as ROUTE for the set of queues that `epoch` then numbers.

    Args:
        afresh: every earlier batch of the producer was answered.
        number: of the batch, rising by one per producer; sent again unchanged after a reconnect.
        ends: u32 column with the end of each message in the blob; its length is 4 x count.
        blob: the messages, in pieces that are joined here once.
        expires_at_ms: 0 for never.
        size: bytes of the blob.
        whole: the batch is stored as a whole or not at all.
    """
    count = len(ends) >> 2
    return b"".join(
        (
            HEADER.pack(
                kind, durable | afresh << 1 | whole << 2, priority, epoch & EPOCHS, link, count, number
            ),
            ENQUEUE_COLUMNS.pack(expires_at_ms, message_format, size),
            ends,
            *blob,
        )
    )


def deliver(
    link: int,
    epoch: int,
    number: int,
    count: int,
    delivered_ms: int,
    sequence: int,
    attempts: int,
    expires_at_ms: int,
    enqueued_at_ms: int,
    message_format: int,
    base: int,
    ends: Buffer,
    blob: Buffer,
    stored: bool = False,
) -> bytes:
    """A slice of a queue for a consumer: delivery numbers from `number`, sequences from `sequence`.

    `delivered_ms` is the time of delivery by the shard's clock: see `delivered_at`.

    `ends` are copied unchanged from the stored batch; `base` is the end of the message before the first, so
    message i is at ends[i-1]-base .. ends[i]-base of the blob, with base for ends[-1].
    """
    return b"".join(
        (
            HEADER.pack(
                Kind.DELIVER, TIMED | stored << 1, delivered_ms & 0xFFFF, epoch & EPOCHS, link, count, number
            ),
            DELIVER_COLUMNS.pack(
                sequence, expires_at_ms, enqueued_at_ms, attempts, message_format, base, len(blob)
            ),
            ends,
            blob,
        )
    )


def is_late(due: int, now_ms: int) -> bool:
    """Whether the time of a frame with DUE is over, by the clock of the shard."""
    return 0 < (now_ms - due & COUNT_MASK) < 1 << 31


def delivered_at(part: Buffer, now_ms: int) -> int:
    """Time at which the shard delivered the messages of a DELIVER, in ms by its clock: locks begin then.

    The result is right if the frame is read up to a minute later, by a clock that is at most CLOCK_BEHIND_MS
    behind that of the shard. A clock that is further behind makes the result too early: a lock seems to end
    too soon, and never too late.
    Args:
        now_ms: by the clock of the reader; the result if a former version did not send the time.
    """
    flags: int
    low: int
    _, flags, low, _, _, _, _ = HEADER.unpack_from(part)
    if not flags & TIMED:
        return now_ms
    latest_ms = now_ms + CLOCK_BEHIND_MS
    return latest_ms - (latest_ms - low & 0xFFFF)


def is_stored(part: Buffer) -> bool:
    """Whether the shard has the messages of a DELIVER on disk; False if a former version does not tell it."""
    flags: int
    _, flags, _, _, _, _, _ = HEADER.unpack_from(part)
    return flags & STORED != 0
