"""Rules: those of the configuration file as administration clients send them."""

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as Xml

from lightrail.gateway.resources.atom import element
from lightrail.service_bus.administration import entries
from lightrail.service_bus.administration.entries import SCHEMA
from lightrail.service_bus.configuration.file import CORRELATION


def rule_parts(name: str, rule: Mapping[str, Any]) -> list[Xml.Element]:
    """The elements of a rule; `rule` is its property `Properties` in the file."""
    kind = f"{rule['FilterType']}Filter"
    filter = rule.get(kind, {})
    made = element("Filter", **{f"{{{entries.INSTANCE}}}type": kind})
    if kind == "SqlFilter":
        made.append(element("SqlExpression", filter["SqlExpression"]))
    elif kind == "CorrelationFilter":
        made.extend(element(key, filter[key]) for key in CORRELATION if key in filter)
    if "Properties" in filter:
        made.append(_pairs(filter["Properties"]))
    action = element("Action", **{f"{{{entries.INSTANCE}}}type": "EmptyRuleAction"})
    if "Action" in rule:
        action = element("Action", **{f"{{{entries.INSTANCE}}}type": "SqlRuleAction"})
        action.append(element("SqlExpression", rule["Action"]["SqlExpression"]))
    return [made, action, element("Name", name)]


def _pairs(values: Mapping[str, Any]) -> Xml.Element:
    made = element("Properties")
    for key, value in values.items():
        kind = "boolean" if isinstance(value, bool) else "long" if isinstance(value, int) else "string"
        kind = "double" if isinstance(value, float) else kind
        pair = element("KeyValueOfstringanyType")
        pair.append(element("Key", key))
        text = str(value).lower() if isinstance(value, bool) else str(value)
        typed = {f"{{{entries.INSTANCE}}}type": f"d6p1:{kind}", "xmlns:d6p1": SCHEMA}
        pair.append(element("Value", text, **typed))
        made.append(pair)
    return made
