"""Worker processes of a command, restarted when they die and when files change."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from lightrail.console.terminal import say

LOOK_S: Final = 0.3
PAUSE_FIRST_S: Final = 0.5
PAUSE_LONGEST_S: Final = 30.0
STABLE_S: Final = 10.0
"""A worker that ran for this time is restarted at once."""
STOP_S: Final = 40.0
"""Time for workers to stop before they are killed."""


@dataclass(eq=False, repr=False)
class Worker:
    """One process, and the time from which it may be started again."""

    _command: Sequence[str]
    _number: int
    _failures: int = 0
    _due_s: float = 0.0
    _process: subprocess.Popen[bytes] | None = None
    _began_s: float = 0.0

    def start(self) -> None:
        """Starts the process."""
        self._process = subprocess.Popen(self._command)
        self._began_s = time.monotonic()

    def restart_if_ended(self) -> None:
        """Restarts a process that has ended, after a pause that grows while the process ends soon."""
        now_s = time.monotonic()
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self._process = None
            self._failures = 0 if now_s - self._began_s > STABLE_S else self._failures + 1
            pause_s = min(PAUSE_LONGEST_S, PAUSE_FIRST_S * 2.0 ** max(0, self._failures - 1))
            self._due_s = now_s + (0.0 if self._failures == 0 else pause_s)
            say(f"worker {self._number} ended with status {status} and is restarted")
        if now_s >= self._due_s:
            self.start()

    def stop(self) -> None:
        """Requests the process to end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Waits for the end of the process; kills it after this time."""
        if self._process is None:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            say(f"worker {self._number} did not stop within {STOP_S:g} s and is killed")
            self._process.kill()
            self._process.wait()
        self._process = None


def supervise(command: Sequence[str], count: int, watched: Path | None) -> int:
    """Keeps `count` processes of a command running until SIGINT or SIGTERM.

    Args:
        watched: folder of Python files whose changes restart the processes; None: no changes do.
    """
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    workers = [Worker(command, number) for number in range(count)]
    state = _state(watched)
    for worker in workers:
        worker.start()
    while not ended.wait(LOOK_S):
        changed = _state(watched)
        if changed != state:
            state = changed
            say("files have changed: the workers are restarted")
            _stop(workers)
            for worker in workers:
                worker.start()
        for worker in workers:
            worker.restart_if_ended()
    _stop(workers)
    return 0


def _stop(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.stop()
    deadline = time.monotonic() + STOP_S
    for worker in workers:
        worker.wait(max(0.0, deadline - time.monotonic()))


def _state(folder: Path | None) -> dict[str, float]:
    """Modification times of Python files below a folder, except in hidden folders and environments."""
    found: dict[str, float] = {}
    if folder is None:
        return found
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__"))
            and not os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))
        ]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(parent, name)
                try:
                    found[path] = os.stat(path).st_mtime
                except FileNotFoundError:
                    continue
    return found
