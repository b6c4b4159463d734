"""The columns of the data source `lightrail`: one row per message and event, in the order of the journal."""

from enum import StrEnum
from typing import Final

import pyarrow as pa

_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXTS: Final = pa.map_(pa.string(), pa.string())


class Event(StrEnum):
    """An event of a message; `moved` and `delivered` do not change its state."""

    ENQUEUED = "enqueued"
    DELIVERED = "delivered"
    """The message was sent to a consumer."""
    ACCEPTED = "accepted"
    RELEASED = "released"
    MODIFIED = "modified"
    """The message returned to the queue after a failed delivery, see `delivery_count`."""
    REJECTED = "rejected"
    EXPIRED = "expired"
    DEAD_LETTERED = "dead_lettered"
    """The message moved to NAME/$dlq, where it was enqueued at the same time; `reason` has the cause."""
    PURGED = "purged"
    DISCARDED = "discarded"
    """The message was dropped by the policy of a full queue, or by a window of duplicates."""
    MOVED = "moved"
    """The message's queue moved from another shard to the shard of this row."""


class Decode(StrEnum):
    """The parts of a message that become columns; other columns are null."""

    NONE = "none"
    """Only `message`, with the original bytes."""
    PROPERTIES = "properties"
    """All columns except `body`."""
    ALL = "all"


FIELDS: Final[tuple[tuple[str, pa.DataType], ...]] = (
    ("queue", pa.string()),
    ("shard", pa.int32()),
    ("journal", pa.string()),
    ("epoch", pa.int64()),
    ("sequence", pa.int64()),
    ("lsn", pa.int64()),
    ("event", pa.string()),
    ("event_time", _TIME),
    ("enqueued_at", _TIME),
    ("message_id", pa.string()),
    ("correlation_id", pa.string()),
    ("subject", pa.string()),
    ("reply_to", pa.string()),
    ("content_type", pa.string()),
    ("group_id", pa.string()),
    ("durable", pa.bool_()),
    ("priority", pa.int32()),
    ("ttl", pa.int64()),
    ("delivery_count", pa.int64()),
    ("reason", pa.string()),
    ("producer", pa.string()),
    ("consumer", pa.string()),
    ("properties", _TEXTS),
    ("application_properties", _TEXTS),
    ("message_annotations", _TEXTS),
    ("body", pa.binary()),
    ("message", pa.binary()),
)
"""Name and type of each column. `queue`, `shard`, `journal`, `epoch`, `sequence`, `lsn`, `event` and
`event_time` are in every row, those of the message with the events enqueued and moved."""

SCHEMA: Final = pa.schema(list(FIELDS))

DECODED: Final = frozenset(
    {
        "message_id",
        "correlation_id",
        "subject",
        "reply_to",
        "content_type",
        "group_id",
        "properties",
        "application_properties",
        "message_annotations",
    }
)
"""Columns that are decoded from messages; null with Decode.NONE. `body` needs Decode.ALL."""
