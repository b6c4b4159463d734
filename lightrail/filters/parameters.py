"""Parameters of SQL expressions and actions: constants by name, as Azure Service Bus has them.

    {"sql": "price > @least", "parameters": {"@least": 100}}
    {"set": {"application-properties.price": {"parameter": "@price"}}, "parameters": {"@price": 5}}

An expression is compiled with the constants in the places of its parameters. Names have their @.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from lightrail.filters.errors import FilterError, shown
from lightrail.model import limits

FILTER_PARAMETERS_BYTES: Final[int] = 8 * 1024
"""Bytes of the parameters of a filter or an action as JSON."""
_PARAMETER: Final = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*"|\[[^\]]*\])|@[^\W\d]\w*""")
"""A parameter of an expression, or (group 1) a text or a quoted name, in which there is none."""


def check_parameters(parameters: Any) -> Mapping[str, Any]:
    """The parameters of a filter or an action, which need not all be used. Raises FilterError."""
    if not isinstance(parameters, Mapping) or not parameters:
        raise FilterError("an object of one or more names and values", shown(parameters), part="parameters")
    for name, value in parameters.items():
        if not isinstance(name, str) or not name:
            raise FilterError("the name of a parameter", shown(name), part="parameters")
        if not isinstance(value, str | bool | int | float) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise FilterError("a text, a number or a boolean", shown(value), part=f"parameters.{name}")
    size = len(json.dumps(dict(parameters)))
    if size > FILTER_PARAMETERS_BYTES:
        raise FilterError(
            f"at most {FILTER_PARAMETERS_BYTES} bytes of JSON", f"{size} bytes", part="parameters"
        )
    return parameters


def with_constants(expression: str, parameters: Mapping[str, Any]) -> str:
    """An expression whose parameters are replaced by their constants.

    Args:
        parameters: texts, numbers and booleans by name, with the @.

    Raises:
        FilterError: a parameter of the expression has no constant, or a constant has another type.
    """
    if parameters:
        check_parameters(parameters)
    size = len(expression)

    def constant(found: re.Match[str]) -> str:
        nonlocal size
        name = found.group()
        if found.group(1) is not None:
            return name
        if name not in parameters:
            raise FilterError("a constant for every parameter", f"none for {shown(name)}", found.start() + 1)
        text = literal(parameters[name])
        size += len(text) - len(name)
        if size > limits.FILTER_EXPRESSION_BYTES:
            most = limits.FILTER_EXPRESSION_BYTES
            raise FilterError(f"an expression of at most {most} bytes with its constants", "more")
        return text

    return _PARAMETER.sub(constant, expression)


def value_of(value: Any, parameters: Mapping[str, Any]) -> Any:
    """A value of an action: itself, or the constant of the parameter that it names. Raises FilterError."""
    if not isinstance(value, Mapping):
        return value
    name = value.get("parameter")
    if value.keys() != {"parameter"} or not isinstance(name, str) or name not in parameters:
        raise FilterError('a value, or {"parameter": NAME} with a name of parameters', shown(dict(value)))
    return parameters[name]


def literal(value: str | bool | int | float) -> str:
    """A constant as an expression writes it."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"'{quoted}'"
    return repr(value)
