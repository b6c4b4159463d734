"""Outcomes of messages, at the broker or at a receiver (messaging 3.4)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from lightrail.amqp.events import ACCEPTED as WIRE_ACCEPTED
from lightrail.amqp.performatives import Accepted, Declared, Modified, Rejected, Released, TransactionalState
from lightrail.model import conditions


class OutcomeKind(Enum):
    """Outcomes of AMQP, and `UNKNOWN` of the client."""

    ACCEPTED = "accepted"
    """The message is stored at its address, on disk if it is durable."""
    REJECTED = "rejected"
    """The message can't be processed; `condition` and `description` have the reason."""
    RELEASED = "released"
    """The message was not processed, and may be sent again."""
    MODIFIED = "modified"
    """As released, and the attempt may count as failed."""
    UNKNOWN = "unknown"
    """The connection was lost before the answer, and the link was not resumed: the message may have been
    accepted or not."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An outcome, with the fields of its kind."""

    kind: OutcomeKind
    condition: str = ""
    description: str = ""
    info: Mapping[Any, Any] = field(default_factory=dict)
    delivery_failed: bool = False
    undeliverable_here: bool = False
    annotations: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """Whether the broker accepted the message."""
        return self.kind is OutcomeKind.ACCEPTED

    def __str__(self) -> str:
        why = self.description or self.condition
        return f"{self.kind.value}: {why}" if why else self.kind.value


TRANSACTION_ID: Final = "txn-id"
"""In the info of the outcome of a declare: the id of the transaction."""
ACCEPTED: Final = Outcome(OutcomeKind.ACCEPTED)
RELEASED: Final = Outcome(OutcomeKind.RELEASED)
UNKNOWN: Final = Outcome(OutcomeKind.UNKNOWN, description="the connection was lost before the answer came")


def outcome_of(state: Any) -> Outcome:
    """The outcome of the peer's delivery state; a delivery settled without any is accepted (2.6.12)."""
    if state is WIRE_ACCEPTED or state is None:
        return ACCEPTED
    match state:
        case Declared():
            return Outcome(OutcomeKind.ACCEPTED, info={TRANSACTION_ID: state.txn_id})
        case TransactionalState():
            return outcome_of(state.outcome)
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


def outcome_of_size(found: int, most: int) -> Outcome:
    """The outcome of a message that exceeds the broker's max-message-size, and would end its link."""
    return Outcome(
        OutcomeKind.REJECTED,
        conditions.MESSAGE_SIZE_EXCEEDED,
        f"expected messages of at most {most} bytes (max-message-size), found one of {found}",
    )
