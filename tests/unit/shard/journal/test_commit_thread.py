"""The commit thread: what it performs is on disk, counted, and ended on the loop, in machine code or not."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lightrail.journal.record import Queue, QueueEvent
from lightrail.shard.journal import commit_thread
from lightrail.shard.journal.commit import PLAIN_BYTES, Worker
from lightrail.shard.journal.commit_thread import CommitThread
from lightrail.shard.journal.files import RealFile, RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.queue.values.runs import batch_of
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.server_scene import WAIT_S

SEGMENT_BYTES = 200_000


@pytest.fixture(params=["machine code", "interpreted"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "interpreted":
        monkeypatch.setattr(commit_thread, "_syncer", None)
    else:
        assert vars(commit_thread)["_syncer"], "expected a compiled _syncer: run `make setup`"
    return str(request.param)


class Scene:
    """A journal of real files with queue 1, and its commit thread."""

    def __init__(self, directory: Path) -> None:
        self.files = RealFiles(directory)
        self.journal = Journal(self.files, "c", 0, segment_bytes=SEGMENT_BYTES)
        self.journal.recover(1 << 30, 0)
        self.journal.append(Queue(QueueEvent.DECLARED, 1, "q"), 5)
        self.journal.flush()
        loop = asyncio.get_running_loop()
        self.thread = CommitThread(loop, Worker(loop, "commit"), self.journal)
        self.sent = 0

    def send(self, size: int = 100) -> None:
        batch = batch_of([b"%08d" % self.sent + b"x" * size], durable=True)
        self.journal.append(Append([(1, self.sent)], 0, 0, batch, 0, 1), 6)
        self.sent += 1

    async def commit(self, meanwhile: Callable[[], None] = lambda: None) -> BaseException | None:
        """Performs a commit; returns its error."""
        commit = self.journal.begin_commit()
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.thread.submit(commit, ended.set_result)
        meanwhile()
        async with asyncio.timeout(WAIT_S):
            error = await ended
        if error is None:
            self.journal.end_commit(commit)
        return error

    def recovered(self) -> list[bytes]:
        """The first 8 bytes of each message that the next process finds."""
        self.journal.close(7)
        journal = Journal(RealFiles(self.files.directory), "c", 0, segment_bytes=SEGMENT_BYTES)
        runs = journal.recover(1 << 30, 0).queues[0].runs
        found = [message[:8] for run in runs for message in run.messages()]
        journal.close(8)
        return found


def play(test: Callable[[Scene], Awaitable[None]], tmp_path: Path) -> None:
    async def run() -> None:
        scene = Scene(tmp_path / "journal")
        try:
            await test(scene)
        finally:
            scene.thread.close()

    asyncio.run(run())


def test_commits_small_and_large_are_on_disk_and_counted(tmp_path: Path, form: str) -> None:
    async def test(scene: Scene) -> None:
        usage = scene.journal.usage()
        syncs, commits, written, seconds = usage.syncs, usage.commits, usage.written_bytes, usage.sync_seconds
        for size in (10, PLAIN_BYTES // 3, PLAIN_BYTES, 10):
            scene.send(size)
            scene.send(size)
            assert await scene.commit() is None
        usage = scene.journal.usage()
        assert (usage.syncs - syncs, usage.commits - commits) == (4, 4)
        assert usage.written_bytes - written > 2 * PLAIN_BYTES + PLAIN_BYTES // 3 * 2
        assert usage.sync_seconds > seconds
        assert (scene.thread._plain_writer is not None) == (form == "machine code")
        assert scene.recovered() == [b"%08d" % number for number in range(8)]

    play(test, tmp_path)


def test_an_error_of_the_disk_is_the_error_of_the_commit(tmp_path: Path, form: str) -> None:
    async def test(scene: Scene) -> None:
        file = scene.journal.current.file
        assert isinstance(file, RealFile)
        pipe, other = os.pipe()
        kept = os.dup(file.descriptor)
        os.dup2(pipe, file.descriptor)
        scene.send()
        error = await scene.commit()
        os.dup2(kept, file.descriptor)
        for descriptor in (pipe, other, kept):
            os.close(descriptor)
        assert isinstance(error, OSError)
        assert error.errno == errno.ESPIPE
        assert error.strerror == os.strerror(errno.ESPIPE)

    play(test, tmp_path)


def test_a_segment_that_begins_during_a_commit_has_a_spare_behind_it_at_its_end(
    tmp_path: Path, form: str
) -> None:
    async def test(scene: Scene) -> None:
        first = scene.journal.current.number

        def fill() -> None:
            while scene.journal.current.number == first:
                scene.send(10_000)
            assert scene.journal._space.spare is None

        scene.send()
        assert await scene.commit(fill) is None
        assert scene.journal._space.spare is not None
        assert await scene.commit() is None
        assert scene.recovered() == [b"%08d" % number for number in range(scene.sent)]

    play(test, tmp_path)


def test_without_a_real_file_there_is_no_thread_of_machine_code(form: str) -> None:
    """Simulated disks stand where a thread calls them."""

    async def test() -> None:
        journal = Journal(FakeFiles(), "c", 0, segment_bytes=SEGMENT_BYTES)
        journal.recover(1 << 30, 0)
        journal.append(Queue(QueueEvent.DECLARED, 1, "q"), 5)
        loop = asyncio.get_running_loop()
        thread = CommitThread(loop, Worker(loop, "commit"), journal)
        ended: asyncio.Future[BaseException | None] = loop.create_future()
        commit = journal.begin_commit()
        thread.submit(commit, ended.set_result)
        async with asyncio.timeout(WAIT_S):
            assert await ended is None
        journal.end_commit(commit)
        assert thread._plain_writer is None
        thread.close()

    asyncio.run(test())
