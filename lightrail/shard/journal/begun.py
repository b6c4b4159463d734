"""Headers of segments: finds the begun segments, whose header is on disk and not only in the page cache.

After a failed sync the kernel marks written pages as clean although they are not on disk, so a new process
may read a header that is lost when the machine restarts. Only the newest segment can be in this state: a
segment is synced before anything is written to the next one.
"""

import contextlib
from collections.abc import Mapping
from typing import Final

from lightrail.journal.segment_header import (
    FORMAT_VERSION,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
)
from lightrail.shard.journal.files import DiskFile, Files
from lightrail.shard.journal.segment import name_of, numbers
from lightrail.shard.journal.store import JournalDamagedError, NewerFormatError


def begun(opened: Mapping[int, DiskFile], salt: int) -> list[tuple[int, SegmentHeader]]:
    """All segments from the first begun one to the last, in order.

    The last of them is synced, and its cached pages are dropped, so that later reads come from the disk.

    Raises:
        JournalDamagedError: a header between the first and the last is missing or of another journal.
        NewerFormatError: a segment has a newer format.
        OSError: a call of the disk failed.
    """
    return _Headers(opened, salt).run()


class _Headers:
    """Reads and checks the headers of a journal's files, once."""

    __slots__ = ("_opened", "_salt")

    def __init__(self, opened: Mapping[int, DiskFile], salt: int) -> None:
        self._opened: Final = opened
        self._salt: Final = salt

    def run(self) -> list[tuple[int, SegmentHeader]]:
        """See `begun`."""
        opened = self._opened
        for number in sorted(opened, reverse=True):
            if self._header(number) is not None:
                # After a power cut or a failed sync the page cache may have bytes that the disk lacks, so the
                # header is read again from the disk. If it is not there, the segment was never begun, and the
                # segment before it is checked in the same way.
                opened[number].sync()
                opened[number].forget()
                if self._header(number) is not None:
                    break
        found = {number: header for number in opened if (header := self._header(number)) is not None}
        if found:
            for number in range(max(found), min(opened) - 1, -1):
                if number not in opened:
                    raise JournalDamagedError(name_of(number), 0, "the file is missing")
                if number not in found:
                    found[number] = self._unused(number, found[number + 1])
        return sorted(found.items())

    def _header(self, number: int) -> SegmentHeader | None:
        """The header of a segment; None if the file has none, or one from its use for an earlier segment."""
        header = decode_segment_header(self._opened[number].read(0, SEGMENT_HEADER_SIZE))
        if header is None or header.segment != number:
            return None
        if header.version > FORMAT_VERSION:
            raise NewerFormatError(
                f"segment {name_of(number)} has format version {header.version}, this program knows "
                f"{FORMAT_VERSION} and older: start it with the newer program that wrote it"
            )
        if header.salt != self._salt:
            raise JournalDamagedError(name_of(number), 0, "the header of a segment of another journal")
        return header

    def _unused(self, number: int, following: SegmentHeader) -> SegmentHeader:
        """Writes the header of an empty segment again.

        Earlier versions accepted a header that was only in the page cache, truncated its segment to the
        length of a header that was not on disk, and began the next segment. A file too short for any record
        has lost none; recovery checks for a gap between the neighbouring segments as usual.
        """
        file = self._opened[number]
        if file.size() > SEGMENT_HEADER_SIZE or file.links() > 1:
            raise JournalDamagedError(name_of(number), 0, "no header of this segment")
        data = encode_segment_header(number, following.first_lsn, self._salt)
        file.write(0, [data])
        file.sync()
        header = decode_segment_header(data)
        assert header is not None
        return header


def salt_of(files: Files) -> int | None:
    """The salt in the first segment header that can be read: for a directory that lost its identity file."""
    for number in numbers(files):
        with contextlib.closing(files.open(name_of(number))) as file:
            header = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
            if header is not None:
                return header.salt
    return None
