"""The filters of a source: which of them are applied, for the shard and for the answer (messaging 3.5.3)."""

from typing import Any, Final

from lightrail.amqp.performatives import Source
from lightrail.amqp.types import Symbol
from lightrail.amqp.values import Described
from lightrail.filters.errors import FilterError
from lightrail.filters.source import from_amqp
from lightrail.frontend.routes import Refused
from lightrail.model import conditions

NO_LOCAL: Final = frozenset({"apache.org:no-local-filter:list", 0x0000468C00000003})
"""Leaving this one out, as 3.5.8 allows, would give JMS clients their own messages: they do not look."""

Applied = tuple[dict[str, Any] | None, dict[Symbol, Any] | None]


def source_filter(source: Source) -> Applied:
    """(what the shard is told, what the answer says) of a source's filter set; None for no filter.

    Filters that are not supported are left out of both. Raises Refused for one that is and has an error.
    """
    if not source.filter:
        return None, None
    for value in source.filter.values():
        if isinstance(value, Described) and value.descriptor in NO_LOCAL:
            raise Refused(
                conditions.NOT_IMPLEMENTED,
                "no-local filters are not available in this version: subscribe without one",
            )
    try:
        found = from_amqp(source.filter)
    except FilterError as error:
        raise Refused(conditions.INVALID_FIELD, str(error)) from None
    return (found.filter.spec if found.filter is not None else None), (found.accepted or None)
