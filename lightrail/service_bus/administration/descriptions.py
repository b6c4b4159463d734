"""Descriptions of rules in XML: filters and actions in the form of the administration clients."""

from collections.abc import Mapping
from typing import Any, Final
from xml.etree import ElementTree as Xml

from lightrail.filters.errors import FilterError
from lightrail.gateway.bodies import milliseconds
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.resources.atom import element
from lightrail.namespace.rules import Rule
from lightrail.service_bus.administration.entries import SCHEMA, children, local, plain_text, type_of
from lightrail.service_bus.rules import dialect
from lightrail.service_bus.rules.dialect import CORRELATED, Correlation

RULE: Final = "RuleDescription"
_PAIR: Final = "KeyValueOfstringanyType"
_ELEMENTS: Final[Mapping[str, str]] = {
    name: "".join(word.capitalize() for word in name.split("-")) for name in CORRELATED
}
"""Elements of a CorrelationFilter, by names of fields."""
_FIELDS: Final = {found: name for name, found in _ELEMENTS.items()}
_EXACT_BELOW: Final = 1 << 53
"""Below this every whole number is a double."""
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
            return dialect.sql_filter(dialect.FALSE)
        case "SqlFilter":
            return dialect.sql_filter(*_expression(found))
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
    return dialect.sql_action(*_expression(found))


def _expression(found: Xml.Element) -> tuple[str, dict[str, Any]]:
    """An expression with its parameters. Raises ProblemError."""
    parts = children(found)
    unknown = next((name for name in parts if name not in _SQL_PARTS), None)
    if unknown is not None or "SqlExpression" not in parts:
        shown = "none" if unknown is None else f"{unknown[:80]!a}"
        raise ProblemError(400, f"expected a SqlExpression in {local(found)}, found {shown}")
    expression = plain_text(parts["SqlExpression"])
    return expression, _pairs(parts["Parameters"], "Parameters") if "Parameters" in parts else {}


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
    """The values of an element by their keys. Raises ProblemError."""
    pairs: dict[str, Any] = {}
    for pair in found:
        parts = children(pair)
        if local(pair) != _PAIR or parts.keys() != {"Key", "Value"}:
            raise ProblemError(400, f"expected {_PAIR} with Key and Value in {where}")
        key = plain_text(parts["Key"])
        if key in pairs:
            raise ProblemError(400, f"the key {key[:80]!a} stands twice in {where}")
        pairs[key] = _value(parts["Value"], key)
    return pairs


def _value(found: Xml.Element, key: str) -> Any:
    """A value by its type of XML Schema. Raises ProblemError."""
    kind, text = type_of(found), found.text or ""
    try:
        match kind:
            case "string" | "":
                return text
            case "int" | "long" | "short" | "byte":
                return int(text)
            case "double" | "float" | "decimal":
                number = float(text)
                return int(number) if number.is_integer() and abs(number) < _EXACT_BELOW else number
            case "boolean":
                return {"true": True, "false": False, "1": True, "0": False}[text.strip().lower()]
            case "dateTime":
                # As filters read the timestamps of messages.
                return milliseconds(text.strip())
    except (ValueError, KeyError):
        raise ProblemError(
            400, f"the property {key[:80]!a} is {text[:80]!a}; expected a value of type {kind}"
        ) from None
    raise ProblemError(
        400,
        f"the property {key[:80]!a} has the type {kind[:80]!a}; expected string, int, long, double, "
        "boolean or dateTime",
    )


# --- showing ----------------------------------------------------------------------------------------------


def _filter_element(spec: Mapping[str, Any] | None) -> Xml.Element:
    found = dialect.expression_of(spec)
    if isinstance(found, Correlation):
        made = element("Filter", **{"i:type": "CorrelationFilter"})
        made.extend(
            element(tag, found.fields[name]) for name, tag in _ELEMENTS.items() if name in found.fields
        )
        if found.properties:
            made.append(_pairs_element("Properties", found.properties))
        return made
    kinds = {dialect.TRUE: "TrueFilter", dialect.FALSE: "FalseFilter"}
    return _sql("Filter", kinds.get(found, "SqlFilter"), found, dialect.parameters_of(spec))


def _action_element(spec: Mapping[str, Any] | None) -> Xml.Element:
    if spec is None:
        return element("Action", **{"i:type": "EmptyRuleAction"})
    return _sql("Action", "SqlRuleAction", dialect.statements_of(spec), dialect.parameters_of(spec))


def _sql(tag: str, kind: str, expression: str, parameters: Mapping[str, Any]) -> Xml.Element:
    made = element(tag, **{"i:type": kind})
    made.append(element("SqlExpression", expression))
    made.append(element("CompatibilityLevel", _LEVEL))
    if parameters:
        made.append(_pairs_element("Parameters", parameters))
    return made


def _pairs_element(tag: str, values: Mapping[str, Any]) -> Xml.Element:
    made = element(tag)
    made.extend(_pair(key, value) for key, value in values.items())
    return made


def _pair(key: str, value: Any) -> Xml.Element:
    kind, text = "string", str(value)
    if isinstance(value, bool):
        kind, text = "boolean", text.lower()
    elif isinstance(value, int):
        # The client for JavaScript can't read the type long.
        kind = "int" if abs(value) < 1 << 31 else "double" if abs(value) < _EXACT_BELOW else "long"
    elif isinstance(value, float):
        kind = "double"
    made = element(_PAIR)
    made.append(element("Key", key))
    made.append(element("Value", text, **{"i:type": f"d6p1:{kind}", "xmlns:d6p1": SCHEMA}))
    return made
