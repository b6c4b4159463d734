"""Queues: counters of queues, summed over a shard, or one by one on /metrics/detailed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from lightrail.model.names import is_dead_letter
from lightrail.telemetry.metrics import AnyFamily, Family, Labels, gauge

if TYPE_CHECKING:
    from lightrail.shard.queues.shard_queue import Figures

DETAILED_QUEUES_MAX: Final = 10_000
"""Queues that one scrape of /metrics/detailed lists; ``?queue=PREFIX`` selects among more."""


QueueReaders = Callable[[str], Sequence[tuple[str, Callable[[], "Figures"]]]]
"""Returns (name, function that reads the figures) of every queue whose name begins with a prefix."""

QUEUE_COUNTERS: Final = {
    "enqueued": "Messages stored in queues.",
    "delivered": "Messages delivered to consumers.",
    "redelivered": "Messages delivered again after an earlier delivery did not end in accepted.",
    "accepted": "Messages that consumers accepted.",
    "rejected": "Messages that consumers rejected.",
    "released": "Messages that consumers released, or that returned when a consumer closed.",
    "modified": "Messages that consumers settled as modified.",
    "expired": "Messages that expired.",
    "dead_lettered": "Messages that moved from their queue to its dead-letter queue.",
    "purged": "Messages that a purge removed.",
    "duplicates": "Messages dropped as duplicates: same message-id within the queue's duplicate_window.",
    "discarded": "Messages that a full queue dropped: incoming ones, or the oldest ones for them.",
    "refused": "Messages that a queue refused: it was full, or they were too large.",
    "locks_expired": "Deliveries that returned to their queue because their timed lock expired.",
    "unannotated": "Messages that returned without their new annotations: too large with them, or malformed.",
}
QUEUE_STATES: Final = ("ready", "delayed", "in_flight", "deferred", "parked")
"""States of a message; `delayed` ones wait for their time, or after a failed delivery; `parked` ones wait for
room and are not in the queue yet."""
QUEUE_FIGURES: Final = (*QUEUE_COUNTERS, *QUEUE_STATES, "locked", "bytes", "consumers")
"""Everything that Figures has."""


@dataclass(slots=True, eq=False, repr=False)
class QueueTotals:
    """The figures of all queues of a shard, summed for one scrape."""

    figures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUEUE_FIGURES, 0))
    queues: int = 0
    unattended_messages: int = 0
    unattended_queues: int = 0

    def add(self, name: str, figures: "Figures") -> None:
        """Adds the figures of one queue."""
        self.queues += 1
        sums = self.figures
        for key in QUEUE_FIGURES:
            value = getattr(figures, key)
            if value:
                sums[key] += value
        if figures.ready and not figures.consumers and not is_dead_letter(name):
            self.unattended_queues += 1
            self.unattended_messages += figures.ready


class QueueSelection:
    """The queues that one scrape of /metrics/detailed selects."""

    __slots__ = ("omitted", "queues")

    def __init__(self, queues: QueueReaders, prefix: str) -> None:
        chosen = sorted(queues(prefix), key=itemgetter(0))
        self.queues = [(name, read()) for name, read in chosen[:DETAILED_QUEUES_MAX]]
        self.omitted = len(chosen) - len(self.queues)


def _each(name: str) -> Callable[[QueueSelection], Iterable[tuple[Labels, float]]]:
    return lambda chosen: [((queue,), getattr(figures, name)) for queue, figures in chosen.queues]


def _each_state(chosen: QueueSelection) -> Iterable[tuple[Labels, float]]:
    for queue, figures in chosen.queues:
        for state in QUEUE_STATES:
            yield (queue, state), getattr(figures, state)


DETAILED_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    *(
        Family("counter", f"lightrail_detailed_messages_{name}", help, ("queue",), _each(name))
        for name, help in QUEUE_COUNTERS.items()
    ),
    Family("gauge", "lightrail_detailed_messages", "Messages by state.", ("queue", "state"), _each_state),
    Family(
        "gauge",
        "lightrail_detailed_messages_locked",
        "Messages in flight under a timed lock.",
        ("queue",),
        _each("locked"),
    ),
    Family("gauge", "lightrail_detailed_consumers", "Consumers.", ("queue",), _each("consumers")),
    Family("gauge", "lightrail_detailed_bytes", "Bytes of messages.", ("queue",), _each("bytes")),
    gauge(
        "lightrail_detailed_queues_omitted",
        f"Queues beyond the {DETAILED_QUEUES_MAX} that one scrape lists; ask with ?queue=PREFIX.",
        "omitted",
    ),
)
