"""The filters of a source: which of them are applied, for the shard and for the answer (messaging 3.5.3)."""

from typing import Any, Final

from lightrail.amqp.performatives import Source
from lightrail.amqp.values import Described, Symbol
from lightrail.filters.errors import FilterError
from lightrail.filters.source import from_amqp
from lightrail.frontend.errors import ConditionError
from lightrail.model import conditions

NO_LOCAL: Final = frozenset({"apache.org:no-local-filter:list", 0x0000468C00000003})
"""Leaving this one out, as 3.5.8 allows, would give JMS clients their own messages: they do not check."""

Applied = tuple[dict[str, Any] | None, dict[Symbol, Any] | None]


def source_filter(source: Source) -> Applied:
    """(the filter for the shard, the filter set of the answer) of a source; None for no filter.

    Filters that are not supported are left out of both. Raises ConditionError for a supported one with an
    error.
    """
    if not source.filter:
        return None, None
    for value in source.filter.values():
        if isinstance(value, Described) and value.descriptor in NO_LOCAL:
            raise ConditionError(
                conditions.NOT_IMPLEMENTED,
                "no-local filters are not available in this version: subscribe without one",
            )
    try:
        found = from_amqp(source.filter)
    except FilterError as error:
        raise ConditionError(conditions.INVALID_FIELD, str(error)) from None
    return (found.filter.spec if found.filter is not None else None), (found.accepted or None)
