"""ReadAhead: a file whose small records are read many at a time."""

from typing import Final

from lightrail.journal.scan import Readable

_PIECE_BYTES: Final = 65_536
"""Read at once; Queue records lie close to each other."""


class ReadAhead:
    """A file that is read a piece ahead of what is asked for."""

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
