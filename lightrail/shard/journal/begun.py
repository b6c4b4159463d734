"""The begun segments of a journal: those whose header is on disk, and not in memory alone.

After a failed sync the kernel counts written pages as clean although the disk does not have them, so a new
process may read a header that the next machine will not find. Only the newest segment can be in this state: a
segment is synced before anything is written to the next one.
"""

from collections.abc import Mapping
from typing import Final

from lightrail.journal.segment_header import (
    FORMAT_VERSION,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
)
from lightrail.shard.journal.files import DiskFile
from lightrail.shard.journal.segment import name_of
from lightrail.shard.journal.store import JournalDamagedError, StoreRefusedError


def begun(opened: Mapping[int, DiskFile], salt: int) -> list[tuple[int, SegmentHeader]]:
    """The segments that were begun, in order, with every one between the first and the last.

    The last of them is synced, and reads of it from now on show what is on disk.

    Raises:
        JournalDamagedError: a header between the first and the last is missing or another journal's.
        StoreRefusedError: a newer format.
        OSError: the disk refused.
    """
    return _Headers(opened, salt).run()


class _Headers:
    """The headers of a journal's files, judged once."""

    __slots__ = ("_opened", "_salt")

    def __init__(self, opened: Mapping[int, DiskFile], salt: int) -> None:
        self._opened: Final = opened
        self._salt: Final = salt

    def run(self) -> list[tuple[int, SegmentHeader]]:
        """See `begun`."""
        opened = self._opened
        for number in sorted(opened, reverse=True):
            if self._header(number) is not None:
                # Bytes that were written before a power cut or a failed sync may be in memory only: nothing
                # may be believed that is not on the disk. A segment whose header goes by this was never
                # begun, and the one before it is looked at in the same way.
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
        """The header of a segment; None where the file has none, or that of the segment it was before."""
        header = decode_segment_header(self._opened[number].read(0, SEGMENT_HEADER_SIZE))
        if header is None or header.segment != number:
            return None
        if header.version > FORMAT_VERSION:
            raise StoreRefusedError(
                f"segment {name_of(number)} has format version {header.version}, this program knows "
                f"{FORMAT_VERSION} and older: start it with the newer program that wrote it"
            )
        if header.salt != self._salt:
            raise JournalDamagedError(name_of(number), 0, "the header of a segment of another journal")
        return header

    def _unused(self, number: int, following: SegmentHeader) -> SegmentHeader:
        """Writes the header of an empty segment again.

        Earlier programs believed a header that was in memory only, cut its segment to the length of a header,
        which the disk did not have, and began the next segment. A file too short for any record has lost
        none; that the records around it have no gap is checked as for every segment.
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
