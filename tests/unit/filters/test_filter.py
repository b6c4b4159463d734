"""Filters from JSON: what matches, what is refused, and what a filter says of itself."""

from typing import Any

import pytest
from hypothesis import given

from lightrail.amqp.sections import Header, Properties
from lightrail.amqp.values import Symbol
from lightrail.filters.errors import FilterError
from lightrail.filters.filter import EVERYTHING, compile_filter
from lightrail.filters.message import MessageView
from lightrail.model import limits
from tests.unit.filters.messages import mutated, view

MESSAGE = view(
    {"colour": "red", "weight": 17, "urgent": True, "one": 1},
    header=Header(priority=7),
    properties=Properties(subject="orders.eu.created", user_id=b"anna", content_type=Symbol("text/plain")),
    annotations={Symbol("x-opt-hop"): 2},
)
RED = {"properties": {"application-properties.colour": "red"}}
BLUE = {"properties": {"application-properties.colour": "blue"}}


def matches(spec: Any) -> bool:
    return compile_filter(spec).matches(MESSAGE)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"subject": "orders.*.created"},
        {"subject": "orders/eu/created"},
        RED,
        {
            "properties": {
                "application-properties.colour": "red",
                "priority": 7,
                "subject": "orders.eu.created",
            }
        },
        {"properties": {"user-id": "anna", "content-type": "text/plain", "header.durable": False}},
        {"properties": {"application-properties.weight": 17.0}},
        {"properties": {"application-properties.urgent": True}},
        {"properties": {"application-properties.size": None, "group-id": None}},
        {"properties": {"message-annotations.x-opt-hop": 2}},
        {"sql": "colour = 'red' AND weight > 10"},
        {"selector": "JMSPriority = 7"},
        {"all": [RED, {"subject": "#"}]},
        {"any": [BLUE, RED]},
        {"not": BLUE},
        {"not": {"sql": "size = 1"}},
        {"subject": "orders.#", "properties": {"priority": 7}, "not": BLUE},
    ],
)
def test_filters_that_match(spec: Any) -> None:
    assert matches(spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"subject": "orders.*"},
        BLUE,
        {"properties": {"application-properties.colour": "red", "priority": 4}},
        {"properties": {"application-properties.urgent": 1}},
        {"properties": {"application-properties.one": True}},
        {"properties": {"application-properties.weight": "17"}},
        {"properties": {"application-properties.colour": None}},
        {"sql": "size = 1"},
        {"sql": "NOT size = 1"},
        {"all": [RED, BLUE]},
        {"any": [BLUE, {"sql": "size = 1"}]},
        {"not": RED},
        {"subject": "orders.#", "not": RED},
    ],
)
def test_filters_that_do_not_match(spec: Any) -> None:
    assert not matches(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "x",
            "expected an object with subject, properties, sql, parameters, selector, rule, all, any or not",
        ),
        ({"parameters": {"@a": 1}}, "expected sql beside parameters, found no sql"),
        ({"selector": "a = @a", "parameters": {"@a": 1}}, "expected sql beside parameters, found no sql"),
        ({"sql": "a = 1", "parameters": {}}, "parameters: expected an object of one or more names"),
        ({"sql": "a = 1", "parameters": {"@a": None}}, "parameters.@a: expected a text, a number or"),
        ({"sql": "b = @a", "parameters": {"@b": 1}}, "sql: expected a constant for every parameter"),
        ({}, "expected an object with at least one of subject"),
        (
            {"colour": 1},
            "expected no other keys than subject, properties, sql, parameters, selector, rule, all, any or "
            "not, found 'colour'",
        ),
        ({"subject": 1}, "subject: expected a string, found 1"),
        ({"subject": "a*"}, "subject: expected '*' and '#' as whole words"),
        ({"properties": []}, "properties: expected an object of one or more paths and values, found []"),
        ({"properties": {}}, "properties: expected an object of one or more paths and values, found {}"),
        ({"properties": {"colour": 1}}, "properties: expected one of durable"),
        (
            {"properties": {"subject": [1]}},
            "properties.subject: expected a string, a number, a boolean or null",
        ),
        ({"properties": {5: 1}}, "properties: expected the path of a field, found 5"),
        (
            {"sql": "a ="},
            "sql: expected a literal, a name or (, found the end of the expression, at character 4",
        ),
        ({"all": []}, "all: expected a list of one or more filters, found []"),
        ({"any": "ab"}, "any: expected a list of one or more filters, found 'ab'"),
        ({"any": [RED, {"sql": ""}]}, "any.1.sql: expected an expression, found nothing, at character 1"),
        ({"not": None}, "not: expected an object with"),
    ],
)
def test_errors_name_the_part_and_what_is_allowed(spec: Any, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter(spec)
    assert message in str(caught.value)


def test_nesting_and_number_are_bounded() -> None:
    deep: Any = RED
    for _ in range(limits.FILTER_DEPTH_MAX):
        deep = {"not": deep}
    with pytest.raises(FilterError, match="at most 32 filters inside one another"):
        compile_filter(deep)
    assert compile_filter(deep["not"]).matches(MESSAGE) is False
    with pytest.raises(FilterError, match="at most 1000"):
        compile_filter({"any": [RED] * 600})
    with pytest.raises(FilterError, match="at most 1000"):
        compile_filter({"properties": {f"application-properties.{n}": 1 for n in range(1_001)}})


def test_the_weight_of_all_expressions_of_a_filter_is_bounded() -> None:
    # Each comparison has an operator, a field and a literal.
    heavy = " OR ".join(["a = 1"] * 250)
    weight = compile_filter({"sql": heavy}).weight
    fit = limits.FILTER_WEIGHT_MAX // weight
    assert compile_filter({"any": [{"sql": heavy}] * fit}).matches(MESSAGE) is False
    with pytest.raises(FilterError, match=f"at most {limits.FILTER_WEIGHT_MAX} operators"):
        compile_filter({"any": [{"sql": heavy}] * (fit + 1)})


@pytest.mark.parametrize(
    "spec",
    [
        {"subject": "a.#", "not": {"sql": "b = 1"}},
        {"any": [{"selector": "a = 1"}, {"all": [RED, BLUE]}]},
        {"properties": {"header.priority": 7, "subject": None}},
    ],
)
def test_the_spec_is_the_json_it_was_made_from(spec: Any) -> None:
    assert compile_filter(spec).spec == spec
    assert compile_filter(compile_filter(spec).spec).paths == compile_filter(spec).paths


def test_the_paths_are_all_fields_that_are_looked_at() -> None:
    made = compile_filter(
        {"any": [RED, {"subject": "a"}, {"not": {"sql": "JMSPriority > 3 OR colour = 'x'"}}]}
    )
    assert [path.text for path in made.paths] == ["application-properties.colour", "subject", "priority"]
    assert compile_filter(None) is EVERYTHING
    assert EVERYTHING.paths == ()


@pytest.mark.parametrize(
    ("spec", "equality"),
    [
        (RED, ("application-properties.colour", "red")),
        ({"properties": {"group-id": None}}, ("group-id", None)),
        ({"sql": "colour = 'red'"}, ("application-properties.colour", "red")),
        ({"subject": "orders"}, ("subject", "orders")),
        ({"all": [RED]}, ("application-properties.colour", "red")),
        ({"any": [RED]}, ("application-properties.colour", "red")),
        ({"subject": "orders.eu"}, None),
        ({"subject": "*"}, None),
        ({"not": RED}, None),
        ({"all": [RED, RED]}, None),
        ({"subject": "orders", "properties": {"priority": 4}}, None),
        (None, None),
    ],
)
def test_a_filter_that_is_one_equality_says_so(spec: Any, equality: Any) -> None:
    found = compile_filter(spec).equality
    assert (found and (found[0].text, found[1])) == equality


@pytest.mark.parametrize(
    ("spec", "guard"),
    [
        ({"sql": "weight > 5 AND colour = 'red' AND a = 1"}, ("application-properties.colour", "red")),
        ({"sql": "colour = 'red' OR a = 1"}, None),
        ({"sql": "NOT (colour = 'red' AND a = 1)"}, None),
        ({"properties": {"subject": None, "priority": 4}}, ("priority", 4)),
        ({"subject": "a.#", "sql": "colour = 'red'"}, ("application-properties.colour", "red")),
        ({"any": [{"subject": "*", "not": BLUE, "all": [RED]}]}, ("application-properties.colour", "red")),
        ({"any": [RED, BLUE]}, None),
        ({"not": RED}, None),
        (RED, ("application-properties.colour", "red")),
    ],
)
def test_a_guard_is_an_equality_that_every_match_fulfils(spec: Any, guard: Any) -> None:
    found = compile_filter(spec).guard
    assert (found and (found[0].text, found[1])) == guard


def test_filters_are_shown_by_their_json() -> None:
    assert repr(compile_filter({"subject": "a"})) == "Filter({'subject': 'a'})"


@given(mutated())
def test_no_message_makes_a_filter_raise(data: bytes) -> None:
    spec = {"any": [RED, {"subject": "a.#"}, {"not": {"properties": {"priority": 4, "user-id": "x"}}}]}
    assert compile_filter(spec).matches(MessageView(data)) in (True, False)
