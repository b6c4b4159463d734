"""Replicas: metrics of one process of a shard with replicas, which follows or owns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lightrail.telemetry.metrics import AnyFamily, gauge, gauges


@dataclass(slots=True, eq=False, repr=False)
class ReplicaCounts:
    """What a member of a shard knows of itself and, as the owner, of the others, by their hosts."""

    follows: Callable[[], bool] = lambda: False
    """Whether it writes what the owner writes."""
    epoch: int = 0
    """In which it owns the shard; 0 while it follows."""
    required: Callable[[], int] = lambda: 0
    ages_s: Callable[[], Mapping[str, float]] = dict
    ahead_bytes: Callable[[], Mapping[str, float]] = dict
    behind_records: Callable[[], Mapping[str, float]] = dict


REPLICA_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    gauge(
        "lightrail_replica_follows",
        "1 for a member of a shard with replicas that writes what the owner writes, else 0.",
        lambda counts: counts.follows(),
    ),
    gauge(
        "lightrail_replica_epoch",
        "Epoch in which this process owns its shard, which rises with each take-over; 0 while it follows.",
        "epoch",
    ),
    gauge(
        "lightrail_replica_required",
        "Members that must have a record on disk before this owner accepts it, itself included.",
        lambda counts: counts.required(),
    ),
    gauges(
        "lightrail_replica_acknowledged_age_seconds",
        "Time since a member acknowledged, or had nothing to acknowledge, by its host.",
        "member",
        lambda counts: counts.ages_s(),
    ),
    gauges(
        "lightrail_replica_ahead_bytes",
        "Bytes that this owner has sent to a member and that the member has not acknowledged, by its host.",
        "member",
        lambda counts: counts.ahead_bytes(),
    ),
    gauges(
        "lightrail_replica_behind_records",
        "Records of this owner that a member has not acknowledged, sent or not, by its host.",
        "member",
        lambda counts: counts.behind_records(),
    ),
)
