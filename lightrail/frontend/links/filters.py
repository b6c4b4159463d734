"""The applied filters of a source, for the shard and for the answer (messaging 3.5.3)."""

from typing import Any, Final

from lightrail.amqp.performatives import Source
from lightrail.amqp.values import Described, Symbol
from lightrail.filters.errors import FilterError
from lightrail.filters.source import from_amqp
from lightrail.frontend.errors import ConditionError
from lightrail.model import conditions

NO_LOCAL: Final = frozenset({"apache.org:no-local-filter:list", 0x0000468C00000003})
"""Only subscriptions apply this filter. If it were ignored elsewhere, as 3.5.8 allows, JMS clients would
receive their own messages, because they do not check the answer."""

Applied = tuple[dict[str, Any] | None, dict[Symbol, Any] | None]


def no_local(source: Source) -> dict[Symbol, Any]:
    """The filters of a source that exclude messages of its container, by name."""
    given = source.filter or {}
    return {
        name: value
        for name, value in given.items()
        if isinstance(value, Described) and value.descriptor in NO_LOCAL
    }


def source_filter(source: Source, *, subscribes: bool = False) -> Applied:
    """(the filter for the shard, the filter set of the answer) of a source; None for no filter.

    Filters that are not supported are left out of both, and no-local filters if it `subscribes`: see
    `no_local`. Raises ConditionError for a supported filter with an error.
    """
    if not source.filter:
        return None, None
    if not subscribes and no_local(source):
        raise ConditionError(
            conditions.NOT_IMPLEMENTED,
            "a no-local filter is for receivers at routers (topics): receive from a queue without one",
        )
    try:
        found = from_amqp(source.filter)
    except FilterError as error:
        raise ConditionError(conditions.INVALID_FIELD, str(error)) from None
    return (found.filter.spec if found.filter is not None else None), (found.accepted or None)
