"""The filters of a source: which of them are applied, for the shard and for the answer (messaging 3.5.3)."""

from typing import Any

from lightrail.amqp.performatives import Source
from lightrail.amqp.types import Symbol

Applied = tuple[dict[str, Any] | None, dict[Symbol, Any] | None]


def source_filter(source: Source) -> Applied:
    """(what the shard is told, what the answer says) of a source's filter set; this version applies none."""
    return None, None
