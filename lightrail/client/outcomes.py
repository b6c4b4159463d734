"""Outcomes: what became of a message, at the broker or at a receiver (messaging 3.4)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from lightrail.amqp.events import ACCEPTED as WIRE_ACCEPTED
from lightrail.amqp.performatives import Accepted, Modified, Rejected, Released


class OutcomeKind(Enum):
    """What became of a message; `UNKNOWN` is the client's own, the others are AMQP's."""

    ACCEPTED = "accepted"
    """It is where it was sent, and kept as its durability asks."""
    REJECTED = "rejected"
    """It can't be processed; `condition` and `description` say why."""
    RELEASED = "released"
    """It was not processed, and may be sent again."""
    MODIFIED = "modified"
    """The same, and an attempt may count as failed."""
    UNKNOWN = "unknown"
    """The connection was lost before the answer: it may have been accepted, and may not."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One of them, with the fields that its kind has."""

    kind: OutcomeKind
    condition: str = ""
    description: str = ""
    info: Mapping[Any, Any] = field(default_factory=dict)
    delivery_failed: bool = False
    undeliverable_here: bool = False
    annotations: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """Whether the broker has it."""
        return self.kind is OutcomeKind.ACCEPTED

    def __str__(self) -> str:
        why = self.description or self.condition
        return f"{self.kind.value}: {why}" if why else self.kind.value


ACCEPTED: Final = Outcome(OutcomeKind.ACCEPTED)
RELEASED: Final = Outcome(OutcomeKind.RELEASED)
UNKNOWN: Final = Outcome(OutcomeKind.UNKNOWN, description="the connection was lost before the answer came")


def outcome_of(state: Any) -> Outcome:
    """The outcome that a delivery state of the peer is; settled without any is accepted (2.6.12)."""
    if state is WIRE_ACCEPTED or state is None:
        return ACCEPTED
    match state:
        case Accepted():
            return ACCEPTED
        case Released():
            return RELEASED
        case Rejected():
            error = state.error
            if error is None:
                return Outcome(OutcomeKind.REJECTED)
            return Outcome(
                OutcomeKind.REJECTED, str(error.condition), error.description or "", error.info or {}
            )
        case Modified():
            return Outcome(
                OutcomeKind.MODIFIED,
                delivery_failed=bool(state.delivery_failed),
                undeliverable_here=bool(state.undeliverable_here),
                annotations=state.message_annotations or {},
            )
    return Outcome(OutcomeKind.UNKNOWN, description=f"the peer settled with {type(state).__name__}")
