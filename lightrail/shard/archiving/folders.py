"""The port to an archive's directory, with one folder per journal, and its implementation."""

import contextlib
import os
from pathlib import Path
from typing import Final, Protocol

from lightrail.journal.archive import is_folder
from lightrail.shard.journal.files import Files, RealFiles


class Folders(Protocol):
    """A directory of folders. Any thread may call."""

    def names(self) -> list[str]:
        """Directories with names of an archive's folders; none if the directory is missing."""

    def open(self, name: str) -> Files:
        """Opens a folder; creates it if it does not exist."""

    def remove(self, name: str) -> None:
        """Removes an empty folder."""

    def shares(self, files: Files) -> bool:
        """Whether removing files here makes room in the file system of `files`."""

    def close(self) -> None:
        """Closes all folders."""


class RealFolders:
    """A directory of the operating system, made with its first folder."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory: Final = Path(directory)
        self._open: dict[str, RealFiles] = {}

    def names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            return sorted(entry.name for entry in entries if is_folder(entry.name) and entry.is_dir())
        return []

    def open(self, name: str) -> RealFiles:
        found = self._open.get(name)
        if found is None:
            if not self.directory.exists():
                RealFiles(self.directory).unlock()
            found = self._open.setdefault(name, RealFiles(self.directory / name))
        return found

    def remove(self, name: str) -> None:
        found = self._open.pop(name, None)
        if found is not None:
            found.unlock()
        os.rmdir(self.directory / name)

    def shares(self, files: Files) -> bool:
        assert isinstance(files, RealFiles)
        try:
            return os.stat(self.directory).st_dev == os.stat(files.directory).st_dev
        except FileNotFoundError:
            return False

    def close(self) -> None:
        for files in self._open.values():
            files.unlock()
        self._open.clear()
