"""One thread for jobs that would block the loop, in order: commits, or reads.

An executor of the standard library makes a future, a lock and several wake-ups per call; at a few hundred
small commits per second these were a fifth of the shard's CPU. Here a call costs one queue operation and one
wake-up.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], object]
Done = Callable[[BaseException | None], None]


class Worker:
    """A thread with a queue; `done` of each job is called on the loop with its error, or None."""

    __slots__ = ("_loop", "_queue", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work, done: Done) -> None:
        """Runs `work` in the thread, after all jobs submitted before."""
        self._queue.put((work, done))

    def close(self) -> None:
        """Waits until all submitted jobs are done."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:
                error = raised
            self._loop.call_soon_threadsafe(done, error)
