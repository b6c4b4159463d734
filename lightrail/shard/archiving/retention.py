"""Retention: decides which segments of an archive are removed, and which ones readers hold back. Pure.

Segments older than the archive's hours are removed, and the oldest ones while the archive exceeds its bytes.
A reader holds back segments that it has not read: those no older than its hours, and of these the newest
within its bytes. A reader whose unread segments are removed is reported as passed over.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from lightrail.cluster.readers import Reader

HOUR_MS: Final = 3_600_000


class Kept(NamedTuple):
    """A segment in the archive."""

    segment: int
    first_lsn: int
    next_lsn: int
    end: int
    """Size of the segment in bytes."""
    messages: int
    last_ms: int


SegmentId = tuple[str, int]
"""The id of a disk and the number of a segment in its journal."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How long an archive keeps segments that no reader holds back."""

    hours: int = 168
    """0 to keep only segments that readers hold back."""
    bytes: int = 0
    """0 for no limit."""


@dataclass(slots=True)
class ReaderState:
    """The state of a reader at the archiver's last round."""

    behind_ms: int = 0
    """Age of the oldest segment that it has not read; 0 if it has read everything."""
    unread_bytes: int = 0
    """Of segments in the archive."""
    held_bytes: int = 0
    """Bytes of segments that are kept only for this reader."""
    passed: list[SegmentId] = field(default_factory=list)
    """Segments that it has not read and that are removed now."""


@dataclass(slots=True)
class SegmentVerdict:
    """The verdict on the segments of an archive."""

    go: list[SegmentId] = field(default_factory=list)
    """Segments to remove, the oldest first."""
    spare: list[tuple[str, Kept]] = field(default_factory=list)
    """Segments that may be removed on a full disk because no reader holds them back, the oldest first."""
    standings: dict[str, ReaderState] = field(default_factory=dict)


def judge(
    kept: Mapping[str, Iterable[Kept]], readers: "Mapping[str, Reader]", rule: Rule, now_ms: int
) -> SegmentVerdict:
    """Judges the segments, by disk in the order of their numbers."""
    line = _by_age(kept)
    wanted = _not_wanted_any_more(line, rule, now_ms)
    verdict = SegmentVerdict()
    held: set[SegmentId] = set()
    unread_by: dict[str, list[tuple[int, str, Kept]]] = {}
    for name, reader in readers.items():
        unread = unread_by[name] = [
            each for each in line if reader.positions.get(each[1], 0) < each[2].next_lsn
        ]
        standing = verdict.standings[name] = ReaderState()
        if unread:
            standing.behind_ms = max(0, now_ms - unread[0][0])
        for age_ms, disk, each in reversed(unread):
            standing.unread_bytes += each.end
            if standing.unread_bytes <= reader.hold_bytes and now_ms - age_ms <= reader.hold_hours * HOUR_MS:
                segment = (disk, each.segment)
                held.add(segment)
                if segment in wanted:
                    standing.held_bytes += each.end
    for _, disk, each in line:
        segment = (disk, each.segment)
        if segment in held:
            continue
        if segment in wanted:
            verdict.go.append(segment)
        else:
            verdict.spare.append((disk, each))
    going = set(verdict.go)
    for name, unread in unread_by.items():
        verdict.standings[name].passed = [
            (disk, each.segment) for _, disk, each in unread if (disk, each.segment) in going
        ]
    return verdict


def unread_by_any(disk: str, next_lsn: int, readers: "Mapping[str, Reader]") -> bool:
    """Whether a reader has not read a segment that ends at `next_lsn`."""
    return any(reader.positions.get(disk, 0) < next_lsn for reader in readers.values())


def _by_age(kept: Mapping[str, Iterable[Kept]]) -> list[tuple[int, str, Kept]]:
    """(time, disk, segment), the oldest first; each journal in order, also if a clock was set back."""
    line = []
    for disk, segments in kept.items():
        latest = 0
        for each in segments:
            latest = max(latest, each.last_ms)
            line.append((latest, disk, each))
    line.sort()
    return line


def _not_wanted_any_more(line: list[tuple[int, str, Kept]], rule: Rule, now_ms: int) -> set[SegmentId]:
    surplus = sum(each.end for _, _, each in line) - rule.bytes if rule.bytes else 0
    found = set()
    for age_ms, disk, each in line:
        if surplus <= 0 and now_ms - age_ms <= rule.hours * HOUR_MS:
            break
        surplus -= each.end
        found.add((disk, each.segment))
    return found
