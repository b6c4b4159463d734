"""Options of a consumer in a queue's machine, from its opening; and whether there is room for it."""

import json
from typing import Final

from lightrail.filters.errors import FilterError
from lightrail.filters.matcher import Looks
from lightrail.model import conditions, limits
from lightrail.model.links import LockEnding
from lightrail.shard.effects.receiving_link import outcome_of
from lightrail.shard.queue.values import commands
from lightrail.shard.queues.dead_letters import selector
from lightrail.shard.queues.memory import Memory
from lightrail.wire.bodies import ConsumerOpen, Refusal, SettleDetail

SELECTOR_FACTOR: Final[int] = 120
"""Bytes of a selector for each character of its filter: measured are 119 with LIKE, 95 where numbers are
compared, 72 with texts, 17 with IN."""


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
        selector_bytes=_selector_bytes(body),
        lock_ms=body.lock_ms,
        lock_key=body.lock_key,
        lock_ends=LockEnding(body.lock_ends),
        session=body.session,
        any_session=body.any_session,
        user=body.user,
    )


def admitted(body: ConsumerOpen, looks: Looks, memory: Memory) -> commands.ConsumerOptions | Refusal:
    """The options of a new consumer, or why it is refused; no selector is made without room for it."""
    found, needed = memory.consumers.of(body.user), limits.CONSUMER_BYTES + _selector_bytes(body)
    expected = memory.consumers_share(body.user)
    if found + needed > expected:
        return Refusal(
            conditions.RESOURCE_LIMIT_EXCEEDED,
            f"expected at most {expected} bytes of receivers and selectors of user {body.user!r} at this "
            f"shard, a half of what other users leave of {memory.links_max} (memory_mark divided by "
            f"{limits.LINKS_SHARE}); found {found}, and this receiver needs {needed}: close some, or give "
            "the shard a larger memory_mark",
        )
    try:
        return options_of(body, looks)
    except FilterError as error:
        return Refusal(conditions.INVALID_FIELD, f"the filter can't be used: {error}")


def _selector_bytes(body: ConsumerOpen) -> int:
    return 0 if body.filter is None else SELECTOR_FACTOR * len(json.dumps(body.filter))


def asked(opened: ConsumerOpen) -> tuple[object, ...]:
    """What messages an attach asks for, and what of them."""
    return (
        opened.browse,
        opened.presettled,
        opened.exclusive,
        opened.priority,
        opened.default_outcome,
        opened.default_failed,
        opened.default_undeliverable,
        opened.lock_ms,
        opened.lock_key,
        opened.filter,
    )
