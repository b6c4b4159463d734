"""Expressions compiled to closures: JMS selectors, AMQP's SQL filter and SQL rules are one language here.

Every closure takes a MessageView. The closure of a value returns a term (see message.py), None for NULL; the
closure of a condition returns True, False or None for UNKNOWN (JMS 2.0, 3.8.1.2). A message matches when the
whole expression is True.

Comparisons of values of different kinds are false, `<>` too (JMS 2.0, 3.8.1.1); with NULL they are unknown.
Whole numbers compute as whole numbers (7 / 2 is 3, as in Java); a result beyond 64 bits, a division by zero
and arithmetic with other values are NULL.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.filters import nodes
from lightrail.filters.lexer import INTEGER_MAX, Reference, identifier_literal
from lightrail.filters.logic import Test, every, inverted, some, truth
from lightrail.filters.message import MessageView
from lightrail.filters.parser import Parser
from lightrail.filters.path import Path
from lightrail.filters.patterns import Like as LikeTest
from lightrail.filters.patterns import compile_like

Value = Callable[[MessageView], Any]
Equality = tuple[Path, Any]
"""(path, term): a field is equal to a constant."""

INTEGER_MIN: Final = -(1 << 63)
_NUMBERS: Final[frozenset[type]] = frozenset((int, float))
_ORDERED: Final[frozenset[type]] = frozenset((int, float, str))
_TEXT: Final[frozenset[type]] = frozenset((str,))
_BOOLEAN: Final[frozenset[type]] = frozenset((bool,))


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression; `paths` are the fields that it reads, each once, in the order of the text.

    `equality` is set if the expression is only an equality; `guard` is an equality that holds whenever the
    expression is true. `weight` is the largest number of nodes evaluated per message; `likes` are its LIKE
    patterns, which share the work limit of the whole filter (see patterns.py).
    """

    test: Test
    paths: tuple[Path, ...]
    equality: Equality | None
    guard: Equality | None
    weight: int
    likes: tuple[LikeTest, ...]


def compile_expression(text: str) -> Expression:
    """Compile an expression. Raises FilterError with the position and the expected and found text."""
    compiler = Compiler()
    node = Parser(text).whole_condition()
    test = compiler.condition(node)
    paths = tuple(dict.fromkeys(compiler.paths))
    return Expression(test, paths, _equality(node), _guard(node), node.weight, tuple(compiler.likes))


def _equality(node: nodes.Node) -> Equality | None:
    """The equality, if an expression is only an equality."""
    if not isinstance(node, nodes.Compare) or node.operator != "=":
        return None
    field, literal = node.left, node.right
    if isinstance(field, nodes.Literal):
        field, literal = literal, field
    if (
        not isinstance(field, nodes.Field)
        or not isinstance(literal, nodes.Literal)
        or field.reference.derive is not None
    ):
        return None
    return field.reference.path, _constant(field.reference, literal.value)


def _guard(node: nodes.Node) -> Equality | None:
    """An equality without which the expression is not true."""
    if isinstance(node, nodes.Every):
        return next(filter(None, map(_guard, node.operands)), None)
    return _equality(node)


def _constant(reference: Reference, value: Any) -> Any:
    return identifier_literal(value) if reference.is_identifier and type(value) is str else value


@dataclass(eq=False, repr=False)
class Compiler:
    """Compiles one tree, and collects its paths."""

    paths: list[Path] = field(default_factory=list)
    likes: list[LikeTest] = field(default_factory=list)

    # --- conditions -----------------------------------------------------------------------------------

    def condition(self, node: nodes.Node) -> Test:
        if isinstance(node, nodes.Compare):
            return self._compare(node)
        if isinstance(node, nodes.Every):
            return every([self.condition(operand) for operand in node.operands])
        if isinstance(node, nodes.Some):
            return some([self.condition(operand) for operand in node.operands])
        if isinstance(node, nodes.Not):
            return inverted(self.condition(node.operand))
        if isinstance(node, nodes.IsNull):
            operand = self.value(node.operand)
            return lambda view: operand(view) is None
        if isinstance(node, nodes.In):
            return self._in(node)
        if isinstance(node, nodes.Like):
            matches = compile_like(node.pattern, node.escape)
            self.likes.append(matches)
            return _like(self.value(node.operand), matches)
        return truth(self.value(node))

    def _compare(self, node: nodes.Compare) -> Test:
        left, right, name = node.left, node.right, node.operator
        if isinstance(left, nodes.Literal) and not isinstance(right, nodes.Literal):
            left, right, name = right, left, _MIRRORED[name]
        if not isinstance(right, nodes.Literal):
            return _compared(_OPERATORS[name], name in ("=", "<>"), self.value(left), self.value(right))
        constant = right.value
        if isinstance(left, nodes.Field):
            constant = _constant(left.reference, constant)
        return _compared_with(_OPERATORS[name], name in ("=", "<>"), self.value(left), constant)

    def _in(self, node: nodes.In) -> Test:
        values: Sequence[Any] = node.values
        if isinstance(node.operand, nodes.Field):
            values = [_constant(node.operand.reference, value) for value in values]
        # True and 1 are the same key of a set, and different values here.
        booleans = frozenset(value for value in values if type(value) is bool)
        others = frozenset(value for value in values if type(value) is not bool)
        operand = self.value(node.operand)

        def within(view: MessageView) -> bool | None:
            value = operand(view)
            if value is None:
                return None
            return value in (booleans if type(value) is bool else others)

        return within

    # --- values ---------------------------------------------------------------------------------------

    def value(self, node: nodes.Node) -> Value:
        if isinstance(node, nodes.Literal):
            constant = node.value
            return lambda view: constant
        if isinstance(node, nodes.Field):
            return self._field(node.reference)
        if isinstance(node, nodes.Negate):
            return _negative(self.value(node.operand))
        if isinstance(node, nodes.Arithmetic):
            return _computed(_COMPUTE[node.operator], self.value(node.left), self.value(node.right))
        assert isinstance(node, nodes.Condition)
        return self.condition(node)

    def _field(self, reference: Reference) -> Value:
        path, derive = reference.path, reference.derive
        self.paths.append(path)
        if derive is None:
            return lambda view: view.term(path)
        return lambda view: derive(view.term(path))


# --- closures of conditions -----------------------------------------------------------------------------

_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _compared_with(
    compare: Callable[[Any, Any], bool], equality: bool, operand: Value, constant: Any
) -> Test:
    """A comparison with a constant, whose kind is determined once."""
    if type(constant) is bool:
        if not equality:
            return lambda view: None if operand(view) is None else False
        kinds: frozenset[type] = _BOOLEAN
    else:
        kinds = _TEXT if type(constant) is str else _NUMBERS

    def test(view: MessageView) -> bool | None:
        value = operand(view)
        if value is None:
            return None
        return type(value) in kinds and compare(value, constant)

    return test


def _compared(compare: Callable[[Any, Any], bool], equality: bool, left: Value, right: Value) -> Test:
    def test(view: MessageView) -> bool | None:
        one, other = left(view), right(view)
        if one is None or other is None:
            return None
        kind, other_kind = type(one), type(other)
        if kind in _NUMBERS:
            return other_kind in _NUMBERS and compare(one, other)
        if kind is not other_kind:
            return False
        return (kind in _ORDERED or (equality and kind in (bool, bytes))) and compare(one, other)

    return test


def _like(operand: Value, matches: LikeTest) -> Test:
    weight = matches.weight

    def test(view: MessageView) -> bool | None:
        value = operand(view)
        if value is None:
            return None
        if type(value) is not str:
            return False
        if len(value) > 64:
            view.spent += min(len(value), matches.characters_max) * weight >> 4
        return matches(value)

    return test


# --- closures of arithmetic -----------------------------------------------------------------------------


def _quotient(left: Any, right: Any) -> Any:
    if type(left) is float or type(right) is float:
        return left / right
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def _remainder(left: Any, right: Any) -> Any:
    if type(left) is float or type(right) is float:
        return math.fmod(left, right)
    rest = abs(left) % abs(right)
    return rest if left >= 0 else -rest


_COMPUTE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": _remainder,
}


def _bounded(value: Any) -> Any:
    """A number within AMQP's range, else NULL, so that products of products do not grow."""
    return value if type(value) is float or INTEGER_MIN <= value <= INTEGER_MAX else None


def _computed(compute: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    def value(view: MessageView) -> Any:
        one, other = left(view), right(view)
        if type(one) not in _NUMBERS or type(other) not in _NUMBERS:
            return None
        try:
            return _bounded(compute(one, other))
        except (ArithmeticError, ValueError):
            return None

    return value


def _negative(operand: Value) -> Value:
    def value(view: MessageView) -> Any:
        number = operand(view)
        return _bounded(-number) if type(number) in _NUMBERS else None

    return value
