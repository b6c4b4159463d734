"""The descent through conditions: what the parsers of selectors and of rules have in common.

    condition  = conjunct { OR conjunct }
    conjunct   = negation { AND negation }
    negation   = NOT negation | predicate
    predicate  = sum [ comparison sum | IS [NOT] NULL | [NOT] BETWEEN sum AND sum
                     | [NOT] IN ... | [NOT] LIKE ... ]
    sum        = product { (+|-) product }
    product    = unary { (*|/|%) unary }

A language adds what follows IN and LIKE, its values (unary), and which of them are conditions.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from lightrail.filters import nodes
from lightrail.filters.errors import FilterError, shown
from lightrail.model import limits

_COMPARISONS: Final = frozenset(("=", "<>", "<", "<=", ">", ">="))


class Token(NamedTuple):
    """`kind` is a keyword, an operator, `number`, `string`, `end`, or one of the language's own kinds.

    `value` is that of a literal, or a name; `position` counts characters from 1; `text` is its source;
    `is_quoted` tells a name in brackets or double quotes, which is no keyword, scope or function.
    """

    kind: str
    value: Any
    position: int
    text: str
    is_quoted: bool = False


class Descent:
    """Parses one text; used once. All methods raise FilterError with the position."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._nodes = 0
        self._inside = 0

    def whole_condition(self) -> nodes.Node:
        """The tree of the whole text, which is a condition."""
        if self._token.kind == "end":
            raise FilterError("an expression", "nothing", 1)
        node = self._logical(self._condition())
        if self._token.kind != "end":
            self._refuse("AND, OR or the end of the expression")
        return node

    # --- of the language ---------------------------------------------------------------------------------

    def _logical(self, node: nodes.Node) -> nodes.Node:
        """The node as a condition."""
        raise NotImplementedError

    def _in(self, position: int, operand: nodes.Node) -> nodes.Node:
        """What follows IN."""
        raise NotImplementedError

    def _like(self, position: int, operand: nodes.Node) -> nodes.Node:
        """What follows LIKE."""
        raise NotImplementedError

    def _arithmetic(self, left: nodes.Node, operator: Token, right: nodes.Node) -> nodes.Node:
        raise NotImplementedError

    def _unary(self) -> nodes.Node:
        raise NotImplementedError

    # --- tokens ------------------------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self, kind: str, expected: str = "") -> Token:
        token = self._token
        if token.kind != kind:
            self._refuse(expected or kind)
        self._next += 1
        return token

    def _accept(self, kind: str) -> bool:
        if self._token.kind != kind:
            return False
        self._next += 1
        return True

    def _refuse(self, expected: str) -> NoReturn:
        token = self._token
        found = token.text if token.kind == "end" else shown(token.text)
        raise FilterError(expected, found, token.position)

    # --- bounds ------------------------------------------------------------------------------------------

    def _count(self, position: int) -> None:
        self._nodes += 1
        if self._nodes > limits.FILTER_NODES_MAX:
            most = limits.FILTER_NODES_MAX
            raise FilterError(f"at most {most} operators, constants and names", "more", position)

    def _deep(self, depth: int, position: int) -> None:
        if depth > limits.FILTER_DEPTH_MAX:
            most = limits.FILTER_DEPTH_MAX
            raise FilterError(f"at most {most} expressions inside one another", "more", position)

    def _made(self, node: Any) -> nodes.Node:
        self._count(node.position)
        self._deep(node.depth, node.position)
        if node.weight > limits.FILTER_WEIGHT_MAX:
            # BETWEEN evaluates its operand twice, and operands may contain BETWEEN.
            most = limits.FILTER_WEIGHT_MAX
            raise FilterError(f"at most {most} evaluations for a message", "more", node.position)
        made: nodes.Node = node
        return made

    def _in_parentheses(self, inside: Callable[[], nodes.Node], expected: str) -> nodes.Node:
        self._take("(")
        self._inside += 1
        self._deep(self._inside, self._token.position)
        node = inside()
        self._take(")", expected)
        self._inside -= 1
        return node

    # --- conditions --------------------------------------------------------------------------------------

    def _condition(self) -> nodes.Node:
        first = self._conjunct()
        if self._token.kind != "OR":
            return first
        operands = [self._logical(first)]
        while self._accept("OR"):
            operands.append(self._logical(self._conjunct()))
        return self._made(nodes.Some(first.position, operands))

    def _conjunct(self) -> nodes.Node:
        first = self._negation()
        if self._token.kind != "AND":
            return first
        operands = [self._logical(first)]
        while self._accept("AND"):
            operands.append(self._logical(self._negation()))
        return self._made(nodes.Every(first.position, operands))

    def _negation(self) -> nodes.Node:
        position, count = self._token.position, 0
        while self._accept("NOT"):
            self._count(position)
            count += 1
        node = self._predicate()
        if not count:
            return node
        node = self._made(nodes.Not(position, self._logical(node)))
        # Two negations are none in three-valued logic too; one pair makes a name a condition.
        return node if count % 2 else self._made(nodes.Not(position, node))

    def _predicate(self) -> nodes.Node:
        left = self._sum()
        token = self._token
        if token.kind in _COMPARISONS:
            self._next += 1
            right = self._sum()
            if self._token.kind in _COMPARISONS:
                self._refuse("AND, OR or the end: a comparison has two sides")
            return self._made(nodes.Compare(token.position, token.kind, left, right))
        if self._accept("IS"):
            negated = self._accept("NOT")
            self._take("NULL", "NULL or NOT NULL")
            return self._perhaps_not(negated, self._made(nodes.IsNull(token.position, left)))
        negated = self._accept("NOT")
        if self._accept("BETWEEN"):
            return self._perhaps_not(negated, self._between(token.position, left))
        if self._accept("IN"):
            return self._perhaps_not(negated, self._in(token.position, left))
        if self._accept("LIKE"):
            return self._perhaps_not(negated, self._like(token.position, left))
        if negated:
            self._refuse("BETWEEN, IN or LIKE after NOT")
        return left

    def _perhaps_not(self, negated: bool, node: nodes.Node) -> nodes.Node:
        return self._made(nodes.Not(node.position, node)) if negated else node

    def _between(self, position: int, operand: nodes.Node) -> nodes.Node:
        low = self._sum()
        self._take("AND", "AND and the upper bound of BETWEEN")
        high = self._sum()
        bounds = [
            self._made(nodes.Compare(position, ">=", operand, low)),
            self._made(nodes.Compare(position, "<=", operand, high)),
        ]
        return self._made(nodes.Every(position, bounds))

    # --- values ------------------------------------------------------------------------------------------

    def _sum(self) -> nodes.Node:
        node = self._product()
        while self._token.kind in ("+", "-"):
            node = self._arithmetic(node, self._take(self._token.kind), self._product())
        return node

    def _product(self) -> nodes.Node:
        node = self._unary()
        while self._token.kind in ("*", "/", "%"):
            node = self._arithmetic(node, self._take(self._token.kind), self._unary())
        return node

    def _signs(self) -> tuple[int, bool]:
        """The signs before a value: how many, and whether they make it negative."""
        position, count, negative = self._token.position, 0, False
        while self._token.kind in ("+", "-"):
            negative ^= self._token.kind == "-"
            count += 1
            self._count(position)
            self._next += 1
        return count, negative
