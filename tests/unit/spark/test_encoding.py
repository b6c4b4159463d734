"""Encoder: what rows become as AMQP messages, and what it says of columns and rows that are none."""

import datetime
from typing import Any

import pyarrow as pa
import pytest

from lightrail.amqp.decoder import read_value
from lightrail.amqp.sections import (
    decode_annotations,
    decode_application_properties,
    decode_header,
    decode_properties,
    scan,
)
from lightrail.amqp.values import Float, Int, Long, Symbol, Timestamp
from lightrail.spark.columns import SCHEMA
from lightrail.spark.writing.encoding import BadColumnsError, BadRowError, Encoder, check


def table(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


def encoded(batch: pa.RecordBatch, *, queues: bool = False) -> list[tuple[str, bytes]]:
    return list(Encoder(batch.schema, queues=queues).rows(batch))


def body(message: bytes) -> Any:
    area = scan(message).body
    assert area is not None
    return read_value(message, *area, 0)[0].value


def test_a_row_has_header_properties_maps_and_body() -> None:
    at = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
    own = pa.struct(
        [
            ("count", pa.int64()),
            ("small", pa.int32()),
            ("ratio", pa.float32()),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    batch = table(
        body=pa.array([b"hello"]),
        message_id=pa.array(["m-1"]),
        correlation_id=pa.array(["c"]),
        subject=pa.array(["s"]),
        reply_to=pa.array(["r"]),
        content_type=pa.array(["text/plain"]),
        group_id=pa.array(["g"]),
        durable=pa.array([False]),
        priority=pa.array([9], pa.int32()),
        ttl=pa.array([60_000]),
        application_properties=pa.array([{"count": 1, "small": 2, "ratio": 0.5, "at": at}], own),
        message_annotations=pa.array(
            [[("x-opt-a", "b"), ("x-opt-n", None)]], pa.map_(pa.string(), pa.string())
        ),
    )
    ((queue, message),) = encoded(batch)
    header, properties = decode_header(message), decode_properties(message)
    assert (queue, header.durable, header.priority, header.ttl) == ("", False, 9, 60_000)
    assert (properties.message_id, properties.correlation_id, properties.subject) == ("m-1", "c", "s")
    assert (properties.reply_to, properties.group_id) == ("r", "g")
    assert properties.content_type == Symbol("text/plain")
    own_values = decode_application_properties(message)
    assert own_values == {"count": 1, "small": 2, "ratio": 0.5, "at": int(at.timestamp() * 1000)}
    assert [type(own_values[key]) for key in ("count", "small", "ratio", "at")] == [
        Long,
        Int,
        Float,
        Timestamp,
    ]
    assert decode_annotations(message) == {"x-opt-a": "b"}
    assert body(message) == b"hello"


def test_nulls_are_left_out_and_messages_are_durable() -> None:
    batch = table(
        body=pa.array(["text"]),
        subject=pa.array([None], pa.string()),
        priority=pa.array([None], pa.int32()),
        application_properties=pa.array([None], pa.map_(pa.string(), pa.int64())),
    )
    ((_, message),) = encoded(batch)
    sections = scan(message)
    assert (sections.properties, sections.application_properties) == (None, None)
    assert (decode_header(message).durable, decode_header(message).priority) == (True, 4)
    assert body(message) == "text"


def test_a_message_that_is_there_wins_and_stays_as_it_is() -> None:
    batch = table(
        message=pa.array([b"\x00\x53\x75\xa0\x01a", None]),
        body=pa.array([b"b", b"b"]),
        queue=pa.array(["q1", "q2"]),
    )
    (first, second) = encoded(batch, queues=True)
    assert first == ("q1", b"\x00\x53\x75\xa0\x01a")
    assert (second[0], body(second[1])) == ("q2", b"b")


def test_what_a_journal_gives_can_be_written() -> None:
    check(SCHEMA, queues=True)


@pytest.mark.parametrize(
    ("columns", "queues", "said"),
    [
        ({"body": pa.binary(), "colour": pa.string()}, False, "no use for the column 'colour'"),
        ({"subject": pa.string()}, False, "expected a column message"),
        ({"body": pa.binary()}, True, "expected the option target, or a column queue"),
        ({"body": pa.int64()}, False, "body: expected binary"),
        ({"message": pa.string()}, False, "message: expected binary"),
        ({"body": pa.binary(), "ttl": pa.string()}, False, "ttl: expected an integer"),
        (
            {"body": pa.binary(), "application_properties": pa.map_(pa.string(), pa.list_(pa.int64()))},
            False,
            "application_properties: expected a map",
        ),
    ],
)
def test_columns_that_can_not_be_written_are_named(columns: dict[str, Any], queues: bool, said: str) -> None:
    with pytest.raises(BadColumnsError, match=said):
        check(pa.schema(list(columns.items())), queues=queues)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": pa.array([None], pa.binary())}, "both are null"),
        ({"body": pa.array([b""]), "priority": pa.array([256])}, "priority: expected 0 to 255, found 256"),
        ({"body": pa.array([b""]), "ttl": pa.array([-1])}, "ttl: expected milliseconds"),
        ({"body": pa.array([b""]), "content_type": pa.array(["é"])}, "properties can't be encoded"),
        ({"body": pa.array([b""]), "queue": pa.array([None], pa.string())}, "queue: expected the name"),
    ],
)
def test_rows_that_are_no_message_are_explained(columns: dict[str, pa.Array], said: str) -> None:
    with pytest.raises(BadRowError, match=said):
        encoded(table(**columns), queues="queue" in columns)
