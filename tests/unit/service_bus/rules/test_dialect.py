"""Rules of Azure Service Bus: expressions, correlation filters and actions, there and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.filters.action import compile_action
from lightrail.filters.errors import FilterError
from lightrail.filters.filter import compile_filter
from lightrail.filters.message import MessageView
from lightrail.filters.parameters import FILTER_PARAMETERS_BYTES
from lightrail.filters.rules.rule_filter import CORRELATED
from lightrail.service_bus.rules.dialect import (
    Correlation,
    Sql,
    correlation_filter,
    false_filter,
    shown_action,
    shown_filter,
    sql_action,
    sql_filter,
)
from tests.unit.amqp.peer import data


@pytest.mark.parametrize("text", ["1=1", " 1 = 1 ", "price > 100", "Color='red'", "user.x = 'it''s'"])
def test_an_expression_stays_as_it_was_sent(text: str) -> None:
    spec = sql_filter(Sql(text, {}))
    assert spec == {"rule": {"sql": text}}
    assert shown_filter(spec) == Sql(text, {})


def test_filters_with_a_constant_result_are_no_expressions() -> None:
    assert shown_filter(None) is True
    assert shown_filter(false_filter()) is False
    assert not compile_filter(false_filter()).matches(MessageView(data(b"")))
    assert shown_filter(sql_filter(Sql("1=0", {}))) == Sql("1=0", {})


@pytest.mark.parametrize(
    "spec", [{"subject": "a.*"}, {"any": [{"sql": "a = 1"}, {"sql": "b = 1"}]}, {"properties": {"ttl": 1}}]
)
def test_other_filters_are_shown_as_json_and_read_from_it(spec: dict[str, Any]) -> None:
    found = shown_filter(spec)
    assert isinstance(found, Sql)
    assert sql_filter(found) == spec


@pytest.mark.parametrize("text", ["", "a =", "{", '{"other": 1}', "[]"])
def test_an_expression_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(FilterError):
        sql_filter(Sql(text, {}))


def test_a_filter_as_json_has_its_own_parameters() -> None:
    spec = {"subject": "a.*", "sql": "a = @p", "parameters": {"@p": 1}}
    found = shown_filter(spec)
    assert isinstance(found, Sql)
    assert found.parameters == {}
    assert sql_filter(found) == spec
    with pytest.raises(FilterError, match="no parameters beside JSON"):
        sql_filter(Sql(found.expression, {"@p": 2}))


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"sql": "price > 100"}, Sql("price > 100", {})),
        ({"selector": "price > 100"}, Sql("price > 100", {})),
        ({"sql": "price > @p", "parameters": {"@p": 1}}, Sql("price > @p", {"@p": 1})),
        (
            {"properties": {"subject": "a", "application-properties.b": 1}},
            Correlation({"label": "a"}, {"b": 1}),
        ),
    ],
)
def test_filters_of_other_clients_are_shown_as_those_of_service_bus(spec: Any, found: Any) -> None:
    assert shown_filter(spec) == found


def test_a_correlation_filter_stays_as_it_was_sent() -> None:
    fields = {name: f"a {name}" for name in CORRELATED}
    properties = {"a.b": {"int": "1"}, "c": "d", "E": True, "f": {"double": "1.50"}}
    spec = correlation_filter(fields, properties)
    assert spec == {"rule": {"correlation": fields, "properties": properties}}
    assert shown_filter(spec) == Correlation(fields, properties)
    assert shown_filter(correlation_filter({}, {"a": "b"})) == Correlation({}, {"a": "b"})


@pytest.mark.parametrize(
    ("fields", "properties"),
    [({}, {}), ({"other": "a"}, {}), ({"label": 1}, {}), ({}, {"": 1}), ({}, {1: 1}), ({}, {"a": None})],
)
def test_a_correlation_filter_that_cannot_be_used_is_refused(fields: Any, properties: Any) -> None:
    with pytest.raises(FilterError):
        correlation_filter(fields, properties)


@pytest.mark.parametrize("text", ["", "SET a = 1", "set  b='x' ;REMOVE c", "SET [a;b] = b / 2"])
def test_statements_stay_as_they_were_sent(text: str) -> None:
    parameters = {"@p": {"long": "1"}}
    assert shown_action(sql_action(Sql(text, {}))) == Sql(text, {})
    assert shown_action(sql_action(Sql(text, parameters))) == Sql(text, parameters)


def test_no_action_is_none() -> None:
    assert shown_action(None) is None


@pytest.mark.parametrize(
    "text", ["a = 1", "SET a", "SET a = b = c", "SET sys.Nothing = 'a'", "{", '{"set": {}}']
)
def test_statements_that_cannot_be_used_are_refused(text: str) -> None:
    with pytest.raises(FilterError):
        sql_action(Sql(text, {}))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"set": {"subject": "a'b"}, "remove": ["reply-to"]}, "SET sys.Label = 'a''b'; REMOVE sys.ReplyTo"),
        (
            {"set": {"application-properties.a b": {"parameter": "@p"}}, "parameters": {"@p": 1}},
            "SET user.[a b] = @p",
        ),
    ],
)
def test_actions_of_other_clients_are_shown_as_statements(spec: dict[str, Any], text: str) -> None:
    found = shown_action(spec)
    assert found == Sql(text, spec.get("parameters", {}))
    assert found is not None
    assert shown_action(sql_action(found)) == found


def test_an_action_on_annotations_is_shown_as_json_and_read_from_it() -> None:
    spec = {"set": {"message-annotations.x-opt-a": 1}, "remove": ["subject"]}
    found = shown_action(spec)
    assert found is not None
    assert sql_action(found) == spec
    compile_action(sql_action(found))


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(1 << 62), 1 << 62),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20),
)


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=5))
def test_every_action_is_shown_as_statements_that_can_be_sent(values: dict[str, Any]) -> None:
    spec = {"set": {f"application-properties.{name}": value for name, value in values.items()}}
    found = shown_action(spec)
    assert found is not None
    assert shown_action(sql_action(found)) == found


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"": 1}, "a name"),
        ({"@a": [1]}, "parameters.@a: expected a text, a boolean"),
        ({"@a": "x" * FILTER_PARAMETERS_BYTES}, "at most 8192 bytes of JSON"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused(parameters: dict[Any, Any], text: str) -> None:
    with pytest.raises(FilterError, match=text):
        sql_filter(Sql("b = 1", parameters))
    with pytest.raises(FilterError, match=text):
        sql_action(Sql("REMOVE b", parameters))
