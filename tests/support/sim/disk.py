"""The disk and the threads of a simulated process: a thread stands in each call of the disk.

Threads are real, and run in turns with the loop, so a seed decides what happens between two calls of a disk:
other members may have a commit before its owner has, and a machine may stop in the middle.
"""

import random
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar

from lightrail.shard.journal.commit import Worker
from tests.support.shard.fake_files import FakeFiles, Fault
from tests.support.sim.loop import SimLoop

Work = Callable[[], object]
Done = Callable[[BaseException | None], None]

SYNC_S = (0.0002, 0.004)
OTHER_S = (0.00001, 0.0001)
OTHERS_SHARE = 0.15
"""What calls but syncs take, and the share of them that takes time at all."""
WHOLE_SHARE = 0.7
"""Share of jobs between whose calls nothing else happens: they need no thread, whose switches cost much."""
READING = frozenset({"open", "read", "load"})
"""Calls that take no time."""

THREAD: ContextVar["SimWorker | None"] = ContextVar("THREAD", default=None)
"""The thread that runs."""


class EndedError(BaseException):
    """The process of this thread has ended. Not an Exception: nobody may handle it."""


class SimFiles(FakeFiles):
    """One directory."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.slow = 1.0
        """Factor of the time of every call."""
        self.hangs_until_s = 0.0
        self.directory_inode = 1
        """Of the directory; a copy has another one, and a volume that was set back has the same."""

    def fault_of(self, call: str) -> Fault | None:
        thread = THREAD.get()
        if thread is not None and call not in READING:
            if call.startswith("sync"):
                thread.stand(self.slow * self._chance.uniform(*SYNC_S))
            elif self._chance.random() < OTHERS_SHARE:
                thread.stand(self.slow * self._chance.uniform(*OTHER_S))
        return None

    def call(self, call: str) -> None:
        self.fault_of(call)

    def after(self, keep: str) -> "SimFiles":
        """The disk after a stop of the machine; `keep` of what was not synced: all, none, some."""
        return self._with(self.after_crash(self._chance.randrange(1 << 30), keep))

    def copy(self) -> "SimFiles":
        """What was synced until now, as a snapshot of the volume has it."""
        return self._with(self.after_crash(0, "none"))

    def _with(self, found: FakeFiles) -> "SimFiles":
        files = SimFiles(self._chance)
        files.inodes, files._durable = found.inodes, found._durable
        files.directory_inode = self.directory_inode
        return files

    def after_kill(self) -> "SimFiles":
        """The disk after the end of a process: the system has everything that was written."""
        self.unlock()
        return self


class SimWorker(Worker):
    """A thread of one process, see Worker of shard/journal/commit.py."""

    def __init__(
        self, loop: SimLoop, context: Context, chance: random.Random, files: Callable[[], SimFiles]
    ) -> None:
        self._loop = loop
        self._context = context
        self._chance = chance
        self._files = files
        self._jobs: deque[tuple[Work, Done]] = deque()
        self._thread: threading.Thread | None = None
        # Held by the one who waits for the other: a lock is a semaphore of one, and much faster.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._stands_s: float | None = None
        """How long its call of the disk takes."""
        self._error: BaseException | None = None
        self._is_ended = False

    def submit(self, work: Work, done: Done) -> None:
        self._jobs.append((work, done))
        if len(self._jobs) == 1:
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Begins the next job."""
        if self._files().slow == 1.0 and self._chance.random() < WHOLE_SHARE:
            self._loop.call_later(self._chance.uniform(*SYNC_S), self._do)
        else:
            self._resume()

    def _do(self) -> None:
        """A whole job, at its end."""
        if self._is_ended:
            return
        self._error = None
        try:
            self._jobs[0][0]()
        except BaseException as raised:
            self._error = raised
        self._ended()

    def _ended(self) -> None:
        _, done = self._jobs.popleft()
        self._loop.call_soon(done, self._error)
        if self._jobs:
            self._loop.call_soon(self._begin)

    def _resume(self) -> None:
        """The thread runs up to its next call of the disk, or to the end of its job."""
        if self._is_ended:
            return
        if self._thread is None:
            context = self._context.copy()
            context.run(THREAD.set, self)
            self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
            self._thread.start()
        self._go.release()
        self._back.acquire()
        if self._stands_s is not None:
            self._loop.call_later(self._stands_s, self._resume)
            return
        self._ended()

    def stand(self, span_s: float) -> None:
        """In the thread: it is in a call of the disk for this time."""
        if self._is_ended:
            raise EndedError
        self._stands_s = span_s
        self._back.release()
        self._go.acquire()
        self._stands_s = None
        if self._is_ended:
            raise EndedError

    def _run(self) -> None:
        while self._goes_on():
            self._error = None
            try:
                self._jobs[0][0]()
            except BaseException as raised:
                # Also an EndedError, or what code made of it: then the process has ended.
                self._error = raised
            if not self._is_ended:
                self._back.release()
        self._back.release()

    def _goes_on(self) -> bool:
        """Waits for the next job; False if the process ends instead."""
        if not self._is_ended:
            self._go.acquire()
        return not self._is_ended

    def close(self) -> None:
        """In the simulation a process that ends in order has no jobs left."""
        self.end()

    def end(self) -> None:
        """The process ends, wherever its thread stands."""
        if self._is_ended:
            return
        self._is_ended = True
        if self._thread is not None:
            self._go.release()
            self._back.acquire()
            self._thread.join()
