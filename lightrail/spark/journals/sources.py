"""Source: one segment in one archive or at one gateway, with its index and its bytes."""

from typing import Protocol

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
