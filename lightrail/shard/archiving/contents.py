"""Contents: the files of one shard's journals in an archive, and every step that changes them.

Each step leaves the archive consistent if the machine stops. The file of a segment is added last, after the
identity and the index; the next start removes files that a crash left without a segment. A copied file gets
its final name when all of it is on disk.

One thread at a time may call the methods that change something, except `remove`, which any thread may call,
as all other methods.

`RealFolders` is the archive's directory, with one folder per journal.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lightrail.journal import archive
from lightrail.journal.index import BadIndexError, SegmentIndex, decode_index, read_index
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, decode_segment_header
from lightrail.shard.archiving.retention import Kept
from lightrail.shard.journal.files import NO_LINK, DiskFile, Files, RealFiles, copy


class RealFolders:
    """A directory of folders, made with its first folder. Any thread may call."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory: Final = Path(directory)
        self._open: dict[str, RealFiles] = {}

    def names(self) -> list[str]:
        """Directories with names of an archive's folders; none if the directory is missing."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            return sorted(entry.name for entry in entries if archive.is_folder(entry.name) and entry.is_dir())
        return []

    def open(self, name: str) -> Files:
        """Opens a folder; creates it if it does not exist."""
        found = self._open.get(name)
        if found is None:
            if not self.directory.exists():
                RealFiles(self.directory).unlock()
            found = self._open.setdefault(name, RealFiles(self.directory / name))
        return found

    def remove(self, name: str) -> None:
        """Removes an empty folder."""
        found = self._open.pop(name, None)
        if found is not None:
            found.unlock()
        os.rmdir(self.directory / name)

    def shares(self, files: Files) -> bool:
        """Whether removing files here makes room in the file system of `files`."""
        assert isinstance(files, RealFiles)
        try:
            return os.stat(self.directory).st_dev == os.stat(files.directory).st_dev
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Closes all folders."""
        for files in self._open.values():
            files.unlock()
        self._open.clear()


log = logging.getLogger("lightrail.shard.archiving.archive")


def kept_of(index: SegmentIndex) -> Kept:
    """The entry of an archived segment."""
    return Kept(index.segment, index.first_lsn, index.next_lsn, index.end, index.messages, index.last_ms)


class ShardArchive:
    """The folders of one shard in an archive."""

    def __init__(self, folders: RealFolders, own: archive.Incarnation) -> None:
        self.own: Final = own
        self.folders: Final = folders
        self.loaded = False
        self.incarnations: dict[str, archive.Incarnation] = {own.disk: own}
        """Journals of the shard by disk."""
        self.kept: dict[str, dict[int, Kept]] = {own.disk: {}}
        """Archived segments by disk and number, in order."""
        self.linked = 0
        self.copied = 0
        self.removed = 0
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._own_folder_is_made = False
        self._copies = False
        """Whether the last segment could not be linked, and was copied."""

    @property
    def segments(self) -> int:
        """Number of archived segments."""
        return sum(len(each) for each in list(self.kept.values()))

    @property
    def total_bytes(self) -> int:
        """Bytes of all archived segments, including those that the journal also has."""
        return sum(one.end for each in list(self.kept.values()) for one in list(each.values()))

    def listed(self) -> dict[str, list[Kept]]:
        """Archived segments by disk, in order. Any thread may call it."""
        return {disk: list(each.values()) for disk, each in list(self.kept.items())}

    # --- at the start ----------------------------------------------------------------------------------

    def require(self) -> None:
        """Loads the archive, unless that was done. Any thread may call it, before it changes something or
        reads `kept`.

        Raises:
            OSError: a call of the disk failed; call this method again.
        """
        if not self.loaded:
            with self._loading:
                if not self.loaded:
                    self.load()

    def load(self) -> None:
        """Finds the segments, and removes incomplete files that a crash left. Raises OSError."""
        mine = f"shard-{self.own.shard}-"
        for name in self.folders.names():
            if name.startswith(mine):
                self._load(name)
        self.loaded = True

    def _load(self, name: str) -> None:
        files = self.folders.open(name)
        names = set(files.names())
        numbers = sorted(_numbers(names, archive.SEGMENT_SUFFIX))
        identity = files.load(archive.IDENTITY)
        if identity is not None:
            try:
                incarnation = archive.decode_identity(identity.decode(errors="replace"))
            except archive.ArchiveError as error:
                log.error("the archive's folder %s is ignored: %s", name, error)
                return
        elif numbers:
            log.error("the archive's folder %s has no %s: it is ignored", name, archive.IDENTITY)
            return
        else:
            for left in names:
                files.remove(left)  # begun by a start that crashed, or nearly removed
            self.folders.remove(name)
            return
        if incarnation.folder != name:
            log.error("the archive's folder %s is that of %s: it is ignored", name, incarnation.folder)
            return
        for left in names:
            whole = left.endswith((archive.SEGMENT_SUFFIX, archive.INDEX_SUFFIX)) or left == archive.IDENTITY
            if not whole or (
                left.endswith(archive.INDEX_SUFFIX) and _number(left, archive.INDEX_SUFFIX) not in numbers
            ):
                files.remove(left)
        found: dict[int, Kept] = {}
        for number in numbers:
            index = self._index(files, number, archive.index_name(number) in names)
            if index is not None:
                found[number] = kept_of(index)
        self.incarnations[incarnation.disk] = incarnation
        self.kept[incarnation.disk] = found

    def _index(self, files: Files, number: int, there: bool) -> SegmentIndex | None:
        """The index of a segment, made again if it is missing."""
        if there:
            try:
                return decode_index((files.load(archive.index_name(number)) or b"").decode(errors="replace"))
            except BadIndexError as error:
                log.warning("%s: %s; the index is made again", archive.index_name(number), error)
        file = files.open(archive.segment_name(number))
        try:
            header = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
            if header is None:
                log.error("%s in the archive is no segment: it is ignored", archive.segment_name(number))
                return None
            index, _ = read_index(header, file, file.size())
        finally:
            file.close()
        index.sealed = True
        files.replace(archive.index_name(number), index.encode().encode())
        return index

    # --- adding segments -------------------------------------------------------------------------------

    def keep(
        self, files: Files, name: str, file: DiskFile, index: SegmentIndex, goes_on: Callable[[], bool]
    ) -> None:
        """Adds a sealed segment of the current journal to the archive.

        Args:
            name: the name of its file, which must not change from now on.
            goes_on: called during a copy of the file, which may take long; False cancels it.

        Raises:
            OSError: a call of the disk failed; call this method again.
        """
        folder = self.folders.open(self.own.folder)
        if not self._own_folder_is_made:
            if folder.load(archive.IDENTITY) is None:
                folder.replace(archive.IDENTITY, self.own.encode().encode())
            self._own_folder_is_made = True
        number = index.segment
        if number not in self.kept[self.own.disk]:
            folder.replace(archive.index_name(number), index.encode().encode())
            self._put(files, name, file, folder, archive.segment_name(number), goes_on)
            self._add(self.own.disk, kept_of(index))

    def _add(self, disk: str, kept: Kept) -> None:
        with self._lock:
            known = self.kept[disk]
            if known and next(reversed(known)) > kept.segment:
                self.kept[disk] = dict(sorted([*known.items(), (kept.segment, kept)]))
            else:
                known[kept.segment] = kept

    def _put(
        self, files: Files, name: str, file: DiskFile, folder: Files, to: str, goes_on: Callable[[], bool]
    ) -> None:
        assert name == to
        try:
            files.link(name, folder)
        except FileExistsError:
            # Linked by an attempt whose sync may have failed: sync again, because the journal drops its file
            # next.
            folder.sync()
            return
        except OSError as error:
            if error.errno not in NO_LINK:
                raise
            if not self._copies:
                log.info("segments can't be linked into the archive (%s): they are copied", error)
            self._copies = True
            copy(file, folder, to, goes_on)
            self.copied += 1
            return
        self._copies = False
        folder.sync()
        self.linked += 1

    # --- removing segments -----------------------------------------------------------------------------

    def remove(self, disk: str, number: int) -> int:
        """Removes a segment; returns its bytes, 0 if it was removed already.

        Raises:
            OSError: the disk refused.
        """
        with self._lock:
            kept = self.kept[disk].pop(number, None)
        if kept is None:
            return 0
        folder = self.folders.open(self.incarnations[disk].folder)
        try:
            for name in (archive.segment_name(number), archive.index_name(number)):
                try:
                    folder.remove(name)
                except FileNotFoundError:
                    continue  # Another thread removed it.
        except OSError:
            self._add(disk, kept)
            raise
        self.removed += 1
        return kept.end

    def tidy(self) -> None:
        """Removes empty folders of former journals."""
        for disk, incarnation in list(self.incarnations.items()):
            if disk != self.own.disk and not self.kept[disk]:
                self.folders.open(incarnation.folder).remove(archive.IDENTITY)
                self.folders.remove(incarnation.folder)
                del self.kept[disk], self.incarnations[disk]

    # --- reading ---------------------------------------------------------------------------------------

    def index(self, disk: str, number: int) -> bytes:
        """The text of an index file. Raises FileNotFoundError, OSError."""
        data = self.folders.open(self.incarnations[disk].folder).load(archive.index_name(number))
        if data is None:
            raise FileNotFoundError(archive.index_name(number))
        return data

    def open(self, disk: str, number: int) -> DiskFile:
        """Opens the file of a segment; the caller closes it. Raises FileNotFoundError, OSError."""
        return self.folders.open(self.incarnations[disk].folder).open(archive.segment_name(number))


def _number(name: str, suffix: str) -> int:
    stem = name.removesuffix(suffix)
    return int(stem) if stem.isascii() and stem.isdigit() else -1


def _numbers(names: set[str], suffix: str) -> set[int]:
    return {
        _number(name, suffix)
        for name in names
        if name.endswith(suffix) and archive.segment_name(_number(name, suffix)) == name
    }
