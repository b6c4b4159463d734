"""Descriptions of rules in XML: filters and actions in the form of the administration clients."""

from collections.abc import Mapping
from typing import Any, Final
from xml.etree import ElementTree as Xml

from lightrail.filters.errors import FilterError
from lightrail.filters.rules.rule_filter import CORRELATED
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.resources.atom import element
from lightrail.namespace.rules import Rule
from lightrail.service_bus.administration.entries import (
    INSTANCE,
    SCHEMA,
    children,
    local,
    plain_text,
    type_of,
)
from lightrail.service_bus.rules import dialect
from lightrail.service_bus.rules.constants import Typed, from_xml, to_xml
from lightrail.service_bus.rules.dialect import Correlation, Sql

RULE: Final = "RuleDescription"
_PAIR: Final = "KeyValueOfstringanyType"
_ELEMENTS: Final[Mapping[str, str]] = {
    name: "".join(word.capitalize() for word in name.split("-")) for name in CORRELATED
}
"""Elements of a CorrelationFilter, by names of fields."""
_FIELDS: Final = {found: name for name, found in _ELEMENTS.items()}
CORRELATION: Final = tuple(_FIELDS)
_EXPRESSIONS: Final[Mapping[bool, str]] = {True: "1=1", False: dialect.FALSE}
"""What clients expect in a TrueFilter and a FalseFilter."""
_LEVEL: Final = "20"
"""CompatibilityLevel of expressions, which clients send and expect."""
_SQL_PARTS: Final = frozenset(("SqlExpression", "CompatibilityLevel", "Parameters", "RequiresPreprocessing"))


def rule_of(parts: Mapping[str, Xml.Element]) -> Rule:
    """The rule of a description's properties. Raises ProblemError."""
    unknown = next((name for name in parts if name not in ("Filter", "Action", "Name", "CreatedAt")), None)
    if unknown is not None:
        raise ProblemError(400, f"{unknown[:80]!a} is no part of a rule; expected Filter, Action and Name")
    try:
        return {
            "filter": _filter(parts["Filter"]) if "Filter" in parts else None,
            "action": _action(parts["Action"]) if "Action" in parts else None,
        }
    except FilterError as error:
        raise ProblemError(400, f"the rule can't be used: {error}") from None


def named_rule(found: Xml.Element, name: str) -> tuple[str, Rule]:
    """The name of a rule in a description, or `name` if it has none, and the rule. Raises ProblemError."""
    parts = children(found)
    return (plain_text(parts["Name"]) if "Name" in parts else "") or name, rule_of(parts)


def rule_properties(name: str, rule: Rule, created_at: str) -> dict[str, str | Xml.Element]:
    """The properties of a rule's description."""
    return {
        "Filter": _filter_element(rule.get("filter")),
        "Action": _action_element(rule.get("action")),
        "CreatedAt": created_at,
        "Name": name,
    }


# --- reading ----------------------------------------------------------------------------------------------


def _filter(found: Xml.Element) -> dict[str, Any] | None:
    kind = type_of(found)
    match kind:
        case "TrueFilter":
            return None
        case "FalseFilter":
            return dialect.false_filter()
        case "SqlFilter":
            return dialect.sql_filter(_expression(found))
        case "CorrelationFilter":
            return _correlation(found)
    raise ProblemError(
        400,
        f"the filter has the type {kind[:80]!a}; expected TrueFilter, FalseFilter, SqlFilter or "
        "CorrelationFilter",
    )


def _action(found: Xml.Element) -> dict[str, Any] | None:
    kind = type_of(found)
    if kind == "EmptyRuleAction":
        return None
    if kind != "SqlRuleAction":
        raise ProblemError(
            400, f"the action has the type {kind[:80]!a}; expected SqlRuleAction or EmptyRuleAction"
        )
    return dialect.sql_action(_expression(found))


def _expression(found: Xml.Element) -> Sql:
    """An expression or statements with parameters. Raises ProblemError, FilterError."""
    parts = children(found)
    unknown = next((name for name in parts if name not in _SQL_PARTS), None)
    if unknown is not None or "SqlExpression" not in parts:
        shown = "none" if unknown is None else f"{unknown[:80]!a}"
        raise ProblemError(400, f"expected a SqlExpression in {local(found)}, found {shown}")
    if len(parts["SqlExpression"]):
        raise ProblemError(400, "SqlExpression contains elements; expected text")
    # With its blanks: clients compare what they have sent with what is shown.
    expression = parts["SqlExpression"].text or ""
    return Sql(expression, _pairs(parts["Parameters"], "Parameters") if "Parameters" in parts else {})


def _correlation(found: Xml.Element) -> dict[str, Any]:
    fields: dict[str, str] = {}
    properties: dict[str, Any] = {}
    for name, part in children(found).items():
        if name == "Properties":
            properties = _pairs(part, name)
        elif name in _FIELDS:
            fields[_FIELDS[name]] = part.text or ""
        else:
            raise ProblemError(400, f"{name[:80]!a} is no part of a CorrelationFilter")
    return dialect.correlation_filter(fields, properties)


def _pairs(found: Xml.Element, where: str) -> dict[str, Any]:
    """The constants of an element by their keys. Raises ProblemError, FilterError."""
    pairs: dict[str, Any] = {}
    for pair in found:
        parts = children(pair)
        if local(pair) != _PAIR or parts.keys() != {"Key", "Value"}:
            raise ProblemError(400, f"expected {_PAIR} with Key and Value in {where}")
        key = plain_text(parts["Key"])
        if key in pairs:
            raise ProblemError(400, f"the key {key[:80]!a} stands twice in {where}")
        value = parts["Value"]
        try:
            pairs[key] = from_xml(Typed(type_of(value), value.text or ""))
        except FilterError as error:
            raise error.within(f"{where}.{key[:80]}") from None
    return pairs


# --- showing ----------------------------------------------------------------------------------------------


def _filter_element(spec: Mapping[str, Any] | None) -> Xml.Element:
    found = dialect.shown_filter(spec)
    if isinstance(found, Correlation):
        made = element("Filter", **{"i:type": "CorrelationFilter"})
        made.extend(
            element(tag, found.fields[name]) for name, tag in _ELEMENTS.items() if name in found.fields
        )
        if found.properties:
            made.append(_pairs_element("Properties", found.properties))
        return made
    if isinstance(found, bool):
        return _sql("Filter", "TrueFilter" if found else "FalseFilter", Sql(_EXPRESSIONS[found], {}))
    return _sql("Filter", "SqlFilter", found)


def _action_element(spec: Mapping[str, Any] | None) -> Xml.Element:
    found = dialect.shown_action(spec)
    if found is None:
        return element("Action", **{"i:type": "EmptyRuleAction"})
    return _sql("Action", "SqlRuleAction", found)


def _sql(tag: str, kind: str, found: Sql) -> Xml.Element:
    made = element(tag, **{"i:type": kind})
    made.append(element("SqlExpression", found.expression))
    made.append(element("CompatibilityLevel", _LEVEL))
    if found.parameters:
        made.append(_pairs_element("Parameters", found.parameters))
    return made


def _pairs_element(tag: str, values: Mapping[str, Any]) -> Xml.Element:
    made = element(tag)
    made.extend(_pair(key, value) for key, value in values.items())
    return made


def _pair(key: str, value: Any) -> Xml.Element:
    kind, text = to_xml(value)
    made = element(_PAIR)
    made.append(element("Key", key))
    made.append(element("Value", text, **{"i:type": f"d6p1:{kind}", "xmlns:d6p1": SCHEMA}))
    return made


# --- of the configuration file ------------------------------------------------------------------------------


def rule_parts(name: str, rule: Mapping[str, Any]) -> list[Xml.Element]:
    """The elements of a rule; `rule` is its property `Properties` in the file."""
    kind = f"{rule['FilterType']}Filter"
    filter = rule.get(kind, {})
    made = element("Filter", **{f"{{{INSTANCE}}}type": kind})
    if kind == "SqlFilter":
        made.append(element("SqlExpression", filter["SqlExpression"]))
    elif kind == "CorrelationFilter":
        made.extend(element(key, filter[key]) for key in CORRELATION if key in filter)
    if "Properties" in filter:
        made.append(_configured_pairs(filter["Properties"]))
    action = element("Action", **{f"{{{INSTANCE}}}type": "EmptyRuleAction"})
    if "Action" in rule:
        action = element("Action", **{f"{{{INSTANCE}}}type": "SqlRuleAction"})
        action.append(element("SqlExpression", rule["Action"]["SqlExpression"]))
    return [made, action, element("Name", name)]


def _configured_pairs(values: Mapping[str, Any]) -> Xml.Element:
    made = element("Properties")
    for key, value in values.items():
        kind = "boolean" if isinstance(value, bool) else "long" if isinstance(value, int) else "string"
        kind = "double" if isinstance(value, float) else kind
        pair = element(_PAIR)
        pair.append(element("Key", key))
        text = str(value).lower() if isinstance(value, bool) else str(value)
        typed = {f"{{{INSTANCE}}}type": f"d6p1:{kind}", "xmlns:d6p1": SCHEMA}
        pair.append(element("Value", text, **typed))
        made.append(pair)
    return made
