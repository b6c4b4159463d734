"""A shard on one disk, with the file of its locks: it ends in order, or is killed, and starts again."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues import lock_file
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.delivery_marks import FileMarks
from lightrail.shard.queues.lock_file import FileLocks
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, numbered_messages

LOOP = Mock(spec=asyncio.AbstractEventLoop)
BOOT = bytes(range(16))


class WorkerAtOnce:
    """A `Worker` whose jobs are done when they are submitted; `is_slow`: when the test says so."""

    is_slow = False

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self.jobs: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []

    def submit(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        self.jobs.append((work, done))
        if not self.is_slow:
            self.work()

    def work(self, most: int = 1 << 30) -> None:
        """Does up to so many jobs."""
        while self.jobs and most > 0:
            most -= 1
            work, done = self.jobs.pop(0)
            error = None
            try:
                work()
            except OSError as raised:
                error = raised
            done(error)

    def close(self) -> None:
        self.work()


class LockDisk:
    """A shard with a queue `q`."""

    def __init__(self, directory: Path, messages: int = 6, **policy: Any) -> None:
        self.directory = directory
        self.files = FakeFiles()
        self.names = EveryName()
        self.give(**policy)
        self.boot = BOOT
        self.now_ms = 1_000_000
        self.spoil: Callable[[], None] = lambda: None
        """What becomes of the files between two processes."""
        self.scene: Scene
        self.marks: FileMarks
        self.locks: FileLocks
        self.bodies = numbered_messages(messages)
        self.start()
        if messages:
            sender = self.scene.peer("sender", boot=3)
            sender.produce(1, "q")
            sender.send(1, 1, self.bodies)
            self.scene.settle_down()

    def give(self, **policy: Any) -> None:
        """Sets the policy of the queue."""
        self.names.give("q", Policy.parse({"role": "queue", "lock_duration": 60, **policy}))

    def start(self, memory_bytes: int = 1 << 30) -> Scene:
        self.marks = FileMarks(str(self.directory), self.boot)
        self.locks = FileLocks(str(self.directory), self.marks)
        journal = Journal(self.files, "test", 0, segment_bytes=4_000)
        recovered = journal.recover(memory_bytes, 1)
        self.scene = Scene(
            journal,
            recovered,
            names=self.names,
            marks=self.marks,
            kept_locks=self.locks,
            now_ms=self.now_ms,
            max_delivery_count=3,
        )
        # The thread of the marks is left out: they are written when the process ends.
        os.close(self.marks._make(0, self.marks._noted))
        with patch.object(lock_file, "Worker", WorkerAtOnce):
            self.locks.begin(LOOP, self.scene.engine.keyed_locks, self.now_ms)
        self.scene.settle_down()
        return self.scene

    @property
    def worker(self) -> WorkerAtOnce:
        """The thread of the locks."""
        found: Any = self.locks._worker
        assert isinstance(found, WorkerAtOnce)
        return found

    def killed(self, wait_ms: int = 0, **options: Any) -> Scene:
        """The next process, when everything that was written is on disk."""
        self.scene.settle_down()
        os.close(self.marks._make(0, self.marks._noted))
        return self._next(wait_ms, **options)

    def _next(self, wait_ms: int, **options: Any) -> Scene:
        self.now_ms = self.scene.now_ms + wait_ms
        self.files = self.files.after_crash(0, "all")
        self.spoil()
        self.spoil = lambda: None
        return self.start(**options)

    def restarted(self, wait_ms: int = 0, **options: Any) -> Scene:
        """The next process, after an orderly end."""
        self.scene.settle_down()
        os.close(self.marks._make(2, self.scene.engine.last_marks()))
        self.locks.close(self.scene.now_ms)
        return self._next(wait_ms, **options)

    def peer(self, boot: int) -> Peer:
        return self.scene.peer(f"frontend-{boot}", boot)
