"""Actions change what they name and nothing else, to the byte; no message makes them raise."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import (
    Header,
    Properties,
    decode_annotations,
    decode_application_properties,
    decode_properties,
    scan,
)
from lightrail.amqp.values import Symbol
from lightrail.filters.action import ACTION_ENTRIES_MAX, compile_action
from lightrail.filters.errors import FilterError
from lightrail.filters.message import extract
from lightrail.filters.path import parse_path
from lightrail.filters.terms import term
from tests.support.amqp.strategies import same
from tests.unit.filters.messages import message, messages, mutated, section

SECTIONS = (
    "header",
    "delivery_annotations",
    "message_annotations",
    "properties",
    "application_properties",
    "body",
)

settings = st.fixed_dictionaries(
    {},
    optional={
        "subject": st.text(max_size=5),
        "reply-to": st.just("back"),
        "properties.to": st.text(max_size=300),
        "content-type": st.just("text/plain"),
        "correlation-id": st.integers(0, (1 << 64) - 1) | st.just("c"),
        "group-id": st.just("g"),
        "application-properties.a": st.integers(-5, 1 << 40) | st.booleans() | st.floats(allow_nan=False),
        "application-properties.new": st.text(max_size=300),
        "message-annotations.x-opt-a": st.just("note") | st.booleans(),
    },
)
removals = st.lists(
    st.sampled_from(
        ["application-properties.b", "application-properties.colour", "message-annotations.x-opt-b"]
    ),
    unique=True,
)


def pieces(data: bytes) -> dict[str, bytes]:
    areas = scan(data)
    found = {name: getattr(areas, name) for name in SECTIONS}
    return {name: b"" if area is None else data[area[0] : area[1]] for name, area in found.items()}


@given(messages(), settings, removals)
def test_what_is_named_changes_and_all_else_stays(
    data: bytes, values: dict[str, Any], gone: list[str]
) -> None:
    if not values and not gone:
        return
    changed = compile_action({"set": values, "remove": gone}).apply(data)
    before, after = pieces(data), pieces(changed)
    for text, value in values.items():
        assert term(extract(changed, parse_path(text))) == value
    for text in gone:
        assert extract(changed, parse_path(text)) is None
    touched = {parse_path(text).section for text in (*values, *gone)}
    for name, code in zip(SECTIONS, range(0x70, 0x76), strict=True):
        if code not in touched:
            assert after[name] == before[name]
    named = {parse_path(text).name for text in values}
    kept = decode_properties(changed)
    for name in Properties.__slots__:
        if name.replace("_", "-") not in named:
            assert same(getattr(kept, name), getattr(decode_properties(data), name))
    named |= {parse_path(text).name for text in gone}
    for decode in (decode_application_properties, decode_annotations):
        old, new = decode(data), decode(changed)
        rest = {key: value for key, value in old.items() if not (isinstance(key, str) and key in named)}
        assert same(rest, {key: new[key] for key in new if not (isinstance(key, str) and key in named)})


@given(mutated(), settings)
def test_no_message_makes_an_action_raise(data: bytes, values: dict[str, Any]) -> None:
    action = compile_action({"set": {"subject": "s", **values}, "remove": ["application-properties.b"]})
    assert isinstance(action.apply(data), bytes)


def test_a_message_that_is_malformed_stays_as_it_is() -> None:
    action = compile_action({"set": {"subject": "s", "application-properties.a": 1}})
    broken = [
        b"\x01",
        b"\x00\x53\x73\xc0\x09\x01\x41",
        section(0x73, {"a": 1}),
        section(0x74, ["a"]),
        b"\x00\x53\x74\xc1\x02\x01\x40",
        b"\x00\x53\x73\xc0\x03\x01\x40\x40",
    ]
    for data in broken:
        assert action.apply(data) is data


def test_sections_that_are_not_there_are_made_where_they_belong_only_when_something_is_set() -> None:
    data = message(header=Header(durable=True))
    spec = {"subject": "s", "application-properties.a": 1, "message-annotations.x-opt-a": True}
    expected = b"".join(
        (
            encode(Header(durable=True)),
            section(0x72, {Symbol("x-opt-a"): True}),
            encode(Properties(subject="s")),
            section(0x74, {"a": 1}),
            section(0x75, b"body"),
        )
    )
    assert compile_action({"set": spec}).apply(data) == expected
    assert compile_action({"remove": ["subject", "application-properties.a"]}).apply(data) == data
    assert compile_action({"set": {"subject": "s"}}).apply(b"") == encode(Properties(subject="s"))


def test_an_entry_is_changed_in_its_place() -> None:
    data = message({"a": 1, "b": 2, "c": 3})
    changed = compile_action({"set": {"application-properties.b": "x"}}).apply(data)
    assert changed == message({"a": 1, "b": "x", "c": 3})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (5, "expected an object with set or remove, found 5"),
        ({}, "expected 1 to 64 fields to set or remove, found 0"),
        ({"put": {}}, "expected no other keys than set, remove and parameters, found 'put'"),
        ({"set": {"subject": {"parameter": "@a"}}}, "with a name of parameters"),
        ({"set": {"subject": {"other": "@a"}}, "parameters": {"@a": "b"}}, "with a name of parameters"),
        ({"set": {"subject": {"parameter": ["@a"]}}, "parameters": {"@a": "b"}}, "with a name of parameters"),
        (
            {"set": {"subject": {"parameter": "@a"}}, "parameters": {"@a": 1}},
            "set.subject: expected a string",
        ),
        ({"set": {"subject": "a"}, "parameters": {}}, "parameters: expected an object"),
        ({"set": []}, "set: expected an object of paths and values, found []"),
        ({"remove": "subject"}, "remove: expected a list of paths, found 'subject'"),
        ({"set": {"priority": 5}}, "set: expected one of subject, reply-to, to, content-type"),
        ({"set": {"message-id": "x"}}, "set: expected one of subject, reply-to"),
        ({"remove": ["message-annotations.x-own"]}, "message-annotations.x-opt-NAME, found"),
        ({"remove": [5]}, "remove: expected one of durable"),
        ({"set": {"colour": 5}}, "set: expected one of durable"),
        ({"set": {"subject": 5}}, "set.subject: expected a string, found 5"),
        ({"set": {"subject": "\ud800"}}, "set.subject: expected text that UTF-8 can encode"),
        ({"set": {"content-type": "\u00e9"}}, "set.content-type: expected a string of ASCII"),
        ({"set": {"correlation-id": -1}}, "set.correlation-id: expected a string, or a whole number"),
        ({"set": {"correlation-id": True}}, "set.correlation-id: expected a string"),
        (
            {"set": {"application-properties.a": None}},
            "set.application-properties.a: expected a string, a number",
        ),
        ({"set": {"application-properties.a": 1 << 63}}, "expected a whole number of at most 64 bits"),
        ({"set": {"subject": "a", "properties.subject": "b"}}, "set: expected each field once"),
        ({"set": {"subject": "a"}, "remove": ["subject"]}, "remove: expected each field once"),
    ],
)
def test_errors_name_the_part_and_what_is_allowed(spec: Any, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile_action(spec)
    assert message in str(caught.value)


def test_the_number_of_changes_is_bounded() -> None:
    fields = {f"application-properties.{n}": n for n in range(ACTION_ENTRIES_MAX + 1)}
    with pytest.raises(FilterError, match="1 to 64"):
        compile_action({"set": fields})


def test_actions_are_shown_by_their_json() -> None:
    action = compile_action({"remove": ["subject"]})
    assert action.spec == {"remove": ["subject"]}
    assert repr(action) == "Action({'remove': ['subject']})"


def test_whole_numbers_have_at_most_64_bits() -> None:
    for path, most in (("application-properties.n", (1 << 63) - 1), ("correlation-id", (1 << 64) - 1)):
        assert compile_action({"set": {path: most}}) is not None
        with pytest.raises(FilterError):
            compile_action({"set": {path: most + 1}})
