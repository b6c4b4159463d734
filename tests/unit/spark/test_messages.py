"""Columns of messages, many at once: what the complete decoder gives one by one, whatever the bytes are."""

import json
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.amqp.composite import write_composite
from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import Header, Properties
from lightrail.amqp.values import Described, Symbol, Timestamp, ULong
from lightrail.spark.columns import DECODED, SCHEMA
from lightrail.spark.decoding import messages
from lightrail.spark.decoding.sections import read_columns
from lightrail.spark.decoding.values import PADDING, Blob
from tests.support.amqp import proton_messages
from tests.support.amqp import strategies as amqp

NAMES = tuple(name for name in SCHEMA.names if name in DECODED | {"body"})


def laid_out(data: list[bytes]) -> tuple[bytes, Any, Any]:
    edges = np.cumsum([0, *map(len, data)])
    return b"".join(data) + PADDING, edges[:-1].astype(np.int32), edges[1:].astype(np.int32)


def at_once(
    data: list[bytes], foreign: list[bool] | None = None, names: tuple[str, ...] = NAMES
) -> tuple[list[dict[str, Any]], int]:
    blob, starts, stops = laid_out(data)
    others = np.array(foreign if foreign is not None else [False] * len(data), bool)
    found, undecodable = messages.columns(blob, starts, stops, others, names)
    for name, array in found.items():
        array.validate(full=True)
        assert array.type == SCHEMA.field(name).type
        assert len(array) == len(data)
    columns = {name: array.to_pylist(maps_as_pydicts="strict") for name, array in found.items()}
    return [{name: columns[name][at] for name in names} for at in range(len(data))], undecodable


def one_by_one(data: list[bytes], names: tuple[str, ...] = NAMES) -> tuple[list[dict[str, Any]], int]:
    found = [read_columns(each, names) for each in data]
    return [values for values, _ in found], sum(not whole for _, whole in found)


def read_at_once(data: list[bytes]) -> list[bool]:
    """Which were not left to the complete decoder."""
    blob, starts, stops = laid_out(data)
    fast, _ = messages._read(Blob(blob), starts, stops, np.ones(len(data), bool), NAMES)
    found: list[bool] = fast.tolist()
    return found


def message(properties: Properties | None = None, application: Any = None, body: bytes = b"") -> bytes:
    pieces = [write_composite(Header(durable=True))]
    if properties is not None:
        pieces.append(write_composite(properties))
    if application is not None:
        pieces.append(b"\x00\x53\x74" + encode(application))
    return b"".join((*pieces, body))


# --- equality ---------------------------------------------------------------------------------------------

_ids = st.one_of(*(amqp.BY_TYPE[name] for name in ("ulong", "uuid", "binary", "string")))
_properties = st.builds(
    Properties,
    message_id=st.none() | _ids,
    user_id=st.none() | amqp.binary,
    to=st.none() | amqp.text,
    subject=st.none() | amqp.text,
    reply_to=st.none() | amqp.text | st.builds(Described, amqp.symbols, amqp.scalars),
    correlation_id=st.none() | _ids,
    content_type=st.none() | amqp.symbols,
    content_encoding=st.none() | amqp.symbols,
    absolute_expiry_time=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    creation_time=st.none() | st.integers(0, 1 << 42),
    group_id=st.none() | amqp.text,
    group_sequence=st.none() | st.integers(0, (1 << 32) - 1),
    reply_to_group_id=st.none() | amqp.text,
).map(write_composite)
_common_keys = st.text(st.characters(max_codepoint=127), max_size=3)
_maps = st.one_of(
    st.dictionaries(_common_keys | _common_keys.map(Symbol), amqp.scalars, max_size=6),
    st.dictionaries(amqp.keys, amqp.values, max_size=4),
).map(encode)


def _pairs_of(pairs: list[tuple[Any, Any]]) -> bytes:
    data = b"".join(encode(key) + encode(value) for key, value in pairs)
    return b"\xd1" + (len(data) + 4).to_bytes(4, "big") + (2 * len(pairs)).to_bytes(4, "big") + data


_repeated = st.lists(st.tuples(_common_keys, st.integers(0, 9)), max_size=4).map(_pairs_of)


def _section(code: int, value: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    descriptors = st.sampled_from(
        (b"\x00\x53" + bytes((code,)),) * 5 + (b"\x00\x80" + code.to_bytes(8, "big"),)
    )
    return st.tuples(descriptors, value).map(b"".join)


def _maybe(section: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return section | st.just(b"")


_bodies = st.one_of(
    _section(0x75, amqp.binary.map(encode)),
    st.lists(_section(0x75, amqp.binary.map(encode)), max_size=3).map(b"".join),
    st.lists(_section(0x76, st.lists(amqp.values, max_size=3).map(encode)), max_size=2).map(b"".join),
    _section(0x77, amqp.values.map(encode)),
    _section(0x77, (amqp.text | amqp.binary | amqp.symbols | st.none()).map(encode)),
)
_whole = st.tuples(
    _maybe(_section(0x70, st.just(b"\xc0\x02\x01\x41") | st.just(b"\x45"))),
    _maybe(_section(0x71, _maps)),
    _maybe(_section(0x72, _maps)),
    _maybe(_properties),
    _maybe(_section(0x74, _maps | _repeated)),
    _bodies,
    _maybe(_section(0x78, _maps)),
).map(b"".join)


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(_whole))
    for _ in range(draw(st.integers(1, 3))):
        if data:
            at = draw(st.integers(0, len(data) - 1))
            kind = draw(st.integers(0, 3))
            if kind == 0:
                del data[at:]
            elif kind == 1:
                data.insert(at, draw(st.integers(0, 255)))
            else:
                data[at] = draw(st.integers(0, 255) | st.sampled_from((0, 0x40, 0x45, 0xC1, 0xD1, 0xFF)))
    return bytes(data)


@given(data=st.lists(_whole | _damaged() | st.binary(max_size=40), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_columns_are_those_of_reading_one_by_one(data: list[bytes]) -> None:
    assert at_once(data) == one_by_one(data)


@given(data=st.lists(_whole, min_size=1, max_size=4), names=st.sets(st.sampled_from(NAMES), min_size=1))
@settings(max_examples=25, deadline=None)
def test_a_column_is_the_same_whichever_others_are_wanted(data: list[bytes], names: set[str]) -> None:
    wanted = tuple(sorted(names))
    everything, _ = one_by_one(data)
    assert at_once(data, names=wanted)[0] == [{name: row[name] for name in wanted} for row in everything]


def test_messages_of_proton_with_every_type_are_read_the_same() -> None:
    encoded = {name: bytes(each.encode()) for name, each in proton_messages.messages().items()}
    data = list(encoded.values())
    found, undecodable = at_once(data)
    assert (found, undecodable) == one_by_one(data)
    assert undecodable == 0
    for name, each in encoded.items():
        assert at_once([each]) == one_by_one([each]), name


def test_the_messages_of_every_day_are_read_at_once() -> None:
    known = proton_messages.PROPERTY_MESSAGES | {
        name: each
        for name, each in proton_messages.messages().items()
        if name.startswith(("application-property", "annotation"))
        and not name.startswith(("annotation-described", "annotation-nested"))
    }
    data = [bytes(each.encode()) for name, each in known.items() if name != "every-section"]
    assert all(read_at_once(data))


@pytest.mark.parametrize("at", range(0, 150, 7))
def test_cut_messages_are_read_the_same(at: int) -> None:
    whole = bytes(proton_messages.PROPERTY_MESSAGES["every-property"].encode())
    data = [whole, whole[:at], whole]
    assert at_once(data) == one_by_one(data)
    assert read_at_once(data)[0]


def test_no_messages_are_no_rows() -> None:
    assert at_once([]) == ([], 0)


# --- what the columns show ------------------------------------------------------------------------------


def shown(data: bytes) -> dict[str, Any]:
    (row,), undecodable = at_once([data])
    assert not undecodable
    return row


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("order-1", "order-1"),
        (ULong(2**64 - 1), "18446744073709551615"),
        (ULong(7), "7"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (b"\x00\xff", "AP8="),
    ],
)
def test_ids_are_text_whatever_their_type(value: Any, text: str) -> None:
    row = shown(message(Properties(message_id=value, correlation_id=value)))
    assert (row["message_id"], row["correlation_id"]) == (text, text)
    assert row["properties"] == {"message-id": text, "correlation-id": text}


def test_every_property_is_in_the_map_by_its_name() -> None:
    data = bytes(proton_messages.PROPERTY_MESSAGES["every-property"].encode())
    assert shown(data)["properties"] == {
        "message-id": "id-1",
        "user-id": "AHVzZXL/",
        "to": "to/here",
        "subject": "a subject",
        "reply-to": "reply/here",
        "correlation-id": "correlation-1",
        "content-type": "text/plain",
        "content-encoding": "gzip",
        "absolute-expiry-time": "2100-01-01T00:00:00.250Z",
        "creation-time": "2023-11-14T22:13:20.125Z",
        "group-id": "group",
        "group-sequence": "4294967295",
        "reply-to-group-id": "reply-group",
    }


TEXTS = {
    "null": None,
    "true": "true",
    "false": "false",
    "ubyte-255": "255",
    "uint-0": "0",
    "ulong-max": "18446744073709551615",
    "byte-min": "-128",
    "int-small": "-1",
    "long-min": "-9223372036854775808",
    "float": "0.5",
    "float-infinity": "Infinity",
    "double": "3.141592653589793",
    "double-negative-zero": "-0.0",
    "double-nan": "NaN",
    "decimal32": "1",
    "decimal64": "1",
    "char-astral": "\U0001f682",
    "timestamp": "2023-11-14T22:13:20.123Z",
    "timestamp-before-1970": "1969-12-31T23:59:59.999Z",
    "uuid": "01234567-89ab-cdef-0123-456789abcdef",
    "binary-empty": "",
    "string-unicode": "Zug \U0001f682 \u00e4\u4e2d\u0000.",
    "symbol": "amqp:accepted:list",
}


@pytest.mark.parametrize("name", TEXTS)
def test_application_properties_are_text(name: str) -> None:
    known = proton_messages.messages()
    data = bytes(known[f"application-property-{name}"].encode())
    assert shown(data)["application_properties"] == {name: TEXTS[name]}
    assert read_at_once([data]) == [True]
    noted = bytes(known[f"annotation-{name}"].encode())
    assert shown(noted)["message_annotations"] == {f"x-opt-{name}": TEXTS[name]}


def test_times_without_a_year_of_four_digits_are_their_milliseconds() -> None:
    for milliseconds in (-(1 << 63), -62_135_596_800_001, 253_402_300_800_000):
        row = shown(message(application={"at": Timestamp(milliseconds), "now": Timestamp(0)}))
        assert row["application_properties"] == {
            "at": str(milliseconds),
            "now": "1970-01-01T00:00:00.000Z",
        }


def test_lists_maps_and_described_values_are_json() -> None:
    value = {"a": [1, None, True, 0.5, Symbol("s"), b"\xff"], "d": Described(Symbol("x:y"), UUID(int=1))}
    row = shown(message(application={"nested": value}))
    assert json.loads(row["application_properties"]["nested"]) == {
        "a": [1, None, True, 0.5, "s", "/w=="],
        "d": {"descriptor": "x:y", "value": "00000000-0000-0000-0000-000000000001"},
    }


def test_sections_that_are_not_there_are_empty_maps_and_null_columns() -> None:
    row = shown(message())
    assert row["properties"] == row["application_properties"] == row["message_annotations"] == {}
    assert row["message_id"] is row["body"] is None


@pytest.mark.parametrize(
    ("sections", "body"),
    [
        (b"\x00\x53\x75" + encode(b"abc"), b"abc"),
        (b"\x00\x53\x75" + encode(b"abc") + b"\x00\x53\x75" + encode(b"d"), b"abcd"),
        (b"\x00\x53\x77" + encode("\u00e4"), "\u00e4".encode()),
        (b"\x00\x53\x77" + encode(b"\xff"), b"\xff"),
        (b"\x00\x53\x77" + encode(None), None),
        (b"\x00\x53\x77" + encode(12), b"12"),
        (b"\x00\x53\x77" + encode({"a": [1]}), b'{"a":[1]}'),
        (b"\x00\x53\x76" + encode([1, "x"]) + b"\x00\x53\x76" + encode([2]), b'[1,"x",2]'),
        (b"", None),
    ],
)
def test_a_body_is_its_bytes_or_its_text(sections: bytes, body: bytes | None) -> None:
    assert shown(message(body=sections))["body"] == body


# --- what cannot be decoded -----------------------------------------------------------------------------


def test_a_malformed_section_leaves_only_its_own_columns_null() -> None:
    twice = b"\x00\x53\x74" + _pairs_of([("a", 1), ("a", 2)])
    data = message(Properties(subject="s"), body=twice + b"\x00\x53\x75" + encode(b"b"))
    (row,), undecodable = at_once([data])
    assert row["application_properties"] is None
    assert (row["subject"], row["body"], undecodable) == ("s", b"b", 1)


def test_what_is_no_message_is_null_and_counted() -> None:
    good = message(Properties(subject="s"))
    rows, undecodable = at_once([good, b"no message", good])
    assert [row["subject"] for row in rows] == ["s", None, "s"]
    assert set(rows[1].values()) == {None}
    assert undecodable == 1


def test_messages_of_another_format_are_null_and_counted() -> None:
    good = message(Properties(subject="s"))
    rows, undecodable = at_once([good, good, b""], [False, True, True])
    assert [row["subject"] for row in rows] == ["s", None, None]
    assert undecodable == 2
