"""The recorder of calls in processes that `lightrail trace` or `scripts/structure.py` started for it.

The command starts each process with the variables of `environment`, so that Python loads
hook/sitecustomize.py at the start of the process. Processes without these variables have no recorder.
"""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

HOOK: Final = Path(__file__).parent / "hook"
PACKAGE: Final = Path(__file__).parents[2]
"""The folder of the package lightrail."""


class RecordedCall(NamedTuple):
    """One call of a Python function.

    Attributes:
        time_ns: of time.monotonic_ns, which all processes of a machine share.
        file: relative to the package.
        function: with the names of its class and of functions around it.
        line: at which the function begins, with its decorators.
    """

    time_ns: int
    process: str
    file: str
    function: str
    line: int


class RecorderError(Exception):
    """Calls can't be recorded; the message says what was expected and found."""


def environment(sockets: Path, package: Path = PACKAGE) -> dict[str, str]:
    """Variables of a process that is to be recorded.

    Args:
        sockets: an existing folder that only the caller's user may enter; each process makes a socket in it.
        package: calls of files in this folder are recorded.
    """
    behind = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": f"{HOOK}{os.pathsep}{behind}" if behind else str(HOOK),
        "TRACE_SOCKETS": str(sockets),
        "TRACE_ROOT": f"{package}{os.sep}",
    }


class Recorder:
    """Records calls in all of some processes.

    Args:
        names: of the processes, by their ids.
    """

    def __init__(self, sockets: Path, names: Mapping[int, str]) -> None:
        self._sockets = sockets
        self._names = names

    def begin(self) -> None:
        """Begin a record, and forget the former one. Raises RecorderError."""
        for pid in self._names:
            self._ask(pid, b"begin")

    def look(self) -> list[RecordedCall]:
        """All calls of the record so far, in the order of time. Raises RecorderError."""
        return self._calls(b"look")

    def end(self) -> list[RecordedCall]:
        """End the record; returns its calls, in the order of time. Raises RecorderError."""
        return self._calls(b"end")

    def _calls(self, request: bytes) -> list[RecordedCall]:
        found = []
        for pid, name in self._names.items():
            answer = self._ask(pid, request)
            if not answer:
                raise RecorderError(f"expected a record of {name} (pid {pid}), found none that was begun")
            record: dict[str, Any] = json.loads(answer)
            if record["dropped"]:
                raise RecorderError(f"{name} made {record['dropped']} calls more than a record can have")
            functions = record["functions"]
            found += [RecordedCall(time_ns, name, *functions[index]) for time_ns, index in record["calls"]]
        return sorted(found)

    def _ask(self, pid: int, request: bytes) -> bytes:
        path = self._sockets / str(pid)
        with socket.socket(socket.AF_UNIX) as peer:
            try:
                peer.connect(str(path))
                peer.sendall(request)
                return b"".join(iter(lambda: peer.recv(65_536), b""))
            except OSError as error:
                raise RecorderError(
                    f"expected that {self._names[pid]} (pid {pid}) answers at {path}, found: {error}; it was "
                    "started without the recorder, or has ended"
                ) from None
