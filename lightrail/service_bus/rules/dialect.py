"""Rules as Azure Service Bus writes them, and the filters and actions that are their counterparts here.

    SqlFilter           Price > @p, @p: 100L          {"rule": {"sql": "Price > @p",
                                                                "parameters": {"@p": {"long": "100"}}}}
    CorrelationFilter   Label a, Colour red           {"rule": {"correlation": {"label": "a"},
                                                                "properties": {"Colour": "red"}}}
    TrueFilter                                        no filter
    FalseFilter                                       {"sql": "1=0"}
    SqlRuleAction       SET a = b / 2; REMOVE c       {"rule": {"sql": "SET a = b / 2; REMOVE c"}}

They are kept as they were sent, and are shown so (filters/rules/). A filter without a counterpart in Service
Bus, such as a subject pattern, is shown as a SqlFilter whose expression is its JSON, and is read from that
JSON again; so is an action that changes annotations. Filters and actions of other clients, and those that
former versions stored, are shown as expressions and statements that mean the same.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lightrail.filters.action import compile_action
from lightrail.filters.errors import FilterError, shown
from lightrail.filters.filter import compile_filter
from lightrail.filters.parameters import literal
from lightrail.filters.path import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, parse_path
from lightrail.filters.rules.rule_action import compile_rule_action
from lightrail.filters.rules.rule_filter import CORRELATED
from lightrail.filters.rules.values import NO_ID

FALSE: Final = "1=0"
"""The expression of a FalseFilter."""
_FIELDS: Final[Mapping[str, str]] = {
    "correlation-id": "correlation-id",
    "message-id": "message-id",
    "to": "to",
    "reply-to": "reply-to",
    "label": "subject",
    "session-id": "group-id",
    "reply-to-session-id": "reply-to-group-id",
    "content-type": "content-type",
}
"""Fields of correlation filters as paths."""
_SYSTEM_NAMES: Final[Mapping[str, str]] = {
    "subject": "sys.Label",
    "reply-to": "sys.ReplyTo",
    "to": "sys.To",
    "content-type": "sys.ContentType",
    "correlation-id": "sys.CorrelationId",
    "group-id": "sys.SessionId",
}
"""Fields that an action of another client may change, as a statement writes them."""
_BY_PATH: Final = {path: name for name, path in _FIELDS.items()}
_WORD: Final = re.compile(r"[^\W\d]\w*\Z")
assert _FIELDS.keys() == CORRELATED.keys()

Spec = dict[str, Any]


class Sql(NamedTuple):
    """An expression or statements, with parameters: constants by name (filters/rules/constants.py)."""

    expression: str
    parameters: Mapping[str, Any]


class Correlation(NamedTuple):
    """A correlation filter: fields by their names in CORRELATED, and constants of application properties."""

    fields: dict[str, str]
    properties: dict[str, Any]


def sql_filter(sql: Sql) -> Spec:
    """The filter of an expression. Raises FilterError with the place in the expression."""
    spec = {"rule": _rule(sql)} if (found := _json(sql)) is None else found
    compile_filter(spec)
    return dict(spec)


def false_filter() -> Spec:
    """The filter that no message matches."""
    return {"sql": FALSE}


def correlation_filter(fields: Mapping[str, Any], properties: Mapping[Any, Any]) -> Spec:
    """The filter of a correlation filter. Raises FilterError, also if no field is compared."""
    found: Spec = {"correlation": dict(fields)} if fields or not properties else {}
    if properties:
        found["properties"] = dict(properties)
    compile_filter({"rule": found})
    return {"rule": found}


def shown_filter(spec: Mapping[str, Any] | None) -> Sql | Correlation | bool:
    """A filter as Service Bus writes it; True and False for a TrueFilter and a FalseFilter."""
    if spec is None:
        return True
    if spec == {"sql": FALSE}:
        return False
    if spec.keys() == {"rule"}:
        rule = spec["rule"]
        if "sql" in rule:
            return Sql(rule["sql"], rule.get("parameters", {}))
        return Correlation(dict(rule.get("correlation", {})), dict(rule.get("properties", {})))
    if spec.keys() <= {"sql", "selector"} and len(spec) == 1:
        return Sql(str(next(iter(spec.values()))), {})
    if spec.keys() == {"sql", "parameters"}:
        return Sql(str(spec["sql"]), spec["parameters"])
    if spec.keys() == {"properties"}:
        found = _correlation(spec["properties"])
        if found is not None:
            return found
    return Sql(json.dumps(spec), {})


def sql_action(sql: Sql) -> Spec:
    """The action of statements. Raises FilterError with the place in them."""
    found = _json(sql)
    if found is not None:
        compile_action(found)
        return dict(found)
    spec = _rule(sql)
    compile_rule_action(spec, lambda: NO_ID)
    return {"rule": spec}


def shown_action(spec: Mapping[str, Any] | None) -> Sql | None:
    """An action as Service Bus writes it; None for none."""
    if spec is None:
        return None
    if "rule" in spec:
        return Sql(spec["rule"]["sql"], spec["rule"].get("parameters", {}))
    if any(
        parse_path(path).section == MESSAGE_ANNOTATIONS
        for path in (*spec.get("set", ()), *spec.get("remove", ()))
    ):
        return Sql(json.dumps(spec), {})
    sets = [f"SET {_written(path)} = {_shown(value)}" for path, value in spec.get("set", {}).items()]
    removes = [f"REMOVE {_written(path)}" for path in spec.get("remove", ())]
    return Sql("; ".join([*sets, *removes]), spec.get("parameters", {}))


def _json(sql: Sql) -> Any:
    """The JSON that stands in the place of an expression; None if there is none. Raises FilterError."""
    text = sql.expression.strip()
    if not text.startswith("{"):
        return None
    if sql.parameters:
        raise FilterError("no parameters beside JSON, which has its own", shown(text))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FilterError(f"an expression, or a filter or an action as JSON ({error})", shown(text)) from None


def _rule(sql: Sql) -> Spec:
    kept = {"parameters": dict(sql.parameters)} if sql.parameters else {}
    return {"sql": sql.expression, **kept}


def _correlation(equal: Mapping[str, Any]) -> Correlation | None:
    """A correlation filter for these fields; None if it can't express one of them."""
    made = Correlation({}, {})
    for text, value in equal.items():
        path = parse_path(text)
        if path.section == APPLICATION_PROPERTIES and value is not None:
            made.properties[path.name] = value
        elif path.text in _BY_PATH and isinstance(value, str):
            made.fields[_BY_PATH[path.text]] = value
        else:
            return None
    return made


def _written(text: str) -> str:
    """A path as a statement writes it."""
    path = parse_path(text)
    if path.section != APPLICATION_PROPERTIES:
        return _SYSTEM_NAMES[path.text]
    if _WORD.match(path.name):
        return f"user.{path.name}"
    quoted = path.name.replace("]", "]]")
    return f"user.[{quoted}]"


def _shown(value: Any) -> str:
    """A value of an action: a parameter or a literal."""
    return str(value["parameter"]) if isinstance(value, Mapping) else literal(value)
