"""Rules compiled to closures, each of which takes a MessageView.

It returns a value, for a condition True, False or None (unknown).

A closure raises EvaluationError where a rule has no result for a message: a division by zero, more than 64
bits, LIKE with an escape character that is none, property() of what is no text. `can_fail` says whether any
part of a rule may.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from lightrail.filters import nodes
from lightrail.filters.errors import EvaluationError, FilterError, shown
from lightrail.filters.logic import Test, every, inverted, some, truth
from lightrail.filters.message import MessageView
from lightrail.filters.path import FILTER_PATH_BYTES, Path
from lightrail.filters.patterns import LIKE_TEXT_MAX, LIKE_WORK_MAX, Like, compile_like
from lightrail.filters.rules import tree
from lightrail.filters.rules.fields import SYSTEM, property_path, property_reader
from lightrail.filters.rules.values import COMPARE, EQUALITIES, compares, computes, is_plain, negated
from lightrail.model import limits

Read = Callable[[MessageView], Any]
Equality = tuple[Path, Any]
"""(path, constant): a property is equal to a constant."""

PATTERNS_KEPT: Final[int] = 256
"""Patterns of LIKE from messages that a process keeps compiled."""
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_IDS: Final = frozenset(("messageid", "correlationid"))
"""Properties that are numbers in some messages, and text for rules."""


@dataclass(eq=False, repr=False)
class RuleCompiler:
    """Compiles the trees of one rule.

    `new_id` makes the uuid of newid(); a compiler knows what is pure, and this is not.
    """

    new_id: Callable[[], uuid.UUID]
    paths: list[Path] = field(default_factory=list)
    likes: list[Like] = field(default_factory=list)
    can_fail: bool = False
    is_constant: bool = True
    """Whether nothing depends on the message."""
    loose_likes: int = 0
    """Number of LIKE whose pattern is no constant."""

    # --- conditions ------------------------------------------------------------------------------------

    def condition(self, node: nodes.Node) -> Test:
        match node:
            case nodes.Compare():
                return self._compare(node)
            case nodes.Every():
                return every([self.condition(operand) for operand in node.operands])
            case nodes.Some():
                return some([self.condition(operand) for operand in node.operands])
            case nodes.Not():
                return inverted(self.condition(node.operand))
            case nodes.IsNull():
                operand = self.value(node.operand)
                return lambda view: operand(view) is None
            case tree.Within():
                return self._within(node)
            case tree.Matches():
                return self._matches(node)
        return truth(self.value(node))

    def _compare(self, node: nodes.Compare) -> Test:
        left, right, name = node.left, node.right, node.operator
        if isinstance(left, nodes.Literal) and not isinstance(right, nodes.Literal):
            left, right, name = right, left, _MIRRORED[name]
        one, compare = self.value(left), compares(name)
        if isinstance(right, nodes.Literal):
            return _compared_with(one, name, right.value)
        other = self.value(right)
        return lambda view: compare(one(view), other(view))

    def _within(self, node: tree.Within) -> Test:
        operand, equal = self.value(node.operand), compares("=")
        if all(isinstance(item, nodes.Literal) for item in node.items):
            constants = [item.value for item in node.items if isinstance(item, nodes.Literal)]
            texts = frozenset(each for each in constants if type(each) is str)
            slow = tuple(each for each in constants if type(each) is not str)

            def among(view: MessageView) -> bool | None:
                value = operand(view)
                if value is None:
                    return None
                if type(value) is str:
                    return value in texts or any(equal(value, each) is True for each in slow)
                return any(equal(value, each) is True for each in constants)

            return among
        items = [self.value(item) for item in node.items]

        def within(view: MessageView) -> bool | None:
            value = operand(view)
            if value is None:
                return None
            return any(equal(value, item(view)) is True for item in items)

        return within

    def _matches(self, node: tree.Matches) -> Test:
        operand = self.value(node.operand)
        pattern, escape = node.pattern, node.escape
        if isinstance(pattern, nodes.Literal) and (escape is None or isinstance(escape, nodes.Literal)):
            like = _constant_like(pattern, escape)
            if like is None:
                return lambda view: None
            self.likes.append(like)
            return _like(operand, like)
        self.can_fail = True
        self.loose_likes += 1
        return self._loose_like(operand, self.value(pattern), None if escape is None else self.value(escape))

    def _loose_like(self, operand: Read, pattern: Read, escape: Read | None) -> Test:
        def test(view: MessageView) -> bool | None:
            value, text = operand(view), pattern(view)
            mark = None if escape is None else escape(view)
            if value is None or text is None or (escape is not None and mark is None):
                return None
            view.spent += 100
            like = _pattern(text, mark, _compiled)
            if type(value) is not str:
                return False
            # All such patterns of a rule share its work, whatever the messages make of them.
            if len(value) > min(LIKE_TEXT_MAX, LIKE_WORK_MAX // (like.weight * self.loose_likes)):
                return None
            view.spent += len(value) * like.weight >> 4
            return like(value)

        return test

    # --- values ----------------------------------------------------------------------------------------

    def value(self, node: nodes.Node) -> Read:
        match node:
            case nodes.Literal():
                constant = node.value
                return lambda view: constant
            case tree.Property():
                return self._property(node)
            case tree.PropertyOf():
                self.can_fail, self.is_constant = True, False
                return _named(self.value(node.operand))
            case tree.NewId():
                self.is_constant = False
                new_id = self.new_id
                return lambda view: new_id()
            case nodes.Negate():
                self.can_fail = True
                operand = self.value(node.operand)
                return lambda view: negated(operand(view))
            case nodes.Arithmetic():
                self.can_fail = True
                compute, left, right = computes(node.operator), self.value(node.left), self.value(node.right)
                return lambda view: compute(left(view), right(view))
        return self.condition(node)

    def _property(self, node: tree.Property) -> Read:
        self.is_constant = False
        if node.is_system:
            found = SYSTEM[node.name]
            if found.path is not None:
                self.paths.append(found.path)
            return found.read
        self.paths.append(property_path(node.name))
        return property_reader(node.name)


# --- equalities, which a matcher looks up ----------------------------------------------------------------


def equality_of(node: nodes.Node) -> Equality | None:
    """The equality, if an expression is only an equality of a property and a constant."""
    if not isinstance(node, nodes.Compare) or node.operator != "=":
        return None
    one, constant = node.left, node.right
    if isinstance(one, nodes.Literal):
        one, constant = constant, one
    if not isinstance(one, tree.Property) or not isinstance(constant, nodes.Literal):
        return None
    return equality(one, constant.value)


def equality(one: tree.Property, constant: Any) -> Equality | None:
    """A property and a constant, if a matcher's tables find all values that are equal to it."""
    if not is_plain(constant):
        return None
    if not one.is_system:
        return property_path(one.name), constant
    found = SYSTEM[one.name]
    if found.path is None or not found.is_text or type(constant) is not str:
        return None
    if one.name in _IDS and constant.isdigit():
        return None
    return found.path, constant


def guard_of(node: nodes.Node) -> Equality | None:
    """An equality without which the expression is not true."""
    if isinstance(node, nodes.Every):
        return next(filter(None, map(guard_of, node.operands)), None)
    return equality_of(node)


# --- closures ----------------------------------------------------------------------------------------------


def _compared_with(one: Read, name: str, constant: Any) -> Test:
    """A comparison with a constant, whose kind is determined once: values mostly have it too."""
    kind, slow = type(constant), compares(name)
    if kind not in (str, int, float, bool) or (kind is bool and name not in EQUALITIES):
        return lambda view: slow(one(view), constant)
    compare = COMPARE[name]

    def test(view: MessageView) -> bool | None:
        value = one(view)
        if type(value) is kind:
            return compare(value, constant)
        return slow(value, constant)

    return test


def _named(operand: Read) -> Read:
    def value(view: MessageView) -> Any:
        name = operand(view)
        if name is None:
            return None
        if type(name) is not str or not 0 < len(name.encode(errors="replace")) <= FILTER_PATH_BYTES:
            raise EvaluationError(
                f"property() expects the name of a property, a text of 1 to {FILTER_PATH_BYTES} bytes, "
                f"and found {shown(name)}"
            )
        return property_reader(name)(view)

    return value


def _like(operand: Read, like: Like) -> Test:
    def test(view: MessageView) -> bool | None:
        value = operand(view)
        if value is None:
            return None
        if type(value) is not str:
            return False
        if len(value) > 64:
            view.spent += min(len(value), like.characters_max) * like.weight >> 4
        return like(value)

    return test


def _constant_like(pattern: nodes.Literal, escape: nodes.Literal | None) -> Like | None:
    """A constant pattern; None if it is NULL. Raises FilterError with its position."""
    mark = None if escape is None else escape.value
    if pattern.value is None or (escape is not None and mark is None):
        return None
    try:
        # Not the cached one: its bound on characters is that of this rule alone.
        return _pattern(pattern.value, mark, _compiled.__wrapped__)
    except EvaluationError as error:
        raise FilterError(str(error), shown(pattern.value), pattern.position) from None


def _pattern(text: Any, mark: Any, compiled: Callable[[str, str | None], Like]) -> Like:
    """A pattern and its escape character. Raises EvaluationError: they are none."""
    if type(text) is not str or len(text) > limits.FILTER_EXPRESSION_BYTES:
        most = limits.FILTER_EXPRESSION_BYTES
        raise EvaluationError(f"a pattern of at most {most} characters after LIKE, not {shown(text)}")
    if mark is not None and (type(mark) is not str or len(mark) != 1):
        raise EvaluationError(f"one character after ESCAPE, not {shown(mark)}")
    return compiled(text, mark)


@lru_cache(maxsize=PATTERNS_KEPT)
def _compiled(text: str, mark: str | None) -> Like:
    try:
        return compile_like(text, mark)
    except ValueError as error:
        raise EvaluationError(f"{error} in a pattern of LIKE") from None
