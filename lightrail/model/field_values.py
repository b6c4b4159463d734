"""Field values: what a field of a policy may hold, by the kind of the field."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from lightrail.model import names

ORDER_KEY: Final = re.compile(
    r"(subject|message-id|correlation-id|to|reply-to|group-id|group-sequence|creation-time|content-type"
    r"|(application-properties|message-annotations)\.[^\x00-\x1f]{1,128})\Z"
)
"""What an order may compare."""


def is_allowed(kind: str, value: Any, low: float, high: float, choices: tuple[str, ...]) -> bool:
    """Whether a field of this kind, with these bounds, may hold a JSON value; none of kind `object`."""
    match kind:
        case "choice":
            return isinstance(value, str) and value in choices
        case "seconds" | "number":
            return _is_number(value) and bool(low <= value <= high)
        case "bytes" | "count":
            return type(value) is int and low <= value <= high
        case "boolean":
            return isinstance(value, bool)
    return isinstance(value, str) and _IS_TEXT[kind](value, high) if kind in _IS_TEXT else False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _is_name(value: str, _: float) -> bool:
    try:
        names.check(value)
    except names.InvalidNameError:
        return False
    return True


_IS_TEXT: Final[Mapping[str, Callable[[str, float], bool]]] = {
    "name": _is_name,
    "time": lambda value, _: instant(value) is not None,
    "text": lambda value, high: len(value) <= high,
    "key": lambda value, _: ORDER_KEY.match(value) is not None,
}


def in_words(kind: str, low: float, high: float, choices: tuple[str, ...]) -> str:
    """What a field of this kind may hold, for error texts and pages."""
    match kind:
        case "seconds":
            return f"seconds as a number from {low:g} to {high:g}"
        case "number":
            return f"a number from {low:g} to {high:g}"
        case "bytes" | "count":
            unit = "a number of bytes" if kind == "bytes" else "a whole number"
            return f"{unit} from {int(low)} to {int(high)}"
        case "boolean":
            return "true or false"
        case "choice":
            return "one of " + ", ".join(choices)
        case "name":
            return "a name such as myapp/failed"
        case "time":
            return "a time in UTC such as 2030-01-31T12:00:00Z"
        case "key":
            return (
                "subject, message-id, correlation-id, to, reply-to, group-id, group-sequence, "
                "creation-time, content-type, application-properties.NAME or message-annotations.NAME"
            )
        case "object":
            return "a JSON object with a policy of role queue"
    return f"a text of at most {int(high)} characters"


def instant(text: str) -> datetime | None:
    """The time that a text of RFC 3339 in UTC names; None for any other text."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)", text):
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
    except ValueError:
        return None
