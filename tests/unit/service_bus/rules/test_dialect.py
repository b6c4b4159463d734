"""Rules of Azure Service Bus: expressions, correlation filters and actions, there and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.filters.action import compile_action
from lightrail.filters.errors import FilterError
from lightrail.filters.filter import compile_filter
from lightrail.filters.message import MessageView
from lightrail.filters.parameters import FILTER_PARAMETERS_BYTES, with_constants
from lightrail.service_bus.rules.dialect import (
    CORRELATED,
    Correlation,
    correlation_filter,
    expression_of,
    parameters_of,
    sql_action,
    sql_filter,
    statements_of,
)
from tests.unit.amqp.peer import data


@pytest.mark.parametrize("text", ["1=1", " 1 = 1 "])
def test_what_is_always_true_is_no_filter(text: str) -> None:
    assert sql_filter(text) is None
    assert expression_of(None) == "1=1"


def test_what_is_never_true_matches_nothing() -> None:
    assert not compile_filter(sql_filter("1=0")).matches(MessageView(data(b"")))


def test_an_expression_stays_as_it_is() -> None:
    assert sql_filter("price > 100") == {"sql": "price > 100"}
    assert (
        expression_of({"sql": "price > 100"}) == expression_of({"selector": "price > 100"}) == "price > 100"
    )


@pytest.mark.parametrize(
    "spec", [{"subject": "a.*"}, {"any": [{"sql": "a = 1"}, {"sql": "b = 1"}]}, {"properties": {"ttl": 1}}]
)
def test_other_filters_are_shown_as_json_and_read_from_it(spec: dict[str, Any]) -> None:
    text = expression_of(spec)
    assert isinstance(text, str)
    assert sql_filter(text) == spec


@pytest.mark.parametrize("text", ["", "a =", "{", '{"other": 1}', "[]"])
def test_an_expression_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(FilterError):
        sql_filter(text)


def test_a_correlation_filter_compares_fields_and_properties() -> None:
    fields = {name: f"a {name}" for name in CORRELATED}
    spec = correlation_filter(fields, {"a.b": 1, "c": "d", "e": True, "f": 1.5})
    assert spec["properties"]["subject"] == "a label"
    assert spec["properties"]["group-id"] == "a session-id"
    assert expression_of(spec) == Correlation(fields, {"a.b": 1, "c": "d", "e": True, "f": 1.5})


@pytest.mark.parametrize(
    ("fields", "properties"),
    [({}, {}), ({"other": "a"}, {}), ({"label": 1}, {}), ({}, {"": 1}), ({}, {1: 1}), ({}, {"a": None})],
)
def test_a_correlation_filter_that_cannot_be_used_is_refused(fields: Any, properties: Any) -> None:
    with pytest.raises(FilterError):
        correlation_filter(fields, properties)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("", None),
        (" ; ", None),
        ("SET a = 1", {"set": {"application-properties.a": 1}}),
        ("set sys.Label = 'a;''b';", {"set": {"subject": "a;'b"}}),
        (
            "SET a = -1.5; SET user.b = TRUE",
            {"set": {"application-properties.a": -1.5, "application-properties.b": True}},
        ),
        (
            'SET [a;b] = 1; REMOVE "c d"',
            {"set": {"application-properties.a;b": 1}, "remove": ["application-properties.c d"]},
        ),
        ("REMOVE sys.SessionId", {"remove": ["group-id"]}),
    ],
)
def test_statements_are_an_action(text: str, spec: Any) -> None:
    assert sql_action(text) == spec
    assert sql_action(statements_of(spec)) == spec


@pytest.mark.parametrize(
    "text",
    [
        "a = 1",
        "SET a",
        "SET a 1",
        "SET a > 1",
        "SET a = b",
        "SET a = 1 + 1",
        "SET a = NULL",
        "SET 'a' = 1",
        "SET sys.MessageId = 'a'",
        "SET sys.Nothing = 'a'",
        "SET a = 'b",
        "REMOVE",
        "REMOVE a b",
        "REMOVE priority, b",
        "SET a = 1; REMOVE a",
    ],
)
def test_statements_that_cannot_be_used_are_refused(text: str) -> None:
    with pytest.raises(FilterError):
        sql_action(text)


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(1 << 62), 1 << 62),
    st.floats(-1e15, 1e15, allow_nan=False).filter(lambda value: value != 0),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20),
)


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=5))
def test_every_action_is_written_as_statements(values: dict[str, Any]) -> None:
    spec = {"set": {f"application-properties.{name}": value for name, value in values.items()}}
    assert sql_action(statements_of(spec)) == spec


@given(VALUES)
def test_a_parameter_is_its_constant(value: Any) -> None:
    assert sql_action(with_constants("SET a = @p1", {"@p1": value})) == {
        "set": {"application-properties.a": value}
    }


@given(VALUES)
def test_a_filter_and_an_action_with_parameters_are_written_as_they_were(value: Any) -> None:
    parameters = {"@p1": value, "@unused": 7}
    filter = sql_filter("a = @p1", parameters)
    assert filter == {"sql": "a = @p1", "parameters": parameters}
    assert (expression_of(filter), parameters_of(filter)) == ("a = @p1", parameters)
    action = sql_action("SET a = @p1; SET b = 2; REMOVE c", parameters)
    assert action is not None
    assert statements_of(action) == "SET user.a = @p1; SET user.b = 2; REMOVE user.c"
    assert parameters_of(action) == parameters
    assert sql_action(statements_of(action), parameters_of(action)) == action
    # What it matches and makes is the same as with constants.
    text = with_constants("a = @p1", parameters)
    made = compile_action(action).apply(data(b""))
    assert made == compile_action(
        sql_action(with_constants("SET a = @p1; SET b = 2", parameters)) or {}
    ).apply(data(b""))
    matches = [compile_filter(each).matches(MessageView(made)) for each in (filter, {"sql": text})]
    assert matches[0] == matches[1]


def test_a_parameter_may_be_a_part_of_an_expression_and_not_of_an_action() -> None:
    filter = compile_filter(
        sql_filter("price - @less > 3 AND colour IN (@colour)", {"@less": 1, "@colour": "red"})
    )
    made = compile_action(sql_action("SET price = 5; SET colour = 'red'") or {}).apply(data(b""))
    assert filter.matches(MessageView(made))
    assert sql_action("SET a = -@p", {"@p": 5}) == {
        "set": {"application-properties.a": -5},
        "parameters": {"@p": 5},
    }
    with pytest.raises(FilterError, match="a constant"):
        sql_action("SET a = b = @p", {"@p": 5})


def test_a_filter_as_json_has_its_own_parameters() -> None:
    spec = {"subject": "a.*", "sql": "a = @p", "parameters": {"@p": 1}}
    text = expression_of(spec)
    assert isinstance(text, str)
    assert parameters_of(spec) == {}
    assert sql_filter(text) == spec
    with pytest.raises(FilterError, match="no parameters beside a filter as JSON"):
        sql_filter(text, {"@p": 2})


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"": 1}, "the name of a parameter"),
        ({1: 1}, "the name of a parameter"),
        ({"@a": float("inf")}, "a text, a number or a boolean"),
        ({"@a": [1]}, "parameters.@a: expected a text, a number or a boolean"),
        ({"@a": "x" * FILTER_PARAMETERS_BYTES}, "at most 8192 bytes of JSON"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused(parameters: dict[Any, Any], text: str) -> None:
    with pytest.raises(FilterError, match=text):
        sql_filter("b = 1", parameters)
    with pytest.raises(FilterError, match=text):
        sql_action("REMOVE b", parameters)


def test_constants_make_no_expression_longer_than_others() -> None:
    parameters = {"@a": "x" * 4000}
    with pytest.raises(FilterError, match="at most 8192 bytes with its constants"):
        sql_filter(" OR ".join(["b = @a"] * 3), parameters)


def test_texts_and_quoted_names_have_no_parameters() -> None:
    text = """'it''s @a' = @a AND "@b" = 1 AND [@c] = 2 AND mail = 'a@b'"""
    assert with_constants(text, {"@a": 7, "@b": 8, "@c": 9}) == text.replace("= @a", "= 7")


@pytest.mark.parametrize(
    ("parameters", "text"),
    [({}, "a constant for every parameter"), ({"@a": None}, "a text, a number or a boolean")],
)
def test_a_parameter_without_a_usable_constant_is_refused(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(FilterError, match=text):
        with_constants("b = @a", parameters)
