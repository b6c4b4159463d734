"""The rule that decides when the oldest segment is cleaned: disk use stays within a factor of live bytes.

Only the oldest segment may be dropped. A settlement refers to messages in the same segment or an older one,
so no message that is settled in the oldest segment can return when this segment is dropped.
"""

from collections.abc import Sequence

from lightrail.model import limits
from lightrail.shard.journal.segment import Segment


def oldest_to_clean(
    segments: Sequence[Segment], segment_bytes: int, spare_bytes: int, room: int | None
) -> int | None:
    """The oldest segment, if it has no live messages, or if settled messages use too much of the disk.

    Args:
        segments: in order; the last one is being written.
        spare_bytes: size of the prepared spare segment.
        room: if the disk is full, number of bytes that can still be written; else None.
    """
    if len(segments) < 2:
        return None
    oldest = segments[0]
    if oldest.live <= 0:
        return oldest.number
    total = spare_bytes + sum([segment.capacity for segment in segments])
    live = sum([segment.live_bytes for segment in segments])
    needed = limits.CLEAN_LIVE_FACTOR * live + limits.CLEAN_SLACK_SEGMENTS * segment_bytes
    if total <= needed and len(segments) <= limits.CLEAN_SLACK_FILES + 2 * (total // segment_bytes):
        return None
    if room is not None and oldest.live_bytes * 2 > room:
        return None
    return oldest.number
