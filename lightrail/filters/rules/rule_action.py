"""Actions of Azure Service Bus' rules, compiled from their JSON, which keeps them as they were sent.

    {"sql": "SET quantity = quantity / 2; REMOVE priority; SET sys.CorrelationId = newid()"}

Statements are carried out one after the other, each on what the former ones made of the message. A property
that is set keeps its name as the message spells it, and its type of number where the value fits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

from lightrail.amqp.encoder import write_string, write_symbol, write_value
from lightrail.amqp.lifetime import TTL_MAX
from lightrail.amqp.values import (
    Byte,
    Described,
    Float,
    Int,
    Long,
    Short,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from lightrail.filters import nodes
from lightrail.filters.errors import EvaluationError, FilterError, shown
from lightrail.filters.message import MessageView
from lightrail.filters.path import (
    APPLICATION_PROPERTIES,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    parse_path,
)
from lightrail.filters.rewriting import Changes, changed
from lightrail.filters.rules import tree
from lightrail.filters.rules.closures import Read, RuleCompiler
from lightrail.filters.rules.constants import parameters_in
from lightrail.filters.rules.fields import SYSTEM, HeadView, property_path
from lightrail.filters.rules.parser import parse_statements
from lightrail.filters.rules.values import NewId, decimal128, moment_of, span_of, text_of
from lightrail.filters.sections import MALFORMED, locate, open_section
from lightrail.filters.terms import OPAQUE, TICKS_OF_MS, TIMESPAN, Duration
from lightrail.model import limits

_WHOLE: Final[Mapping[type, tuple[int, int]]] = {
    **{kind: (-(1 << bits - 1), (1 << bits - 1) - 1) for kind, bits in ((Byte, 8), (Short, 16), (Int, 32))},
    **{kind: (0, (1 << bits) - 1) for kind, bits in ((UByte, 8), (UShort, 16), (UInt, 32), (ULong, 64))},
}

RULE_NAME: Final = "RuleName"
"""The property that each message has which the action of a rule made, as Service Bus sets it."""
Change = Callable[[MessageView], Changes]


@dataclass(slots=True, eq=False, repr=False)
class RuleAction:
    """A compiled action; `spec` is the JSON it was made from."""

    spec: Mapping[str, Any]
    weight: int
    """Largest number of operators, constants and properties that it evaluates for a message."""
    can_fail: bool
    """Whether it has no result for some messages."""
    sets_life: bool
    """Whether it sets or removes the time to live."""
    schedules: bool
    """Whether it sets a time before which the message is not enqueued."""
    _statements: list[Change]
    rule: str = ""
    """The name of its rule."""

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return not self._statements

    def of_rule(self, name: str) -> Self:
        """The action of a rule with this name, which the message that it makes has as a property."""
        named = _set(RULE_NAME, lambda _: name, None)
        return replace(self, can_fail=True, _statements=[named, *self._statements], rule=name)

    def apply(self, message: bytes, came_ms: int) -> bytes:
        """The changed message; a message with malformed sections before the body is returned unchanged.

        Args:
            came_ms: when it came, in milliseconds since 1970, from where its time to live counts.

        Raises EvaluationError: a statement has no result for this message, or all together make a larger one
        of it than the broker takes.
        """
        try:
            _, end = locate(message)
            if end < len(message) and open_section(message, end)[0] <= APPLICATION_PROPERTIES:
                return message
            head, beyond = message[:end], len(message) - end
            for statement in self._statements:
                changes = statement(HeadView(head, beyond=beyond, came_ms=came_ms))
                if changes:
                    head = changed(head, changes)
        except MALFORMED:
            return message
        if (size := len(head) + beyond) > max(limits.MAX_MESSAGE_BYTES, len(message)):
            raise EvaluationError(
                f"the action makes a message of {size} bytes; expected at most {limits.MAX_MESSAGE_BYTES}"
            )
        return head + message[end:]

    def __repr__(self) -> str:
        return f"RuleAction({self.spec!r})"


def compile_rule_action(spec: Any, new_id: NewId) -> RuleAction:
    """Compile the JSON of a rule's action. Raises FilterError with the position in the statements."""
    if not isinstance(spec, Mapping) or not spec.keys() <= {"sql", "parameters"} or "sql" not in spec:
        raise FilterError("an object with sql and parameters", shown(spec))
    if not isinstance(spec["sql"], str):
        raise FilterError("a text", shown(spec["sql"]), part="sql")
    parameters = parameters_in(spec)
    compiler = RuleCompiler(new_id)
    try:
        statements = parse_statements(spec["sql"], parameters)
        changes = [_statement(each, compiler) for each in statements]
        weight = sum(1 if each.value is None else 1 + each.value.weight for each in statements)
        if weight > limits.FILTER_WEIGHT_MAX:
            raise FilterError(f"at most {limits.FILTER_WEIGHT_MAX} evaluations for a message", str(weight))
    except FilterError as error:
        raise error.within("sql") from None
    can_fail = any(each.value is not None for each in statements)
    system = {(each.target.name, each.value is not None) for each in statements if each.target.is_system}
    return RuleAction(
        {"rule": dict(spec)},
        weight,
        can_fail,
        sets_life=not system.isdisjoint({(_LIFE, True), (_LIFE, False)}),
        schedules=not system.isdisjoint((name, True) for name in _SCHEDULED),
        _statements=changes,
    )


def _statement(statement: tree.Statement, compiler: RuleCompiler) -> Change:
    target, value = statement.target, statement.value
    if target.is_system:
        if isinstance(value, nodes.Literal):
            _check_time(target.name, value)
        set_system = _set_life if target.name == _LIFE else _set_system
        return set_system(target.name, _nothing if value is None else compiler.value(value))
    if value is None:
        return _remove(target.name)
    read = compiler.value(value)
    source = property_path(value.name) if isinstance(value, tree.Property) and not value.is_system else None
    return _set(target.name, read, None if source is None else lambda view: view.property(source))


def _nothing(view: MessageView) -> None:
    return None


# --- application properties ---------------------------------------------------------------------------------


def _set(name: str, read: Read, copied: Read | None) -> Change:
    path, own_name, remove = property_path(name), name.encode(), _remove(name)
    copies = copied is not None

    def change(view: MessageView) -> Changes:
        # What is copied keeps its type, also one that rules don't know.
        value = copied(view) if copied is not None else read(view)
        if value is None:
            return remove(view)
        if value is OPAQUE:
            raise EvaluationError("a property holds a list or map too large to be copied")
        encoded = write_value(value) if copies else _encoded(value, type(view.property(path)))
        names = view.names(path.key) or [own_name]
        pair = write_string(names[0].decode(errors="replace")) + encoded
        return {APPLICATION_PROPERTIES: {names[0]: pair, **dict.fromkeys(names[1:])}}

    return change


def _remove(name: str) -> Change:
    key = property_path(name).key

    def change(view: MessageView) -> Changes:
        names = view.names(key)
        return {APPLICATION_PROPERTIES: dict.fromkeys(names)} if names else {}

    return change


def _encoded(value: Any, present: type) -> bytes:
    """A value in AMQP; a whole number has the type of the present value where it fits, else it is a long."""
    match value:
        case str():
            return _string(value)
        case bool():
            return write_value(value)
        case Timestamp():
            return write_value(value)
        case Duration():
            return write_value(Described(TIMESPAN, Long(value)))
        case int():
            least, most = _WHOLE.get(present, (0, -1))
            return write_value(present(value) if least <= value <= most else Long(value))
        case float():
            return write_value(Float(value) if present is Float else value)
        case Decimal():
            return write_value(decimal128(value))
        case UUID():
            return write_value(value)
    raise EvaluationError(f"a value of this kind can't be set: {shown(value)}")


def _string(text: str) -> bytes:
    try:
        return write_string(text)
    except UnicodeEncodeError:
        raise EvaluationError(f"text that UTF-8 can't encode: {shown(text)}") from None


# --- properties of the message ---------------------------------------------------------------------


def _set_system(name: str, read: Read) -> Change:
    path = SYSTEM[name].path
    assert path is not None
    write = _WRITERS.get(name, _write_text)
    key: Any = path.key if path.section == MESSAGE_ANNOTATIONS else path.index

    def change(view: MessageView) -> Changes:
        value = read(view)
        encoded = None if value is None else write(value)
        if encoded is not None and path.section == MESSAGE_ANNOTATIONS:
            encoded = write_symbol(path.name) + encoded
        return {path.section: {key: encoded}}

    return change


def _text(value: Any) -> str:
    if value is OPAQUE:
        raise EvaluationError("a list, map or value of an unknown type has no text")
    return value if isinstance(value, str) else text_of(value)


def _write_text(value: Any) -> bytes:
    return _string(_text(value))


def _write_symbol(value: Any) -> bytes:
    text = _text(value)
    if not text.isascii():
        raise EvaluationError(f"sys.ContentType is a text of ASCII, not {shown(text)}")
    return write_symbol(text)


# --- times of the message ----------------------------------------------------------------------------------

_LIFE: Final = "timetolive"
_SCHEDULED: Final = ("scheduledenqueuetimeutc", "scheduledenqueuetime")
_FOREVER: Final = 10_675_199 * 86_400 * 1000 * TICKS_OF_MS
"""From here on a duration stands for none, as the longest one of .NET does."""


class _Time(NamedTuple):
    """A property that holds a time or a duration."""

    kind: type
    expected: str
    read: Callable[[str], Any]
    """Reads a text. Raises ValueError."""


_TIMES: Final[Mapping[str, _Time]] = {
    _LIFE: _Time(Duration, "a duration above 0, such as '00:10:00' or 'PT10M'", span_of),
    **dict.fromkeys(_SCHEDULED, _Time(Timestamp, "a time such as '2026-12-24T18:00:00Z'", moment_of)),
}


def _time(name: str, value: Any) -> Any:
    """A value as one of the kind of this property. Raises EvaluationError."""
    kind, expected, read = _TIMES[name]
    found = value
    if isinstance(value, str):
        try:
            found = read(value)
        except (ValueError, OverflowError):
            found = None
    if not isinstance(found, kind) or (isinstance(found, Duration) and found <= 0):
        raise EvaluationError(f"expected {expected} for sys.{SYSTEM[name].name}, found {shown(value)}")
    return found


def _check_time(name: str, constant: nodes.Literal) -> None:
    """Raises FilterError for a constant that is no value of this property."""
    if name not in _TIMES or constant.value is None:
        return
    try:
        _time(name, constant.value)
    except EvaluationError:
        raise FilterError(_TIMES[name].expected, shown(constant.value), constant.position) from None


def _set_life(name: str, read: Read) -> Change:
    """Sets the ttl, and as clients do the absolute-expiry-time, which other clients read.

    A time to live that does not fit into the ttl is the time between creation and expiry (amqp/lifetime.py).
    """

    def change(view: MessageView) -> Changes:
        value = read(view)
        span: int = _FOREVER if value is None else _time(name, value)
        if span >= _FOREVER:
            return {HEADER: {_TTL: None}, PROPERTIES: {_EXPIRY: None}}
        assert isinstance(view, HeadView)
        # A part of a millisecond counts as one: 0 is no time to live.
        life_ms = -(-span // TICKS_OF_MS)
        changes: Changes = {
            HEADER: {_TTL: write_value(UInt(min(life_ms, TTL_MAX)))},
            PROPERTIES: {_EXPIRY: write_value(Timestamp(view.came_ms + life_ms))},
        }
        if life_ms >= TTL_MAX:
            changes[PROPERTIES][_CREATION] = write_value(Timestamp(view.came_ms))
        return changes

    return change


def _writes_time(name: str) -> Callable[[Any], bytes]:
    return lambda value: write_value(_time(name, value))


_WRITERS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "contenttype": _write_symbol,
    **{name: _writes_time(name) for name in _TIMES},
}
_TTL: Final = parse_path("ttl").index
_EXPIRY: Final = parse_path("absolute-expiry-time").index
_CREATION: Final = parse_path("creation-time").index
