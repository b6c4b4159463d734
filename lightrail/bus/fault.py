"""Faults: events about messages that could not be handled."""

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, get_args, get_origin

from lightrail.bus.messages import Kind, MessageType, message_type

T = TypeVar("T")
PREFIX: Final = "fault."


@dataclass(frozen=True)
class Fault(Generic[T]):
    """A message became a dead letter: `@bus.handler async def failed(fault: Fault[OrderPlaced])`.

    Attributes:
        message: the one that could not be handled.
        id: of the message.
        exception: class that was raised, with its module.
        text: of the exception.
        handler: function that raised.
        host: where it ran.
        attempts: calls of the handler with the message, in all deliveries.
        at: time of the last attempt.
    """

    message: T
    id: str | None
    exception: str
    text: str
    handler: str
    host: str
    attempts: int
    at: dt.datetime


_TYPES: dict[MessageType, MessageType] = {}


def fault_type(annotation: Any) -> MessageType:
    """The message type of Fault[T]."""
    (cls,) = get_args(annotation)
    return fault_of(message_type(cls))


def fault_of(type: MessageType) -> MessageType:
    """The message type of the faults of a type."""
    found = _TYPES.get(type)
    if found is None:
        cls = Fault[type.cls]  # type: ignore[name-defined]
        found = MessageType(PREFIX + type.wire_name, 1, Kind.EVENT, cls, None, None, ())
        _TYPES[type] = found
    return found


def is_fault(type: MessageType) -> bool:
    """Whether a type is that of faults."""
    return get_origin(type.cls) is Fault
