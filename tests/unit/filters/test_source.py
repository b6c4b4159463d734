"""Filters of a source: each descriptor by name and code, and what is left out."""

import uuid
from typing import Any

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.performatives import Source, decode_performative
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import Decimal32, Described, Symbol, UInt, ULong
from lightrail.filters.errors import FilterError
from lightrail.filters.filter import compile_filter
from lightrail.filters.source import SOURCE_FILTERS_MAX, from_amqp
from tests.unit.filters.messages import view

MESSAGE = view(
    {"colour": "red", "weight": 17, 'odd " name': "x%y'z", "and": "&mp"},
    properties=Properties(subject="orders.eu", message_id=uuid.UUID(int=5), group_sequence=3, to="the queue"),
)
BY_NAME_AND_CODE: list[tuple[str, int, Any]] = [
    ("apache.org:selector-filter:string", 0x0000468C00000004, "colour = 'red'"),
    ("apache.org:legacy-amqp-topic-binding:string", 0x0000468C00000001, "orders.*"),
    ("apache.org:legacy-amqp-direct-binding:string", 0x0000468C00000000, "orders.eu"),
    ("apache.org:legacy-amqp-headers-binding:map", 0x0000468C00000002, {"x-match": "all", "colour": "red"}),
    ("amqp:sql-filter", 0x120, "a.colour = 'red'"),
    ("amqp:properties-filter", 0x173, {Symbol("subject"): "&p:orders."}),
    ("amqp:application-properties-filter", 0x174, {"colour": "red"}),
]


def described(descriptor: str | int, value: Any) -> Described:
    return Described(Symbol(descriptor) if isinstance(descriptor, str) else ULong(descriptor), value)


@pytest.mark.parametrize(("name", "code", "value"), BY_NAME_AND_CODE)
def test_every_descriptor_works_by_name_and_by_code(name: str, code: int, value: Any) -> None:
    for descriptor in (name, code):
        filters = {Symbol("mine"): described(descriptor, value)}
        made = from_amqp(filters)
        assert made.accepted == filters
        assert made.refused == {}
        assert made.filter is not None
        assert made.filter.matches(MESSAGE)
        assert not made.filter.matches(view({"colour": "blue"}, properties=Properties(subject="other")))
        assert compile_filter(made.filter.spec).matches(MESSAGE)


def test_what_is_not_supported_is_left_out_with_a_reason() -> None:
    kept = described("apache.org:selector-filter:string", "colour = 'red'")
    made = from_amqp(
        {
            Symbol("no-local"): described("apache.org:no-local-filter:list", []),
            Symbol("selector"): kept,
            Symbol("unknown"): described(0x999, "x"),
            Symbol("bare"): "colour = 'red'",
            Symbol("odd"): Described([1], "x"),
            Symbol("none"): None,
        }
    )
    assert made.accepted == {Symbol("selector"): kept}
    assert set(made.refused) == {"no-local", "unknown", "bare", "odd"}
    assert "apache.org:no-local-filter:list" in made.refused[Symbol("no-local")]
    assert "expected a described value" in made.refused[Symbol("bare")]


@pytest.mark.parametrize("filters", [None, {}, {Symbol("x"): described("x:unknown", 1)}])
def test_nothing_to_filter_by_is_no_filter(filters: Any) -> None:
    assert from_amqp(filters).filter is None


def test_a_message_has_to_pass_every_filter() -> None:
    made = from_amqp(
        {
            Symbol("a"): described("apache.org:selector-filter:string", "weight > 10"),
            Symbol("b"): described("apache.org:legacy-amqp-topic-binding:string", "orders.us"),
        }
    )
    assert made.filter is not None
    assert not made.filter.matches(MESSAGE)
    assert made.filter.spec == {"all": [{"selector": "weight > 10"}, {"subject": "orders.us"}]}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"colour": "red", "weight": UInt(17)}, True),
        ({"colour": "red", "weight": 18}, False),
        ({"weight": 17.0}, True),
        ({"colour": "&p:re"}, True),
        ({"colour": "&s:ed"}, True),
        ({"colour": "&s:re"}, False),
        ({'odd " name': "&p:x%y'"}, True),
        ({'odd " name': "&p:x_y'"}, False),
        ({"and": "&&mp"}, True),
        ({"colour": None}, True),
        ({"size": None}, False),
        ({"colour": Symbol("red")}, True),
    ],
)
def test_application_properties_filters(fields: dict[str, Any], expected: bool) -> None:
    made = from_amqp({Symbol("f"): described("amqp:application-properties-filter", fields)})
    assert made.filter is not None
    assert made.filter.matches(MESSAGE) is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"message-id": uuid.UUID(int=5)}, True),
        ({"message-id": uuid.UUID(int=6)}, False),
        ({"group-sequence": UInt(3), "to": "&s: queue"}, True),
        ({"subject": "orders.eu", "to": "other"}, False),
    ],
)
def test_properties_filters(fields: dict[str, Any], expected: bool) -> None:
    filters = {Symbol(name): value for name, value in fields.items()}
    made = from_amqp({Symbol("f"): described("amqp:properties-filter", filters)})
    assert made.filter is not None
    assert made.filter.matches(MESSAGE) is expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"colour": "red", "weight": 18}, False),
        ({"x-match": "any", "colour": "red", "weight": 18}, True),
        ({"x-match": "any", "colour": "blue", "weight": 18}, False),
        ({"colour": None, "x-other": 1}, True),
        ({"size": None}, False),
    ],
)
def test_headers_bindings(headers: dict[str, Any], expected: bool) -> None:
    made = from_amqp({Symbol("f"): described("apache.org:legacy-amqp-headers-binding:map", headers)})
    assert made.filter is not None
    assert made.filter.matches(MESSAGE) is expected


def test_a_headers_binding_without_headers_is_accepted_and_filters_nothing() -> None:
    filters = {Symbol("f"): described("apache.org:legacy-amqp-headers-binding:map", {"x-match": "all"})}
    assert from_amqp(filters) == (None, filters, {})


def test_a_null_reference_of_a_property_matches_everything_and_is_accepted() -> None:
    filters = {Symbol("f"): described("amqp:properties-filter", {Symbol("subject"): None})}
    made = from_amqp(filters)
    assert made.filter is None
    assert made.accepted == filters


@pytest.mark.parametrize(
    ("descriptor", "value", "message"),
    [
        ("apache.org:selector-filter:string", "colour =", "the filter 'f'.selector: expected a literal"),
        ("apache.org:selector-filter:string", 5, "the filter 'f': expected a string, found 5"),
        ("apache.org:legacy-amqp-headers-binding:map", [], "expected a map of application properties"),
        ("apache.org:legacy-amqp-headers-binding:map", {"x-match": 1}, "x-match: expected all or any"),
        ("amqp:sql-filter", "UTC() > 5", "EXISTS is the only function"),
        ("amqp:properties-filter", {}, "expected a map of one or more fields"),
        ("amqp:properties-filter", {Symbol("priority"): 1}, "expected one of durable"),
        ("amqp:properties-filter", {5: 1}, "expected one of durable"),
        ("amqp:application-properties-filter", {5: 1}, "as the key of an application property, found 5"),
        (
            "amqp:application-properties-filter",
            {"a": Decimal32(bytes(4))},
            "application-properties.a: expected a string",
        ),
        ("amqp:application-properties-filter", {"a": b"\xff"}, "expected a string, a number"),
        ("amqp:application-properties-filter", {"a": "&x:b"}, "expected &p:, &s: or && at the beginning"),
    ],
)
def test_a_supported_filter_with_an_error_raises(descriptor: str, value: Any, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        from_amqp({Symbol("f"): described(descriptor, value)})
    assert message in str(caught.value)


def test_the_number_of_filters_is_bounded() -> None:
    filters = {Symbol(str(n)): described("x:unknown", 1) for n in range(SOURCE_FILTERS_MAX + 1)}
    with pytest.raises(FilterError, match="at most 16"):
        from_amqp(filters)


def test_filters_of_an_attach_are_understood_as_they_come_off_the_wire() -> None:
    filters = {Symbol("s"): described("apache.org:selector-filter:string", "weight = 17")}
    octets = encode(Source(address="orders", filter=filters))
    made = from_amqp(decode_performative(octets, 0, len(octets))[0].filter)
    assert made.filter is not None
    assert made.filter.matches(MESSAGE)
