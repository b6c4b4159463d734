"""Requests about journals of shards, and about their readers."""

from typing import Final

from lightrail.gateway.openapi.operation import (
    FLAG,
    IF_MATCH,
    JOURNAL_ID,
    REMOVED,
    SEQUENCE,
    TEXT,
    WHOLE,
    Object,
    Operation,
    Operations,
    array_of,
    content,
    list_of,
    nullable,
    object_of,
    ok,
    query,
    ref,
)
from lightrail.gateway.resources import journals, readers
from lightrail.model import limits

_SEGMENT: Final[Object] = {
    **dict.fromkeys(("segment", "first_lsn", "next_lsn", "end", "messages", "last_ms"), WHOLE),
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
    "oldest_ms": nullable("integer"),
}

OPERATIONS: Final[Operations] = {
    "GET /!journals": Operation(
        journals.list_all,
        "listJournals",
        "journals of all shards and their committed segments",
        ok("journals", list_of("journals", ref("Journal"))),
        (
            query("journal", JOURNAL_ID, "only this journal"),
            query("from", SEQUENCE, "only segments that end after this lsn"),
        ),
    ),
    "GET /!journals/{journal}/{segment}": Operation(
        journals.read,
        "readJournal",
        "bytes of a segment as they are on disk (docs/formats/journal.md)",
        {200: ("the bytes", {"application/octet-stream": {"schema": {}}}), 304: ("unchanged", None)},
        (
            query("from", SEQUENCE, "offset of the first byte; 0 by default"),
            query(
                "to",
                SEQUENCE,
                "offset after the last byte, by default the end of the committed bytes; 416 beyond it",
            ),
        ),
    ),
    "GET /!journals/{journal}/{segment}/index": Operation(
        journals.index,
        "readIndex",
        "a sparse index of the records of a segment (docs/formats/archive.md)",
        {200: ("the index", content(ref("SegmentIndex"))), 304: ("unchanged", None)},
    ),
    "GET /!readers": Operation(
        readers.list_all,
        "listReaders",
        "readers of journals, each with the unread part of the journals",
        ok("readers", list_of("readers", ref("Reader"))),
    ),
    "GET /!readers/{reader}": Operation(
        readers.show, "readReader", "a reader with its positions", ok("the reader", ref("Reader"))
    ),
    "PUT /!readers/{reader}": Operation(
        readers.put,
        "changeReader",
        "create a reader, move its positions forward, change its bounds; members left out stay",
        {200: ("the reader", content(ref("Reader"))), 201: ("a new reader", content(ref("Reader")))},
        (query("reset", FLAG, "true: positions may decrease"), IF_MATCH),
        content(ref("ReaderChange")),
    ),
    "DELETE /!readers/{reader}": Operation(
        readers.remove, "removeReader", "remove a reader; shards no longer keep segments for it", REMOVED
    ),
}

SCHEMAS: Final[Object] = {
    "Journal": object_of(
        _JOURNAL | {"segments": array_of(object_of(_SEGMENT, _SEGMENT))},
        ("journal", "shard", "cluster", "segments"),
    ),
    "SegmentIndex": object_of(
        {"format": {"const": 1}, **_SEGMENT, "blocks": array_of(array_of(WHOLE)), "queues": array_of(WHOLE)},
        ("format", *_SEGMENT, "blocks"),
    ),
    "Reader": object_of(
        {
            "name": TEXT,
            "positions": {"type": "object", "additionalProperties": WHOLE},
            "hold_hours": {"type": "number"},
            "hold_bytes": WHOLE,
            "moved_ms": nullable("integer"),
            "behind": object_of(_BEHIND, _BEHIND),
            "journals": array_of(object_of(_ROW, ("journal", "shard", "position"))),
            "gone": array_of(TEXT),
        },
        ("name", "positions", "hold_hours", "hold_bytes"),
    ),
    "ReaderChange": {
        "type": "object",
        "properties": {
            "positions": {
                "type": "object",
                "additionalProperties": _POSITION,
                "propertyNames": {"pattern": JOURNAL_ID["pattern"]},
                "maxProperties": limits.READER_POSITIONS_MAX,
            },
            **_BOUNDS,
        },
        "additionalProperties": False,
    },
}
