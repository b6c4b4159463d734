"""Descriptions of rules: what is shown reads as the same rule."""

from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from lightrail.gateway.errors import ProblemError
from lightrail.gateway.resources.atom import text_of
from lightrail.namespace.rules import Rule
from lightrail.service_bus.administration.descriptions import RULE, named_rule, rule_of, rule_properties
from lightrail.service_bus.administration.entries import INSTANCE, SCHEMA, Entry, described, description_in


def read(inner: str) -> Rule:
    """The rule in elements that have types by the prefix i, as XML."""
    found = Xml.fromstring(f'<r xmlns:i="{INSTANCE}" xmlns:s="{SCHEMA}">{inner}</r>')
    return rule_of({each.tag: each for each in found})


@pytest.mark.parametrize(
    "filter",
    [
        None,
        {"sql": "1=0"},
        {"sql": "a < 'b' AND c > 1"},
        {"sql": "a < @b AND c > @d", "parameters": {"@b": "it's", "@d": 1, "@e": 1.5, "@f": True}},
        {"subject": "a.#"},
        {"properties": {"subject": "a", "group-id": "b", "reply-to-group-id": "c", "content-type": "d"}},
        {"properties": {"application-properties.a": 1, "application-properties.b": True}},
        {"properties": {"application-properties.a": 1 << 40, "application-properties.b": 1.5}},
        {"properties": {"application-properties.a": "1", "message-id": ""}},
        {"properties": {"priority": 4}},
    ],
)
@pytest.mark.parametrize(
    "action",
    [
        None,
        {"set": {"subject": "it's", "application-properties.a b": -1}, "remove": ["reply-to"]},
        {"set": {"subject": {"parameter": "@s"}}, "remove": ["reply-to"], "parameters": {"@s": "it's"}},
    ],
)
def test_what_is_shown_reads_as_the_same(filter: Any, action: Any) -> None:
    shown = described(RULE, rule_properties("r", {"filter": filter, "action": action}, "now"))
    text = text_of(Entry("u", "r", 0, 0, shown).element())
    _, parts = description_in(text.encode(), (RULE,))
    assert rule_of(parts) == {"filter": filter, "action": action}
    assert parts["Name"].text == "r"


def test_a_default_rule_may_have_a_name() -> None:
    found = Xml.fromstring("<DefaultRuleDescription><Name>mine</Name></DefaultRuleDescription>")
    assert named_rule(found, "$Default") == ("mine", {"filter": None, "action": None})
    assert named_rule(Xml.fromstring("<DefaultRuleDescription/>"), "$Default")[0] == "$Default"


def test_properties_have_types_of_xml_schema() -> None:
    pairs = "".join(
        f'<KeyValueOfstringanyType><Key>{kind}</Key><Value i:type="s:{kind}">{text}</Value>'
        "</KeyValueOfstringanyType>"
        for kind, text in (("string", " a "), ("int", "1"), ("double", "2"), ("boolean", "false"))
    )
    found = read(f'<Filter i:type="CorrelationFilter"><Properties>{pairs}</Properties></Filter>')
    equal = {"string": " a ", "int": 1, "double": 2, "boolean": False}
    assert found["filter"] == {
        "properties": {f"application-properties.{key}": value for key, value in equal.items()}
    }


PAIR = '<KeyValueOfstringanyType><Key>k</Key><Value i:type="s:{}">{}</Value></KeyValueOfstringanyType>'


def with_pairs(*pairs: str) -> str:
    return f'<Filter i:type="CorrelationFilter"><Properties>{"".join(pairs)}</Properties></Filter>'


@pytest.mark.parametrize(
    ("kind", "expression", "expected"),
    [
        ("SqlFilter", "k = @k", {"filter": {"sql": "k = @k", "parameters": {"@k": "it's"}}}),
        (
            "SqlRuleAction",
            "SET k = @k",
            {
                "action": {
                    "set": {"application-properties.k": {"parameter": "@k"}},
                    "parameters": {"@k": "it's"},
                }
            },
        ),
    ],
)
def test_parameters_of_an_expression_are_kept_with_it(
    kind: str, expression: str, expected: dict[str, object]
) -> None:
    pair = PAIR.replace("<Key>k", "<Key>@k").format("string", "it's")
    where = "Filter" if kind == "SqlFilter" else "Action"
    found = read(
        f'<{where} i:type="{kind}"><SqlExpression>{expression}</SqlExpression>'
        f"<Parameters>{pair}</Parameters></{where}>"
    )
    assert {name: each for name, each in found.items() if each is not None} == expected


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        ("<Other/>", "no part of a rule"),
        ("<Filter/>", "expected TrueFilter"),
        ('<Filter i:type="SqlFilter"/>', "expected a SqlExpression"),
        ('<Filter i:type="SqlFilter"><SqlExpression>a =</SqlExpression></Filter>', "can't be used"),
        ('<Filter i:type="SqlFilter"><Else/></Filter>', "found 'Else'"),
        ('<Filter i:type="CorrelationFilter"/>', "at least one field"),
        ('<Filter i:type="CorrelationFilter"><Else/></Filter>', "no part of a CorrelationFilter"),
        (with_pairs("<Else/>"), "expected KeyValueOfstringanyType"),
        (with_pairs(PAIR.format("string", "a"), PAIR.format("string", "b")), "stands twice in Properties"),
        (with_pairs(PAIR.format("int", "a")), "a value of type int"),
        (with_pairs(PAIR.format("boolean", "a")), "a value of type boolean"),
        (with_pairs(PAIR.format("duration", "PT1S")), "expected string, int"),
        (with_pairs(PAIR.format("dateTime", "soon")), "expected a value of type dateTime"),
        ('<Action i:type="Else"/>', "expected SqlRuleAction"),
        ('<Action i:type="SqlRuleAction"><SqlExpression>SET</SqlExpression></Action>', "SET field"),
        (
            '<Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression><Parameters><x/></Parameters>'
            "</Filter>",
            "expected KeyValueOfstringanyType with Key and Value in Parameters",
        ),
    ],
)
def test_what_is_no_rule_is_refused(inner: str, text: str) -> None:
    with pytest.raises(ProblemError, match=text) as refused:
        read(inner)
    assert refused.value.status == 400
