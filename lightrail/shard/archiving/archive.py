"""Journals: the segments of a shard's journal and archive for readers, up to the last synced commit.

A record that a crash could still cut is never sent, and a group of records is sent whole.
"""

import contextlib
from bisect import bisect_left
from dataclasses import dataclass, replace

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import SegmentIndex
from lightrail.shard.archiving.contents import ShardArchive
from lightrail.shard.archiving.retention import Kept
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.segment import Segment


class NoSegmentError(Exception):
    """The journal or segment does not exist, or no longer."""


class BeyondCommittedError(Exception):
    """The requested bytes are not committed."""


@dataclass(slots=True)
class Filed(SegmentIndex):
    """The index of a segment that only the archive has: its blocks and queues are in its file."""

    contents: ShardArchive | None = None
    disk: str = ""

    def encode(self) -> str:
        """The text of the index file.

        Raises:
            NoSegmentError: the segment was removed meanwhile.
        """
        assert self.contents is not None
        try:
            return self.contents.index(self.disk, self.segment).decode()
        except (FileNotFoundError, KeyError):
            raise _gone(self.disk, self.segment) from None


@dataclass(slots=True, eq=False, repr=False)
class Journals:
    """The current journal of a shard, and former ones in the archive. Any thread may call it.

    A shard that has just started, or was taken over, has not loaded its archive: a reader is answered when it
    has, or what lies in the archive would be missing to it.
    """

    _journal: Journal
    _contents: ShardArchive

    @property
    def is_known(self) -> bool:
        """Whether it is known what is accepted. A new owner of a shard with replicas knows it when the other
        members have what it has; readers have seen records by then that it can't show them."""
        return bool(self._journal.committed.segment or not self._journal.marks.others)

    def journals(self) -> list[tuple[Incarnation, list[SegmentIndex]]]:
        """Each journal with its segments in order; the current one first.

        The index of a segment that only the archive has is without blocks and queues here; its `encode`
        returns them. Raises OSError: the archive can't be read.
        """
        self._contents.require()
        journal, contents = self._journal, self._contents
        own = journal.incarnation
        # In this order: a segment that leaves the journal meanwhile is in the archive by then.
        live = self._live()
        kept = contents.listed()
        found = {each.segment: each for each in self._filed(own.disk, kept.pop(own.disk, []))}
        found |= {each.segment: each for each in live}
        listed: list[tuple[Incarnation, list[SegmentIndex]]] = [
            (own, [found[number] for number in sorted(found)])
        ]
        for disk, segments in kept.items():
            incarnation = contents.incarnations.get(disk)
            if incarnation is not None and segments:
                listed.append((incarnation, self._filed(disk, segments)))
        return listed

    def segment(self, disk: str, number: int) -> SegmentIndex:
        """The index of one segment, without reading others of the archive.

        Raises:
            NoSegmentError: the segment does not exist, or no longer.
            OSError: the archive can't be read.
        """
        if disk == self._journal.incarnation.disk:
            for each in self._live():
                if each.segment == number:
                    return each
        self._contents.require()
        kept = self._contents.kept.get(disk, {}).get(number)
        if kept is None:
            raise _gone(disk, number)
        return self._filed(disk, [kept])[0]

    def _live(self) -> list[SegmentIndex]:
        committed = self._journal.committed
        found = []
        for segment in self._journal.segments():
            if segment.number < committed.segment:
                found.append(segment.index)
            elif segment.number == committed.segment:
                index = segment.index
                blocks = list(index.blocks)
                queues = list(index.queues)
                found.append(
                    replace(
                        index,
                        next_lsn=committed.next_lsn,
                        end=committed.end,
                        messages=committed.messages,
                        last_ms=committed.last_ms,
                        sealed=index.sealed and index.end == committed.end,
                        blocks=blocks[: bisect_left(blocks, committed.next_lsn, key=lambda block: block.lsn)],
                        queues=queues[: bisect_left(queues, committed.end)],
                    )
                )
        return found

    def _filed(self, disk: str, segments: list[Kept]) -> list[SegmentIndex]:
        return [
            Filed(
                segment=each.segment,
                first_lsn=each.first_lsn,
                next_lsn=each.next_lsn,
                end=each.end,
                messages=each.messages,
                last_ms=each.last_ms,
                sealed=True,
                contents=self._contents,
                disk=disk,
            )
            for each in segments
        ]

    def read(self, disk: str, segment: int, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end` of a segment, all of them.

        Raises:
            NoSegmentError: the segment does not exist, or no longer.
            BeyondCommittedError: the segment is not committed and synced up to `end`.
            OSError: a call of the disk failed.
        """
        if not 0 <= start <= end:
            raise ValueError(f"expected a range of bytes, found {start} to {end}")
        if disk == self._journal.incarnation.disk:
            found = self._journal.segment(segment)
            if found is not None and found.pin():
                try:
                    _check(disk, segment, self._committed_end(found), end)
                    return _whole(found.file.read(start, end - start), disk, segment, end - start)
                finally:
                    found.unpin()
        self._contents.require()
        kept = self._contents.kept.get(disk, {}).get(segment)
        if kept is None:
            raise _gone(disk, segment)
        _check(disk, segment, kept.end, end)
        try:
            file = self._contents.open(disk, segment)
        except (FileNotFoundError, KeyError):
            raise _gone(disk, segment) from None
        with contextlib.closing(file):
            return _whole(file.read(start, end - start), disk, segment, end - start)

    def _committed_end(self, segment: Segment) -> int:
        committed = self._journal.committed
        if segment.number < committed.segment:
            return segment.index.end
        return committed.end if segment.number == committed.segment else 0


def _check(disk: str, segment: int, committed: int, end: int) -> None:
    if end > committed:
        raise BeyondCommittedError(
            f"segment {segment} of journal {disk} is committed up to byte {committed}, expected byte {end}: "
            "try again after the next commit"
        )


def _whole(data: bytes, disk: str, segment: int, length: int) -> bytes:
    if len(data) != length:
        raise OSError(f"segment {segment} of journal {disk} is shorter on disk than it was written")
    return data


def _gone(disk: str, segment: int) -> NoSegmentError:
    return NoSegmentError(
        f"there is no segment {segment} of journal {disk} here: it was removed, or belongs to another shard"
    )
