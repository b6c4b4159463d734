"""Actions of Azure Service Bus' rules: what statements make of a message, and that all else stays."""

import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given

from lightrail.amqp.sections import Header, Properties, decode_application_properties, decode_properties
from lightrail.amqp.values import Described, Float, Int, Long, Symbol, Timestamp, UByte, UInt, ULong
from lightrail.filters.errors import EvaluationError, FilterError
from lightrail.filters.message import FILTER_MAP_ITEMS, extract
from lightrail.filters.path import parse_path
from lightrail.filters.rules.parser import RULE_STATEMENTS_MAX
from lightrail.filters.rules.rule_action import RuleAction, compile_rule_action
from lightrail.filters.rules.values import decimal128
from lightrail.model import limits
from tests.unit.filters.messages import message, messages, mutated

GUID = uuid.UUID("0f5f0c8a-7a44-4bd3-9a0c-7a3f1de1a5b2")
TIMESPAN = Symbol("com.microsoft:timespan")
PROPERTIES = {
    "quantity": Int(11),
    "small": UByte(200),
    "price": decimal128(Decimal("2.50")),
    "flt": Float(1.5),
    "str": "Hello",
    "MixedCase": "v",
    "list": [1, 2],
    "ts": Described(TIMESPAN, Long(10_000_000)),
    "my prop": "spaced",
    "date": Timestamp(1_000),
}
MESSAGE = message(
    PROPERTIES,
    header=Header(durable=True, ttl=UInt(5_000)),
    properties=Properties(message_id="mid", subject="label", content_type=Symbol("a/b")),
    annotations={Symbol("x-opt-hop"): 1},
)


def action(text: str, **parameters: Any) -> RuleAction:
    given = {f"@{name}": value for name, value in parameters.items()}
    return compile_rule_action({"sql": text} | ({"parameters": given} if given else {}), lambda: GUID)


def changed(text: str, **parameters: Any) -> dict[str, Any]:
    """The application properties that differ afterwards; None for those that were removed."""
    found = decode_application_properties(action(text, **parameters).apply(MESSAGE))
    different = {
        name: value for name, value in found.items() if _typed(value) != _typed(PROPERTIES.get(name))
    }
    return different | {name: None for name in PROPERTIES if name not in found}


def _typed(value: Any) -> Any:
    # Equal small numbers of two types are different properties.
    return type(value), value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SET a = 'x'", {"a": "x"}),
        ("set a = 'it''s; ok'", {"a": "it's; ok"}),
        ("SET a = 5", {"a": Long(5)}),
        ("SET a = -5", {"a": Long(-5)}),
        ("SET a = 1.5E3", {"a": 1500.0}),
        ("SET a = TRUE", {"a": True}),
        ("SET a = (1 + 2) * 3", {"a": Long(9)}),
        ("SET a = newid()", {"a": GUID}),
        ("SET quantity = quantity / 2", {"quantity": Int(5)}),
        ("SET QUANTITY = quantity + 1", {"quantity": Int(12)}),
        ("SET quantity = quantity * 1000000000", {"quantity": Long(11_000_000_000)}),
        ("SET small = small + 56", {"small": Long(256)}),
        ("SET small = small - 1", {"small": UByte(199)}),
        ("SET price = price * 2", {"price": decimal128(Decimal("5.00"))}),
        ("SET flt = flt + 1", {"flt": Float(2.5)}),
        ("SET a = str + '-x'", {"a": "Hello-x"}),
        ("SET a = ts + ts", {"a": Described(TIMESPAN, Long(20_000_000))}),
        ("SET a = date", {"a": Timestamp(1_000)}),
        # What is copied keeps its type.
        ("SET a = quantity", {"a": Int(11)}),
        ("SET a = list", {"a": [1, 2]}),
        ("SET a = price", {"a": decimal128(Decimal("2.50"))}),
        ("SET a = sys.MessageId", {"a": "mid"}),
        ("SET a = property('s' + 'tr')", {"a": "Hello"}),
        ("SET a = sys.TimeToLive", {"a": Described(TIMESPAN, Long(50_000_000))}),
        # Unknown, and NULL, are no property.
        ("SET a = NULL", {}),
        ("SET a = missing + 1", {}),
        ("SET str = missing", {"str": None}),
        ("REMOVE str", {"str": None}),
        ("REMOVE user.STR", {"str": None}),
        ("remove missing", {}),
        # The name stays as the message spells it.
        ("SET MIXEDCASE = 'w'", {"MixedCase": "w"}),
        ("SET [MY PROP] = 1", {"my prop": Long(1)}),
        ('SET user."new one" = 1', {"new one": Long(1)}),
        # One after the other, with and without semicolons.
        ("SET a = 1; SET b = 2;", {"a": Long(1), "b": Long(2)}),
        ("SET a = 1 SET b = a + 1", {"a": Long(1), "b": Long(2)}),
        ("SET a = 1\nREMOVE str", {"a": Long(1), "str": None}),
        ("SET a = 1; SET a = 2", {"a": Long(2)}),
        ("SET a = 1; REMOVE A", {}),
        ("SET a = str; SET str = 'x'; SET b = str", {"a": "Hello", "str": "x", "b": "x"}),
        (";", {}),
        ("", {}),
    ],
)
def test_statements_change_application_properties(text: str, expected: dict[str, Any]) -> None:
    found = changed(text.removeprefix(";"))
    assert {name: _typed(value) for name, value in found.items()} == {
        name: _typed(value) for name, value in expected.items()
    }


def test_parameters_are_constants_of_statements() -> None:
    assert changed("SET a = @p; SET b = @q + 1", p="x", q={"int": "1"}) == {"a": "x", "b": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SET sys.Label = 'new'", {"subject": "new"}),
        ("SET sys.Subject = str", {"subject": "Hello"}),
        ("SET SYS.To = 'q'; SET sys.ReplyTo = 'r'", {"to": "q", "reply_to": "r"}),
        ("SET sys.CorrelationId = sys.MessageId", {"correlation_id": "mid"}),
        ("SET sys.MessageId = newid()", {"message_id": str(GUID)}),
        ("SET sys.MessageId = quantity", {"message_id": "11"}),
        (
            "SET sys.SessionId = 's'; SET sys.ReplyToSessionId = 't'",
            {"group_id": "s", "reply_to_group_id": "t"},
        ),
        ("SET sys.ContentType = 'c/d'", {"content_type": Symbol("c/d")}),
        ("REMOVE sys.Label", {"subject": None}),
        ("SET sys.Label = missing", {"subject": None}),
    ],
)
def test_statements_change_properties_of_the_message(text: str, expected: dict[str, Any]) -> None:
    before, after = decode_properties(MESSAGE), decode_properties(action(text).apply(MESSAGE))
    assert before is not None
    assert after is not None
    names = ("message_id", "to", "subject", "reply_to", "correlation_id", "content_type", "group_id")
    different = {
        name: getattr(after, name)
        for name in (*names, "reply_to_group_id")
        if getattr(after, name) != getattr(before, name)
    }
    assert different == expected


def test_a_partition_key_is_an_annotation() -> None:
    found = action("SET sys.PartitionKey = 'p'").apply(MESSAGE)
    paths = ("message-annotations.x-opt-hop", "message-annotations.x-opt-partition-key", "ttl", "durable")
    assert [extract(found, parse_path(path)) for path in paths] == [1, "p", 5_000, True]


def test_sections_that_are_missing_are_made() -> None:
    found = action("SET a = 1; SET sys.To = 'q'").apply(message())
    assert decode_application_properties(found) == {"a": 1}
    properties = decode_properties(found)
    assert properties is not None
    assert properties.to == "q"


def test_of_several_names_that_differ_in_case_one_is_left() -> None:
    payload = message({"A": 1, "a": 2, "b": 3})
    assert decode_application_properties(action("SET a = 5").apply(payload)) == {"A": 5, "b": 3}
    assert decode_application_properties(action("REMOVE a").apply(payload)) == {"b": 3}


def test_the_size_is_that_of_the_message() -> None:
    assert changed("SET a = sys.Size") == {"a": len(MESSAGE)}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SET a = 1 / (quantity - 11)", "division by zero"),
        ("SET a = property(quantity)", "the name of a property"),
        ("SET sys.ContentType = 'ü'", "ASCII"),
        ("SET sys.Label = sys.Label + str; SET a = 1 % (quantity - 11)", "division by zero"),
        (f"SET a = price * {10**18} * {10**18}", "96 bits"),
        ("SET sys.Label = list", "has no text"),
        ("SET sys.ContentType = list", "has no text"),
    ],
)
def test_a_statement_without_a_result_is_an_error(text: str, what: str) -> None:
    with pytest.raises(EvaluationError, match=what):
        action(text).apply(MESSAGE)


@pytest.mark.parametrize(
    ("text", "expected", "position"),
    [
        ("DROP a", "SET property = expression", 1),
        ("SET a", "= after the property", 6),
        ("SET = 1", "the name of a property", 5),
        ("SET a = ", "a constant, a property or (", 9),
        ("SET a = 1, SET b = 2", "SET property = expression", 10),
        ("SET sys.Size = 1", "one of sys.", 5),
        ("SET sys.TimeToLive = '00:01:00'", "one of sys.", 5),
        ("SET sys.SequenceNumber = 1", "one of sys.", 5),
        ("REMOVE sys.Colour", "a property of sys", 12),
        ("SET a = @p", "a value for every parameter", 9),
        ("REMOVE", "the name of a property", 7),
        ("SET a = b = c", "SET property = expression", 11),
    ],
)
def test_an_error_names_its_place(text: str, expected: str, position: int) -> None:
    with pytest.raises(FilterError) as caught:
        action(text)
    assert expected in str(caught.value)
    assert caught.value.position == position


def test_an_action_is_bounded() -> None:
    assert changed("SET a = 1;" * RULE_STATEMENTS_MAX) == {"a": 1}
    with pytest.raises(FilterError, match=f"at most {RULE_STATEMENTS_MAX}"):
        action("SET a = 1;" * (RULE_STATEMENTS_MAX + 1))
    between = "a"
    for _ in range(9):
        between = f"({between} BETWEEN 1 AND 2)"
    assert action(f"SET a = {between}").weight <= limits.FILTER_WEIGHT_MAX
    with pytest.raises(FilterError, match=f"at most {limits.FILTER_WEIGHT_MAX}"):
        action(f"SET a = {between};" * 8)


@pytest.mark.parametrize("spec", [{}, "x", {"sql": 1}, {"sql": "SET a = 1", "set": {}}])
def test_what_is_no_action_is_refused(spec: Any) -> None:
    with pytest.raises(FilterError):
        compile_rule_action(spec, lambda: GUID)


@given(messages() | mutated())
def test_bytes_that_no_statement_is_about_stay(payload: bytes) -> None:
    assert action("REMOVE [no such property]; SET [nor this] = missing").apply(payload) == payload


def test_a_map_that_is_too_large_to_be_read_is_added_to() -> None:
    payload = message({f"n{number}": True for number in range(FILTER_MAP_ITEMS // 2 + 1)})
    assert decode_application_properties(action("SET a = n1; SET b = 1").apply(payload))["b"] == 1


def test_ids_that_are_no_text_are_read_as_text() -> None:
    payload = message({}, properties=Properties(message_id=ULong(5), correlation_id=GUID))
    found = action("SET a = sys.MessageId + '/' + sys.CorrelationId").apply(payload)
    assert decode_application_properties(found) == {"a": f"5/{GUID}"}
