"""A field of a policy: its name, the roles that have it, its kind and range, and which values it may have."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from lightrail.model import names

COUNT_MAX: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
ORDER_KEY: Final = re.compile(
    r"(subject|message-id|correlation-id|to|reply-to|group-id|group-sequence|creation-time|content-type"
    r"|(application-properties|message-annotations)\.[^\x00-\x1f]{1,128})\Z"
)
"""What an order may compare."""


class Role(StrEnum):
    """The role of a name."""

    NONE = "none"
    METADATA = "metadata"
    CONNECTION_POINT = "connection-point"
    QUEUE = "queue"
    ROUTER = "router"


class Field(NamedTuple):
    """One field of a policy."""

    name: str
    roles: frozenset[Role]
    kind: str
    """`seconds`, `number`, `bytes`, `count`, `boolean`, `choice`, `name`, `time`, `text`, `key`, `object`."""
    default: Any
    doc: str
    low: float = 0
    high: float = COUNT_MAX
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """What a value may be, in words, for error texts and pages."""
        return self._in_words() + (", or null" if self.default is None else "")

    def allows(self, value: Any) -> bool:
        """Whether the field may have a JSON value; of an object `Policy` knows that, and here it may not."""
        if value is None:
            return self.default is None
        match self.kind:
            case "choice":
                return isinstance(value, str) and value in self.choices
            case "seconds" | "number":
                return _is_number(value) and bool(self.low <= value <= self.high)
            case "bytes" | "count":
                return type(value) is int and self.low <= value <= self.high
            case "boolean":
                return isinstance(value, bool)
        is_text = _IS_TEXT.get(self.kind)
        return is_text is not None and isinstance(value, str) and is_text(value, self.high)

    def _in_words(self) -> str:
        low, high = self.low, self.high
        match self.kind:
            case "seconds":
                return f"seconds as a number from {low:g} to {high:g}"
            case "number":
                return f"a number from {low:g} to {high:g}"
            case "bytes" | "count":
                unit = "a number of bytes" if self.kind == "bytes" else "a whole number"
                return f"{unit} from {int(low)} to {int(high)}"
            case "boolean":
                return "true or false"
            case "choice":
                return "one of " + ", ".join(self.choices)
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
    "time": lambda value, _: instant_ms(value) is not None,
    "text": lambda value, high: len(value) <= high,
    "key": lambda value, _: ORDER_KEY.match(value) is not None,
}


def instant_ms(text: str) -> int | None:
    """Milliseconds since 1970, rounded up, of a text of RFC 3339 in UTC; None for any other text."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)", text):
        return None
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
    except ValueError:
        return None
    return -((_EPOCH - found) // _MS)
