"""Endings: what the end of a consumer means for its unsettled deliveries (ADR 5)."""

from lightrail.model.ending import Ending
from lightrail.shard.queue.values.commands import RELEASED, Outcome, OutcomeKind


def outcome_of_rest(default: Outcome, ending: Ending) -> Outcome:
    """The outcome of the deliveries of a consumer that has ended; not of the oldest one of a failed client.

    Args:
        default: the default-outcome of the source.
    """
    has_decided = ending is Ending.BY_CLIENT and default.kind <= OutcomeKind.REJECTED
    return default if has_decided else RELEASED


def fails_oldest(default: Outcome, ending: Ending) -> bool:
    """Whether the oldest delivery of a consumer that has ended counts as failed (ADR 5).

    It does not if the source names an outcome that does not count (messaging 3.5.3), as one that only looks.
    """
    if default.kind is OutcomeKind.MODIFIED:
        return ending is Ending.FAILED and default.delivery_failed
    return ending is Ending.FAILED and default.kind is not OutcomeKind.RELEASED
