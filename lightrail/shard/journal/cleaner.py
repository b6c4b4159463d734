"""When the oldest segment is worth cleaning: the rule that keeps disk use within a factor of what lives.

Only the oldest may go: a settlement refers to messages in its own segment or an older one, so that when the
oldest segment goes, nothing that its settlements took away can come back.
"""

from collections.abc import Sequence
from typing import Final

from lightrail.shard.journal.segment import Segment

LIVE_FACTOR: Final = 2
"""Disk use stays below this times the live bytes, and SLACK_SEGMENTS segments."""
SLACK_SEGMENTS: Final = 2
_FILES_SLACK: Final = 16
"""So many files more than the bytes need are left alone: a restart makes a short one."""


def oldest_to_clean(
    segments: Sequence[Segment], segment_bytes: int, spare_bytes: int, room: int | None
) -> int | None:
    """The oldest segment, if it has nothing alive or too much of the disk is taken by what is not.

    Args:
        segments: in order; the last one is being written.
        spare_bytes: of prepared space.
        room: when the disk is full, bytes that may still be written; else None.
    """
    if len(segments) < 2:
        return None
    oldest = segments[0]
    if oldest.live <= 0:
        return oldest.number
    total = spare_bytes + sum([segment.capacity for segment in segments])
    live = sum([segment.live_bytes for segment in segments])
    needed = LIVE_FACTOR * live + SLACK_SEGMENTS * segment_bytes
    if total <= needed and len(segments) <= _FILES_SLACK + 2 * (total // segment_bytes):
        return None
    if room is not None and oldest.live_bytes * 2 > room:
        return None
    return oldest.number
