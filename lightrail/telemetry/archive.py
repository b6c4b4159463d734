"""What a shard's archive shows to telemetry: what is in it, what waits, how readers stand."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from lightrail.telemetry.metrics import AnyFamily, Family, Labels, counter, counters, gauge


class ReaderFigures(Protocol):
    """How a reader stood when the archive was looked at last."""

    @property
    def behind_ms(self) -> int:
        """Age of the oldest record that it may not have read; 0 where it has read everything."""

    @property
    def unread_bytes(self) -> int:
        """Of segments in the archive."""

    @property
    def held_bytes(self) -> int:
        """Of those, what would have gone, were it not for it."""


class ArchiveCounts:
    """What the archiver counts; only the loop writes."""

    __slots__ = (
        "bytes",
        "copied",
        "failures",
        "given_up",
        "linked",
        "oldest_ms",
        "passed_over",
        "readers",
        "removed",
        "removed_full",
        "segments",
        "waiting",
    )

    def __init__(self) -> None:
        self.segments = 0
        self.bytes = 0
        self.oldest_ms = 0
        """When the last record of the oldest one was written; 0 where there is none."""
        self.waiting = 0
        """Segments that are sealed, wanted, and not there yet."""
        self.linked = 0
        self.copied = 0
        self.failures = 0
        self.removed = 0
        """Kept no longer."""
        self.removed_full = 0
        """Because the disk was full."""
        self.given_up = 0
        """Segments that were wanted and went without having been archived: the disk was full."""
        self.readers: Mapping[str, ReaderFigures] = {}
        self.passed_over: dict[str, int] = {}
        """By reader: segments that went before it had read them."""


def _oldest(counts: ArchiveCounts) -> Iterable[tuple[Labels, float]]:
    return [((), max(0.0, time.time() - counts.oldest_ms / 1000) if counts.oldest_ms else 0.0)]


ARCHIVE_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    gauge("lightrail_archive_segments", "Segments of journals in the archive.", "segments"),
    gauge(
        "lightrail_archive_bytes",
        "Bytes of the segments in the archive, whether the journal has them as well or not.",
        "bytes",
    ),
    Family(
        "gauge",
        "lightrail_archive_oldest_seconds",
        "Age of the last record of the oldest segment in the archive; 0 while it is empty.",
        (),
        _oldest,
    ),
    gauge(
        "lightrail_archive_waiting",
        "Segments that are to be in the archive and are not yet; the journal keeps them.",
        "waiting",
    ),
    counters(
        "lightrail_archive_segments_added",
        "Segments that came into the archive, by a link or as a copy.",
        "way",
        {"link": "linked", "copy": "copied"},
    ),
    counters(
        "lightrail_archive_segments_removed",
        "Segments that went from the archive: kept long enough, or because the disk was full.",
        "cause",
        {"retention": "removed", "full": "removed_full"},
    ),
    counter("lightrail_archive_failures", "Times that the archive's disk refused something.", "failures"),
    counter(
        "lightrail_archive_segments_given_up",
        "Segments that were wanted in the archive and are not: the disk was full, or they were too old.",
        "given_up",
    ),
    Family(
        "gauge",
        "lightrail_reader_behind_seconds",
        "Age of the oldest segment in the archive that a reader has not read; 0 where there is none.",
        ("reader",),
        lambda counts: [((name,), each.behind_ms / 1000) for name, each in counts.readers.items()],
    ),
    Family(
        "gauge",
        "lightrail_reader_unread_bytes",
        "Bytes in the archive that a reader has not read.",
        ("reader",),
        lambda counts: [((name,), each.unread_bytes) for name, each in counts.readers.items()],
    ),
    Family(
        "gauge",
        "lightrail_reader_held_bytes",
        "Bytes that the archive would have removed, and keeps for a reader.",
        ("reader",),
        lambda counts: [((name,), each.held_bytes) for name, each in counts.readers.items()],
    ),
    Family(
        "counter",
        "lightrail_reader_segments_missed",
        "Segments that went before a reader had read them, for they were beyond its bounds.",
        ("reader",),
        lambda counts: [((name,), counts.passed_over.get(name, 0)) for name in counts.readers],
    ),
)
