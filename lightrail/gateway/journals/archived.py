"""Archived segments that this gateway reads as files, if the archive's folder is on its machine.

Archived segments are sealed and never change, so the shard is not needed and may be down. All functions of
this module read files and are called in a thread.
"""

import os
from typing import Final

from lightrail.journal.archive import (
    IDENTITY,
    ArchiveError,
    decode_identity,
    index_name,
    is_folder,
    segment_name,
)
from lightrail.journal.index import BadIndexError, decode_index


class ArchivedSegment:
    """An open file; a segment that is removed meanwhile can still be read to its end."""

    def __init__(self, descriptor: int, end: int, text: bytes) -> None:
        self._descriptor = descriptor
        self.end: Final = end
        self.text: Final = text
        """Index of the segment, encoded as JSON."""

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes from `start` to before `end`. Raises OSError."""
        data = os.pread(self._descriptor, end - start, start)
        if len(data) != end - start:
            raise OSError(f"expected {end - start} bytes of an archived segment, found {len(data)}")
        return memoryview(data)

    def close(self) -> None:
        """Closes the file; no read may follow."""
        os.close(self._descriptor)


class Archived:
    """The folder of an archive; it need not exist on this machine."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._folders: dict[str, str] = {}
        """Folders of this installation, by journal."""

    def open(self, cluster: str, disk: str, number: int) -> ArchivedSegment | None:
        """A segment of this installation, or None if it is missing or incomplete."""
        folder = self._folders.get(disk) or self._find(cluster, disk)
        if folder is None:
            return None
        try:
            with open(os.path.join(folder, index_name(number)), "rb") as file:
                text = file.read()
            end = decode_index(text.decode()).end
            descriptor = os.open(os.path.join(folder, segment_name(number)), os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, UnicodeDecodeError, BadIndexError):
            return None
        if os.fstat(descriptor).st_size < end:
            os.close(descriptor)
            return None
        return ArchivedSegment(descriptor, end, text)

    def _find(self, cluster: str, disk: str) -> str | None:
        try:
            names = os.listdir(self._directory)
        except OSError:
            return None
        for name in names:
            if is_folder(name) and name.endswith(f"-{disk}"):
                folder = os.path.join(self._directory, name)
                try:
                    with open(os.path.join(folder, IDENTITY), encoding="utf-8") as file:
                        found = decode_identity(file.read())
                except (OSError, UnicodeDecodeError, ArchiveError):
                    continue
                # Archives of several installations may share a folder; others' segments are skipped.
                if found.cluster == cluster and found.disk == disk:
                    self._folders[disk] = folder
                    return folder
        return None
