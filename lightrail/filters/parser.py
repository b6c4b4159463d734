"""The parser of expressions: tokens to a tree, by recursive descent.

    condition  = conjunct { OR conjunct }
    conjunct   = negation { AND negation }
    negation   = NOT negation | predicate
    predicate  = sum [ comparison sum | [NOT] BETWEEN sum AND sum | [NOT] IN ( literal, ... )
                     | [NOT] LIKE string [ESCAPE string] | IS [NOT] NULL ]
    sum        = product { (+|-) product }
    product    = unary { (*|/|%) unary }
    unary      = (+|-) unary | primary
    primary    = literal | identifier | EXISTS ( identifier ) | ( condition )

The grammar is that of JMS 2.0 (3.8.1.1), with the additions of AMQP's SQL filter and Service Bus' rules:
EXISTS, `!=`, `%`, scopes before names, quoted names, numbers and booleans in IN, order of strings.
"""

from typing import Any, Final

from lightrail.filters import nodes
from lightrail.filters.errors import FilterError, shown
from lightrail.filters.lexer import INTEGER_MAX, Token, resolve, tokens_of
from lightrail.filters.patterns import compile_like
from lightrail.model import limits

_COMPARISONS: Final = frozenset(("=", "<>", "<", "<=", ">", ">="))
_LITERALS: Final = frozenset(("number", "string", "TRUE", "FALSE", "-", "+"))


class Parser:
    """Parses one expression; used once."""

    def __init__(self, expression: str) -> None:
        self._tokens = tokens_of(expression)
        self._next = 0
        self._nodes = 0
        self._inside = 0

    def parse(self) -> nodes.Node:
        """The tree of the whole expression. Raises FilterError."""
        if self._token.kind == "end":
            raise FilterError("an expression", "nothing", 1)
        node = self._logical(self._condition())
        if self._token.kind != "end":
            self._refuse("AND, OR or the end of the expression")
        return node

    # --- tokens ---------------------------------------------------------------------------------------

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

    def _refuse(self, expected: str) -> None:
        token = self._token
        found = token.text if token.kind == "end" else shown(token.text)
        raise FilterError(expected, found, token.position)

    # --- limits ---------------------------------------------------------------------------------------

    def _count(self, position: int, count: int = 1) -> None:
        self._nodes += count
        if self._nodes > limits.FILTER_NODES_MAX:
            raise FilterError(
                f"at most {limits.FILTER_NODES_MAX} operators, literals and names", "more", position
            )

    def _deep(self, depth: int, position: int) -> None:
        if depth > limits.FILTER_DEPTH_MAX:
            raise FilterError(
                f"at most {limits.FILTER_DEPTH_MAX} expressions inside one another", "more", position
            )

    def _enter(self) -> None:
        self._inside += 1
        self._deep(self._inside, self._token.position)

    def _made(self, node: Any) -> nodes.Node:
        self._count(node.position)
        self._deep(node.depth, node.position)
        if node.weight > limits.FILTER_WEIGHT_MAX:
            # BETWEEN evaluates its operand twice, and operands may contain BETWEEN.
            most = limits.FILTER_WEIGHT_MAX
            raise FilterError(f"at most {most} evaluations for a message", "more", node.position)
        made: nodes.Node = node
        return made

    # --- conditions -----------------------------------------------------------------------------------

    def _logical(self, node: nodes.Node) -> nodes.Node:
        """The node as a condition."""
        is_boolean = isinstance(node, nodes.Literal) and isinstance(node.value, bool)
        if isinstance(node, nodes.Condition | nodes.Field) or is_boolean:
            return node
        raise FilterError("a condition, such as a comparison", "a value", node.position)

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
        position = self._token.position
        negated = False
        count = 0
        while self._accept("NOT"):
            self._count(position)
            negated = not negated
            count += 1
        node = self._predicate()
        if not count:
            return node
        node = self._logical(node)
        # Two negations are none in three-valued logic too; one pair is enough to make a field a condition.
        if negated:
            return self._not(position, node)
        return self._not(position, self._not(position, node))

    def _not(self, position: int, node: nodes.Node) -> nodes.Node:
        return self._made(nodes.Not(position, node))

    def _predicate(self) -> nodes.Node:
        left = self._sum()
        token = self._token
        if token.kind in _COMPARISONS:
            self._next += 1
            right = self._sum()
            if self._token.kind in _COMPARISONS:
                self._refuse("AND, OR or the end: a comparison has two sides")
            return self._made(nodes.Compare(token.position, token.kind, left, right))
        if token.kind == "IS":
            self._next += 1
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
        return self._not(node.position, node) if negated else node

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
        values = [self._literal("a literal in the values of IN")]
        while self._accept(","):
            values.append(self._literal("a literal in the values of IN"))
        self._take(")", ", or ) in the values of IN")
        return self._made(nodes.In(position, operand, values))

    def _literal(self, expected: str) -> Any:
        if self._token.kind not in _LITERALS:
            self._refuse(expected)
        node = self._unary()
        if not isinstance(node, nodes.Literal):
            raise FilterError(expected, "something else", node.position)
        return node.value

    def _like(self, position: int, operand: nodes.Node) -> nodes.Node:
        pattern = self._take("string", "a pattern in quotes after LIKE")
        escape: str | None = None
        if self._accept("ESCAPE"):
            token = self._take("string", "one character in quotes after ESCAPE")
            if len(token.value) != 1:
                raise FilterError("one character in quotes after ESCAPE", shown(token.value), token.position)
            escape = token.value
        try:
            compile_like(pattern.value, escape)
        except ValueError as error:
            raise FilterError(str(error), shown(pattern.value), pattern.position) from None
        return self._made(nodes.Like(position, operand, pattern.value, escape))

    # --- values ---------------------------------------------------------------------------------------

    def _sum(self) -> nodes.Node:
        node = self._product()
        while self._token.kind in ("+", "-"):
            node = self._arithmetic(node, self._take(self._token.kind), self._product)
        return node

    def _product(self) -> nodes.Node:
        node = self._unary()
        while self._token.kind in ("*", "/", "%"):
            node = self._arithmetic(node, self._take(self._token.kind), self._unary)
        return node

    def _arithmetic(self, left: nodes.Node, operator: Token, operand: Any) -> nodes.Node:
        right: nodes.Node = operand()
        for side in (left, right):
            self._numeric(side)
        return self._made(nodes.Arithmetic(operator.position, operator.kind, left, right))

    def _numeric(self, node: nodes.Node) -> None:
        is_number = isinstance(node, nodes.Literal) and type(node.value) in (int, float)
        if not (is_number or isinstance(node, nodes.Field | nodes.Arithmetic | nodes.Negate)):
            raise FilterError("a number or a name in arithmetic", "something else", node.position)

    def _unary(self) -> nodes.Node:
        position = self._token.position
        negative = False
        signs = 0
        while self._token.kind in ("+", "-"):
            negative ^= self._token.kind == "-"
            signs += 1
            self._count(position)
            self._next += 1
        node = self._primary(negative)
        if signs:
            self._numeric(node)
        if not negative:
            return node
        if isinstance(node, nodes.Literal):
            return nodes.Literal(position, -node.value)
        return self._made(nodes.Negate(position, node))

    def _primary(self, negative: bool) -> nodes.Node:
        token = self._token
        self._count(token.position)
        if token.kind in ("number", "string"):
            self._next += 1
            if negative and type(token.value) is int and token.value > INTEGER_MAX // 2 + 1:
                found = shown("-" + token.text)
                raise FilterError("a whole number of at most 64 bits", found, token.position)
            return nodes.Literal(token.position, token.value)
        if token.kind in ("TRUE", "FALSE"):
            self._next += 1
            return nodes.Literal(token.position, token.kind == "TRUE")
        if token.kind == "identifier":
            return self._field()
        if token.kind == "EXISTS":
            return self._exists()
        if token.kind != "(":
            self._refuse("a literal, a name or (")
        self._enter()
        self._next += 1
        node = self._condition()
        self._take(")", "an operator or )")
        self._inside -= 1
        return node

    def _field(self) -> nodes.Node:
        token = self._take("identifier", "a name")
        if self._token.kind == "(":
            found = shown(token.text + "(")
            raise FilterError("an operator: EXISTS is the only function", found, token.position)
        scope, name, is_quoted = token.value
        try:
            return nodes.Field(token.position, resolve(scope, name, is_quoted, token.position))
        except FilterError as error:
            raise FilterError(error.expected, error.found, token.position) from None

    def _exists(self) -> nodes.Node:
        position = self._take("EXISTS").position
        self._take("(", "( and a name after EXISTS")
        operand = self._field()
        self._take(")", ") after the name of EXISTS")
        is_null = self._made(nodes.IsNull(position, operand))
        return self._not(position, is_null)
