"""Rules as Azure Service Bus writes them, and the filters and actions that are their counterparts here.

    SqlFilter           price > 100                 {"sql": "price > 100"}
      with parameters   price > @p, @p: 100         {"sql": "price > @p", "parameters": {"@p": 100}}
    CorrelationFilter   Label a, colour red         {"properties": {"subject": "a",
                                                                    "application-properties.colour": "red"}}
    TrueFilter                                      no filter
    FalseFilter                                     {"sql": "1=0"}
    SqlRuleAction       SET sys.Label='x'; REMOVE y  {"set": {"subject": "x"},
                                                      "remove": ["application-properties.y"]}
      with parameters   SET sys.Label=@p, @p: 'x'   {"set": {"subject": {"parameter": "@p"}},
                                                     "parameters": {"@p": "x"}}

A filter without a counterpart in Service Bus, such as a subject pattern, is shown as a SqlFilter whose
expression is its JSON, and is read from that JSON again. Actions set constants.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lightrail.filters.action import compile_action
from lightrail.filters.errors import FilterError, shown
from lightrail.filters.filter import compile_filter
from lightrail.filters.lexer import Token, resolve, tokens_of
from lightrail.filters.parameters import check_parameters, literal, with_constants
from lightrail.filters.path import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, entry, parse_path

TRUE: Final = "1=1"
FALSE: Final = "1=0"
"""Expressions of TrueFilter and FalseFilter."""
CORRELATED: Final[Mapping[str, str]] = {
    "correlation-id": "correlation-id",
    "message-id": "message-id",
    "to": "to",
    "reply-to": "reply-to",
    "label": "subject",
    "session-id": "group-id",
    "reply-to-session-id": "reply-to-group-id",
    "content-type": "content-type",
}
"""Fields of a correlation filter, in the order of their list in AMQP, and the fields of a message."""
_SYSTEM_NAMES: Final[Mapping[str, str]] = {
    "subject": "sys.Label",
    "reply-to": "sys.ReplyTo",
    "to": "sys.To",
    "content-type": "sys.ContentType",
    "correlation-id": "sys.CorrelationId",
    "group-id": "sys.SessionId",
}
"""Fields that an action may change, as an expression writes them."""
_BY_PATH: Final = {path: name for name, path in CORRELATED.items()}
_WORD: Final = re.compile(r"[^\W\d]\w*\Z")
_PARAMETER: Final = re.compile(r"=\s*(@[^\W\d]\w*)\s*\Z")
"""The end of a statement that sets a field to a parameter."""
_STATEMENT: Final = re.compile(r"""(?:'(?:[^']|'')*'|"(?:[^"]|"")*"|\[[^\]]*\]|[^;'"\[])+""")


class Correlation(NamedTuple):
    """A correlation filter: fields by their names in CORRELATED, and application properties."""

    fields: dict[str, str]
    properties: dict[str, Any]


def sql_filter(expression: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """The filter of an expression; None for one that matches every message. Raises FilterError.

    Args:
        parameters: texts, numbers and booleans by name, with the @.
    """
    text = expression.strip()
    if "".join(text.split()) == TRUE:
        return None
    spec: Any = {"sql": expression} | _kept(parameters)
    if text.startswith("{"):
        if parameters:
            raise FilterError("no parameters beside a filter as JSON, which has its own", shown(text))
        try:
            spec = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FilterError(f"an expression, or a filter as JSON ({error})", shown(text)) from None
    compile_filter(spec)
    return dict(spec)


def correlation_filter(fields: Mapping[str, Any], properties: Mapping[Any, Any]) -> dict[str, Any]:
    """The filter of a correlation filter. Raises FilterError, also if no field is compared."""
    equal: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in CORRELATED:
            raise FilterError(f"one of {', '.join(CORRELATED)} and properties", shown(name))
        if not isinstance(value, str):
            raise FilterError("a text", shown(value), part=name)
        equal[CORRELATED[name]] = str(value)
    for name, value in properties.items():
        if not isinstance(name, str) or not name:
            raise FilterError("the name of a property", shown(name), part="properties")
        if not isinstance(value, str | bool | int | float):
            raise FilterError("a text, a number or a boolean", shown(value), part=f"properties.{name}")
        equal[entry(APPLICATION_PROPERTIES, name).text] = _plain(value)
    if not equal:
        raise FilterError("at least one field to compare", "a correlation filter without any")
    spec = {"properties": equal}
    compile_filter(spec)
    return spec


def expression_of(spec: Mapping[str, Any] | None) -> str | Correlation:
    """A filter as Service Bus writes it: an expression, or a correlation filter."""
    if spec is None:
        return TRUE
    if spec.keys() <= {"sql", "selector"} and len(spec) == 1:
        return str(next(iter(spec.values())))
    if spec.keys() == {"sql", "parameters"}:
        return str(spec["sql"])
    if spec.keys() == {"properties"}:
        found = _correlation(spec["properties"])
        if found is not None:
            return found
    return json.dumps(spec)


def parameters_of(spec: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The parameters of an expression or action that is shown as Service Bus writes it; empty for none."""
    if spec is None or ("sql" in spec and spec.keys() != {"sql", "parameters"}):
        # The parameters of a filter that is shown as JSON are in this JSON.
        return {}
    found: Mapping[str, Any] = spec.get("parameters", {})
    return found


def sql_action(expression: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """The action of statements SET field = constant and REMOVE field; None for none. Raises FilterError.

    Args:
        parameters: see `sql_filter`; a constant may be a parameter.
    """
    values: dict[str, Any] = {}
    removed: list[str] = []
    for statement in _statements(expression):
        tokens = tokens_of(with_constants(statement, parameters) if parameters else statement)
        word = tokens[0].value[1].upper() if tokens[0].kind == "identifier" else ""
        if word == "SET" and len(tokens) > 4:
            path = _field(tokens[1])
            if tokens[2].kind != "=":
                raise FilterError("= behind the field", shown(tokens[2].text), tokens[2].position)
            named = _PARAMETER.search(statement) if parameters else None
            constant = _constant(tokens[3:-1])
            values[path] = {"parameter": named.group(1)} if named else constant
        elif word == "REMOVE" and len(tokens) == 3:
            removed.append(_field(tokens[1]))
        else:
            raise FilterError("SET field = constant, or REMOVE field", shown(statement.strip()))
    if not values and not removed:
        return None
    spec = ({"set": values} if values else {}) | ({"remove": removed} if removed else {}) | _kept(parameters)
    compile_action(spec)
    return spec


def statements_of(spec: Mapping[str, Any] | None) -> str:
    """An action as Service Bus writes it; empty for none."""
    if spec is None:
        return ""
    sets = [f"SET {_written(path)} = {_shown(value)}" for path, value in spec.get("set", {}).items()]
    return "; ".join([*sets, *(f"REMOVE {_written(path)}" for path in spec.get("remove", ()))])


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


def _statements(expression: str) -> list[str]:
    """The parts between semicolons that are not in quotes. Raises FilterError."""
    at = 0
    found: list[str] = []
    while at < len(expression):
        if expression[at] == ";":
            at += 1
            continue
        match = _STATEMENT.match(expression, at)
        if match is None:
            raise FilterError("a closing quote", shown(expression[at : at + 20]), at + 1)
        if match.group().strip():
            found.append(match.group())
        at = match.end()
    return found


def _field(token: Token) -> str:
    if token.kind != "identifier":
        raise FilterError("a field", shown(token.text), token.position)
    scope, name, is_quoted = token.value
    return resolve(scope, name, is_quoted, token.position).path.text


def _constant(tokens: list[Token]) -> Any:
    """The value of a literal with an optional minus sign. Raises FilterError."""
    first = tokens[0]
    if len(tokens) == 1 and first.kind in ("string", "number"):
        return first.value
    if len(tokens) == 1 and first.kind in ("TRUE", "FALSE"):
        return first.kind == "TRUE"
    if len(tokens) == 2 and first.kind == "-" and tokens[1].kind == "number":
        return -tokens[1].value
    text = " ".join(token.text for token in tokens)
    raise FilterError("a constant: text, a number, TRUE or FALSE", shown(text), first.position)


def _written(text: str) -> str:
    """A path as an expression writes it."""
    path = parse_path(text)
    if path.section not in (APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS):
        return _SYSTEM_NAMES[path.text]
    scope = "user" if path.section == APPLICATION_PROPERTIES else "m"
    if _WORD.match(path.name):
        return f"{scope}.{path.name}"
    quoted = path.name.replace('"', '""')
    return f"{scope}.[{path.name}]" if "]" not in path.name else f'{scope}."{quoted}"'


def _kept(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """The entry of a filter or action with these parameters, whose values are those of JSON."""
    if not parameters:
        return {}
    checked = check_parameters(parameters)
    return {"parameters": {str(name): _plain(value) for name, value in checked.items()}}


def _shown(value: Any) -> str:
    """A value of an action: a parameter or a literal."""
    return str(value["parameter"]) if isinstance(value, Mapping) else literal(value)


def _plain(value: Any) -> Any:
    """A value of AMQP as one of JSON."""
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return str(value)
