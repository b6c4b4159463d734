"""Outcomes between AMQP and the wire: of deliveries to the shard, and of a listener to its senders."""

from dataclasses import dataclass
from typing import Any, Final

from lightrail.amqp.decoder import decode
from lightrail.amqp.encoder import encode
from lightrail.amqp.events import ACCEPTED, RELEASED
from lightrail.amqp.performatives import Accepted, AmqpError, Modified, Rejected, Released
from lightrail.amqp.values import Symbol
from lightrail.wire.bodies import ConsumerOpen, SettleDetail
from lightrail.wire.frames import OutcomeCode


@dataclass(slots=True)
class Deferral:
    """An outcome by which a client defers messages (queue/timed/aside.py)."""

    state: Modified
    """The state when the broker settles: undeliverable-here."""
    annotations: dict[Symbol, Any] | None = None
    """Annotations that the messages get; None for none."""


OUTCOMES: Final = (Accepted, Rejected, Released, Modified, Deferral)
"""Terminal states (messaging 3.4): other states do not settle a delivery."""
FAILED: Final = Modified(delivery_failed=True)
"""The outcome of messages that a shard may have stored before it stopped."""


def encode_outcome(state: object, options: ConsumerOpen) -> tuple[OutcomeCode, bytes]:
    """The code and body of a SETTLE frame.

    Args:
        state: of the client's settlement; without an outcome, the default of `options` is sent.
    """
    if isinstance(state, Accepted):
        return OutcomeCode.ACCEPTED, b""
    if isinstance(state, Released):
        return OutcomeCode.RELEASED, b""
    if isinstance(state, Rejected):
        error = state.error
        detail = SettleDetail()
        if error is not None:
            detail.condition = str(error.condition)[:256]
            detail.description = (error.description or "")[:1024]
            notes = {key: value for key, value in (error.info or {}).items() if _is_annotation(key)}
            if notes:
                detail.annotations = encode(notes).hex()
        return OutcomeCode.REJECTED, detail.encode()
    if isinstance(state, Deferral):
        annotations = encode(state.annotations).hex() if state.annotations else ""
        return OutcomeCode.MODIFIED, SettleDetail(annotations=annotations, deferred=True).encode()
    if isinstance(state, Modified):
        annotations = encode(state.message_annotations).hex() if state.message_annotations else ""
        return OutcomeCode.MODIFIED, SettleDetail(
            delivery_failed=bool(state.delivery_failed),
            undeliverable_here=bool(state.undeliverable_here),
            annotations=annotations,
        ).encode()
    # Settled without an outcome: the source's default-outcome, or modified(delivery-failed) (3.5.3).
    return OutcomeCode(options.default_outcome), SettleDetail.default_of(options).encode()


def decode_outcome(code: int, detail: SettleDetail) -> Any:
    """The delivery state for a sender whose listener has settled (messaging 3.4)."""
    if code == OutcomeCode.ACCEPTED:
        return ACCEPTED
    if code == OutcomeCode.RELEASED:
        return RELEASED
    if code == OutcomeCode.REJECTED:
        if not detail.condition:
            return Rejected()
        return Rejected(error=AmqpError(condition=Symbol(detail.condition), description=detail.description))
    return Modified(
        delivery_failed=detail.delivery_failed,
        undeliverable_here=detail.undeliverable_here,
        message_annotations=_annotations(detail.annotations) if detail.annotations else None,
    )


def _annotations(encoded: str) -> Any:
    data = bytes.fromhex(encoded)
    return decode(data, 0, len(data))[0]


def _is_annotation(key: object) -> bool:
    """Whether an entry of an error's info is kept on the dead letter: x-opt-, except the broker's names."""
    return isinstance(key, str) and key.startswith("x-opt-") and not key.startswith("x-opt-dead-letter-")
