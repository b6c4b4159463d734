"""Sendings: outgoing messages, each an envelope and its address, sent at once or scheduled."""

from dataclasses import dataclass
from typing import Any

from lightrail.bus.messages import MessageType
from lightrail.transport import Envelope


@dataclass(frozen=True, slots=True)
class Sending:
    """An envelope and its address."""

    address: str
    envelope: Envelope
    type: MessageType | None
    value: Any


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A scheduled message, as the argument of `Bus.cancel`.

    Attributes:
        id: of the message.
        queue: in which it waits.
        at: when it is sent, in seconds since the Unix epoch.
    """

    id: str
    queue: str
    at: float


@dataclass(frozen=True, slots=True)
class Scheduling:
    """A message to send now, which the broker or the bus delivers later."""

    sending: Sending
    scheduled: Scheduled
