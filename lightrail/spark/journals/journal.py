"""Journals as a reader finds them: the segments of each, with all sources.

Source: one segment in one archive or at one gateway, with its index and its bytes.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import SegmentIndex


class SegmentMissingError(Exception):
    """The segment no longer exists: retention or an operator has removed it."""


class SourceError(Exception):
    """An archive or gateway gave an unexpected answer or none; the message says what was expected, what was
    found, and what to do."""


class NoArchiveError(SourceError):
    """The folder does not exist, or not yet: a shard creates it with the first segment."""


class File(Protocol):
    """The bytes of one segment."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the committed records.

        Raises:
            SegmentMissingError: the segment no longer exists.
            SourceError: the archive or gateway does not answer.
        """

    def close(self) -> None:
        """Closes the file; no call may follow."""


class Source(Protocol):
    """A segment in an archive or at a gateway; small, because it is sent to executors."""

    def index(self) -> SegmentIndex:
        """The index of the segment.

        Raises:
            SegmentMissingError: the segment no longer exists.
            SourceError: the archive or gateway does not answer, or its answer is no index.
        """

    def open(self) -> File:
        """Opens the bytes of the segment.

        Raises:
            SegmentMissingError: the segment no longer exists.
            SourceError: the archive or gateway does not answer.
        """


_T = TypeVar("_T")

IndexKey = tuple[str, int]
"""(disk, segment)"""


@dataclass(slots=True)
class Held:
    """One segment, and the sources that have it, in the order of preference."""

    number: int
    sources: list[Source] = field(default_factory=list)
    next_lsn: int | None = None
    """End of the segment at the time of listing; None if only its name was listed (then it is sealed)."""
    first_lsn: int | None = None
    """First record of the segment; None if only its name was listed."""


@dataclass(slots=True)
class Journal:
    """One incarnation of a journal with its existing segments, the oldest first."""

    incarnation: Incarnation
    segments: list[Held]
    indexes: dict[IndexKey, SegmentIndex]
    """Indexes of sealed segments, which never change and are kept between listings."""
    away: bool = False
    """Whether the shard does not answer, so that the list may be incomplete."""

    def index(self, held: Held) -> SegmentIndex:
        """The index of a segment, at least up to its end at the time of listing.

        Raises:
            SegmentMissingError: no source has the segment any longer.
            SourceError: the segment can't be read.
        """
        key = self.incarnation.disk, held.number
        index = self.indexes.get(key)
        if index is None:
            index = first_answer(held.sources, lambda source: source.index())
            if index.sealed:
                self.indexes[key] = index
        return index

    def _first(self, held: Held) -> int:
        return self.index(held).first_lsn if held.first_lsn is None else held.first_lsn

    @property
    def earliest(self) -> int | None:
        """The first existing record; None without segments."""
        while self.segments:
            try:
                return self._first(self.segments[0])
            except SegmentMissingError:
                del self.segments[0]  # Removed since the listing; retention removes the oldest first.
        return None

    @property
    def latest(self) -> int | None:
        """The next record to be written; None without segments."""
        if not self.segments:
            return None
        last = self.segments[-1]
        return self.index(last).next_lsn if last.next_lsn is None else last.next_lsn

    def covering(self, first_lsn: int, next_lsn: int) -> Iterator[tuple[Held, SegmentIndex]]:
        """Segments with records of a range. Reads only their indexes, and a few others to find the first
        segment."""
        at = max(0, bisect_right(self.segments, first_lsn, key=self._first) - 1)
        for held in self.segments[at:]:
            if self._first(held) >= next_lsn:
                return
            index = self.index(held)
            if index.next_lsn > first_lsn:
                yield held, index


def first_answer(sources: list[Source], ask: Callable[[Source], _T]) -> _T:
    """The result of the first source that has the segment.

    Raises:
        SegmentMissingError: none of them has it.
        SourceError: one that might have it does not answer, and no other has it.
    """
    problem: SourceError | SegmentMissingError | None = None
    for source in sources:
        try:
            return ask(source)
        except SegmentMissingError as error:
            problem = problem or error
        except SourceError as error:
            problem = error
    raise problem or SegmentMissingError("no archive or gateway has it")
