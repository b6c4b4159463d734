"""What makes system calls of a process fail: built from failing_calls.c, loaded by LD_PRELOAD."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("failing_calls.c")


class FailingCalls:
    """Calls on the files of one directory, of processes that are started with `environ`."""

    def __init__(self, library: Path, directory: Path, log: Path) -> None:
        self._library = library
        self._directory = directory
        self._log = log
        self.hangs = log.with_suffix(".hangs")

    def environ(self, call: int | None = None, error: int = 0, *, is_short: bool = False) -> dict[str, str]:
        """For a process whose call of this number fails, counted from 0; None: it only counts."""
        self._log.unlink(missing_ok=True)
        found = {
            "LD_PRELOAD": str(self._library),
            "FAILING_DIRECTORY": str(self._directory),
            "FAILING_LOG": str(self._log),
            "FAILING_HANG": str(self.hangs),
        }
        if call is not None:
            found |= {
                "FAILING_CALL": str(call),
                "FAILING_ERRNO": str(error),
                "FAILING_SHORT": str(int(is_short)),
            }
        return found

    @property
    def calls(self) -> list[str]:
        """Names of the calls so far, in order."""
        return self._log.read_text().split() if self._log.exists() else []

    def hang(self) -> None:
        """From now on no sync returns."""
        self.hangs.touch()

    def go_on(self) -> None:
        """Syncs return."""
        self.hangs.unlink()


def built(directory: Path, over: Path) -> FailingCalls:
    """Compiles the object into a directory; its calls are those on paths that begin with `over`."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("expected a C compiler named cc, found none")
    library = directory / "failing_calls.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(SOURCE)]
    subprocess.run([*command, "-ldl"], check=True)
    return FailingCalls(library, over, directory / "calls")
