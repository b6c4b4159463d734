"""The parser of rules: a filter's expression, or an action's statements, as trees.

    statements = { SET property = sum [;] | REMOVE property [;] }
    condition  = conjunct { OR conjunct }
    conjunct   = negation { AND negation }
    negation   = NOT negation | predicate
    predicate  = sum [ comparison sum | IS [NOT] NULL | [NOT] BETWEEN sum AND sum
                     | [NOT] IN ( sum, ... ) | [NOT] LIKE sum [ESCAPE sum] ]
    sum        = product { (+|-) product }
    product    = unary { (*|/|%) unary }
    unary      = (+|-) unary | primary
    primary    = constant | NULL | parameter | property | EXISTS ( property ) | newid ( )
               | (property|p) ( sum ) | ( condition )
    property   = [ (sys|user) . ] name

This is the grammar of Microsoft's pages "Subscription Rule SQL Filter Syntax" and "SQL Action Syntax", and
BETWEEN, and a property or constant alone as a condition. Parameters are constants of their types.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from lightrail.filters import nodes
from lightrail.filters.errors import EvaluationError, FilterError, shown
from lightrail.filters.path import FILTER_PATH_BYTES
from lightrail.filters.rules import tree
from lightrail.filters.rules.fields import SYSTEM, system_names
from lightrail.filters.rules.tokens import SCOPES, Cursor, tokens_of
from lightrail.filters.rules.values import INTEGER_MAX, computes
from lightrail.model import limits

RULE_STATEMENTS_MAX: Final[int] = 64
"""Statements of one action."""
_COMPARISONS: Final = frozenset(("=", "<>", "<", "<=", ">", ">="))
_FUNCTIONS: Final = ("newid", "property", "p")


def parse_condition(text: str, parameters: Mapping[str, Any]) -> nodes.Node:
    """The tree of a filter's expression. Raises FilterError with the position.

    Args:
        parameters: values by name in lower case, with the @.
    """
    return _Parser(text, parameters).whole_condition()


def parse_statements(text: str, parameters: Mapping[str, Any]) -> list[tree.Statement]:
    """The statements of an action, perhaps none. Raises FilterError with the position."""
    return _Parser(text, parameters).statements()


class _Parser(Cursor):
    """Parses one text; used once."""

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        Cursor.__init__(self, tokens_of(text))
        self._parameters = parameters
        self._nodes = 0
        self._inside = 0

    def whole_condition(self) -> nodes.Node:
        if self._token.kind == "end":
            raise FilterError("an expression", "nothing", 1)
        node = self._logical(self._condition())
        if self._token.kind != "end":
            self._refuse("AND, OR or the end of the expression")
        return node

    def statements(self) -> list[tree.Statement]:
        found: list[tree.Statement] = []
        while self._token.kind != "end":
            token = self._token
            word = token.text.upper()
            if word not in ("SET", "REMOVE"):
                self._refuse("SET property = expression, or REMOVE property")
            if len(found) == RULE_STATEMENTS_MAX:
                raise FilterError(f"at most {RULE_STATEMENTS_MAX} statements", "more", token.position)
            self._next += 1
            target = self._target()
            value: nodes.Node | None = None
            if word == "SET":
                self._take("=", "= after the property")
                value = self._sum()
            found.append(tree.Statement(target, value))
            while self._accept(";"):
                pass
        return found

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
        self._take("(", "(")
        self._inside += 1
        self._deep(self._inside, self._token.position)
        node = inside()
        self._take(")", expected)
        self._inside -= 1
        return node

    # --- conditions --------------------------------------------------------------------------------------

    def _logical(self, node: nodes.Node) -> nodes.Node:
        """The node as a condition. Raises FilterError for a value that never is a boolean."""
        if isinstance(node, nodes.Arithmetic | nodes.Negate | tree.NewId) or (
            isinstance(node, nodes.Literal) and type(node.value) not in (bool, type(None))
        ):
            raise FilterError("a condition, such as a comparison", "a value", node.position)
        return node

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
        # Two negations are none in three-valued logic too; one pair makes a property a condition.
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
            pattern = self._sum()
            escape = self._sum() if self._accept("ESCAPE") else None
            made = self._made(tree.Matches(token.position, left, pattern, escape))
            return self._perhaps_not(negated, made)
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

    def _in(self, position: int, operand: nodes.Node) -> nodes.Node:
        self._take("(", "( and the values of IN")
        items = [self._sum()]
        while self._accept(","):
            items.append(self._sum())
        self._take(")", ", or ) in the values of IN")
        return self._made(tree.Within(position, operand, items))

    # --- values ------------------------------------------------------------------------------------------

    def _sum(self) -> nodes.Node:
        node = self._product()
        while self._token.kind in ("+", "-"):
            node = self._arithmetic(node, self._product)
        return node

    def _product(self) -> nodes.Node:
        node = self._unary()
        while self._token.kind in ("*", "/", "%"):
            node = self._arithmetic(node, self._unary)
        return node

    def _arithmetic(self, left: nodes.Node, operand: Callable[[], nodes.Node]) -> nodes.Node:
        token = self._token
        self._next += 1
        right = operand()
        if isinstance(left, nodes.Literal) and isinstance(right, nodes.Literal):
            try:
                return nodes.Literal(left.position, computes(token.kind)(left.value, right.value))
            except EvaluationError as error:
                raise FilterError("an expression that has a result", str(error), token.position) from None
        return self._made(nodes.Arithmetic(token.position, token.kind, left, right))

    def _unary(self) -> nodes.Node:
        position, signs, negative = self._token.position, 0, False
        while self._token.kind in ("+", "-"):
            negative ^= self._token.kind == "-"
            signs += 1
            self._count(position)
            self._next += 1
        node = self._primary(negative)
        if not signs or not negative:
            return node
        if isinstance(node, nodes.Literal) and type(node.value) in (int, float):
            return nodes.Literal(position, -node.value)
        return self._made(nodes.Negate(position, node))

    def _primary(self, negative: bool) -> nodes.Node:
        token = self._token
        position = token.position
        self._count(position)
        match token.kind:
            case "number" | "string":
                self._next += 1
                if token.value == INTEGER_MAX + 1 and type(token.value) is int and not negative:
                    raise FilterError("a whole number of at most 64 bits", shown(token.text), position)
                return nodes.Literal(position, token.value)
            case "TRUE" | "FALSE" | "NULL":
                self._next += 1
                value = {"TRUE": True, "FALSE": False, "NULL": None}[token.kind]
                return nodes.Literal(position, value)
            case "parameter":
                self._next += 1
                name = token.value.lower()
                if name not in self._parameters:
                    found = f"none for {shown(token.text)}"
                    raise FilterError("a value for every parameter", found, position)
                return nodes.Literal(position, self._parameters[name])
            case "EXISTS":
                self._next += 1
                self._take("(", "( and a property after EXISTS")
                is_null = self._made(nodes.IsNull(position, self._property()))
                self._take(")", ") after the property of EXISTS")
                return self._made(nodes.Not(position, is_null))
            case "name":
                return self._named()
            case "(":
                return self._in_parentheses(self._condition, "an operator or )")
        self._refuse("a constant, a property or (")
        raise AssertionError

    def _named(self) -> nodes.Node:
        """A function, or a property."""
        token, following = self._token, self._tokens[self._next + 1]
        if following.kind != "(" or token.is_quoted:
            return self._property()
        self._next += 1
        name = token.value.lower()
        if name not in _FUNCTIONS:
            raise FilterError(
                f"one of the functions {', '.join(_FUNCTIONS)}", shown(token.text), token.position
            )
        if name == "newid":
            self._take("(", "(")
            self._take(")", ") after newid(")
            return tree.NewId(token.position)
        operand = self._in_parentheses(self._sum, ") after the name of the property")
        if isinstance(operand, nodes.Literal):
            if not isinstance(operand.value, str):
                raise FilterError("a text as the name of a property", "another constant", operand.position)
            return self._checked(tree.Property(token.position, operand.value, False))
        return self._made(tree.PropertyOf(token.position, operand))

    def _target(self) -> tree.Property:
        """The property of a statement, which can be changed. Raises FilterError."""
        node = self._property()
        if node.is_system and not SYSTEM[node.name].is_settable:
            known = ", ".join(system_names(settable=True))
            raise FilterError(f"one of sys.{known}", shown(f"sys.{node.name}"), node.position)
        return node

    def _property(self) -> tree.Property:
        token = self._take("name", "the name of a property")
        if token.is_quoted or self._token.kind != ".":
            return self._checked(tree.Property(token.position, token.value, False))
        scope = token.value.lower()
        if scope not in SCOPES:
            found = shown(f"{token.text}.")
            raise FilterError("sys or user before the dot; a name with dots as [a.b]", found, token.position)
        self._next += 1
        name = self._token
        # Behind a scope a keyword is a name.
        if name.kind != "name" and not name.text.isidentifier():
            self._refuse(f"a name after {token.text}.")
        self._next += 1
        text = name.value if name.kind == "name" else name.text
        if scope == "user":
            return self._checked(tree.Property(token.position, text, False))
        if text.lower() not in SYSTEM:
            known = ", ".join(system_names())
            raise FilterError(f"a property of sys ({known})", shown(text), name.position)
        return tree.Property(token.position, text.lower(), True)

    def _checked(self, node: tree.Property) -> tree.Property:
        size = len(node.name.encode(errors="replace"))
        if not 0 < size <= FILTER_PATH_BYTES:
            raise FilterError(f"a name of 1 to {FILTER_PATH_BYTES} bytes", f"{size} bytes", node.position)
        return node
