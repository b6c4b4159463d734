"""The filters of a source: which of them are applied, for the shard and for the answer (messaging 3.5.3)."""

from typing import Any

from lightrail.amqp.performatives import Source
from lightrail.amqp.types import Symbol
from lightrail.filters.errors import FilterError
from lightrail.filters.source import from_amqp
from lightrail.frontend.routes import Refused
from lightrail.model import conditions

Applied = tuple[dict[str, Any] | None, dict[Symbol, Any] | None]


def source_filter(source: Source) -> Applied:
    """(what the shard is told, what the answer says) of a source's filter set; None for no filter.

    Filters that are not supported are left out of both. Raises Refused for one that is and has an error.
    """
    if not source.filter:
        return None, None
    try:
        found = from_amqp(source.filter)
    except FilterError as error:
        raise Refused(conditions.INVALID_FIELD, str(error)) from None
    return (found.filter.spec if found.filter is not None else None), (found.accepted or None)
