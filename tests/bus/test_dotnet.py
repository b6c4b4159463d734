"""Values and names of .NET's serializers: each type, in every kind of class."""

import datetime as dt
import enum
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Generic, NotRequired, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from lightrail.bus import NotReadableError
from lightrail.bus.dotnet import camel, plain_name, snake, translation
from lightrail.bus.typed import converter

Item = TypeVar("Item")


class Phase(enum.IntEnum):
    NEW = 0
    IN_TRANSIT = 2


class Color(enum.Enum):
    RED = "Red"
    DARK_BLUE = "dark-blue"


def written(annotation: Any, value: Any) -> Any:
    """A value as .NET reads it."""
    dump, translate = converter(annotation).dump, translation(annotation).write
    data = value if dump is None else dump(value)
    return data if translate is None else translate(data)


def read(annotation: Any, data: Any) -> Any:
    """A value that .NET wrote."""
    translate = translation(annotation).read
    return converter(annotation).load(data if translate is None else translate(data))


@pytest.mark.parametrize(
    ("annotation", "value", "data"),
    [
        (dt.timedelta, dt.timedelta(0), "00:00:00"),
        (dt.timedelta, dt.timedelta(days=1, hours=23, microseconds=1), "1.23:00:00.0000010"),
        (dt.timedelta, dt.timedelta(days=-2, microseconds=-1), "-2.00:00:00.0000010"),
        (dt.timedelta, dt.timedelta(days=10_675_198), "10675198.00:00:00"),
        (dt.datetime, dt.datetime(2026, 1, 31, tzinfo=dt.UTC), "2026-01-31T00:00:00Z"),
        (dt.datetime, dt.datetime(2026, 1, 31), "2026-01-31T00:00:00"),
        (dt.time, dt.time(12, 30), "12:30:00"),
        (Decimal, Decimal("1E+3"), "1000"),
        (Decimal, Decimal("1E-7"), "0.0000001"),
        (uuid.UUID, uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Phase, Phase.IN_TRANSIT, 2),
        (Color, Color.RED, "Red"),
        (Color, Color.DARK_BLUE, "DarkBlue"),
        (dt.timedelta | None, None, None),
        (dt.timedelta | None, dt.timedelta(seconds=1), "00:00:01"),
        (list[dt.timedelta], [dt.timedelta(seconds=1)], ["00:00:01"]),
        (tuple[dt.timedelta, int], (dt.timedelta(seconds=1), 2), ["00:00:01", 2]),
        (tuple[Color, ...], (Color.DARK_BLUE,), ["DarkBlue"]),
        (dict[str, dt.timedelta], {"Some_Key": dt.timedelta(seconds=1)}, {"Some_Key": "00:00:01"}),
        (Annotated[dt.timedelta, ["of a list"]], dt.timedelta(seconds=1), "00:00:01"),
        (int | str, "1.5", "1.5"),
    ],
)
def test_a_value_has_one_form_in_net(annotation: Any, value: Any, data: Any) -> None:
    assert written(annotation, value) == data
    assert read(annotation, data) == value


@pytest.mark.parametrize(
    ("annotation", "data", "value"),
    [
        (dt.timedelta, "1:2:3.1234567", dt.timedelta(hours=1, minutes=2, seconds=3, microseconds=123456)),
        (dt.timedelta, 1.5, dt.timedelta(seconds=1.5)),
        (dt.datetime, "2026-01-31T00:00:00.1234567+02:00", None),
        (dt.time, "12:30:00.1234567", dt.time(12, 30, 0, 123456)),
        (Phase, "InTransit", Phase.IN_TRANSIT),
        (Phase, "inTransit", Phase.IN_TRANSIT),
        (Color, "darkBlue", Color.DARK_BLUE),
        (Color, "dark-blue", Color.DARK_BLUE),
        (Decimal, 9.5, Decimal("9.5")),
    ],
)
def test_other_forms_of_net_are_read(annotation: Any, data: Any, value: Any) -> None:
    if annotation is dt.datetime:
        value = dt.datetime(2026, 1, 31, 0, 0, 0, 123456, dt.timezone(dt.timedelta(hours=2)))
    assert read(annotation, data) == value


@pytest.mark.parametrize(
    ("annotation", "data", "text"),
    [
        (dt.timedelta, "an hour", "expected a TimeSpan of .NET as 1.02:03:04.5000000, found 'an hour'"),
        (Color, "Green", "expected one of 'Red', 'dark-blue', found 'Green'"),
        (Color, 1, "expected one of"),
    ],
)
def test_what_is_no_value_of_net_is_not_readable(annotation: Any, data: Any, text: str) -> None:
    with pytest.raises(NotReadableError, match=text.replace(".", r"\.")):
        read(annotation, data)


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (dt.timedelta, dt.timedelta(days=10_675_199), "below 10675199 days"),
        (Decimal, Decimal("NaN"), "a finite number"),
    ],
)
def test_what_net_does_not_have_is_not_written(annotation: Any, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        written(annotation, value)


# --- classes ---------------------------------------------------------------------------------------------


@dataclass
class Part:
    wait_time: dt.timedelta
    parts: "list[Part]" = field(default_factory=list)


class Model(pydantic.BaseModel):
    wait_time: dt.timedelta
    part: Part | None = None
    phase: Phase = Phase.NEW


class Struct(msgspec.Struct):
    wait_time: dt.timedelta
    phase: Phase = Phase.NEW


class Typed(TypedDict):
    wait_time: dt.timedelta
    is_3d: NotRequired[bool]


@dataclass
class Page(Generic[Item]):
    first_item: Item


SPAN = dt.timedelta(days=1, seconds=2.5)


@pytest.mark.parametrize(
    ("annotation", "value", "data"),
    [
        (Part, Part(SPAN, [Part(SPAN)]), {"waitTime": SPAN, "parts": [{"waitTime": SPAN, "parts": []}]}),
        (Model, Model(wait_time=SPAN), {"waitTime": SPAN, "part": None, "phase": 0}),
        (Struct, Struct(SPAN), {"waitTime": SPAN, "phase": 0}),
        (Typed, {"wait_time": SPAN, "is_3d": True}, {"waitTime": SPAN, "is3d": True}),
        (Page[dt.timedelta], Page(SPAN), {"firstItem": SPAN}),
        (Part | Page[int], Page(1), {"firstItem": 1}),
    ],
)
def test_every_kind_of_class_is_translated(annotation: Any, value: Any, data: Any) -> None:
    def with_spans(found: Any) -> Any:
        if isinstance(found, dict):
            return {key: with_spans(each) for key, each in found.items()}
        if isinstance(found, list):
            return [with_spans(each) for each in found]
        return "1.00:00:02.5000000" if found == SPAN else found

    assert written(annotation, value) == with_spans(data)
    assert read(annotation, with_spans(data)) == value


@pytest.mark.parametrize("annotation", [Model, Struct, Typed, Page[dt.timedelta]])
def test_a_missing_value_is_the_default_of_its_type(annotation: Any) -> None:
    found = read(annotation, {})
    values = found if isinstance(found, dict) else {"wait_time": getattr(found, "wait_time", dt.timedelta(0))}
    assert values == {"wait_time": dt.timedelta(0)}


def test_a_default_of_a_field_counts_for_a_missing_value_as_in_net() -> None:
    @dataclass
    class Order:
        count: int = 5

    assert read(Order, {}) == Order(5)


def test_an_object_of_other_fields_is_not_readable_instead_of_all_defaults() -> None:
    with pytest.raises(NotReadableError, match="expected fields such as parts, waitTime, found total"):
        read(Part, {"total": 1})


def test_an_error_names_the_position_of_its_value() -> None:
    with pytest.raises(NotReadableError, match=r"^\.parts\[1\]\.wait_time: expected a TimeSpan"):
        read(Part, {"waitTime": "00:00:00", "parts": [{"waitTime": "00:00:00"}, {"waitTime": "x"}]})


def test_of_two_names_that_differ_in_case_the_one_of_net_is_taken() -> None:
    for names in (("WAITTIME", "waitTime"), ("waitTime", "WAITTIME")):
        found = read(Part, {name: "00:00:01" if name == "waitTime" else "00:00:09" for name in names})
        assert found == Part(dt.timedelta(seconds=1))


@pytest.mark.parametrize(
    ("dotnet", "python"),
    [
        ("orderId", "order_id"),
        ("myXMLDoc", "my_xml_doc"),
        ("is3D", "is3_d"),
        ("url", "url"),
        ("ipAddress", "ip_address"),
        ("line2Total", "line2_total"),
    ],
)
def test_names_are_one_name_on_both_sides(dotnet: str, python: str) -> None:
    assert snake(dotnet) == python
    assert plain_name(camel(python)) == plain_name(dotnet) == plain_name(python)
