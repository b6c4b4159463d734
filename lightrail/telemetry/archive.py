"""Metrics of a shard's archive: its segments, segments that wait for it, and positions of readers."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lightrail.telemetry.metrics import AnyFamily, counter, counters, gauge, gauges

if TYPE_CHECKING:
    from lightrail.shard.archiving.retention import ReaderState


@dataclass(slots=True, eq=False, repr=False)
class ArchiveCounts:
    """Counters of the archiver; only the event loop writes them."""

    segments: int = 0
    bytes: int = 0
    oldest_ms: int = 0
    """Time of the last record of the oldest segment; 0 while the archive is empty."""
    waiting: int = 0
    """Sealed segments that belong into the archive and are not in it yet."""
    linked: int = 0
    copied: int = 0
    failures: int = 0
    removed: int = 0
    """Segments that were removed by retention."""
    removed_full: int = 0
    """Segments that were removed because the disk was full."""
    given_up: int = 0
    """Segments that were deleted without being archived, because the disk was full."""
    readers: "Mapping[str, ReaderState]" = field(default_factory=dict)
    passed_over: dict[str, int] = field(default_factory=dict)
    """By reader: segments that were removed before the reader had read them."""


def _oldest(counts: ArchiveCounts) -> float:
    return max(0.0, time.time() - counts.oldest_ms / 1000) if counts.oldest_ms else 0.0


ARCHIVE_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    gauge("lightrail_archive_segments", "Segments of journals in the archive.", "segments"),
    gauge(
        "lightrail_archive_bytes",
        "Bytes of the segments in the archive, whether the journal has them as well or not.",
        "bytes",
    ),
    gauge(
        "lightrail_archive_oldest_seconds",
        "Age of the last record of the oldest segment in the archive; 0 while it is empty.",
        _oldest,
    ),
    gauge(
        "lightrail_archive_waiting",
        "Sealed segments that wait for the archive; the journal keeps them.",
        "waiting",
    ),
    counters(
        "lightrail_archive_segments_added",
        "Segments that were added to the archive, by a hard link or as a copy.",
        "way",
        {"link": "linked", "copy": "copied"},
    ),
    counters(
        "lightrail_archive_segments_removed",
        "Segments that were removed from the archive, by retention or because the disk was full.",
        "cause",
        {"retention": "removed", "full": "removed_full"},
    ),
    counter("lightrail_archive_failures", "Failed operations on the archive's disk.", "failures"),
    counter(
        "lightrail_archive_segments_given_up",
        "Segments that were removed without being archived: the disk was full, or they were too old.",
        "given_up",
    ),
    gauges(
        "lightrail_reader_behind_seconds",
        "Age of the oldest segment in the archive that a reader has not read; 0 where there is none.",
        "reader",
        lambda counts: {name: each.behind_ms / 1000 for name, each in counts.readers.items()},
    ),
    gauges(
        "lightrail_reader_unread_bytes",
        "Bytes in the archive that a reader has not read.",
        "reader",
        lambda counts: {name: each.unread_bytes for name, each in counts.readers.items()},
    ),
    gauges(
        "lightrail_reader_held_bytes",
        "Bytes that the archive keeps beyond its retention because a reader has not read them.",
        "reader",
        lambda counts: {name: each.held_bytes for name, each in counts.readers.items()},
    ),
    counters(
        "lightrail_reader_segments_missed",
        "Segments beyond a reader's bounds that were removed before the reader had read them.",
        "reader",
        lambda counts: {name: counts.passed_over.get(name, 0) for name in counts.readers},
    ),
)
