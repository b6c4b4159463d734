"""Values of rules: decimals and times of .NET, their texts, and what a matcher's tables hold of them."""

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp.values import Decimal32, Decimal64, Decimal128, Described, Symbol, Timestamp
from lightrail.filters.errors import EvaluationError, FilterError
from lightrail.filters.rules import values
from lightrail.filters.rules.constants import TYPES, constant_of
from lightrail.filters.rules.values import computes, decimal128, moment_of, negated, span_of, text_of
from lightrail.filters.terms import OPAQUE, Duration, key_of, value_of

decimals = st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20)


@given(decimals)
def test_a_decimal_is_read_as_it_was_written(value: Decimal) -> None:
    assert value_of(decimal128(value)) == value


def test_decimals_are_read_in_the_layouts_of_ieee_754_and_of_dotnet() -> None:
    # 1.5m as the SDK for .NET writes it, and by the letter.
    assert value_of(Decimal128(bytes.fromhex("0c3e" + "00" * 13 + "0f"))) == Decimal("1.5")
    assert value_of(Decimal128(bytes.fromhex("303e" + "00" * 13 + "0f"))) == Decimal("1.5")
    assert value_of(Decimal128(bytes.fromhex("b03e" + "00" * 13 + "0f"))) == Decimal("-1.5")
    assert value_of(Decimal64((397 << 53 | 15).to_bytes(8))) == Decimal("1.5")
    assert value_of(Decimal32((100 << 23 | 15).to_bytes(4))) == Decimal("1.5")
    assert value_of(Decimal128(b"\x78" + bytes(15))) is OPAQUE


def test_a_decimal_of_more_than_96_bits_cannot_be_written() -> None:
    assert value_of(decimal128(Decimal("1E-40"))) == 0
    with pytest.raises(EvaluationError):
        decimal128(Decimal(1 << 97))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("1E-999999", "0E-28"),
        ("1E-99999999999", "0E-28"),
        ("123E-30", "1E-28"),
        ("0E+999999", "0"),
        ("7E+27", "7000000000000000000000000000"),
    ],
)
def test_decimals_are_written_with_28_digits_behind_the_point_and_none_before(
    value: str, written: str
) -> None:
    assert repr(value_of(decimal128(Decimal(value)))) == repr(Decimal(written))


@pytest.mark.parametrize("value", ["1E+29", "1E+999999"])
def test_a_decimal_with_a_huge_exponent_cannot_be_written(value: str) -> None:
    with pytest.raises(EvaluationError, match="96 bits"):
        decimal128(Decimal(value))


@pytest.mark.parametrize("text", ["1E+9999999", "-1E+999999999999", "79228162514264337593543950336", "NaN"])
def test_a_constant_decimal_with_too_many_bits_is_refused(text: str) -> None:
    with pytest.raises(FilterError, match="96 bits"):
        constant_of({"decimal": text})


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("01:30:00", 54_000_000_000),
        ("-00:00:00.0000001", -1),
        ("1.02:03:04.5", 937_845_000_000),
        ("PT1H30M", 54_000_000_000),
        ("P1DT0.5S", 864_005_000_000),
        ("-PT1S", -10_000_000),
    ],
)
def test_durations_are_read_in_both_forms(text: str, ticks: int) -> None:
    assert span_of(text) == ticks
    assert span_of(text_of(span_of(text))) == ticks


@pytest.mark.parametrize("text", ["", "P", "PT", "5", "1:2:3:4", "PT1", "99999999.00:00:00", "soon"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration"):
        span_of(text)


def test_times_are_in_utc_unless_they_say_otherwise() -> None:
    assert moment_of("1970-01-01T00:00:01") == moment_of("1970-01-01T02:00:01.0000000+02:00") == 1_000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "True"),
        (2.0, "2"),
        (2.5, "2.5"),
        (1e300, "1E+300"),
        (Decimal("1.50"), "1.50"),
        (Timestamp(0), "1970-01-01T00:00:00.000+00:00"),
        (Timestamp(1 << 62), str(1 << 62)),
        (Duration(864_005_000_001), "1.00:00:00.5000001"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_values_have_the_texts_of_dotnet(value: Any, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (Timestamp(5), ("Timestamp", 5)),
        (Described(Symbol("com.microsoft:timespan"), 5), ("Duration", 5)),
        (Described(Symbol("other"), 5), OPAQUE),
        (UUID(int=1), str(UUID(int=1))),
        (decimal128(Decimal("2.0")), 2),
        (decimal128(Decimal("0.1")), 0.1),
    ],
)
def test_equal_keys_are_equal_values(value: Any, key: Any) -> None:
    found = key_of(value)
    assert found == key or (found[0] == "Opaque" and key is OPAQUE)


def test_the_opposite_of_a_value() -> None:
    assert [negated(each) for each in (5, 2.5, Duration(3), "x", None)] == [
        -5,
        -2.5,
        Duration(-3),
        None,
        None,
    ]
    with pytest.raises(EvaluationError):
        negated(-(1 << 63))


@pytest.mark.parametrize(
    ("kind", "text", "bad"),
    [
        ("byte", "-128", "-129"),
        ("ushort", "65535", "-1"),
        ("ulong", str((1 << 64) - 1), str(1 << 64)),
        ("float", "1.5", "inf"),
        ("decimal", "1.50", str(1 << 96)),
        ("char", "c", "cc"),
        ("uuid", str(UUID(int=1)), "x"),
        ("timestamp", "2026-01-01T00:00:00Z", "soon"),
        ("datetime-offset", "2026-01-01T00:00:00+01:00", ""),
        ("timespan", "PT1H", "1h"),
    ],
)
def test_each_type_of_a_constant_has_its_texts(kind: str, text: str, bad: str) -> None:
    assert constant_of({kind: text}) is not None
    with pytest.raises(ValueError, match=f"a value of type {kind}"):
        constant_of({kind: bad})
    assert kind in TYPES


@pytest.mark.parametrize("large", ["x" * (values.RULE_TEXT_MAX + 1), b"\xff" * (values.RULE_TEXT_MAX + 1)])
def test_a_text_that_is_too_large_to_be_joined_is_not_joined(
    large: str | bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "text_of", lambda _: pytest.fail("a copy is made"))
    with pytest.raises(EvaluationError, match=f"a text has {len(large) + 1} characters"):
        computes("+")("y", large)
