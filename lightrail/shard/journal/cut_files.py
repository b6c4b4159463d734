"""The files `cut-EPOCH-LSN.bin`: bytes that a member of a shard with replicas has cut from its journal.

No record in them was accepted, as far as the member knew; they are for people who want to see what it was.
"""

import re
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from lightrail.journal.index import over_gaps
from lightrail.journal.scan import Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE
from lightrail.shard.journal.files import DiskFile, Files, copy
from lightrail.shard.journal.segment import name_of
from lightrail.shard.journal.store import MirrorError
from lightrail.shard.replicas.lineage import OwnedSegment, RecordEnd

CUT_BYTES_MAX: Final[int] = 64 * 1024 * 1024
"""Bytes that one cut sets aside: as many as an owner keeps for a member that is behind."""
CUT_FILES_MAX: Final[int] = 8
"""Cuts that are set aside; an older one is removed for a new one."""
_NAME: Final = re.compile(r"cut-(\d+)-(\d+)\.bin")

Part = tuple[DiskFile, int, int]
"""(file, start, end): bytes of a file."""


@dataclass(slots=True, eq=False, repr=False)
class _Parts:
    """Parts of files, one behind another, which are read like one file of at most CUT_BYTES_MAX."""

    _parts: list[Part]

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes of one part; none at the end."""
        length = min(length, CUT_BYTES_MAX - offset)
        for file, start, end in self._parts:
            if offset < end - start:
                return file.read(start + offset, min(length, end - start - offset))
            offset -= end - start
        return b""


def set_aside(files: Files, parts: list[Part], epoch: int, lsn: int) -> None:
    """Copies these parts into a file, and syncs it with its name.

    Args:
        epoch: the epoch in which the first of these records was written.
        lsn: number of that record.

    Raises:
        OSError: a call of the disk failed; nothing has changed.
    """
    name = f"cut-{epoch}-{lsn}.bin"
    names = files.names()
    if name in names:
        # A cut that a crash interrupted is repeated: this file has the segments that were removed before.
        with closing(files.open(name)) as file:
            if file.size() >= min(sum(end - start for _, start, end in parts), CUT_BYTES_MAX):
                return
    copy(_Parts(parts), files, name)
    others = [(int(found[1]), int(found[2]), found[0]) for found in map(_NAME.fullmatch, names) if found]
    for *_, other in sorted(others)[: -CUT_FILES_MAX + 1]:
        if other != name:
            files.remove(other)


def set_aside_behind(files: Files, salt: int, owned: Sequence[OwnedSegment], end: RecordEnd, lsn: int) -> int:
    """Sets the records from `lsn` on aside, which are behind `end`; returns their number of bytes.

    Args:
        owned: all segments of the journal, the oldest first.
        end: the end of what remains; with the offset 0 nothing does.

    Raises:
        MirrorError: no record ends there, or the next one has another number; nothing has changed.
        OSError: a call of the disk failed; nothing has changed.
    """
    ends = [(each.segment, each.end) for each in owned if each.next_lsn == end.next_lsn]
    parts: list[Part] = []
    epoch = 0
    with ExitStack() as opened:
        for each in owned:
            if each.next_lsn <= lsn:
                continue
            file = opened.enter_context(closing(files.open(name_of(each.segment))))
            start = 0
            if not parts:
                epoch = each.epoch
                scan = Scan(file, salt, SEGMENT_HEADER_SIZE, each.end, each.first_lsn, lsn)
                for _ in over_gaps(scan):
                    pass
                start = scan.offset
                ends.append((each.segment, start))
            parts.append((file, start, each.end))
        if end.offset and (end.segment, end.offset) not in ends:
            raise MirrorError(
                f"expected an end before record {end.next_lsn} at one of (segment, offset) {ends}, found "
                f"{(end.segment, end.offset)}: nothing was cut. One of the two journals is damaged; if it is "
                "this one, empty the directory of this member, which then gets everything anew"
            )
        if parts:
            set_aside(files, parts, epoch, lsn)
        return sum(stop - start for _, start, stop in parts)
