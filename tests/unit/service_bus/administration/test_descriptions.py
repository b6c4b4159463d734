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
        {"rule": {"sql": "1=1"}},
        {"rule": {"sql": " a <\n'b' AND C > 1 "}},
        {"rule": {"sql": "a < @b", "parameters": {"@b": "it's", "@d": {"long": "1"}, "@f": True}}},
        {"rule": {"sql": "a < @b", "parameters": {"@b": {"timestamp": "2026-01-01T00:00:00Z"}}}},
        {"rule": {"sql": "a < @b", "parameters": {"@b": {"timespan": "PT1H"}, "@c": {"double": "1"}}}},
        {"rule": {"correlation": {"label": "a", "session-id": "b"}, "properties": {"a": {"int": "1"}}}},
        {"rule": {"properties": {"a": "1", "b": {"long": "5000000000"}, "c": True}}},
        {"rule": {"correlation": {"message-id": ""}}},
        {"subject": "a.#"},
        {"properties": {"priority": 4}},
    ],
)
@pytest.mark.parametrize(
    "action",
    [
        None,
        {"rule": {"sql": "SET a = b / 2; REMOVE c"}},
        {"rule": {"sql": "SET a = @s", "parameters": {"@s": {"double": "1.50"}}}},
        {"set": {"message-annotations.x-opt-a": 1}},
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


PAIR = '<KeyValueOfstringanyType><Key>k</Key><Value i:type="s:{}">{}</Value></KeyValueOfstringanyType>'


def with_pairs(*pairs: str) -> str:
    return f'<Filter i:type="CorrelationFilter"><Properties>{"".join(pairs)}</Properties></Filter>'


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        ("<Other/>", "no part of a rule"),
        ("<Filter/>", "expected TrueFilter"),
        ('<Filter i:type="SqlFilter"/>', "expected a SqlExpression"),
        ('<Filter i:type="SqlFilter"><SqlExpression>a =</SqlExpression></Filter>', "can't be used"),
        ('<Filter i:type="SqlFilter"><Else/></Filter>', "found 'Else'"),
        ('<Filter i:type="SqlFilter"><SqlExpression><a/></SqlExpression></Filter>', "expected text"),
        ('<Filter i:type="CorrelationFilter"/>', "at least one field"),
        ('<Filter i:type="CorrelationFilter"><Else/></Filter>', "no part of a CorrelationFilter"),
        (with_pairs("<Else/>"), "expected KeyValueOfstringanyType"),
        (with_pairs(PAIR.format("string", "a"), PAIR.format("string", "b")), "stands twice in Properties"),
        (with_pairs(PAIR.format("int", "a")), "a value of type int"),
        (with_pairs(PAIR.format("boolean", "a")), "a value of type boolean"),
        (with_pairs(PAIR.format("colour", "red")), "Properties.k: expected one of the types string, boolean"),
        (with_pairs(PAIR.format("dateTime", "soon")), "Properties.k: expected a value of type timestamp"),
        ('<Action i:type="Else"/>', "expected SqlRuleAction"),
        ('<Action i:type="SqlRuleAction"><SqlExpression>SET</SqlExpression></Action>', "a property"),
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
