"""Tokens of an expression."""

import re
from typing import Any, Final, NamedTuple

from lightrail.filters.errors import FilterError, shown
from lightrail.filters.identifiers import is_field, is_scope
from lightrail.model import limits

KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", "EXISTS")
)
INTEGER_MAX: Final = (1 << 64) - 1
"""The largest ulong; the smallest long is its own literal with a minus sign."""


class Token(NamedTuple):
    """`kind` is a keyword, an operator, `number`, `string`, `identifier` or `end`.

    `value` is the literal's value, or (scope or None, name, quoted) of an identifier; `position` counts
    characters from 1; `text` is its source.
    """

    kind: str
    value: Any
    position: int
    text: str


_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<number>
        0[xX][0-9a-fA-F]+[lL]?
      | (?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?
      | [0-9]+[eE][+-]?[0-9]+[fFdD]?
      | [0-9]+[lLfFdD]?
      )
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+"|\[[^\]]+\])
    | (?P<word>[^\W\d][\w$]*|\$[\w$]*)
    | (?P<operator><>|!=|<=|>=|[=<>+\-*/%(),.])
    """,
    re.VERBOSE,
)
_REST: Final = re.compile(r"(?:\.[^\W\d][\w$]*|\.\$[\w$]*)+")
_HYPHENATED: Final = re.compile(r"\w+(?:-\w+)*")


def _number(text: str, position: int) -> int | float:
    lowered = text.lower()
    if lowered.startswith("0x"):
        value: int | float = int(lowered.rstrip("l"), 16)
    elif lowered.rstrip("l").isdigit():
        digits = lowered.rstrip("l").lstrip("0") or "0"
        value = int(digits) if len(digits) <= 20 else INTEGER_MAX + 1
    else:
        value = float(lowered.rstrip("fd"))
    if type(value) is int and value > INTEGER_MAX:
        raise FilterError("a whole number of at most 64 bits", shown(text), position)
    if value == float("inf"):
        raise FilterError("a number in the range of binary64", shown(text), position)
    return value


def _unquoted(text: str) -> str:
    return text[1:-1].replace('""', '"') if text[0] == '"' else text[1:-1]


class Lexer:
    """Splits one expression into tokens; used once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def tokens(self) -> list[Token]:
        """All tokens, `end` last. Raises FilterError."""
        tokens: list[Token] = []
        while self._at < len(self._text):
            start = self._at
            match = _TOKEN.match(self._text, start)
            if match is None:
                self._refuse(start)
            assert match is not None
            kind = match.lastgroup
            text = match.group()
            self._at = match.end()
            if kind == "space":
                continue
            if kind == "number":
                tokens.append(Token("number", _number(text, start + 1), start + 1, text))
            elif kind == "string":
                tokens.append(Token("string", text[1:-1].replace("''", "'"), start + 1, text))
            elif kind == "quoted":
                tokens.append(self._named(None, _unquoted(text), True, start))
            elif kind == "operator":
                tokens.append(Token("<>" if text == "!=" else text, None, start + 1, text))
            elif text.upper() in KEYWORDS and not self._text.startswith(".", self._at):
                tokens.append(Token(text.upper(), None, start + 1, text))
            else:
                tokens.append(self._identifier(text, start))
        tokens.append(Token("end", None, len(self._text) + 1, "the end of the expression"))
        return tokens

    def _identifier(self, word: str, start: int) -> Token:
        """A word, or words with dots; after a scope also quoted names, and fields with hyphens."""
        text = self._text
        if text.startswith(".", self._at) and is_scope(word):
            quoted = _TOKEN.match(text, self._at + 1)
            if quoted is not None and quoted.lastgroup == "quoted":
                self._at = quoted.end()
                return self._named(word, _unquoted(quoted.group()), True, start)
            hyphenated = _HYPHENATED.match(text, self._at + 1)
            if hyphenated is not None and is_field(word, hyphenated.group()):
                self._at = hyphenated.end()
                return self._named(word, hyphenated.group(), True, start)
        rest = _REST.match(text, self._at)
        if rest is not None:
            self._at = rest.end()
            if is_scope(word):
                return self._named(word, rest.group()[1:], False, start)
        return self._named(None, text[start : self._at], False, start)

    def _named(self, scope: str | None, name: str, is_quoted: bool, start: int) -> Token:
        return Token("identifier", (scope, name, is_quoted), start + 1, self._text[start : self._at])

    def _refuse(self, start: int) -> None:
        rest = self._text[start:]
        if rest[0] == "'":
            raise FilterError("a closing ' of the string", "the end of the expression", start + 1)
        if rest[0] in '"[':
            closing = "]" if rest[0] == "[" else '"'
            raise FilterError(f"a name and a closing {closing}", shown(rest[:20]), start + 1)
        raise FilterError("an operator, a literal or a name", shown(rest[0]), start + 1)


def tokens_of(expression: str) -> list[Token]:
    """The tokens of an expression, `end` last. Raises FilterError."""
    size = len(expression.encode(errors="replace"))
    if size > limits.FILTER_EXPRESSION_BYTES:
        raise FilterError(f"an expression of at most {limits.FILTER_EXPRESSION_BYTES} bytes", f"{size} bytes")
    return Lexer(expression).tokens()
