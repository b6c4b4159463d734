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
from lightrail.filters.descent import Descent, Token
from lightrail.filters.errors import FilterError, shown
from lightrail.filters.lexer import INTEGER_MAX, resolve, tokens_of
from lightrail.filters.patterns import compile_like

_LITERALS: Final = frozenset(("number", "string", "TRUE", "FALSE", "-", "+"))


class Parser(Descent):
    """Parses one expression; used once."""

    def __init__(self, expression: str) -> None:
        Descent.__init__(self, tokens_of(expression))

    # --- conditions -----------------------------------------------------------------------------------

    def _logical(self, node: nodes.Node) -> nodes.Node:
        """The node as a condition."""
        is_boolean = isinstance(node, nodes.Literal) and isinstance(node.value, bool)
        if isinstance(node, nodes.Condition | nodes.Field) or is_boolean:
            return node
        raise FilterError("a condition, such as a comparison", "a value", node.position)

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

    def _arithmetic(self, left: nodes.Node, operator: Token, right: nodes.Node) -> nodes.Node:
        for side in (left, right):
            self._numeric(side)
        return self._made(nodes.Arithmetic(operator.position, operator.kind, left, right))

    def _numeric(self, node: nodes.Node) -> None:
        is_number = isinstance(node, nodes.Literal) and type(node.value) in (int, float)
        if not (is_number or isinstance(node, nodes.Field | nodes.Arithmetic | nodes.Negate)):
            raise FilterError("a number or a name in arithmetic", "something else", node.position)

    def _unary(self) -> nodes.Node:
        position = self._token.position
        signs, negative = self._signs()
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
        return self._in_parentheses(self._condition, "an operator or )")

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
        return self._made(nodes.Not(position, is_null))
