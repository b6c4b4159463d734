"""Actions of Azure Service Bus' rules: what statements make of a message, and that all else stays."""

import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given

from lightrail.amqp.lifetime import life_of
from lightrail.amqp.sections import (
    Header,
    Properties,
    decode_application_properties,
    decode_header,
    decode_properties,
    with_header,
    with_properties,
)
from lightrail.amqp.values import Described, Float, Int, Long, Symbol, Timestamp, UByte, UInt, ULong
from lightrail.filters.errors import EvaluationError, FilterError
from lightrail.filters.message import FILTER_MAP_ITEMS, extract
from lightrail.filters.path import parse_path
from lightrail.filters.rules.parser import RULE_STATEMENTS_MAX
from lightrail.filters.rules.rule_action import RuleAction, compile_rule_action
from lightrail.filters.rules.values import decimal128
from lightrail.model import limits
from tests.unit.filters.messages import message, messages, mutated

NOW = 1_800_000_000_000
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
    found = decode_application_properties(action(text, **parameters).apply(MESSAGE, NOW))
    different = {
        name: value for name, value in found.items() if _typed(value) != _typed(PROPERTIES.get(name))
    }
    return different | {name: None for name in PROPERTIES if name not in found}


def changed_header(payload: bytes, *, ttl: int, expiry: int, creation: int) -> bytes:
    properties = Properties(absolute_expiry_time=expiry, creation_time=creation)
    return with_properties(with_header(payload, Header(ttl=UInt(ttl))), properties)


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
    before, after = decode_properties(MESSAGE), decode_properties(action(text).apply(MESSAGE, NOW))
    assert before is not None
    assert after is not None
    names = ("message_id", "to", "subject", "reply_to", "correlation_id", "content_type", "group_id")
    different = {
        name: getattr(after, name)
        for name in (*names, "reply_to_group_id")
        if getattr(after, name) != getattr(before, name)
    }
    assert different == expected


@pytest.mark.parametrize(
    ("text", "ttl", "expiry"),
    [
        ("SET sys.TimeToLive = '00:10:00'", 600_000, NOW + 600_000),
        ("SET sys.TimeToLive = '0:2:0'", 120_000, NOW + 120_000),
        ("SET sys.TimeToLive = 'PT1.5S'", 1_500, NOW + 1_500),
        ("SET sys.TimeToLive = '00:00:00.0000001'", 1, NOW + 1),
        ("SET sys.TimeToLive = ts", 1_000, NOW + 1_000),
        ("SET sys.TimeToLive = sys.TimeToLive + ts", 6_000, NOW + 6_000),
        ("SET sys.TimeToLive = @ttl", 5_000, NOW + 5_000),
        ("SET sys.TimeToLive = '60.00:00:00'", 0xFFFFFFFF, NOW + 60 * 86_400_000),
        ("SET sys.TimeToLive = '10675199.02:48:05.4775807'", None, None),
        ("SET sys.TimeToLive = missing", None, None),
        ("SET sys.TimeToLive = NULL", None, None),
        ("REMOVE sys.TimeToLive", None, None),
    ],
)
def test_a_time_to_live_is_in_the_header_and_ends_at_a_time(
    text: str, ttl: int | None, expiry: int | None
) -> None:
    made = action(text, **({"ttl": {"timespan": "PT5S"}} if "@" in text else {}))
    payload = changed_header(message(PROPERTIES), ttl=5_000, expiry=NOW + 9, creation=NOW - 9)
    found = made.apply(payload, NOW)
    assert made.sets_life
    header, properties = decode_header(found), decode_properties(found)
    assert properties is not None
    assert (header.ttl, properties.absolute_expiry_time) == (ttl, expiry)
    # It does not fit into the field ttl: it is the time between creation and expiry.
    is_long = ttl == 0xFFFFFFFF
    assert properties.creation_time == (NOW if is_long else NOW - 9)
    assert life_of(found) == (60 * 86_400_000 if is_long else ttl)


def test_an_action_counts_times_from_when_the_message_came() -> None:
    text = "SET came = sys.EnqueuedTimeUtc; SET sys.TimeToLive = '00:00:07'; SET ends = sys.ExpiresAtUtc"
    assert changed(text) == {"came": Timestamp(NOW), "ends": Timestamp(NOW + 7_000)}


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("SET sys.ScheduledEnqueueTimeUtc = '2027-01-15T08:00:00Z'", NOW),
        ("SET sys.ScheduledEnqueueTime = '2027-01-15T10:00:00+02:00'", NOW),
        ("SET sys.ScheduledEnqueueTimeUtc = @due", 7_000),
        ("SET sys.ScheduledEnqueueTimeUtc = date", 1_000),
        ("SET sys.ScheduledEnqueueTimeUtc = sys.EnqueuedTimeUtc + ts", NOW + 1_000),
        # There is no function for the present time: this is how rules of Service Bus delay messages.
        (
            "SET sys.TimeToLive = '00:10:00'; SET sys.ScheduledEnqueueTimeUtc = sys.ExpiresAtUtc;"
            "SET sys.TimeToLive = '01:00:00'",
            NOW + 600_000,
        ),
        ("SET sys.ScheduledEnqueueTimeUtc = date; REMOVE sys.ScheduledEnqueueTimeUtc", None),
        ("SET sys.ScheduledEnqueueTimeUtc = missing", None),
    ],
)
def test_a_scheduled_time_is_the_annotation_that_clients_write(text: str, due: int | None) -> None:
    made = action(text, **({"due": {"timestamp": "1970-01-01T00:00:07Z"}} if "@" in text else {}))
    found = extract(made.apply(MESSAGE, NOW), parse_path("message-annotations.x-opt-scheduled-enqueue-time"))
    assert _typed(found) == _typed(None if due is None else Timestamp(due))


def test_without_a_time_to_live_no_section_is_added() -> None:
    assert action("REMOVE sys.TimeToLive").apply(message(), NOW) == message()
    assert not action("SET a = sys.TimeToLive").sets_life


def test_a_partition_key_is_an_annotation() -> None:
    found = action("SET sys.PartitionKey = 'p'; SET sys.ViaPartitionKey = 'v'").apply(MESSAGE, NOW)
    notes = ("x-opt-hop", "x-opt-partition-key", "x-opt-via-partition-key")
    paths = (*(f"message-annotations.{note}" for note in notes), "ttl", "durable")
    assert [extract(found, parse_path(path)) for path in paths] == [1, "p", "v", 5_000, True]


def test_sections_that_are_missing_are_made() -> None:
    found = action("SET a = 1; SET sys.To = 'q'").apply(message(), NOW)
    assert decode_application_properties(found) == {"a": 1}
    properties = decode_properties(found)
    assert properties is not None
    assert properties.to == "q"


def test_of_several_names_that_differ_in_case_one_is_left() -> None:
    payload = message({"A": 1, "a": 2, "b": 3})
    assert decode_application_properties(action("SET a = 5").apply(payload, NOW)) == {"A": 5, "b": 3}
    assert decode_application_properties(action("REMOVE a").apply(payload, NOW)) == {"b": 3}


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
        ("SET sys.TimeToLive = quantity", "a duration above 0, such as .* for sys.TimeToLive, found 11"),
        ("SET sys.TimeToLive = str", "for sys.TimeToLive, found 'Hello'"),
        ("SET sys.TimeToLive = ts - ts", "a duration above 0"),
        ("SET sys.TimeToLive = list", "a duration above 0"),
        ("SET sys.ScheduledEnqueueTimeUtc = ts", "a time such as .* for sys.ScheduledEnqueueTimeUtc, found"),
        ("SET sys.ScheduledEnqueueTime = quantity", "for sys.ScheduledEnqueueTime, found 11"),
    ],
)
def test_a_statement_without_a_result_is_an_error(text: str, what: str) -> None:
    with pytest.raises(EvaluationError, match=what):
        action(text).apply(MESSAGE, NOW)


@pytest.mark.parametrize(
    ("text", "expected", "position"),
    [
        ("DROP a", "SET property = expression", 1),
        ("SET a", "= after the property", 6),
        ("SET = 1", "the name of a property", 5),
        ("SET a = ", "a constant, a property or (", 9),
        ("SET a = 1, SET b = 2", "SET property = expression", 10),
        ("SET sys.Size = 1", "one of sys.", 5),
        ("SET sys.ExpiresAtUtc = '2027-01-01'", "one of sys.", 5),
        ("SET sys.TimeToLive = 60", "a duration above 0, such as '00:10:00'", 22),
        ("SET sys.TimeToLive = 'soon'", "a duration above 0", 22),
        ("SET sys.ScheduledEnqueueTimeUtc = '00:10:00'", "a time such as '2026-12-24T18:00:00Z'", 35),
        ("SET sys.ScheduledEnqueueTime = 1", "a time such as", 32),
        ("SET sys.TimeToLive = -60 + 60", "a duration above 0", 22),
        ("SET a = 1; SET sys.TimeToLive = '00:00:00'", "a duration above 0", 33),
        ("SET sys.TimeToLive = '-00:01:00'", "a duration above 0", 22),
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
    assert action("REMOVE [no such property]; SET [nor this] = missing").apply(payload, NOW) == payload


@pytest.mark.parametrize(
    "payload", [b"no message", b"\x00\x53\x73\xc0\x05\x01", b"\x00\x53\x70\xa1\x01a\x00\x53\x75\xa0\x00"]
)
def test_a_message_with_malformed_sections_stays_as_it_is(payload: bytes) -> None:
    assert (
        action("SET a = 1; SET sys.To = 'q'; SET sys.TimeToLive = '00:01:00'").apply(payload, NOW) == payload
    )


def test_a_map_that_is_too_large_to_be_read_is_added_to() -> None:
    payload = message({f"n{number}": True for number in range(FILTER_MAP_ITEMS // 2 + 1)})
    assert decode_application_properties(action("SET a = n1; SET b = 1").apply(payload, NOW))["b"] == 1


def test_ids_that_are_no_text_are_read_as_text() -> None:
    payload = message({}, properties=Properties(message_id=ULong(5), correlation_id=GUID))
    found = action("SET a = sys.MessageId + '/' + sys.CorrelationId").apply(payload, NOW)
    assert decode_application_properties(found) == {"a": f"5/{GUID}"}
