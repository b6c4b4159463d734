"""Shard: counters of a shard, and its metrics, which are read from these counters and from its queues.

Hot code adds to plain integers of ShardCounts, once per batch. Counters never fall: ``ShardCounts.retire``
keeps the counters of a deleted queue.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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
    gauges,
)
from lightrail.telemetry.queues import QUEUE_COUNTERS, QUEUE_STATES, QueueReaders, QueueTotals

if TYPE_CHECKING:
    from lightrail.shard.queues.shard_queue import Figures

DEAD_LETTER_REASONS: Final = ("rejected", "max-delivery-count", "expired", "queue-full")
SUMMED_AT_ONCE: Final = 500
"""Queues that a scrape sums before the loop turns: some milliseconds."""


@dataclass(slots=True, eq=False, repr=False)
class ShardCounts:
    """Counters of a shard itself; figures of its queues are read from the queues at each scrape."""

    memory_mark_bytes: int = 0
    batches_duplicate: int = 0
    dead_lettered: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DEAD_LETTER_REASONS, 0))
    """Dead letters by reason; every DeadLetter effect adds to it."""
    evictions: int = 0
    evicted_bytes: int = 0
    fetched_bytes: int = 0
    frontends_connected: int = 0
    links_stolen: int = 0
    memory_bytes: int = 0
    queues: QueueReaders = lambda _: ()
    """Reads the figures of this shard's queues."""
    move_bytes: int = 0
    """Bytes of messages that were copied with queues from other shards."""
    move_pause_seconds: Histogram = field(default_factory=lambda: Histogram(PAUSE_SECONDS))
    """Seconds from the freeze of a queue at its former shard to its being served here."""
    moves_failed: int = 0
    moves_in: int = 0
    moves_out: int = 0
    queues_copying: int = 0
    queues_placed: Callable[[], int] | None = None
    """Number of queues placed on this shard, also of those never used; None: the number in `totals`."""
    queues_frozen: int = 0
    queues_deleted: int = 0
    retired: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUEUE_COUNTERS, 0))
    store_failures: int = 0
    store_full: Callable[[], bool] = lambda: False
    commit_under_way: Callable[[], float] = lambda: 0.0
    """Seconds since the commit that is being written began; 0 while none is."""
    store_directory: str | None = None
    """Directory of the store's files; None if the store has no files."""
    store_usage: Callable[[], Mapping[str, int]] = dict
    """Bytes of the store by kind, such as live and total."""
    syncs: int = 0
    messages_per_sync: Histogram = field(default_factory=lambda: Histogram(BATCH_MESSAGES))
    sync_seconds: Histogram = field(default_factory=lambda: Histogram(SYNC_SECONDS))
    transactions_prepared: int = 0
    """Transactions over several shards that wait here for the decision of another one."""
    transaction_prepared_seconds: float = 0.0
    """Since the oldest of them was prepared; 0 without any."""
    wait_seconds: Histogram = field(default_factory=lambda: Histogram(WAIT_SECONDS))
    """Time from enqueueing to first delivery; one slice in a few is measured."""
    totals: QueueTotals = field(default_factory=QueueTotals)
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


def _sum(name: str) -> Callable[[ShardCounts], float]:
    return lambda counts: counts.totals.figures[name]


def _states(counts: ShardCounts) -> Mapping[str, float]:
    return {state: counts.totals.figures[state] for state in QUEUE_STATES}


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
        counter(f"lightrail_queue_messages_{name}", help, _sum(name))
        for name, help in QUEUE_COUNTERS.items()
        if name != "dead_lettered"
    ),
    counters(
        "lightrail_queue_messages_dead_lettered", QUEUE_COUNTERS["dead_lettered"], "reason", "dead_lettered"
    ),
    gauges(
        "lightrail_queue_messages",
        "Messages in queues, by state; delayed ones wait for a time, parked ones for room in a full queue.",
        "state",
        _states,
    ),
    gauge("lightrail_queue_messages_locked", "Messages in flight under a timed lock.", _sum("locked")),
    gauge("lightrail_queue_bytes", "Bytes of the messages in queues, in memory or not.", _sum("bytes")),
    gauge(
        "lightrail_queues",
        "Queues that are placed on this shard, used or not; a dead-letter queue is a part of its queue.",
        lambda counts: counts.queues_placed() if counts.queues_placed else counts.totals.queues,
    ),
    gauge(
        "lightrail_queues_unattended",
        "Queues with ready messages and without a consumer, except dead-letter queues.",
        "totals.unattended_queues",
    ),
    gauge(
        "lightrail_queue_messages_unattended",
        "Ready messages in queues without a consumer, except dead letters.",
        "totals.unattended_messages",
    ),
    gauge("lightrail_queue_consumers", "Consumers of queues.", _sum("consumers")),
    counter("lightrail_queues_deleted", "Queues that were deleted or moved to another shard."),
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
    gauge(
        "lightrail_commit_under_way_seconds",
        "Age of the commit that is being written to the disk; 0 while there is none.",
        lambda counts: counts.commit_under_way(),
    ),
    counter(
        "lightrail_links_stolen",
        "Links of clients that ended because another connection of their container attached them.",
    ),
    counter("lightrail_store_failures", "Writes that the store refused: full, or failed."),
    gauge(
        "lightrail_store_full",
        "1 while the store has no room for messages; stored messages are still delivered.",
        lambda counts: counts.store_full(),
    ),
    gauges(
        "lightrail_store_bytes", "Bytes of the store, by kind.", "kind", lambda counts: counts.store_usage()
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
    gauge("lightrail_memory_bytes", "Bytes of messages in memory, with their indexes."),
    gauge("lightrail_memory_mark_bytes", "Bytes of messages beyond which they are spilled to disk."),
    counter("lightrail_evictions", "Times messages on disk were dropped from memory."),
    counter("lightrail_evicted_bytes", "Bytes of messages dropped from memory."),
    counter("lightrail_fetched_bytes", "Bytes of messages read back from disk."),
    counter(
        "lightrail_batches_duplicate", "Batches that a frontend sent again and that were already stored."
    ),
    gauge("lightrail_frontends_connected", "Frontends that are connected to this shard."),
    gauge(
        "lightrail_transactions_prepared",
        "Transactions over several shards that wait here for the decision of another one.",
    ),
    gauge(
        "lightrail_transaction_prepared_seconds",
        "Time since the oldest of these transactions was prepared; 0 without any.",
    ),
)
