"""Sendings: messages on their way out, each an envelope and its address, at once or at a time."""

from dataclasses import dataclass
from typing import Any

from lightrail.bus.messages import MessageType
from lightrail.transport import Envelope


@dataclass(frozen=True, slots=True)
class Sending:
    """An envelope and where it goes."""

    address: str
    envelope: Envelope
    type: MessageType | None
    value: Any


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A message that is sent later, by which `Bus.cancel` knows it.

    Attributes:
        id: of the message.
        queue: where it waits.
        at: when it is sent, in seconds since the Unix epoch.
    """

    id: str
    queue: str
    at: float


@dataclass(frozen=True, slots=True)
class Scheduling:
    """A message that is to be sent later."""

    sending: Sending
    scheduled: Scheduled
