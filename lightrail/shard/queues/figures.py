"""The figures of one queue for telemetry, under the names of the metrics."""

from lightrail.shard.queue.values.effects import Reason
from lightrail.shard.queue.view import View


class Figures:
    """A queue's counts at the time of the scrape.

    Args:
        parked: messages that wait for room in the queue.
    """

    __slots__ = (
        "accepted",
        "bytes",
        "consumers",
        "dead_lettered",
        "deferred",
        "delayed",
        "delivered",
        "discarded",
        "duplicates",
        "enqueued",
        "expired",
        "in_flight",
        "locked",
        "locks_expired",
        "modified",
        "parked",
        "purged",
        "ready",
        "redelivered",
        "refused",
        "rejected",
        "released",
        "unannotated",
    )

    def __init__(self, view: View, parked: int) -> None:
        counters = view.counters
        gauges = view.gauges
        self.enqueued = counters.enqueued
        self.delivered = counters.delivered
        self.redelivered = counters.redelivered
        self.accepted = counters.accepted
        self.rejected = counters.rejected
        self.released = counters.released
        self.modified = counters.modified
        self.expired = counters.expired
        self.dead_lettered = sum(counters.dead_lettered.values())
        self.purged = counters.purged
        self.ready = gauges.ready
        self.delayed = gauges.delayed
        self.in_flight = gauges.in_flight
        self.deferred = gauges.deferred
        self.bytes = gauges.bytes
        self.consumers = view.competing
        self.duplicates = counters.duplicates
        self.discarded = counters.dropped + counters.discarded.get(Reason.DISCARDED, 0)
        self.refused = counters.refused
        self.locks_expired = counters.locks_expired
        self.unannotated = counters.unannotated
        self.parked = parked
        self.locked = view.locked_count
