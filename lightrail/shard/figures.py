"""What one queue shows to telemetry: its machine's counters and gauges under the names of the metrics."""

from lightrail.shard.queue.machine import Machine


class Figures:
    """A queue's counts as they were when the scrape asked."""

    __slots__ = (
        "accepted",
        "bytes",
        "dead_lettered",
        "delivered",
        "enqueued",
        "expired",
        "in_flight",
        "modified",
        "purged",
        "ready",
        "redelivered",
        "rejected",
        "released",
    )

    def __init__(self, machine: Machine) -> None:
        counters = machine.counters
        gauges = machine.gauges
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
        self.in_flight = gauges.in_flight
        self.bytes = gauges.bytes
