"""Typed JSON: every type there and back, every wrong value refused with its path."""

import datetime as dt
import enum
import json
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, TypedDict, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.bus import ConfigurationError, NotReadableError
from lightrail.bus.typed import converter

T = TypeVar("T")
OrderId = NewType("OrderId", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Extra(TypedDict):
    a: int
    b: NotRequired[str]


@dataclass
class Leaf:
    name: str
    size: int = 0


@dataclass
class Tree:
    leaf: Leaf
    children: list["Tree"] = field(default_factory=list)


@dataclass
class Box(Generic[T]):
    value: T


@dataclass
class Positive:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("expected 0 or more")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (str, st.text()),
    (bool, st.booleans()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bytes, st.binary()),
    (uuid.UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (dt.datetime, st.datetimes(timezones=st.just(dt.UTC))),
    (dt.date, st.dates()),
    (dt.time, st.times()),
    (
        dt.timedelta,
        st.timedeltas(min_value=dt.timedelta(0), max_value=dt.timedelta(days=1)).map(
            lambda each: dt.timedelta(seconds=each.seconds)
        ),
    ),
    (Colour, st.sampled_from(Colour)),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (list[int], st.lists(st.integers())),
    (set[str], st.sets(st.text())),
    (frozenset[int], st.frozensets(st.integers())),
    (tuple[int, str], st.tuples(st.integers(), st.text())),
    (tuple[int, ...], st.lists(st.integers()).map(tuple)),
    (dict[str, Decimal], st.dictionaries(st.text(), st.decimals(allow_nan=False, allow_infinity=False))),
    (dict[int, str], st.dictionaries(st.integers(), st.text())),
    (int | None, st.integers() | st.none()),
    (Leaf | list[Leaf], st.builds(Leaf, st.text(), st.integers()) | st.lists(st.builds(Leaf, st.text()))),
    (Any, JSON),
    (OrderId, st.integers()),
    (Annotated[int, "x"], st.integers()),
    (Leaf, st.builds(Leaf, st.text(), st.integers())),
    (
        Tree,
        st.recursive(
            st.builds(Tree, st.builds(Leaf, st.text())),
            lambda x: st.builds(Tree, st.builds(Leaf, st.text()), st.lists(x)),
        ),
    ),
    (Extra, st.fixed_dictionaries({"a": st.integers()}, optional={"b": st.text()})),
    (Box[int], st.builds(Box, st.integers())),
]


@given(st.data())
@pytest.mark.parametrize(("annotation", "values"), VALUES, ids=[str(each) for each, _ in VALUES])
def test_a_value_is_the_same_behind_json(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    found = converter(annotation)
    written = json.dumps(value if found.dump is None else found.dump(value))
    assert found.load(json.loads(written)) == value


@given(JSON)
@pytest.mark.parametrize("annotation", [each for each, _ in VALUES], ids=[str(each) for each, _ in VALUES])
def test_whatever_comes_is_read_or_refused(annotation: Any, value: Any) -> None:
    with suppress(NotReadableError):
        converter(annotation).load(value)


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (int, True, "expected a whole number, found True"),
        (int, 1.0, "expected a whole number, found 1.0"),
        (bool, 1, "expected true or false, found 1"),
        (bytes, "%", "expected bytes in base64, found '%'"),
        (Decimal, "x", "expected a decimal number, found 'x'"),
        (Colour, "green", "expected one of 'red', 'blue', found 'green'"),
        (list[int], [1, "x"], "[1]: expected a whole number, found 'x'"),
        (dict[str, int], {"a": None}, "['a']: expected a whole number, found None"),
        (Leaf, {"size": 1}, ".name: expected a value, found none"),
        (
            Tree,
            {"leaf": {"name": "a"}, "children": [{"leaf": 1}]},
            ".children[0].leaf: expected an object for Leaf, found 1",
        ),
        (tuple[int, str], [1], "expected a list of 2, found [1]"),
        (int | None, "x", "expected a whole number, found 'x'; or expected null, found 'x'"),
        (Positive, {"value": -1}, "Positive: expected 0 or more"),
        (Extra, {}, ".a: expected a value, found none"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(annotation: Any, value: Any, text: str) -> None:
    with pytest.raises(NotReadableError) as refused:
        converter(annotation).load(value)
    assert str(refused.value) == text


@pytest.mark.parametrize("annotation", [3, complex, type, list[complex]], ids=str)
def test_a_type_that_json_can_t_carry_is_refused(annotation: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected a type that JSON can carry"):
        converter(annotation)


def test_a_decimal_of_others_may_be_a_number() -> None:
    assert converter(Decimal).load(9.5) == Decimal("9.5")
    assert converter(Decimal).load(9) == 9


@pytest.mark.parametrize("value", [-86_399_999_913_601, 10**400, float("inf")])
def test_a_number_that_no_duration_can_have_is_refused(value: float) -> None:
    with pytest.raises(NotReadableError, match="expected a number"):
        converter(dt.timedelta).load(value)
