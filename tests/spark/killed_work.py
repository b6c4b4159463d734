"""A task of a capture that is killed once, when its files are written: Spark's workers import it here."""

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lightrail.spark.lake.stream import CaptureTask, Written
from lightrail.spark.reading.planning import Piece


@dataclass(frozen=True)
class KilledWork(CaptureTask):
    """Does everything, and is killed the first time."""

    marker: str = ""
    """The file that says that it was."""

    def run(self, pieces: Iterable[Piece]) -> Written:
        """As a task does it."""
        written = CaptureTask.run(self, pieces)
        try:
            Path(self.marker).touch(exist_ok=False)
        except FileExistsError:
            return written
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")
