"""Options of a consumer in a queue's machine, from its opening."""

from lightrail.filters.looks import Looks
from lightrail.shard.field_access import selector
from lightrail.shard.outcomes import outcome_of
from lightrail.shard.queue import commands
from lightrail.wire.bodies import ConsumerOpen, SettleDetail


def options_of(body: ConsumerOpen, looks: Looks) -> commands.ConsumerOptions:
    """The options of a consumer for the machine. Raises FilterError."""
    return commands.ConsumerOptions(
        browse=body.browse,
        presettled=body.presettled,
        exclusive=body.exclusive,
        priority=body.priority,
        default_outcome=outcome_of(body.default_outcome, SettleDetail.default_of(body)),
        first=body.first,
        selects=None if body.filter is None else selector(body.filter, looks),
        lock_ms=body.lock_ms,
        lock_key=body.lock_key,
        session=body.session,
        any_session=body.any_session,
    )
