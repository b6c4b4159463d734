"""Properties of a message as rules read them: application properties in any case, and those of the message.

`sys.` stands before the properties that clients of Azure Service Bus know. Those that a queue gives a
message, such as SequenceNumber, are unknown while a message is routed. The fields of AMQP's header and
properties that they don't name have their own names, without hyphens: sys.Priority.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from lightrail.amqp.values import Timestamp
from lightrail.filters.message import MessageView
from lightrail.filters.path import FIELD_NAMES, FOLDED, MESSAGE_ANNOTATIONS, Path, entry, parse_path
from lightrail.filters.rules.values import INTEGER_MAX
from lightrail.filters.terms import TICKS_OF_MS, Duration, value_of

Read = Callable[[MessageView], Any]


@dataclass(slots=True, eq=False, repr=False)
class HeadView(MessageView):
    """The sections before the body of a message that an action changes, of which `beyond` octets follow."""

    beyond: int = 0
    came_ms: int = 0
    """When the message came, in milliseconds since 1970."""


def property_path(name: str) -> Path:
    """The path of an application property, by which a matcher finds it."""
    return entry(FOLDED, name)


def property_reader(name: str) -> Read:
    """Reads the application property of this name, in any case."""
    path = property_path(name)
    text = f"~{path.text}"

    def make(view: MessageView) -> Any:
        return value_of(view.property(path))

    def read(view: MessageView) -> Any:
        return view.kept(text, make)

    return read


# --- properties of the message -----------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class System:
    """A property of the message itself; `path` is its field, None for one that is not in the message."""

    name: str
    path: Path | None
    read: Read
    is_settable: bool = False
    is_text: bool = False


def _text(value: Any) -> Any:
    """An id, which these clients read as text."""
    found = value_of(value)
    return str(found) if type(found) in (int, UUID) else found


def _ttl(milliseconds: Any) -> Duration:
    # As a TimeSpan of .NET: the longest one is none.
    return Duration(INTEGER_MAX if milliseconds is None else int(milliseconds) * TICKS_OF_MS)


def _time(milliseconds: Any) -> Any:
    return Timestamp(milliseconds) if isinstance(milliseconds, int) else None


def _made(name: str, path: Path, make: Callable[[Any], Any], is_settable: bool, is_text: bool) -> System:
    text = f"~{name}"

    def read(view: MessageView) -> Any:
        return view.kept(text, lambda view: make(view.field(path)))

    return System(name, path, read, is_settable, is_text)


def _came(view: MessageView) -> Timestamp | None:
    return Timestamp(view.came_ms) if isinstance(view, HeadView) else None


def _size(view: MessageView) -> int:
    return len(view.data) + (view.beyond if isinstance(view, HeadView) else 0)


def _annotation(name: str) -> Path:
    return entry(MESSAGE_ANNOTATIONS, name)


_TEXTS: Final = {
    "MessageId": "message-id",
    "CorrelationId": "correlation-id",
    "SessionId": "group-id",
    "ReplyToSessionId": "reply-to-group-id",
    "Subject": "subject",
    "Label": "subject",
    "To": "to",
    "ReplyTo": "reply-to",
    "ContentType": "content-type",
}
_NOTES: Final = {
    "PartitionKey": "x-opt-partition-key",
    "ViaPartitionKey": "x-opt-via-partition-key",
    "TransactionPartitionKey": "x-opt-via-partition-key",
    "DeadLetterSource": "x-opt-dead-letter-source",
}
_TIMES: Final = {
    "ExpiresAtUtc": parse_path("absolute-expiry-time"),
    "ExpiresAt": parse_path("absolute-expiry-time"),
    "ScheduledEnqueueTimeUtc": _annotation("x-opt-scheduled-enqueue-time"),
    "ScheduledEnqueueTime": _annotation("x-opt-scheduled-enqueue-time"),
}
_OF_QUEUES: Final = (
    "SequenceNumber",
    "EnqueuedSequenceNumber",
    "LockedUntilUtc",
    "LockedUntil",
    "LockToken",
    "State",
)
"""What a queue gives a message: unknown before it is in one."""

_ALL: Final = (
    *(_made(name, parse_path(path), _text, True, True) for name, path in _TEXTS.items()),
    *(
        _made(name, _annotation(note), value_of, name.endswith("PartitionKey"), True)
        for name, note in _NOTES.items()
    ),
    *(_made(name, path, _time, name.startswith("Scheduled"), False) for name, path in _TIMES.items()),
    _made("TimeToLive", parse_path("ttl"), _ttl, True, False),
    _made("DeliveryCount", parse_path("delivery-count"), value_of, False, False),
    System("Size", None, _size),
    *(System(name, None, _came) for name in ("EnqueuedTimeUtc", "EnqueuedTime")),
    *(System(name, None, lambda view: None) for name in _OF_QUEUES),
)


def _others() -> dict[str, System]:
    found = {}
    for field in FIELD_NAMES:
        name = "".join(word.capitalize() for word in field.split("-"))
        found[name.lower()] = _made(name, parse_path(field), value_of, False, False)
    return found


SYSTEM: Final[dict[str, System]] = _others() | {each.name.lower(): each for each in _ALL}
"""By name in lower case."""


def system_names(*, settable: bool = False) -> list[str]:
    """The names of these properties, or of those that an action may set."""
    return sorted(each.name for each in SYSTEM.values() if each.is_settable or not settable)
