"""Fields of messages: the extraction by sizes says what the complete decoder says, and never raises."""

import uuid
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import (
    Header,
    Properties,
    decode_annotations,
    decode_application_properties,
    decode_header,
    decode_properties,
)
from lightrail.amqp.values import (
    Array,
    Char,
    Decimal64,
    DecodeError,
    Described,
    Float,
    Symbol,
    Timestamp,
    UInt,
    ULong,
)
from lightrail.filters.errors import FilterError
from lightrail.filters.message import MessageView, extract
from lightrail.filters.path import (
    FIELD_NAMES,
    FILTER_PATH_BYTES,
    FILTER_PATHS_KEPT,
    HEADER,
    Path,
    entry,
    parse_path,
)
from lightrail.filters.sections import FILTER_SECTIONS_MAX
from lightrail.filters.terms import OPAQUE, term
from tests.support.amqp.strategies import same
from tests.unit.filters.messages import message, messages, mutated, names, section

paths = st.sampled_from(FIELD_NAMES).map(parse_path) | st.builds(
    entry, st.sampled_from((0x72, 0x74)), names.filter(lambda name: 0 < len(name.encode()) <= 512)
)


def decoded(data: bytes, path: Path) -> Any:
    """The field by way of the complete decoder."""
    if path.index >= 0:
        fields = decode_header(data) if path.section == HEADER else decode_properties(data)
        return getattr(fields, path.name.replace("-", "_"))
    items = decode_annotations(data) if path.section == 0x72 else decode_application_properties(data)
    return next(
        (value for key, value in items.items() if type(key) in (str, Symbol) and key == path.name), None
    )


def paths_of(data: bytes) -> list[Path]:
    """Every field that a message could have by its paths, the keys of its maps included."""
    found = [parse_path(name) for name in FIELD_NAMES]
    for code, items in ((0x72, decode_annotations(data)), (0x74, decode_application_properties(data))):
        keys = [str(key) for key in items if type(key) in (str, Symbol)]
        found.extend(entry(code, key) for key in keys if 0 < len(key.encode()) <= 512)
    return found


@given(messages())
def test_extraction_agrees_with_the_decoder_on_every_field_that_is_there(data: bytes) -> None:
    view = MessageView(data)
    for path in paths_of(data):
        expected = decoded(data, path)
        assert same(extract(data, path), expected), path
        assert same(view.field(path), expected), path
        assert same(extract(memoryview(data), path), expected), path


@given(messages(), paths)
def test_extraction_agrees_with_the_decoder_on_fields_that_may_not_be_there(data: bytes, path: Path) -> None:
    expected = decoded(data, path)
    assert same(extract(data, path), expected)
    assert same(MessageView(data).field(path), expected)
    assert same(MessageView(memoryview(data)).field(path), expected)


@given(mutated(), paths)
@example(b"\x00", parse_path("subject"))
@example(b"\x00\x53\x73\xd0\xff\xff\xff\xff\xff\xff\xff\xff", parse_path("subject"))
@example(b"\x00\x53\x74\xd1\x00\x00\x00\x08\xff\xff\xff\xfe\xa1\x01aa", entry(0x74, "a"))
@example(b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\xa1\x01\xff", entry(0x74, "a"))
def test_mutated_bytes_give_no_error_and_what_decodes_agrees(data: bytes, path: Path) -> None:
    view = MessageView(data)
    values = [extract(data, path), view.field(path)]
    view.term(path)
    view.subject_words()
    try:
        expected = decoded(data, path)
    except DecodeError:
        return
    assert all(same(value, expected) for value in values)


@given(st.lists(messages(), max_size=2).map(b"".join) | mutated(), paths)
@example(section(0x74, {"a": 1}) + section(0x73, [1]), parse_path("message-id"))
@example(section(0x73, [1]) + section(0x72, {}) + section(0x74, {"a": 1}), entry(0x74, "a"))
@example(section(0x74, {"a": 1}) + section(0x74, {"a": 2}), entry(0x74, "a"))
@example(b"\x00\x53\x73\xc0\x09\x01", parse_path("priority"))
def test_a_view_says_what_a_single_extraction_says_whatever_the_bytes(data: bytes, path: Path) -> None:
    assert same(MessageView(data).field(path), extract(data, path))
    assert same(extract(memoryview(data), path), extract(data, path))


def test_a_message_that_is_malformed_from_its_first_octet_has_not_even_the_defaults() -> None:
    priority = parse_path("priority")
    assert extract(b"", priority) == 4
    assert extract(message(), priority) == 4
    for broken in (b"\x01", b"\x00\x53\x70\xc0", b"\x00\x53\x70\xc0\x09\x01\x41", b"\x00\x53\x10\x45"):
        assert extract(broken, priority) is None
        assert MessageView(broken).field(priority) is None


def test_header_fields_have_the_defaults_of_the_specification() -> None:
    data = message(header=Header(ttl=5))
    view = MessageView(data)
    values = {name: view.field(parse_path(name)) for name in ("durable", "priority", "ttl", "first-acquirer")}
    assert values == {"durable": False, "priority": 4, "ttl": 5, "first-acquirer": False}
    assert view.field(parse_path("header.delivery-count")) == 0


def test_the_body_and_what_comes_after_is_never_looked_at() -> None:
    data = encode(Properties(subject="s")) + b"\x00\x53\x75\xb0\xff\xff\xff\xff"
    assert extract(data, parse_path("subject")) == "s"
    assert MessageView(data).field(parse_path("properties.subject")) == "s"
    behind = section(0x75, b"") + section(0x74, {"a": 1})
    assert extract(behind, entry(0x74, "a")) is None
    assert MessageView(behind).field(entry(0x74, "a")) is None


def test_a_field_of_a_wrong_type_has_no_value() -> None:
    data = section(0x73, [None, None, None, 17])
    assert extract(data, parse_path("subject")) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Symbol("s"), "s"),
        (Char("c"), "c"),
        (ULong(7), 7),
        (UInt(7), 7),
        (Timestamp(-5), -5),
        (Float(0.5), 0.5),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"text", "text"),
        (b"\xff", b"\xff"),
        (True, True),
        (None, None),
        (Decimal64(bytes(8)), OPAQUE),
        (["a"], OPAQUE),
        ({"a": 1}, OPAQUE),
        (Array([1], 0x55), OPAQUE),
        (Described(Symbol("x"), 1), OPAQUE),
    ],
)
def test_terms_are_plain_values_or_opaque(value: Any, expected: Any) -> None:
    made = term(value)
    assert made == expected
    assert type(made) is type(expected)


def test_a_term_is_made_once_for_each_view() -> None:
    view = MessageView(message({"a": Symbol("text")}))
    path = parse_path("application-properties.a")
    assert view.term(path) is view.term(path)
    assert type(view.term(path)) is str


# --- paths ----------------------------------------------------------------------------------------------


def test_a_path_has_one_canonical_name_under_all_its_names() -> None:
    assert parse_path("properties.subject") == parse_path("subject")
    assert parse_path("header.priority").text == "priority"
    assert hash(parse_path("header.priority")) == hash(parse_path("priority"))
    assert parse_path("application-properties.a.b").name == "a.b"
    assert parse_path("application-properties.subject") != parse_path("subject")
    assert repr(parse_path("ttl")) == "Path('ttl')"


@pytest.mark.parametrize(
    "text",
    ["", "colour", "header.subject", "properties.priority", "application-properties", "message-annotations."],
)
def test_an_unknown_path_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(FilterError):
        parse_path(text)


def test_the_refusal_of_a_path_names_the_fields() -> None:
    with pytest.raises(FilterError, match=r"subject.*application-properties\.NAME.*found 'colour'"):
        parse_path("colour")


def test_names_are_bounded_and_encodable() -> None:
    with pytest.raises(FilterError, match="513 bytes"):
        parse_path("application-properties." + "a" * (FILTER_PATH_BYTES + 1))
    with pytest.raises(FilterError, match="UTF-8"):
        parse_path("application-properties.\ud800")


def test_at_most_so_many_sections_before_the_body_are_looked_at() -> None:
    """Sections may come again, which no section does by the specification: the first one counts."""
    own = section(0x74, {"k": "v"})
    again = section(0x72, {Symbol("x"): 1})
    field = parse_path("application-properties.k")
    for before, value in ((FILTER_SECTIONS_MAX - 1, "v"), (FILTER_SECTIONS_MAX, None)):
        assert extract(again * before + own, field) == value


def test_at_most_so_many_parsed_paths_are_kept() -> None:
    for number in range(FILTER_PATHS_KEPT + 10):
        parse_path(f"application-properties.kept{number}")
    assert entry.cache_info().currsize == FILTER_PATHS_KEPT
