"""Shard: counters of a shard, and its metrics, which are read from these counters and from its queues.

Hot code adds to plain integers of ShardCounts, once per batch. Counters never fall: ``ShardCounts.retire``
keeps the counters of a deleted queue.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from lightrail.telemetry.metrics import (
    BATCH_MESSAGES,
    PAUSE_SECONDS,
    SYNC_SECONDS,
    WAIT_SECONDS,
    AnyFamily,
    Family,
    Histogram,
    HistogramFamily,
    Labels,
    counter,
    counters,
    gauge,
)
from lightrail.telemetry.queues import QUEUE_COUNTERS, QUEUE_STATES, QueueReaders, QueueTotals

if TYPE_CHECKING:
    from lightrail.shard.queues.shard_queue import Figures

SUMMED_AT_ONCE: Final = 500
"""Queues that a scrape sums before the loop turns: some milliseconds."""


class ShardCounts:
    """Counters of a shard itself; figures of its queues are read from the queues at each scrape."""

    __slots__ = (
        "batches_duplicate",
        "commit_under_way",
        "dead_lettered",
        "evicted_bytes",
        "evictions",
        "fetched_bytes",
        "frontends_connected",
        "links_stolen",
        "memory_bytes",
        "memory_mark_bytes",
        "messages_per_sync",
        "move_bytes",
        "move_pause_last",
        "move_pause_seconds",
        "moves_failed",
        "moves_in",
        "moves_out",
        "queues",
        "queues_copying",
        "queues_deleted",
        "queues_frozen",
        "queues_placed",
        "retired",
        "store_directory",
        "store_failures",
        "store_full",
        "store_usage",
        "sync_seconds",
        "syncs",
        "totals",
        "transaction_prepared_seconds",
        "transactions_prepared",
        "wait_seconds",
    )

    def __init__(self, memory_mark_bytes: int = 0) -> None:
        self.batches_duplicate = 0
        self.dead_lettered: dict[str, int] = {"rejected": 0, "max-delivery-count": 0, "expired": 0}
        self.dead_lettered["queue-full"] = 0
        """Dead letters by reason; every DeadLetter effect adds to it."""
        self.evictions = 0
        self.evicted_bytes = 0
        self.fetched_bytes = 0
        self.frontends_connected = 0
        self.links_stolen = 0
        self.memory_bytes = 0
        self.memory_mark_bytes = memory_mark_bytes
        self.queues: QueueReaders = lambda _: ()
        """Reads the figures of this shard's queues."""
        self.move_bytes = 0
        """Bytes of messages that were copied with queues from other shards."""
        self.move_pause_last = 0.0
        """Seconds from the last freeze of a queue at its former shard to its being served here."""
        self.move_pause_seconds = Histogram(PAUSE_SECONDS)
        self.moves_failed = 0
        self.moves_in = 0
        self.moves_out = 0
        self.queues_copying = 0
        self.queues_placed: Callable[[], int] = lambda: self.totals.queues
        """Number of queues placed on this shard, including queues that were never used."""
        self.queues_frozen = 0
        self.queues_deleted = 0
        self.retired = dict.fromkeys(QUEUE_COUNTERS, 0)
        self.store_failures = 0
        self.store_full: Callable[[], bool] = lambda: False
        self.commit_under_way: Callable[[], float] = lambda: 0.0
        """Seconds since the commit that is being written began; 0 while none is."""
        self.store_directory: str | None = None
        """Directory of the store's files; None if the store has no files."""
        self.store_usage: Callable[[], Mapping[str, int]] = dict
        """Bytes of the store by kind, such as live and total."""
        self.syncs = 0
        self.messages_per_sync = Histogram(BATCH_MESSAGES)
        self.sync_seconds = Histogram(SYNC_SECONDS)
        self.transactions_prepared = 0
        """Transactions over several shards that wait here for the decision of another one."""
        self.transaction_prepared_seconds = 0.0
        """Since the oldest of them was prepared; 0 without any."""
        self.wait_seconds = Histogram(WAIT_SECONDS)
        """Time from enqueueing to first delivery; one slice in a few is measured."""
        self.totals = QueueTotals()
        """The sums of the last `summing`."""

    def synced(self, messages: int, seconds: float) -> None:
        """One commit of the store is on disk."""
        self.syncs += 1
        self.messages_per_sync.observe(messages)
        self.sync_seconds.observe(seconds)

    def retire(self, figures: "Figures") -> None:
        """Keeps the counters of a queue that is deleted or has moved away."""
        self.queues_deleted += 1
        for name in QUEUE_COUNTERS:
            self.retired[name] += getattr(figures, name)

    def summing(self) -> Iterator[None]:
        """Computes `totals` again; yields after every SUMMED_AT_ONCE queues, because there may be very many.

        A queue that is deleted meanwhile still counts as a queue, and not yet as a retired one.
        """
        totals = QueueTotals()
        totals.figures.update(self.retired)
        queues = self.queues("")
        for first in range(0, len(queues), SUMMED_AT_ONCE):
            for name, read in queues[first : first + SUMMED_AT_ONCE]:
                totals.add(name, read())
            yield
        self.totals = totals


def _sum(name: str) -> Callable[[ShardCounts], Iterable[tuple[Labels, float]]]:
    return lambda counts: [((), counts.totals.figures[name])]


def _states(counts: ShardCounts) -> Iterable[tuple[Labels, float]]:
    return [((state,), counts.totals.figures[state]) for state in QUEUE_STATES]


def _disk(
    which: Callable[[os.statvfs_result], int],
) -> Callable[[ShardCounts], Iterable[tuple[Labels, float]]]:
    def read(counts: ShardCounts) -> Iterable[tuple[Labels, float]]:
        if counts.store_directory is not None:
            with suppress(OSError):
                found = os.statvfs(counts.store_directory)
                yield (), which(found) * found.f_frsize

    return read


SHARD_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    *(
        Family("counter", f"lightrail_queue_messages_{name}", help, (), _sum(name))
        for name, help in QUEUE_COUNTERS.items()
        if name != "dead_lettered"
    ),
    Family(
        "counter",
        "lightrail_queue_messages_dead_lettered",
        QUEUE_COUNTERS["dead_lettered"],
        ("reason",),
        lambda counts: [((reason,), count) for reason, count in counts.dead_lettered.items()],
    ),
    Family(
        "gauge",
        "lightrail_queue_messages",
        "Messages in queues, by state; delayed ones wait for a time, parked ones for room in a full queue.",
        ("state",),
        _states,
    ),
    Family(
        "gauge",
        "lightrail_queue_messages_locked",
        "Messages in flight under a timed lock.",
        (),
        _sum("locked"),
    ),
    Family(
        "gauge",
        "lightrail_queue_bytes",
        "Bytes of the messages in queues, in memory or not.",
        (),
        _sum("bytes"),
    ),
    Family(
        "gauge",
        "lightrail_queues",
        "Queues that are placed on this shard, used or not; a dead-letter queue is a part of its queue.",
        (),
        lambda counts: [((), counts.queues_placed())],
    ),
    Family(
        "gauge",
        "lightrail_queues_unattended",
        "Queues with ready messages and without a consumer, except dead-letter queues.",
        (),
        lambda counts: [((), counts.totals.unattended_queues)],
    ),
    Family(
        "gauge",
        "lightrail_queue_messages_unattended",
        "Ready messages in queues without a consumer, except dead letters.",
        (),
        lambda counts: [((), counts.totals.unattended_messages)],
    ),
    Family("gauge", "lightrail_queue_consumers", "Consumers of queues.", (), _sum("consumers")),
    counter(
        "lightrail_queues_deleted", "Queues that were deleted or moved to another shard.", "queues_deleted"
    ),
    counter("lightrail_journal_syncs", "Commits of the store that reached the disk.", "syncs"),
    HistogramFamily(
        "lightrail_journal_messages_per_sync", "Messages in one commit.", lambda c: c.messages_per_sync
    ),
    HistogramFamily(
        "lightrail_journal_sync_seconds", "Time to write and sync one commit.", lambda c: c.sync_seconds
    ),
    HistogramFamily(
        "lightrail_queue_wait_seconds",
        "Time that messages waited in a queue for their first delivery; one slice in eight is measured.",
        lambda c: c.wait_seconds,
    ),
    counters(
        "lightrail_shard_moves_completed",
        "Queues that moved from another shard to this one, or from this one to another.",
        "direction",
        {"in": "moves_in", "out": "moves_out"},
    ),
    counter(
        "lightrail_shard_moves_failed",
        "Copies of queues that were dropped before they were complete, for any reason.",
        "moves_failed",
    ),
    counter("lightrail_shard_move_bytes", "Bytes of messages copied from other shards.", "move_bytes"),
    HistogramFamily(
        "lightrail_shard_move_pause_seconds",
        "Time from the freeze of a queue at its former shard until this shard serves it.",
        lambda c: c.move_pause_seconds,
    ),
    gauge(
        "lightrail_shard_queues_frozen",
        "Queues that this shard has frozen for a move and that their destination does not serve yet.",
        "queues_frozen",
    ),
    gauge("lightrail_shard_queues_copying", "Queues that are being copied here.", "queues_copying"),
    Family(
        "gauge",
        "lightrail_commit_under_way_seconds",
        "Age of the commit that is being written to the disk; 0 while there is none.",
        (),
        lambda counts: [((), counts.commit_under_way())],
    ),
    counter(
        "lightrail_links_stolen",
        "Links of clients that ended because another connection of their container attached them.",
        "links_stolen",
    ),
    counter("lightrail_store_failures", "Writes that the store refused: full, or failed.", "store_failures"),
    Family(
        "gauge",
        "lightrail_store_full",
        "1 while the store has no room for messages; stored messages are still delivered.",
        (),
        lambda counts: [((), float(counts.store_full()))],
    ),
    Family(
        "gauge",
        "lightrail_store_bytes",
        "Bytes of the store, by kind.",
        ("kind",),
        lambda counts: [((kind,), size) for kind, size in counts.store_usage().items()],
    ),
    Family(
        "gauge",
        "lightrail_disk_free_bytes",
        "Bytes that the shard may still use of the file system under its journal.",
        (),
        _disk(lambda found: found.f_bavail),
    ),
    Family(
        "gauge",
        "lightrail_disk_size_bytes",
        "Bytes of the file system under the journal.",
        (),
        _disk(lambda found: found.f_blocks),
    ),
    gauge("lightrail_memory_bytes", "Bytes of messages in memory, with their indexes.", "memory_bytes"),
    gauge(
        "lightrail_memory_mark_bytes",
        "Bytes of messages beyond which they are spilled to disk.",
        "memory_mark_bytes",
    ),
    counter("lightrail_evictions", "Times messages on disk were dropped from memory.", "evictions"),
    counter("lightrail_evicted_bytes", "Bytes of messages dropped from memory.", "evicted_bytes"),
    counter("lightrail_fetched_bytes", "Bytes of messages read back from disk.", "fetched_bytes"),
    counter(
        "lightrail_batches_duplicate",
        "Batches that a frontend sent again and that were already stored.",
        "batches_duplicate",
    ),
    gauge(
        "lightrail_frontends_connected", "Frontends that are connected to this shard.", "frontends_connected"
    ),
    gauge(
        "lightrail_transactions_prepared",
        "Transactions over several shards that wait here for the decision of another one.",
        "transactions_prepared",
    ),
    gauge(
        "lightrail_transaction_prepared_seconds",
        "Time since the oldest of these transactions was prepared; 0 without any.",
        "transaction_prepared_seconds",
    ),
)
