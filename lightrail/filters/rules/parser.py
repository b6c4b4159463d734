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

import re
from collections.abc import Mapping
from typing import Any, Final

from lightrail.filters import nodes
from lightrail.filters.descent import Descent, Token
from lightrail.filters.errors import EvaluationError, FilterError, shown
from lightrail.filters.path import FILTER_PATH_BYTES
from lightrail.filters.rules import tree
from lightrail.filters.rules.fields import SYSTEM, system_names
from lightrail.filters.rules.values import INTEGER_MAX, computes
from lightrail.model import limits

RULE_STATEMENTS_MAX: Final[int] = 64
"""Statements of one action."""
_FUNCTIONS: Final = ("newid", "property", "p")
_KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", "EXISTS")
)
_SCOPES: Final = ("sys", "user")
_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+"|\[(?:[^\]]|\]\])+\])
    | (?P<parameter>@\w+)
    | (?P<word>[^\W\d]\w*)
    | (?P<operator><>|!=|<=|>=|[=<>+\-*/%(),.;])
    """,
    re.VERBOSE,
)


def parse_condition(text: str, parameters: Mapping[str, Any]) -> nodes.Node:
    """The tree of a filter's expression. Raises FilterError with the position.

    Args:
        parameters: values by name in lower case, with the @.
    """
    return _Parser(text, parameters).whole_condition()


def parse_statements(text: str, parameters: Mapping[str, Any]) -> list[tree.Statement]:
    """The statements of an action, perhaps none. Raises FilterError with the position."""
    return _Parser(text, parameters).statements()


# --- tokens ----------------------------------------------------------------------------------------------


def _tokens_of(text: str) -> list[Token]:
    """The tokens of a text, `end` last. Raises FilterError."""
    size = len(text.encode(errors="replace"))
    if size > limits.FILTER_EXPRESSION_BYTES:
        raise FilterError(f"an expression of at most {limits.FILTER_EXPRESSION_BYTES} bytes", f"{size} bytes")
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _refusal(text, at)
        kind, part, position = match.lastgroup or "", match.group(), at + 1
        at = match.end()
        if kind == "space":
            continue
        found.append(_token(kind, part, position))
    found.append(Token("end", None, len(text) + 1, "the end"))
    return found


def _token(kind: str, part: str, position: int) -> Token:
    match kind:
        case "number":
            return Token(kind, _number(part, position), position, part)
        case "string":
            return Token(kind, part[1:-1].replace("''", "'"), position, part)
        case "quoted":
            mark = part[-1]
            return Token("name", part[1:-1].replace(mark * 2, mark), position, part, is_quoted=True)
        case "operator":
            return Token("<>" if part == "!=" else part, None, position, part)
        case "word" if part.upper() in _KEYWORDS:
            return Token(part.upper(), None, position, part)
    return Token("name" if kind == "word" else kind, part, position, part)


def _number(text: str, position: int) -> int | float:
    if text.isdigit():
        value = int(text) if len(text.lstrip("0")) <= 19 else INTEGER_MAX + 2
        # One more than the largest: with a minus sign it is the smallest.
        if value > INTEGER_MAX + 1:
            raise FilterError("a whole number of at most 64 bits", shown(text), position)
        return value
    number = float(text)
    if number == float("inf"):
        raise FilterError("a number in the range of binary64", shown(text), position)
    return number


def _refusal(text: str, at: int) -> FilterError:
    rest = text[at:]
    match rest[0]:
        case "'":
            return FilterError("a closing ' of the text", "the end", at + 1)
        case "[":
            return FilterError("a name and a closing ]", shown(rest[:20]), at + 1)
        case '"':
            return FilterError('a name and a closing "', shown(rest[:20]), at + 1)
        case "@":
            return FilterError("the name of a parameter after @", shown(rest[:20]), at + 1)
    return FilterError("an operator, a constant or a name", shown(rest[0]), at + 1)


# --- trees -----------------------------------------------------------------------------------------------


class _Parser(Descent):
    """Parses one text; used once."""

    def __init__(self, text: str, parameters: Mapping[str, Any]) -> None:
        Descent.__init__(self, _tokens_of(text))
        self._parameters = parameters

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

    # --- conditions --------------------------------------------------------------------------------------

    def _logical(self, node: nodes.Node) -> nodes.Node:
        """The node as a condition. Raises FilterError for a value that never is a boolean."""
        if isinstance(node, nodes.Arithmetic | nodes.Negate | tree.NewId) or (
            isinstance(node, nodes.Literal) and type(node.value) not in (bool, type(None))
        ):
            raise FilterError("a condition, such as a comparison", "a value", node.position)
        return node

    def _in(self, position: int, operand: nodes.Node) -> nodes.Node:
        self._take("(", "( and the values of IN")
        items = [self._sum()]
        while self._accept(","):
            items.append(self._sum())
        self._take(")", ", or ) in the values of IN")
        return self._made(tree.Within(position, operand, items))

    def _like(self, position: int, operand: nodes.Node) -> nodes.Node:
        pattern = self._sum()
        escape = self._sum() if self._accept("ESCAPE") else None
        return self._made(tree.Matches(position, operand, pattern, escape))

    # --- values ------------------------------------------------------------------------------------------

    def _arithmetic(self, left: nodes.Node, operator: Token, right: nodes.Node) -> nodes.Node:
        if isinstance(left, nodes.Literal) and isinstance(right, nodes.Literal):
            try:
                return nodes.Literal(left.position, computes(operator.kind)(left.value, right.value))
            except EvaluationError as error:
                raise FilterError("an expression that has a result", str(error), operator.position) from None
        return self._made(nodes.Arithmetic(operator.position, operator.kind, left, right))

    def _unary(self) -> nodes.Node:
        position = self._token.position
        signs, negative = self._signs()
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
        if scope not in _SCOPES:
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
