"""Filters of Azure Service Bus' rules, compiled from their JSON, which keeps them as they were sent.

    {"sql": "Color = @c AND price > 1.50", "parameters": {"@c": "red"}}
    {"correlation": {"label": "order"}, "properties": {"Priority": {"int": "1"}}}

Names of properties are compared without regard to case.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lightrail.filters import nodes
from lightrail.filters.errors import EvaluationError, FilterError, shown
from lightrail.filters.logic import Test
from lightrail.filters.message import MessageView
from lightrail.filters.patterns import Like
from lightrail.filters.rules import tree
from lightrail.filters.rules.closures import Equality, RuleCompiler, equality_of, guard_of
from lightrail.filters.rules.constants import constants_of, parameters_in
from lightrail.filters.rules.parser import parse_condition
from lightrail.filters.rules.values import NewId
from lightrail.model import limits

CORRELATED: Final[Mapping[str, str]] = {
    "correlation-id": "correlationid",
    "message-id": "messageid",
    "to": "to",
    "reply-to": "replyto",
    "label": "label",
    "session-id": "sessionid",
    "reply-to-session-id": "replytosessionid",
    "content-type": "contenttype",
}
"""Fields of a correlation filter, in the order of their list in AMQP, and the properties of sys."""
_KEYS: Final = (frozenset(("sql", "parameters")), frozenset(("correlation", "properties")))


@dataclass(frozen=True, slots=True)
class RuleTest:
    """A compiled filter of a rule.

    `test` never raises: a message for which the rule has no result does not match, and `error` says what the
    error is, None if there is none; `error` itself is None if the rule never fails. `always` is set if every
    message has the same result.
    """

    test: Test
    compiler: RuleCompiler
    equality: Equality | None
    guard: Equality | None
    weight: int
    likes: tuple[Like, ...]
    error: Callable[[MessageView], str | None] | None
    always: bool | None


def compile_rule(spec: Any, new_id: NewId) -> RuleTest:
    """Compile the JSON of a rule's filter. Raises FilterError with the position in the expression."""
    if not isinstance(spec, Mapping) or not any(spec.keys() <= keys for keys in _KEYS) or not spec:
        raise FilterError("an object with sql and parameters, or correlation and properties", shown(spec))
    if "sql" in spec:
        if not isinstance(spec["sql"], str):
            raise FilterError("a text", shown(spec["sql"]), part="sql")
        parameters = parameters_in(spec)
        try:
            return _compiled(parse_condition(spec["sql"], parameters), new_id)
        except FilterError as error:
            raise error.within("sql") from None
    if "parameters" in spec:
        raise FilterError("sql beside parameters", "no sql")
    return _compiled(_correlated(spec), new_id)


def _compiled(node: nodes.Node, new_id: NewId) -> RuleTest:
    compiler = RuleCompiler(new_id)
    test = compiler.condition(node)
    always: bool | None = None
    if compiler.is_constant:
        try:
            always = test(MessageView(b"")) is True
        except EvaluationError as error:
            raise FilterError("an expression that has a result", str(error), node.position) from None
    error_of: Callable[[MessageView], str | None] | None = None
    if compiler.can_fail and always is None:
        test, error_of = _guarded(test)
    equality, guard = equality_of(node), guard_of(node)
    return RuleTest(test, compiler, equality, guard, node.weight, tuple(compiler.likes), error_of, always)


def _guarded(test: Test) -> tuple[Test, Callable[[MessageView], str | None]]:
    """The test without its errors, and the errors; a message is evaluated once for both."""
    key = f"~{id(test)}"

    def attempt(view: MessageView) -> bool | str | None:
        try:
            return test(view)
        except EvaluationError as error:
            return str(error)

    def matches(view: MessageView) -> bool | None:
        found = view.kept(key, attempt)
        return None if type(found) is str else found

    def error(view: MessageView) -> str | None:
        found = view.kept(key, attempt)
        return found if type(found) is str else None

    return matches, error


def _correlated(spec: Mapping[str, Any]) -> nodes.Node:
    """The tree of a correlation filter: all fields and properties are equal."""
    fields = spec.get("correlation", {})
    if not isinstance(fields, Mapping):
        raise FilterError("an object of fields and texts", shown(fields), part="correlation")
    equal: list[nodes.Node] = []
    for name, value in fields.items():
        if name not in CORRELATED:
            raise FilterError(
                f"one of {', '.join(CORRELATED)} and properties", shown(name), part="correlation"
            )
        if not isinstance(value, str):
            raise FilterError("a text", shown(value), part=f"correlation.{name}")
        equal.append(_equal(tree.Property(1, CORRELATED[name], True), value))
    if "properties" in spec:
        properties = constants_of(spec["properties"], "properties")
        equal += [_equal(tree.Property(1, name, False), value) for name, value in properties.items()]
    if not equal:
        raise FilterError("at least one field to compare", "a correlation filter without any")
    if len(equal) > limits.FILTER_NODES_MAX:
        raise FilterError(f"at most {limits.FILTER_NODES_MAX} properties", str(len(equal)))
    return equal[0] if len(equal) == 1 else nodes.Every(1, equal)


def _equal(one: tree.Property, value: Any) -> nodes.Node:
    return nodes.Compare(1, "=", one, nodes.Literal(1, value))
