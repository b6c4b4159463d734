"""Constants of rules: what clients send over AMQP and over HTTP comes back with its type."""

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from lightrail.amqp.values import (
    Byte,
    Char,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from lightrail.filters.errors import FilterError
from lightrail.filters.rules.values import decimal128
from lightrail.service_bus.rules.constants import XML_TYPES, Typed, from_amqp, from_xml, to_amqp, to_xml


@pytest.mark.parametrize(
    ("value", "constant", "shown"),
    [
        ("red", "red", Typed("string", "red")),
        (Symbol("red"), "red", Typed("string", "red")),
        (True, True, Typed("boolean", "true")),
        (Byte(-1), {"byte": "-1"}, Typed("int", "-1")),
        (Short(-1), {"short": "-1"}, Typed("int", "-1")),
        (Int(5), {"int": "5"}, Typed("int", "5")),
        (Long(5), {"long": "5"}, Typed("long", "5")),
        (UByte(5), {"ubyte": "5"}, Typed("int", "5")),
        (UShort(5), {"ushort": "5"}, Typed("int", "5")),
        (UInt(5), {"uint": "5"}, Typed("long", "5")),
        (ULong(5), {"ulong": "5"}, Typed("long", "5")),
        (Float(1.5), {"float": "1.5"}, Typed("double", "1.5")),
        (2.0, {"double": "2.0"}, Typed("double", "2.0")),
        (decimal128(Decimal("1.50")), {"decimal": "1.50"}, Typed("double", "1.50")),
        (Char("c"), {"char": "c"}, Typed("string", "c")),
        (UUID(int=1), {"uuid": str(UUID(int=1))}, Typed("string", str(UUID(int=1)))),
        (
            Timestamp(1_778_051_289_123),
            {"timestamp": "2026-05-06T07:08:09.123000Z"},
            Typed("dateTime", "2026-05-06T07:08:09.123000Z"),
        ),
        (
            Described(Symbol("com.microsoft:timespan"), Long(36_000_000_001)),
            {"timespan": "01:00:00.0000001"},
            Typed("duration", "P0DT3600.0000001S"),
        ),
        (
            Described(Symbol("com.microsoft:datetime-offset"), Long(621_355_968_000_010_000)),
            {"datetime-offset": "1970-01-01T00:00:00.001000Z"},
            Typed("dateTime", "1970-01-01T00:00:00.001000Z"),
        ),
        (Described(Symbol("com.microsoft:uri"), "a:b"), {"uri": "a:b"}, Typed("string", "a:b")),
    ],
)
def test_a_value_of_amqp_comes_back_with_its_type(value: Any, constant: Any, shown: Typed) -> None:
    assert from_amqp(value) == constant
    back = to_amqp(constant)
    assert back == value
    assert type(back) is (str if isinstance(value, Symbol) else type(value))
    assert to_xml(constant) == shown


@pytest.mark.parametrize(
    "value", [None, b"x", [1], Described(Symbol("x"), 1), float("inf"), Timestamp(1 << 60)]
)
def test_a_value_of_amqp_that_is_no_constant_is_refused(value: Any) -> None:
    with pytest.raises(FilterError):
        from_amqp(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("string", " a "),
        ("int", "1"),
        ("long", "1"),
        ("double", "2"),
        ("boolean", "false"),
        ("dateTime", "2026-05-06T07:08:09.1234567Z"),
        ("duration", "PT1H"),
    ],
)
def test_a_typed_text_comes_back_as_it_was_sent(kind: str, text: str) -> None:
    assert to_xml(from_xml(Typed(kind, text))) == (kind, text)


@pytest.mark.parametrize("kind", XML_TYPES)
def test_every_type_of_xml_refuses_what_it_is_not(kind: str) -> None:
    if kind == "anyURI":
        assert from_xml(Typed(kind, "a b")) == {"uri": "a b"}
    else:
        with pytest.raises(FilterError):
            from_xml(Typed(kind, "soon"))


def test_what_has_no_type_is_text_and_an_unknown_type_is_refused() -> None:
    assert from_xml(Typed("", "a")) == "a"
    with pytest.raises(FilterError, match="one of the types"):
        from_xml(Typed("other", "a"))
    with pytest.raises(FilterError, match="boolean"):
        from_xml(Typed("boolean", "maybe"))


@pytest.mark.parametrize(
    ("constant", "shown"),
    [
        (1, ("int", "1")),
        (1 << 40, ("double", str(1 << 40))),
        (1 << 60, ("long", str(1 << 60))),
        (1.5, ("double", "1.5")),
    ],
)
def test_numbers_without_a_type_are_shown_with_one_that_every_client_reads(constant: Any, shown: Any) -> None:
    assert to_xml(constant) == shown
