"""Tokens of a rule's expression or statements.

color = 'red' AND [order id] > @least        SET sys.Label = "new label" + 'x'; REMOVE user.color
"""

import re
from typing import Any, Final, NamedTuple

from lightrail.filters.errors import FilterError, shown
from lightrail.filters.rules.values import INTEGER_MAX
from lightrail.model import limits

KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", "EXISTS")
)
SCOPES: Final = ("sys", "user")


class Lexeme(NamedTuple):
    """`kind` is a keyword, an operator, `number`, `string`, `name`, `parameter` or `end`.

    `value` is that of a literal or the name itself; `position` counts characters from 1; `text` is its
    source; `is_quoted` tells a name in brackets or double quotes, which is no keyword, scope or function.
    """

    kind: str
    value: Any
    position: int
    text: str
    is_quoted: bool = False


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


def tokens_of(text: str) -> list[Lexeme]:
    """The tokens of a text, `end` last. Raises FilterError."""
    size = len(text.encode(errors="replace"))
    if size > limits.FILTER_EXPRESSION_BYTES:
        raise FilterError(f"an expression of at most {limits.FILTER_EXPRESSION_BYTES} bytes", f"{size} bytes")
    found: list[Lexeme] = []
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
    found.append(Lexeme("end", None, len(text) + 1, "the end"))
    return found


def _token(kind: str, part: str, position: int) -> Lexeme:
    match kind:
        case "number":
            return Lexeme(kind, _number(part, position), position, part)
        case "string":
            return Lexeme(kind, part[1:-1].replace("''", "'"), position, part)
        case "quoted":
            mark = part[-1]
            return Lexeme("name", part[1:-1].replace(mark * 2, mark), position, part, is_quoted=True)
        case "operator":
            return Lexeme("<>" if part == "!=" else part, None, position, part)
        case "word" if part.upper() in KEYWORDS:
            return Lexeme(part.upper(), None, position, part)
    return Lexeme("name" if kind == "word" else kind, part, position, part)


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


class Cursor:
    """Goes through the tokens of one text."""

    def __init__(self, tokens: list[Lexeme]) -> None:
        self._tokens = tokens
        self._next = 0

    @property
    def _token(self) -> Lexeme:
        return self._tokens[self._next]

    def _take(self, kind: str, expected: str) -> Lexeme:
        token = self._token
        if token.kind != kind:
            self._refuse(expected)
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
