"""Reads outcomes of wire frames for queue machines."""

from lightrail.shard.queue.values import commands
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import HEADER_SIZE


def outcome_of(code: int, detail: SettleDetail) -> commands.Outcome:
    """The outcome of a frame."""
    return commands.Outcome(
        commands.OutcomeKind(code),
        detail.condition,
        detail.description,
        detail.delivery_failed,
        detail.undeliverable_here,
        bytes.fromhex(detail.annotations) if detail.annotations else None,
        detail.deferred,
    )


def outcome_in(part: bytes, code: int) -> commands.Outcome:
    """The outcome in a SETTLE frame; `code` is the one in its header."""
    if code == 0:
        return commands.ACCEPTED
    body = part[HEADER_SIZE:]
    return outcome_of(code, SettleDetail.decode(body) if body else SettleDetail())
