"""Tokens of an expression.

Identifiers of expressions: the field of a message that a name means, and how its value is compared.

A plain name is an application property. The names of JMS follow the AMQP JMS mapping (amqp-bindmap-jms 3.2);
`amqp.`, `sys.`, `properties.`/`p.`, `header.`/`h.` stand before the fields of the message itself, `user.`,
`application_properties.`/`a.` before application properties, `message_annotations.`/`m.` before annotations.
"""

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lightrail.filters.descent import Token
from lightrail.filters.errors import FilterError, shown
from lightrail.filters.path import (
    APPLICATION_PROPERTIES,
    FIELD_NAMES,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Path,
    entry,
    parse_path,
)
from lightrail.model import limits

Derive = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Reference:
    """A field, with the function that converts its value for comparisons, if any."""

    path: Path
    derive: Derive | None = None
    is_identifier: bool = False
    """A JMS message identifier, whose literals may have the prefixes of the mapping."""


def _delivery_mode(durable: Any) -> Any:
    return ("NON_PERSISTENT", "PERSISTENT")[durable] if type(durable) is bool else None


def _durability(durable: Any) -> Any:
    return ("NON_DURABLE", "DURABLE")[durable] if type(durable) is bool else None


def _redelivered(count: Any) -> Any:
    return count > 0 if type(count) is int else None


def _delivery_number(count: Any) -> Any:
    return count + 1 if type(count) is int else None


def _field(name: str, derive: Derive | None = None, is_identifier: bool = False) -> Reference:
    return Reference(parse_path(name), derive, is_identifier)


JMS_NAMES: Final[dict[str, Reference]] = {
    "JMSMessageID": _field("message-id", is_identifier=True),
    "JMSCorrelationID": _field("correlation-id", is_identifier=True),
    "JMSTimestamp": _field("creation-time"),
    "JMSExpiration": _field("absolute-expiry-time"),
    "JMSPriority": _field("priority"),
    "JMSType": _field("subject"),
    "JMSDestination": _field("to"),
    "JMSReplyTo": _field("reply-to"),
    "JMSDeliveryMode": _field("durable", _delivery_mode),
    "JMSRedelivered": _field("delivery-count", _redelivered),
    "JMSXDeliveryCount": _field("delivery-count", _delivery_number),
    "JMSXGroupID": _field("group-id"),
    "JMSXGroupSeq": _field("group-sequence"),
    "JMSXUserID": _field("user-id"),
    # Artemis' core filters.
    "AMQPriority": _field("priority"),
    "AMQTimestamp": _field("creation-time"),
    "AMQExpiration": _field("absolute-expiry-time"),
    "AMQDurable": _field("durable", _durability),
}


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


_FIELDS: Final = {_folded(name): name for name in FIELD_NAMES}
_PROPERTIES: Final = {key: name for key, name in _FIELDS.items() if parse_path(name).section == PROPERTIES}
_HEADER: Final = {key: name for key, name in _FIELDS.items() if key not in _PROPERTIES}
_SERVICE_BUS: Final = {
    **_FIELDS,
    "label": "subject",
    "sessionid": "group-id",
    "replytosessionid": "reply-to-group-id",
    "timetolive": "ttl",
    "expiresat": "absolute-expiry-time",
    "expiresatutc": "absolute-expiry-time",
    "deliverycount": "delivery-count",
}

_SCOPES: Final[dict[str, Mapping[str, str]]] = {
    "amqp": _FIELDS,
    "sys": _SERVICE_BUS,
    "properties": _PROPERTIES,
    "p": _PROPERTIES,
    "header": _HEADER,
    "h": _HEADER,
}
_MAP_SCOPES: Final = {
    "user": APPLICATION_PROPERTIES,
    "application_properties": APPLICATION_PROPERTIES,
    "a": APPLICATION_PROPERTIES,
    "message_annotations": MESSAGE_ANNOTATIONS,
    "m": MESSAGE_ANNOTATIONS,
}


def is_scope(name: str) -> bool:
    """True for a word that is a scope before a dot."""
    return name.lower() in _SCOPES or name.lower() in _MAP_SCOPES


def is_field(scope: str, name: str) -> bool:
    """True when `name`, hyphens and all, is a field of a scope (`p.group-id`)."""
    return _folded(name) in _SCOPES.get(scope.lower(), {})


def resolve(scope: str | None, name: str, is_quoted: bool, position: int) -> Reference:
    """The field of an identifier; `scope` is None if none was written. Raises FilterError.

    A quoted name without a scope is always an application property, even if it is a name of JMS.
    """
    if scope is None:
        known = None if is_quoted else JMS_NAMES.get(name)
        return Reference(entry(APPLICATION_PROPERTIES, name)) if known is None else known
    section = _MAP_SCOPES.get(scope.lower())
    if section is not None:
        return Reference(entry(section, name))
    fields = _SCOPES[scope.lower()]
    field = fields.get(_folded(name))
    if field is None:
        names = ", ".join(sorted({text.replace("-", "_") for text in fields.values()}))
        raise FilterError(f"a field of {scope} ({names})", shown(name), position)
    return Reference(parse_path(field))


def identifier_literal(text: str) -> Any:
    """The term of a literal that is compared with JMSMessageID or JMSCorrelationID.

    The JMS mapping writes `ID:AMQP_UUID:...`, `ID:AMQP_ULONG:...`, `ID:AMQP_BINARY:...`,
    `ID:AMQP_STRING:...` and `ID:AMQP_NO_PREFIX:...`; any other text is the string itself.
    """
    prefix, separator, rest = text.partition("AMQP_")
    kind, colon, value = rest.partition(":")
    if not separator or not colon or prefix not in ("ID:", ""):
        return text
    try:
        if kind == "UUID":
            return str(uuid.UUID(value))
        if kind == "ULONG" and value.isascii() and value.isdigit() and len(value) <= 20:
            return int(value)
        if kind == "BINARY":
            return bytes.fromhex(value).decode()
    except ValueError:
        return text
    return value if kind in ("STRING", "NO_PREFIX") else text


KEYWORDS: Final = frozenset(
    ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", "EXISTS")
)
INTEGER_MAX: Final = (1 << 64) - 1
"""The largest ulong; the smallest long is its own literal with a minus sign."""


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


@dataclass(eq=False, repr=False)
class Lexer:
    """Splits one expression into tokens; used once."""

    _text: str
    _at: int = 0

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
