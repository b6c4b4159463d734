"""A shard's start on its directory: what copies are refused, and what a kill at each step leaves."""

import asyncio
import contextlib
import faulthandler
import json
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lightrail.cluster import membership
from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write
from lightrail.cluster.generations import Generation, accept_disk, key_of, last_generation
from lightrail.cluster.joining import Joining
from lightrail.cluster.map import SHARDS, Member
from lightrail.cluster.membership import MemberRefusedError
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.journal.record import Queue, QueueEvent
from lightrail.model import limits
from lightrail.model.endpoint import endpoint
from lightrail.model.settings import Settings
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import StoreRefusedError
from lightrail.shard.startup import data_directory as residences
from lightrail.shard.startup.start import Start
from lightrail.telemetry.process import Process
from tests.support.now import now

CLUSTER = Settings(etcd=(endpoint("127.0.0.1:1"),))


class Life:
    """One process on a directory, as far as its start is concerned."""

    def __init__(self, coordinator: MemoryCoordinator, data: Path, settings: Settings = CLUSTER) -> None:
        data.mkdir(exist_ok=True)
        process = Process("shard", 0, settings, "/sockets")
        self.joining = Joining(process, coordinator, None)
        found = residences.hold(str(data), 0)
        assert found is not None, "the directory is free"
        self.data_directory = found
        self.start = Start(self.joining, found)
        self.journal: Journal | None = None
        self.held: set[str] = set()
        """Names of queues that its journal has."""

    @property
    def failure(self) -> str | None:
        return self.joining.process.failure

    async def serve(self) -> None:
        await self.start.until_alone()
        self.journal = Journal(RealFiles(self.data_directory.directory), "c", 0, segment_bytes=10_000)
        disk = self.data_directory.settle("journal", "c")
        self.journal.judge = self.start.judge
        recovered = self.journal.recover(0)
        self.held = {queue.name for queue in recovered.queues}
        await self.start.begin(disk, self.journal.extent)
        key = f"{SHARDS}0"
        member = Member(0, self.joining.process.boot, disk=disk, host=self.joining.own.host)
        await self.joining.coordinator.register(key, member.encode(), lambda _: None)

    def grow(self) -> None:
        """A record more on disk."""
        assert self.journal is not None
        assert self.journal.seal(0)
        self.journal.flush()

    def declare(self, number: int) -> None:
        """A queue more on disk, such as is answered for."""
        assert self.journal is not None
        self.journal.append(Queue(QueueEvent.DECLARED, number, f"q{number}"))
        self.journal.flush()
        self.held.add(f"q{number}")

    async def report(self) -> None:
        assert self.journal is not None
        await self.start._report(self.journal.extent)

    async def end(self) -> None:
        assert self.journal is not None
        self.journal.close()
        await self.start.close(self.journal)
        await self.joining.coordinator.unregister(f"{SHARDS}0")
        self.data_directory.leave()

    def kill(self) -> None:
        """Its locks go, and nothing else."""
        if self.journal is not None:
            for segment in self.journal.segments():
                segment.close()
            self.journal.files.unlock()
        self.data_directory.leave()


@contextlib.asynccontextmanager
async def one(
    coordinator: MemoryCoordinator, data: Path, settings: Settings = CLUSTER
) -> AsyncIterator[Life]:
    life = Life(coordinator, data, settings)
    try:
        await life.serve()
    except BaseException:
        life.kill()
        raise
    yield life


async def refused(coordinator: MemoryCoordinator, data: Path, settings: Settings = CLUSTER) -> str:
    life = Life(coordinator, data, settings)
    with pytest.raises((MemberRefusedError, StoreRefusedError)) as error:
        await life.serve()
    life.kill()
    return str(error.value)


async def lease_runs_out(coordinator: MemoryCoordinator) -> None:
    await coordinator.write([Write(f"{SHARDS}0", None)])


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await story()

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(limits, "ETCD_LEASE_MS", 100)
    monkeypatch.setattr(membership, "LEASE_MARGIN_MS", 0)
    yield
    # A process that fails gives itself a time limit, which must not be that of the tests.
    faulthandler.cancel_dump_traceback_later()


def test_a_copy_never_wins_against_a_living_owner(tmp_path: Path) -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        async with one(coordinator, tmp_path / "a") as owner:
            shutil.copytree(tmp_path / "a", tmp_path / "copy")
            said = await refused(coordinator, tmp_path / "copy")
            assert "is held by a living process" in said
            assert owner.failure is None
            found = await coordinator.entry(f"{SHARDS}0")
            assert found is not None
            assert json.loads(found.value or "")["boot"] == owner.joining.process.boot
            await owner.end()

    run(story)


def test_who_has_the_very_lock_of_a_dead_owner_waits_for_no_lease(tmp_path: Path) -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        async with one(coordinator, tmp_path / "a") as owner:
            owner.kill()
        async with one(coordinator, tmp_path / "a") as successor:
            await successor.end()

    run(story)


def test_a_copy_of_a_running_owner_is_refused_after_a_crash_and_the_owner_starts(tmp_path: Path) -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        async with one(coordinator, tmp_path / "a") as owner:
            shutil.copytree(tmp_path / "a", tmp_path / "copy")
            owner.kill()
        await lease_runs_out(coordinator)
        assert "did not end in order" in await refused(coordinator, tmp_path / "copy")
        async with one(coordinator, tmp_path / "a") as owner:
            await owner.end()
        assert "generation 1: an outdated copy or a restored backup" in await refused(
            coordinator, tmp_path / "copy"
        )

    run(story)


def test_a_copy_that_is_behind_is_refused_by_the_length_of_its_journal(tmp_path: Path) -> None:
    """As of a volume's snapshot, whose inodes are those of the original."""

    async def story() -> None:
        coordinator = MemoryCoordinator()
        async with one(coordinator, tmp_path / "a") as owner:
            shutil.copytree(tmp_path / "a", tmp_path / "copy")
            owner.grow()
            await owner.report()
            owner.kill()
        await lease_runs_out(coordinator)
        last, revision = await last_generation(coordinator, 0)
        assert last is not None
        inode = (tmp_path / "copy/shard-0").stat().st_ino
        await coordinator.write([Write(key_of(0), replace(last, inode=inode).encode(), revision)])
        said = await refused(coordinator, tmp_path / "copy")
        assert "its journal had come to record" in said
        assert "accept-disk 0" in said
        # What was refused was not touched, so it says the same again.
        assert said == await refused(coordinator, tmp_path / "copy")

    run(story)


def test_after_an_orderly_end_a_copy_starts_without_a_question_and_the_original_is_old_then(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        async with one(coordinator, tmp_path / "a") as owner:
            owner.grow()
            shutil.copytree(tmp_path / "a", tmp_path / "early")
            owner.grow()
            await owner.end()
        shutil.copytree(tmp_path / "a", tmp_path / "late")
        assert "its journal had come to record" in await refused(coordinator, tmp_path / "early")
        async with one(coordinator, tmp_path / "late") as owner:
            await owner.end()
        assert "generation 1: an outdated copy or a restored backup" in await refused(
            coordinator, tmp_path / "a"
        )

    run(story)


def test_an_operator_accepts_a_copy_and_its_original_is_old_then(tmp_path: Path) -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        async with one(coordinator, tmp_path / "a") as owner:
            shutil.copytree(tmp_path / "a", tmp_path / "copy")
            owner.grow()
            await owner.report()
            owner.kill()
        await lease_runs_out(coordinator)
        await refused(coordinator, tmp_path / "copy")
        await accept_disk(coordinator, 0)
        async with one(coordinator, tmp_path / "copy") as copy:
            await copy.end()
        assert "outdated" in await refused(coordinator, tmp_path / "a")

    run(story)


def test_a_kill_between_directory_and_coordinator_changes_nothing(tmp_path: Path) -> None:
    class Dead(MemoryCoordinator):
        """Nothing that is written to a generation arrives."""

        dead = False

        async def write(self, writes: Sequence[Write]) -> int:
            if self.dead and any(each.key == key_of(0) for each in writes):
                raise KeyboardInterrupt
            return await super().write(writes)

    coordinator = Dead()

    async def begin() -> None:
        async with one(coordinator, tmp_path / "a") as owner:
            await owner.end()

    run(begin)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    for _ in range(10):
        coordinator.dead = True
        with pytest.raises(KeyboardInterrupt):
            run(begin)
        coordinator.dead = False
    for _ in range(2):
        run(begin)

    async def after() -> None:
        assert "outdated" in await refused(coordinator, tmp_path / "copy")

    run(after)


def test_an_answer_of_the_coordinator_that_was_lost_is_no_other_start(tmp_path: Path) -> None:
    class Deaf(MemoryCoordinator):
        """The first answer to a generation is lost, though it was written."""

        lost = False

        async def write(self, writes: Sequence[Write]) -> int:
            revision = await super().write(writes)
            if not self.lost and any(each.key == key_of(0) for each in writes):
                self.lost = True
                raise CoordinatorError("nobody knows whether it was written")
            return revision

    async def story() -> None:
        coordinator = Deaf()
        for _ in range(2):
            async with one(coordinator, tmp_path / "a") as owner:
                await owner.end()

    run(story)


def test_directories_and_entries_of_older_programs_are_taken_up(tmp_path: Path) -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        journal = Journal(RealFiles(tmp_path / "a/shard-0"), "c", 0)
        journal.recover(0)
        journal.close()
        for path in ("extent", "generation.json"):
            (tmp_path / "a/shard-0" / path).unlink(missing_ok=True)
        async with one(coordinator, tmp_path / "a") as owner:
            await owner.end()
        last, _ = await last_generation(coordinator, 0)
        assert last is not None
        assert (last.number, last.closed) == (1, True)

    run(story)


def test_a_data_directory_that_was_copied_with_its_coordinator_starts(tmp_path: Path) -> None:
    async def story() -> None:
        alone = Settings()
        coordinator = MemoryCoordinator()
        async with one(coordinator, tmp_path / "a", alone) as owner:
            shutil.copytree(tmp_path / "a", tmp_path / "copy")
            owner.kill()
        async with one(coordinator, tmp_path / "copy", alone) as owner:
            await owner.end()

    run(story)


def test_an_entry_that_was_set_back_is_written_anew_and_a_newer_one_ends_the_process(tmp_path: Path) -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        async with one(coordinator, tmp_path / "a") as owner:
            await owner.end()
        before, _ = await last_generation(coordinator, 0)
        assert before is not None
        async with one(coordinator, tmp_path / "a") as owner:
            await coordinator.write([Write(key_of(0), before.encode())])
            await owner.report()
            last, _ = await last_generation(coordinator, 0)
            assert last is not None
            assert (last.number, last.closed) == (2, False)
            await coordinator.write([Write(key_of(0), None)])
            await owner.report()
            last, _ = await last_generation(coordinator, 0)
            assert last is not None
            assert now(owner.failure) is None
            other = Generation(last.disk, 3, "another", boot=1)
            await coordinator.write([Write(key_of(0), other.encode())])
            await owner.report()
            assert owner.failure is not None
            assert "generation 3 of another process" in owner.failure
            await owner.end()
            assert (await last_generation(coordinator, 0))[0] == other, "it is not ours any more"

    run(story)


def test_a_mark_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        async with one(coordinator, tmp_path / "a") as owner:
            await owner.end()
        path = tmp_path / "a/shard-0/generation.json"
        good = json.loads(path.read_text())
        for text, found in (("{", "restore the file"), (json.dumps(good | {"format": 2}), "newer program")):
            path.write_text(text)
            assert found in await refused(coordinator, tmp_path / "a")

    run(story)


def test_a_lock_is_that_of_one_file_of_one_running_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = residences.hold(str(tmp_path / "a"), 0), residences.hold(str(tmp_path / "b"), 0)
    assert first is not None
    assert second is not None
    assert first.lock_id != second.lock_id
    before = first.lock_id
    first.leave()
    again = residences.hold(str(tmp_path / "a"), 0)
    assert again is not None
    assert again.lock_id == before
    monkeypatch.setattr(residences, "BOOT_ID", str(tmp_path / "none"))
    assert again.lock_id == ""
    again.leave()
    second.leave()


class Killed(BaseException):
    """The process ends here."""


class Flaky(MemoryCoordinator):
    """What becomes of writes of generations, and of who makes them, is by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.chance: random.Random | None = None

    async def write(self, writes: Sequence[Write]) -> int:
        fate = 1.0
        if self.chance is not None and any(each.key == key_of(0) for each in writes):
            fate = self.chance.random()
        if fate < 0.2:
            raise Killed
        if fate < 0.3:
            raise ConflictError(key_of(0))
        if fate < 0.4:
            raise CoordinatorError("it was not written")
        revision = await super().write(writes)
        if fate < 0.5:
            raise CoordinatorError("it was written, and nobody knows")
        if fate < 0.7:
            raise Killed
        return revision


@pytest.mark.parametrize("seed", range(12))
def test_whoever_serves_has_all_that_was_stored_whatever_is_copied_and_killed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies file by file at any time, kills at any step of a start, orderly ends, any directory started."""
    monkeypatch.setattr(limits, "ETCD_LEASE_MS", 1)
    chance = random.Random(seed)
    coordinator = Flaky()
    directories = [tmp_path / "0"]
    stored: set[str] = set()

    async def story() -> None:
        owner: Life | None = None
        last = directories[0]
        number = 0
        for _ in range(40):
            what = chance.choice(("copy", "copy", "store", "store", "kill", "end", "start", "start", "dies"))
            if what == "copy" and (last / "shard-0").exists():
                directories.append(tmp_path / str(len(directories)))
                shutil.copytree(chance.choice(directories[:-1]), directories[-1])
            elif what == "store" and owner is not None:
                number += 1
                owner.declare(number)
                stored.add(f"q{number}")
                if chance.random() < 0.5:
                    await owner.report()
            elif what == "kill" and owner is not None:
                owner.kill()
                owner = None
            elif what == "end" and owner is not None:
                await owner.end()
                owner = None
            elif what in ("start", "dies"):
                if owner is None:
                    await lease_runs_out(coordinator)
                where = chance.choice(directories)
                if owner is not None and where == last:
                    continue  # Its lock is not free.
                life = Life(coordinator, where)
                coordinator.chance = chance if what == "dies" else None
                refusal = None
                try:
                    await life.serve()
                except Killed:
                    life.kill()
                except (MemberRefusedError, StoreRefusedError) as error:
                    life.kill()
                    refusal = error
                else:
                    assert owner is None, "nobody starts beside one who lives"
                    assert life.held == stored, where
                    owner, last = life, where
                coordinator.chance = None
                # The directory that served last is never refused, nor one whose start seemed to fail.
                assert refusal is None or where != last, refusal
                found, _ = await last_generation(coordinator, 0)
                if found is not None and found.boot == life.joining.process.boot:
                    last = where  # It was written, also where the process died then.
        if owner is not None:
            await owner.end()

    run(story)
