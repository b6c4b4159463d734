"""Board: shared memory of a run's processes, with counters of the workers and commands of the parent.

It consists of 64-bit words, each with one writer.
"""

from ctypes import c_uint64
from multiprocessing.sharedctypes import RawArray
from typing import Any, Final

MEASURE_FROM: Final = 0
"""Monotonic ns; messages sent before are warm-up. 0: not yet known."""
SENDERS_STOP: Final = 1
"""1: stop sending; 2: stop without waiting for outcomes."""
RECEIVERS_STOP: Final = 2
START: Final = 3
"""Monotonic ns at which sending begins."""
_HEAD: Final = 8
_WORKER: Final = 8
SENT: Final = 0
SETTLED: Final = 1
RECEIVED: Final = 2
LAST_NS: Final = 3
"""Monotonic ns of the worker's last message."""
ANSWERED: Final = 4
"""Requests that a responder has received."""


class Board:
    """The shared words; can be passed to a process when it starts."""

    def __init__(self, workers: int, slow: int = 0) -> None:
        """``slow`` is the number of workers with slow links, which are the last ones."""
        self.workers = workers
        self.slow = slow
        self._memory: Any = RawArray(c_uint64, _HEAD + workers * _WORKER)
        self._words: memoryview | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"workers": self.workers, "slow": self.slow, "_memory": self._memory, "_words": None}

    @property
    def words(self) -> memoryview:
        """The words as integers; reading and writing one is atomic."""
        if self._words is None:
            self._words = memoryview(self._memory).cast("B").cast("Q")
        return self._words

    def index(self, worker: int, field: int) -> int:
        """Index of a worker's field in ``words``."""
        return _HEAD + worker * _WORKER + field

    def sum(self, field: int) -> int:
        """A counter over all workers."""
        return self._sum(field, self.workers)

    def fast(self, field: int) -> int:
        """A counter over the workers whose links are not slow."""
        return self._sum(field, self.workers - self.slow)

    def _sum(self, field: int, workers: int) -> int:
        start = _HEAD + field
        return sum(self.words[start + i * _WORKER] for i in range(workers))

    def latest(self, field: int) -> int:
        """The largest value over all workers."""
        start = _HEAD + field
        return max(self.words[start + i * _WORKER] for i in range(self.workers))
