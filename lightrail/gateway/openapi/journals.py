"""Description of journals and their readers."""

from typing import Final

from lightrail.gateway.openapi.operation import (
    FLAG,
    IF_MATCH,
    SEQUENCE,
    TEXT,
    WHOLE,
    Object,
    Operation,
    Paths,
    content,
    list_of,
    object_of,
    query,
    ref,
)
from lightrail.model import limits

_SEGMENT: Final[Object] = {
    "segment": WHOLE,
    "first_lsn": WHOLE,
    "next_lsn": WHOLE,
    "end": WHOLE,
    "messages": WHOLE,
    "last_ms": WHOLE,
    "sealed": FLAG,
}
_JOURNAL: Final[Object] = {"journal": TEXT, "shard": WHOLE, "cluster": TEXT, "away": FLAG}
_POSITION: Final[Object] = {"type": ["integer", "null"], "minimum": 0, "maximum": (1 << 63) - 1}
_BEHIND: Final[Object] = {"lsns": WHOLE, "messages": WHOLE, "bytes": WHOLE}
_BOUNDS: Final[Object] = {
    "hold_hours": {"type": ["number", "null"], "minimum": 0, "maximum": limits.READER_HOLD_HOURS_MAX},
    "hold_bytes": {"type": ["integer", "null"], "minimum": 0, "maximum": limits.READER_HOLD_BYTES_MAX},
}
_ROW: Final[Object] = {
    "journal": TEXT,
    "shard": WHOLE,
    "position": _POSITION,
    "away": FLAG,
    **_BEHIND,
    "missed": WHOLE,
    "oldest_ms": {"type": ["integer", "null"]},
}

PATHS: Final[Paths] = {
    "/!journals": {
        "get": Operation(
            "listJournals",
            "journals of all shards and their committed segments",
            {200: ("journals", content(list_of("journals", ref("Journal"))))},
            (
                query("journal", {"type": "string", "pattern": "^[0-9a-f]{1,64}$"}, "only this journal"),
                query("from", SEQUENCE, "only segments that end after this lsn"),
            ),
        ),
    },
    "/!journals/{journal}/{segment}": {
        "get": Operation(
            "readJournal",
            "bytes of a segment as they are on disk (docs/formats/journal.md)",
            {
                200: ("the bytes", {"application/octet-stream": {"schema": {}}}),
                304: ("unchanged", None),
            },
            (
                query("from", SEQUENCE, "offset of the first byte; 0 by default"),
                query(
                    "to",
                    SEQUENCE,
                    "offset after the last byte, by default the end of the committed bytes; 416 beyond it",
                ),
            ),
        ),
    },
    "/!journals/{journal}/{segment}/index": {
        "get": Operation(
            "readIndex",
            "a sparse index of the records of a segment (docs/formats/archive.md)",
            {200: ("the index", content(ref("SegmentIndex"))), 304: ("unchanged", None)},
        ),
    },
    "/!readers": {
        "get": Operation(
            "listReaders",
            "readers of journals, each with the unread part of the journals",
            {200: ("readers", content(list_of("readers", ref("Reader"))))},
        ),
    },
    "/!readers/{reader}": {
        "get": Operation(
            "readReader", "a reader with its positions", {200: ("the reader", content(ref("Reader")))}
        ),
        "put": Operation(
            "changeReader",
            "create a reader, move its positions forward, change its bounds; members left out stay",
            {200: ("the reader", content(ref("Reader"))), 201: ("a new reader", content(ref("Reader")))},
            (query("reset", FLAG, "true: positions may decrease"), IF_MATCH),
            content(ref("ReaderChange")),
        ),
        "delete": Operation(
            "removeReader", "remove a reader; shards no longer keep segments for it", {204: ("removed", None)}
        ),
    },
}

SCHEMAS: Final[Object] = {
    "Journal": object_of(
        _JOURNAL | {"segments": {"type": "array", "items": object_of(_SEGMENT, *_SEGMENT)}},
        "journal",
        "shard",
        "cluster",
        "segments",
    ),
    "SegmentIndex": object_of(
        {
            "format": {"const": 1},
            **_SEGMENT,
            "blocks": {"type": "array", "items": {"type": "array", "items": WHOLE}},
            "queues": {"type": "array", "items": WHOLE},
        },
        "format",
        *_SEGMENT,
        "blocks",
    ),
    "Reader": object_of(
        {
            "name": TEXT,
            "positions": {"type": "object", "additionalProperties": WHOLE},
            "hold_hours": {"type": "number"},
            "hold_bytes": WHOLE,
            "moved_ms": {"type": ["integer", "null"]},
            "behind": object_of(_BEHIND, *_BEHIND),
            "journals": {"type": "array", "items": object_of(_ROW, "journal", "shard", "position")},
            "gone": {"type": "array", "items": TEXT},
        },
        "name",
        "positions",
        "hold_hours",
        "hold_bytes",
    ),
    "ReaderChange": {
        "type": "object",
        "properties": {
            "positions": {
                "type": "object",
                "additionalProperties": _POSITION,
                "propertyNames": {"pattern": "^[0-9a-f]{1,64}$"},
                "maxProperties": limits.READER_POSITIONS_MAX,
            },
            **_BOUNDS,
        },
        "additionalProperties": False,
    },
}
