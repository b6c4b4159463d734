"""ReadAhead: a file that is read in pieces of many small records."""

from typing import Final

from lightrail.journal.scan import Readable

_PIECE_BYTES: Final = 65_536
"""Minimum size of a read; Queue records are close to each other."""


class ReadAhead:
    """A file that reads more than requested and serves later reads from it."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._data = b""
        self._offset = 0

    def read(self, offset: int, length: int) -> bytes:
        """See Readable."""
        at = offset - self._offset
        if at < 0 or at + length > len(self._data):
            self._data = self._file.read(offset, max(length, _PIECE_BYTES))
            self._offset, at = offset, 0
        return self._data[at : at + length]
