"""Families: every metric of every role, its name, help and labels, and the counts it is read from.

Hot code adds to plain integers of FrontendCounts or ShardCounts, once per batch. Counters never fall: what a
deleted queue had counted is kept by ``ShardCounts.retire``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from lightrail.telemetry.metrics import (
    BATCH_MESSAGES,
    PAUSE_SECONDS,
    SYNC_SECONDS,
    AnyFamily,
    Family,
    Histogram,
    HistogramFamily,
    Labels,
    counter,
    counters,
    gauge,
)

OUTCOMES: Final = ("accepted", "rejected", "released", "modified")
"""Outcomes by their codes between frontend and shard (docs/formats/wire.md)."""
DETAILED_QUEUES_MAX: Final = 10_000
"""Queues that one scrape of /metrics/detailed lists; ``?queue=PREFIX`` chooses among more."""


class FrontendCounts:
    """What a frontend counts. Integers; the loop that owns the sockets is the only one to write."""

    __slots__ = (
        "authentications_failed",
        "batches_repeated",
        "connections",
        "connections_failed",
        "connections_opened",
        "connections_refused",
        "frame_bytes_received",
        "frame_bytes_sent",
        "links_closed",
        "links_opened",
        "links_refused",
        "message_bytes_delivered",
        "message_bytes_received",
        "messages_accepted",
        "messages_delivered",
        "messages_presettled",
        "messages_received",
        "messages_redelivered",
        "messages_refused",
        "messages_released",
        "messages_routed",
        "messages_unroutable",
        "outcomes",
        "sessions",
        "shards_connected",
        "unanswered_bytes",
        "write_stalls",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)
        self.outcomes = [0] * len(OUTCOMES)
        """Settled deliveries by the codes of OUTCOMES."""

    authentications_failed: int
    batches_repeated: int
    connections: int
    connections_failed: int
    connections_opened: int
    connections_refused: int
    frame_bytes_received: int
    frame_bytes_sent: int
    links_closed: int
    links_opened: int
    links_refused: int
    message_bytes_delivered: int
    message_bytes_received: int
    messages_accepted: int
    messages_delivered: int
    messages_presettled: int
    messages_received: int
    messages_redelivered: int
    messages_refused: int
    messages_released: int
    messages_routed: int
    messages_unroutable: int
    sessions: int
    shards_connected: int
    unanswered_bytes: int
    write_stalls: int

    def settled(self, outcome: int, count: int) -> None:
        """Receivers settled deliveries; ``outcome`` is a place in OUTCOMES."""
        self.outcomes[outcome] += count


FRONTEND_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    counter(
        "lightrail_messages_received",
        "Messages that arrived whole from senders, before any answer.",
        "messages_received",
    ),
    counter("lightrail_message_bytes_received", "Bytes of those messages.", "message_bytes_received"),
    counter(
        "lightrail_messages_accepted",
        "Messages that were answered with accepted, or arrived settled and were stored.",
        "messages_accepted",
    ),
    counters(
        "lightrail_messages_not_accepted",
        "Messages that senders got back, by the outcome they were told.",
        "outcome",
        {"rejected": "messages_refused", "released": "messages_released"},
    ),
    counter(
        "lightrail_messages_routed", "Messages for queues that routers made of what came.", "messages_routed"
    ),
    counter(
        "lightrail_messages_unroutable",
        "Messages to routers that nobody gets: rejected or dropped, as the policy says.",
        "messages_unroutable",
    ),
    counter("lightrail_messages_delivered", "Messages written to receivers.", "messages_delivered"),
    counter(
        "lightrail_messages_redelivered",
        "Deliveries of messages that had been delivered before.",
        "messages_redelivered",
    ),
    counter("lightrail_message_bytes_delivered", "Bytes of those messages.", "message_bytes_delivered"),
    Family(
        "counter",
        "lightrail_messages_settled",
        "Deliveries that receivers settled, by outcome; presettled ones were sent settled.",
        ("outcome",),
        lambda counts: [
            *(((name,), count) for name, count in zip(OUTCOMES, counts.outcomes, strict=True)),
            (("presettled",), counts.messages_presettled),
        ],
    ),
    gauge("lightrail_connections", "AMQP connections that are open now.", "connections"),
    counter("lightrail_connections_opened", "AMQP connections that were opened.", "connections_opened"),
    counter(
        "lightrail_connections_refused",
        "Sockets that were turned away because a limit was reached.",
        "connections_refused",
    ),
    counter(
        "lightrail_connections_failed",
        "Connections that ended by an error of theirs: framing, decoding, silence.",
        "connections_failed",
    ),
    counter(
        "lightrail_authentications_failed", "SASL exchanges that did not succeed.", "authentications_failed"
    ),
    gauge("lightrail_sessions", "AMQP sessions that are open now.", "sessions"),
    Family(
        "gauge",
        "lightrail_links",
        "AMQP links that are attached now.",
        (),
        lambda counts: [((), counts.links_opened - counts.links_closed)],
    ),
    counter("lightrail_links_opened", "AMQP links that were attached.", "links_opened"),
    counter(
        "lightrail_links_closed",
        "AMQP links that were detached, or went with their connection.",
        "links_closed",
    ),
    counter("lightrail_links_refused", "Attach frames that were refused.", "links_refused"),
    counters(
        "lightrail_frame_bytes",
        "Bytes of AMQP frames, headers and SASL included, TLS not.",
        "direction",
        {"received": "frame_bytes_received", "sent": "frame_bytes_sent"},
    ),
    counter(
        "lightrail_write_stalls",
        "Times a connection got no more deliveries because its peer did not read.",
        "write_stalls",
    ),
    counter(
        "lightrail_batches_repeated",
        "Batches sent to a shard again after it came back without an answer.",
        "batches_repeated",
    ),
    gauge(
        "lightrail_unanswered_bytes",
        "Bytes of messages that arrived and that no shard has answered yet.",
        "unanswered_bytes",
    ),
    gauge("lightrail_shards_connected", "Shards that answer this frontend.", "shards_connected"),
)


class QueueFigures(Protocol):
    """What one queue counts: the ``stats`` of the queue machine have these attributes."""

    @property
    def enqueued(self) -> int: ...
    @property
    def delivered(self) -> int: ...
    @property
    def redelivered(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def rejected(self) -> int: ...
    @property
    def released(self) -> int: ...
    @property
    def modified(self) -> int: ...
    @property
    def expired(self) -> int: ...
    @property
    def dead_lettered(self) -> int: ...
    @property
    def purged(self) -> int: ...
    @property
    def ready(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def duplicates(self) -> int: ...
    @property
    def discarded(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def locks_expired(self) -> int: ...
    @property
    def parked(self) -> int: ...
    @property
    def locked(self) -> int: ...
    @property
    def bytes(self) -> int: ...


QUEUE_COUNTERS: Final = {
    "enqueued": "Messages stored in queues.",
    "delivered": "Messages handed to consumers.",
    "redelivered": "Messages handed out again after an earlier delivery did not end in accepted.",
    "accepted": "Messages that consumers accepted.",
    "rejected": "Messages that consumers rejected.",
    "released": "Messages that consumers released, or that came back when a consumer went.",
    "modified": "Messages that consumers settled as modified.",
    "expired": "Messages whose time ran out.",
    "dead_lettered": "Messages that left their queue for its dead-letter queue.",
    "purged": "Messages that a purge removed.",
    "duplicates": "Messages dropped because their message-id had come before within the queue's window.",
    "discarded": "Messages that a full queue dropped: those that came, or the oldest that gave way.",
    "refused": "Messages that a queue refused: it was full, or they were too large.",
    "locks_expired": "Deliveries that came back because their timed lock ran out.",
}
QUEUE_GAUGES: Final = {"ready": "ready", "in_flight": "in_flight", "locked": "locked", "parked": "parked"}
"""States of messages by the property that counts them; `locked` ones are in flight too, `parked` ones wait
for room and are not in the queue yet."""


class ShardCounts:
    """What a shard counts itself; figures of its queues are read from them when a scrape asks."""

    __slots__ = (
        "batches_duplicate",
        "dead_lettered",
        "evicted_bytes",
        "evictions",
        "fetched_bytes",
        "frontends_connected",
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
        "queues_sealed",
        "retired",
        "store_failures",
        "store_usage",
        "sync_seconds",
        "syncs",
    )

    def __init__(self, memory_mark_bytes: int = 0) -> None:
        self.batches_duplicate = 0
        self.dead_lettered: dict[str, int] = {"rejected": 0, "max-delivery-count": 0, "expired": 0}
        self.dead_lettered["queue-full"] = 0
        """By reason; add to it with every DeadLetter effect."""
        self.evictions = 0
        self.evicted_bytes = 0
        self.fetched_bytes = 0
        self.frontends_connected = 0
        self.memory_bytes = 0
        self.memory_mark_bytes = memory_mark_bytes
        self.queues: Callable[[], Iterable[tuple[str, QueueFigures]]] = tuple
        """(name, figures) of every queue of this shard."""
        self.move_bytes = 0
        """Of messages that came with queues from other shards."""
        self.move_pause_last = 0.0
        """Seconds from the last seal to its queue being served here."""
        self.move_pause_seconds = Histogram(PAUSE_SECONDS)
        self.moves_failed = 0
        self.moves_in = 0
        self.moves_out = 0
        self.queues_copying = 0
        self.queues_sealed = 0
        self.queues_deleted = 0
        self.retired = dict.fromkeys(QUEUE_COUNTERS, 0)
        self.store_failures = 0
        self.store_usage: Callable[[], Mapping[str, int]] = dict
        """Bytes of the store by what they are, such as live and total."""
        self.syncs = 0
        self.messages_per_sync = Histogram(BATCH_MESSAGES)
        self.sync_seconds = Histogram(SYNC_SECONDS)

    def synced(self, messages: int, seconds: float) -> None:
        """One commit of the store is on disk."""
        self.syncs += 1
        self.messages_per_sync.observe(messages)
        self.sync_seconds.observe(seconds)

    def retire(self, figures: QueueFigures) -> None:
        """A queue goes: keep what it had counted."""
        self.queues_deleted += 1
        for name in QUEUE_COUNTERS:
            self.retired[name] += getattr(figures, name)


def _sum(name: str) -> Callable[[ShardCounts], Iterable[tuple[Labels, float]]]:
    return lambda counts: [
        ((), counts.retired[name] + sum(getattr(figures, name) for _, figures in counts.queues()))
    ]


def _depth(counts: ShardCounts) -> Iterable[tuple[Labels, float]]:
    for state, name in QUEUE_GAUGES.items():
        yield (state,), sum(getattr(figures, name) for _, figures in counts.queues())


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
    Family("gauge", "lightrail_queue_depth", "Messages in queues, by state.", ("state",), _depth),
    Family(
        "gauge",
        "lightrail_queue_bytes",
        "Bytes of the messages in queues, in memory or not.",
        (),
        lambda counts: [((), sum(figures.bytes for _, figures in counts.queues()))],
    ),
    Family(
        "gauge",
        "lightrail_queues",
        "Queues of this shard.",
        (),
        lambda counts: [((), sum(1 for _ in counts.queues()))],
    ),
    counter("lightrail_queues_deleted", "Queues that were deleted.", "queues_deleted"),
    counter("lightrail_journal_syncs", "Commits of the store that reached the disk.", "syncs"),
    HistogramFamily(
        "lightrail_journal_messages_per_sync", "Messages in one commit.", lambda c: c.messages_per_sync
    ),
    HistogramFamily(
        "lightrail_journal_sync_seconds", "Time to write and sync one commit.", lambda c: c.sync_seconds
    ),
    counters(
        "lightrail_shard_moves_completed",
        "Queues that came from another shard, or went to one.",
        "direction",
        {"in": "moves_in", "out": "moves_out"},
    ),
    counter(
        "lightrail_shard_moves_failed",
        "Copies of queues that were dropped before they were complete, by whatever cause.",
        "moves_failed",
    ),
    counter("lightrail_shard_move_bytes", "Bytes of messages copied from other shards.", "move_bytes"),
    HistogramFamily(
        "lightrail_shard_move_pause_seconds",
        "Time from a queue's seal at its former shard to its being served by this one.",
        lambda c: c.move_pause_seconds,
    ),
    gauge(
        "lightrail_shard_queues_sealed",
        "Queues that this shard has stopped serving for another one, which has not taken them yet.",
        "queues_sealed",
    ),
    gauge("lightrail_shard_queues_copying", "Queues that are being copied here.", "queues_copying"),
    counter("lightrail_store_failures", "Writes that the store refused: full, or failed.", "store_failures"),
    Family(
        "gauge",
        "lightrail_store_bytes",
        "Bytes of the store, by what they are.",
        ("kind",),
        lambda counts: [((kind,), size) for kind, size in counts.store_usage().items()],
    ),
    gauge("lightrail_memory_bytes", "Bytes of messages held in memory.", "memory_bytes"),
    gauge("lightrail_memory_mark_bytes", "Bytes past which messages flow to disk.", "memory_mark_bytes"),
    counter("lightrail_evictions", "Times messages were dropped from memory, kept on disk.", "evictions"),
    counter("lightrail_evicted_bytes", "Bytes of messages dropped from memory.", "evicted_bytes"),
    counter("lightrail_fetched_bytes", "Bytes of messages read back from disk.", "fetched_bytes"),
    counter(
        "lightrail_batches_duplicate",
        "Batches that a frontend sent again and that were already stored.",
        "batches_duplicate",
    ),
    gauge("lightrail_frontends_connected", "Frontends that this shard hears.", "frontends_connected"),
)


class QueueSelection:
    """The queues that one scrape of /metrics/detailed asks for."""

    __slots__ = ("omitted", "queues")

    def __init__(self, counts: ShardCounts, prefix: str) -> None:
        chosen = sorted((name, figures) for name, figures in counts.queues() if name.startswith(prefix))
        self.queues = chosen[:DETAILED_QUEUES_MAX]
        self.omitted = len(chosen) - len(self.queues)


def _each(name: str) -> Callable[[QueueSelection], Iterable[tuple[Labels, float]]]:
    return lambda chosen: [((queue,), getattr(figures, name)) for queue, figures in chosen.queues]


def _each_depth(chosen: QueueSelection) -> Iterable[tuple[Labels, float]]:
    for queue, figures in chosen.queues:
        for state, name in QUEUE_GAUGES.items():
            yield (queue, state), getattr(figures, name)


DETAILED_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    *(
        Family("counter", f"lightrail_detailed_messages_{name}", help, ("queue",), _each(name))
        for name, help in QUEUE_COUNTERS.items()
    ),
    Family("gauge", "lightrail_detailed_depth", "Messages by state.", ("queue", "state"), _each_depth),
    Family("gauge", "lightrail_detailed_bytes", "Bytes of messages.", ("queue",), _each("bytes")),
    gauge(
        "lightrail_detailed_queues_omitted",
        f"Queues beyond the {DETAILED_QUEUES_MAX} that one scrape lists; ask with ?queue=PREFIX.",
        "omitted",
    ),
)
