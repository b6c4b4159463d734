"""A small disk: a tmpfs that a test mounts, fills and frees; skipped where mounting is not permitted."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted file system of few megabytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self) -> int:
        """Takes all that is left, as another program's log would; returns the bytes."""
        taken = 0
        piece = b"\xff" * 65_536
        with open(self._ballast, "ab", buffering=0) as file:
            while piece:
                try:
                    taken += file.write(piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece = piece[: len(piece) // 2]
        return taken

    def free(self) -> None:
        """Gives back what `fill` took."""
        self._ballast.unlink()


@contextmanager
def mounted(path: Path, megabytes: int) -> Iterator[SmallDisk]:
    """A tmpfs of so many megabytes at a new directory; skips the test where that is not permitted."""
    path.mkdir(mode=0o700)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "lightrail-chaos", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {made.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        with suppress(OSError):
            (path / "ballast").unlink()
        subprocess.run(["umount", "-l", str(path)], check=False)
