"""Segments in archive folders: on any file system that pyarrow can open, by path or URI (journal/archive.py).

A path names an archive, with folders shard-* below it, or one of those folders, or has * and ? in it.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import fs

from lightrail.journal.archive import (
    IDENTITY,
    SEGMENT_SUFFIX,
    ArchiveError,
    Incarnation,
    decode_identity,
    index_name,
    is_folder,
    segment_name,
)
from lightrail.journal.index import BadIndexError, SegmentIndex, decode_index, index_of
from lightrail.journal.scan import Found as Record
from lightrail.journal.scan import Scan, next_whole
from lightrail.journal.segment_header import (
    FORMAT_VERSION,
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    decode_segment_header,
)
from lightrail.spark import stores
from lightrail.spark.journals.journal import NoArchiveError, SegmentMissingError, SourceError

_GLOB: Final = re.compile(r"[*?\[]")

_T = TypeVar("_T")
Found = tuple[Incarnation, str, list[int]]
"""(journal, the folder of the journal in an archive, numbers of its segments, the oldest first)."""


class ArchiveFile:
    """The open file of a segment."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._size: int = file.size()

    def read(self, offset: int, length: int) -> bytes:
        """See `File.read`."""
        if offset >= self._size:
            return b""
        data: bytes = _asked(lambda: self._file.read_at(min(length, self._size - offset), offset), "segment")
        return data

    def size(self) -> int:
        """Size of the file in bytes."""
        return self._size

    def close(self) -> None:
        """See `File.close`."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """A segment in an archive."""

    folder: str
    """URI or path of the journal's folder."""
    number: int

    def open(self) -> ArchiveFile:
        """See `Source.open`."""
        system, folder = file_system(self.folder)
        path = f"{folder}/{segment_name(self.number)}"
        return _asked(lambda: ArchiveFile(system.open_input_file(path)), path)

    def index(self) -> SegmentIndex:
        """See `Source.index`; if the index file is missing, the segment itself is read."""
        system, folder = file_system(self.folder)
        path = f"{folder}/{index_name(self.number)}"
        try:
            text = _asked(lambda: _content(system, path), path)
        except SegmentMissingError:
            return self._read_index()
        try:
            return decode_index(text.decode(errors="replace"))
        except BadIndexError as error:
            raise SourceError(
                f"{path}: {error}: remove this file, and the segment beside it is read instead"
            ) from error

    def _read_index(self) -> SegmentIndex:
        file = self.open()
        try:
            header = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
            if header is None or header.segment != self.number:
                raise SourceError(
                    f"expected segment {self.number} of a journal in {self.folder}, found another header: "
                    "restore the file from a copy, or remove it and read with failOnDataLoss=false"
                )
            if header.version > FORMAT_VERSION:
                raise SourceError(
                    f"segment {self.number} in {self.folder} has format version {header.version}, this "
                    f"program knows {FORMAT_VERSION} and older: install the newer lightrail"
                )
            index = index_of(header, _whole(header, file))
        finally:
            file.close()
        index.sealed = True
        return index


def _whole(header: SegmentHeader, file: ArchiveFile) -> Iterator[Record]:
    """All whole records of a file. Damage between two records is found when they are read; bytes after the
    last one are a torn end."""
    end, offset, lsn = file.size(), SEGMENT_HEADER_SIZE, header.first_lsn
    while True:
        scan = Scan(file, header.salt, offset, end, lsn)
        yield from scan
        later = next(next_whole(file, header.salt, scan.offset, end, scan.lsn or 0), None)
        if later is None:
            return
        offset, lsn = later.offset, later.lsn


def file_system(path: str) -> tuple[Any, str]:
    """The file system of a path or URI, and the path in it.

    Raises:
        SourceError: pyarrow does not support it.
    """
    try:
        return stores.file_system(path)
    except stores.StoreError as error:
        raise SourceError(str(error)) from error


def find(path: str) -> Iterator[Found]:
    """The journals of an archive.

    Raises:
        SourceError: the folder is missing, or is no archive.
    """
    system, root = file_system(path)
    prefix = path[: len(path.rstrip("/")) - len(root)] if path.rstrip("/").endswith(root) else ""
    roots = _expanded(system, root) if _GLOB.search(root) else [root]
    if not roots:
        raise NoArchiveError(f"expected an archive at path {path!r}, found no such path")
    for each in roots:
        yield from _journals(system, prefix, each)


def _journals(system: Any, prefix: str, root: str) -> Iterator[Found]:
    names = _names(system, root)
    if names is None:
        raise NoArchiveError(
            f"expected an archive at path {prefix + root!r}, found no such folder: "
            "name the folder that `--archive` of the shards names"
        )
    if IDENTITY in names:
        yield from _journal(system, prefix, root, names)
        return
    for name in sorted(filter(is_folder, names)):
        folder = f"{root.rstrip('/')}/{name}"
        yield from _journal(system, prefix, folder, _names(system, folder) or [])


def _journal(system: Any, prefix: str, folder: str, names: list[str]) -> Iterator[Found]:
    try:
        text = _asked(lambda: _content(system, f"{folder}/{IDENTITY}"), folder)
        incarnation = decode_identity(text.decode(errors="replace"))
    except SegmentMissingError:
        return  # The folder is being created, or removed.
    except ArchiveError as error:
        raise SourceError(f"{folder}: {error}") from error
    end = -len(SEGMENT_SUFFIX)
    numbers = [int(name[:end]) for name in names if name.endswith(SEGMENT_SUFFIX) and name[:end].isdigit()]
    yield incarnation, prefix + folder, sorted(numbers)


def _expanded(system: Any, pattern: str) -> list[str]:
    """Folders that match a path with * and ?, level by level."""
    found = ["/" if pattern.startswith("/") else ""]
    for part in filter(None, pattern.split("/")):
        if not _GLOB.search(part):
            found = [f"{each.rstrip('/')}/{part}" if each else part for each in found]
            continue
        found = [
            str(entry.path)
            for each in found
            for entry in _entries(system, each or ".") or []
            if entry.type == fs.FileType.Directory and fnmatchcase(entry.base_name, part)
        ]
    return sorted(each for each in found if system.get_file_info(each).type == fs.FileType.Directory)


def _entries(system: Any, folder: str) -> list[Any] | None:
    """The entries of a folder; None if there is no folder."""
    try:
        entries: list[Any] = _asked(lambda: system.get_file_info(fs.FileSelector(folder)), folder)
    except SegmentMissingError:
        return None
    return entries


def _names(system: Any, folder: str) -> list[str] | None:
    """Names and kinds of the entries of a folder; None if there is no folder."""
    if isinstance(system, fs.LocalFileSystem):
        # Twenty times faster than a listing with the size and time of each file, which are not needed.
        try:
            return _asked(lambda: os.listdir(folder), folder)
        except SegmentMissingError:
            return None
    entries = _entries(system, folder)
    return None if entries is None else [str(entry.base_name) for entry in entries]


def _content(system: Any, path: str) -> bytes:
    with system.open_input_stream(path) as stream:
        data: bytes = stream.read()
        return data


def _asked(ask: Callable[[], _T], path: str) -> _T:
    """Calls a file system, and translates its errors."""
    try:
        return ask()
    except FileNotFoundError as error:
        raise SegmentMissingError(f"{path} does not exist") from error
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path} can't be read: {error}") from error
