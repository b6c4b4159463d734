"""A member's start on its directory: one that may lack accepted records answers nobody as one in sync."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write
from lightrail.cluster.generations import Generation, accept_disk, key_of, last_generation
from lightrail.cluster.joining import Joining
from lightrail.cluster.map import SHARD_SETS, ShardRecord
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.replica_sets import ReplicaSet, SetMember
from lightrail.cluster.replica_sets import key_of as set_key
from lightrail.journal.record import RANGE_RECORDS
from lightrail.model import limits
from lightrail.model.endpoint import endpoint
from lightrail.model.settings import Settings
from lightrail.shard.journal.identity import Extent
from lightrail.shard.startup import data_directory as residences
from lightrail.shard.startup.member_start import MemberStart
from lightrail.telemetry.directories import ETCD_ADDRESS
from lightrail.telemetry.process import CannotServeError, Process

CLUSTER = Settings(etcd=(endpoint("127.0.0.1:1"),))
JOURNAL = "j"
ABC = ReplicaSet(0, 3, "a", frozenset("abc"), {each: SetMember(f"host-{each}") for each in "abc"}, 3, 2)
END = 50
"""Number of the next record of a journal that has everything."""


class Etcd(MemoryCoordinator):
    """With what this shard has, and what happens to writes as tests want."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str], Awaitable[None]] | None = None
        """Called before the first write of a key; raises to have it fail."""
        self.written: list[str] = []

    async def write(self, writes: Sequence[Write]) -> int:
        key, before = writes[0].key, self.before
        if before is not None:
            self.before = None
            await before(key)
        self.written.append(key)
        return await super().write(writes)

    async def entry_of_set(self) -> ReplicaSet:
        found = await self.entry(set_key(0))
        assert found is not None
        return ReplicaSet.decode(found)

    async def change(self, changed: ReplicaSet) -> None:
        await MemoryCoordinator.write(self, [Write(changed.key, changed.encode())])

    async def generation(self, member: str) -> Generation:
        found, _ = await last_generation(self, 0, member)
        assert found is not None
        return found


class Life:
    """One process on a directory, until it is killed or ends in order."""

    def __init__(self, etcd: Etcd, data: Path, member: str, end: int = END, accepted: int = END) -> None:
        data.mkdir(exist_ok=True)
        found = residences.hold(str(data), 0)
        assert found is not None, "the directory is free"
        assert found.member(member) == member
        self.data_directory = found
        self.etcd = etcd
        settings = replace(CLUSTER, data=str(data))
        joining = Joining(Process("shard", 0, settings, "/sockets"), etcd, None)
        self.start = MemberStart(joining, found, member, JOURNAL)
        self.mirror: Any = SimpleNamespace(extent=Extent(1, 1, accepted), next_lsn=end)

    async def begin(self) -> ReplicaSet:
        try:
            return await self.start.begin_following(self.mirror)
        except BaseException:
            self.kill()
            raise

    async def end(self) -> None:
        await self.start.end_following(self.mirror)
        self.kill()

    def kill(self) -> None:
        self.data_directory.leave()


def run(story: Callable[[Etcd], Awaitable[None]], entry: ReplicaSet = ABC) -> None:
    async def whole() -> None:
        etcd = Etcd()
        await etcd.change(entry)
        await MemoryCoordinator.write(etcd, [Write(f"{SHARD_SETS}0", ShardRecord(0, JOURNAL).encode(), 0)])
        await story(etcd)

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COORDINATOR_PAUSE_MS", 1)


def test_the_directory_of_a_killed_follower_stays_in_sync(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        before = await etcd.entry_of_set()
        for number in (1, 2, 3):
            life = Life(etcd, tmp_path / "b", "b")
            assert await life.begin() == before
            assert (await etcd.generation("b")).number == number
            life.kill()
        assert await etcd.entry_of_set() == before
        assert etcd.written == 3 * [key_of(0, "b")], "one write for each start"

    run(story)


def test_a_copy_of_a_killed_follower_withdraws_and_so_does_its_original_then(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        life = Life(etcd, tmp_path / "b", "b")
        await life.begin()
        shutil.copytree(tmp_path / "b", tmp_path / "copy")
        life.kill()
        life = Life(etcd, tmp_path / "copy", "b")
        assert (await life.begin()).in_sync == frozenset("ac")
        life.kill()
        # It has fetched everything, and the owner has added it.
        await etcd.change(ABC)
        life = Life(etcd, tmp_path / "b", "b")
        assert (await life.begin()).in_sync == frozenset("ac")
        found = await etcd.entry_of_set()
        assert (found.owner, found.epoch, found.members) == (ABC.owner, ABC.epoch, ABC.members)
        life.kill()

    run(story)


@pytest.mark.parametrize(("end", "in_sync"), [(END, ABC.in_sync), (END - 1, frozenset("ac"))])
def test_a_copy_stays_in_sync_if_the_follower_ended_in_order_and_the_copy_is_complete(
    tmp_path: Path, end: int, in_sync: frozenset[str]
) -> None:
    async def story(etcd: Etcd) -> None:
        life = Life(etcd, tmp_path / "b", "b", accepted=1)
        await life.begin()
        life.mirror.extent = Extent(1, 1, END)
        await life.end()
        assert (await etcd.generation("b")).closed
        shutil.copytree(tmp_path / "b", tmp_path / "copy")
        life = Life(etcd, tmp_path / "copy", "b", end)
        assert (await life.begin()).in_sync == in_sync
        life.kill()

    run(story)


def test_an_installation_on_one_machine_is_copied_as_a_whole(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        demo = tmp_path / "demo"
        demo.mkdir()
        (demo / ETCD_ADDRESS).write_text("127.0.0.1:1\n")
        life = Life(etcd, demo / "replica-1", "b")
        await life.begin()
        shutil.copytree(demo, tmp_path / "copy")
        life.kill()
        life = Life(etcd, tmp_path / "copy/replica-1", "b")
        assert (await life.begin()).in_sync == ABC.in_sync
        life.kill()
        # Its members may be elsewhere with the etcd of others.
        (tmp_path / "copy" / ETCD_ADDRESS).write_text("127.0.0.1:2\n")
        shutil.copytree(tmp_path / "copy", tmp_path / "other")
        for _ in range(2):
            life = Life(etcd, tmp_path / "copy/replica-1", "b")
            assert (await life.begin()).in_sync == ABC.in_sync
            life.kill()
        life = Life(etcd, tmp_path / "other/replica-1", "b")
        assert (await life.begin()).in_sync == frozenset("ac")
        life.kill()

    run(story)


def test_a_backup_from_before_the_last_start_withdraws(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        life = Life(etcd, tmp_path / "b", "b")
        await life.begin()
        await life.end()
        shutil.copytree(tmp_path / "b", tmp_path / "backup")
        await Life(etcd, tmp_path / "b", "b").begin()
        assert (await Life(etcd, tmp_path / "backup", "b").begin()).in_sync == frozenset("ac")

    run(story)


def test_a_volume_that_was_set_back_lacks_what_another_member_has_reported(tmp_path: Path) -> None:
    """It has the same inode and the same generation; a learner may lack anything."""

    async def story(etcd: Etcd) -> None:
        known = Generation(JOURNAL, 4, "t", 1, segment=1, next_lsn=END)
        await MemoryCoordinator.write(etcd, [Write(key_of(0, "a"), known.encode())])
        life = Life(etcd, tmp_path / "b", "b")
        assert (await life.begin()).in_sync == ABC.in_sync
        life.kill()
        life = Life(etcd, tmp_path / "b", "b", END - 1, END - 1)
        assert (await life.begin()).in_sync == frozenset("ac")
        life.kill()
        etcd.written.clear()
        life = Life(etcd, tmp_path / "b", "b", END - 1, END - 1)
        assert (await life.begin()).in_sync == frozenset("ac")
        assert etcd.written == [key_of(0, "b")]
        life.kill()

    run(story)


def test_what_a_member_knew_to_be_accepted_is_known_after_its_directory_was_set_back(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        known = Generation(JOURNAL, 4, "t", 1, segment=1, next_lsn=END)
        await MemoryCoordinator.write(etcd, [Write(key_of(0, "a"), known.encode())])
        for member, left in (("a", "bc"), ("b", "c")):
            life = Life(etcd, tmp_path / member, member, 9, 9)
            assert (await life.begin()).in_sync == frozenset(left)
            life.kill()
        assert (await etcd.generation("a")).next_lsn == END

    run(story)


def test_the_only_member_in_sync_is_refused_until_an_operator_accepts_its_directory(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        known = Generation(JOURNAL, 4, "t", 1, segment=1, next_lsn=END)
        await MemoryCoordinator.write(etcd, [Write(key_of(0, "a"), known.encode())])
        for _ in range(2):
            with pytest.raises(CannotServeError, match=r"ends with record 8\..*promote 0.*accept-disk 0"):
                await Life(etcd, tmp_path / "b", "b", 9, 9).begin()
        assert etcd.written == [], "it was refused, and nothing has changed"
        await accept_disk(etcd, 0)
        for _ in range(2):
            life = Life(etcd, tmp_path / "b", "b", 9, 9)
            assert (await life.begin()).in_sync == frozenset("b")
            life.kill()

    run(story, ABC.withdrawn("a").withdrawn("c"))


def test_a_promoted_member_does_not_have_what_was_given_up(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        known = Generation(JOURNAL, 4, "t", 1, segment=1, next_lsn=END)
        await MemoryCoordinator.write(etcd, [Write(key_of(0, "a"), known.encode())])
        entry = ABC.withdrawn("b").promoted("b", "ac")
        await etcd.change(entry)
        life = Life(etcd, tmp_path / "b", "b", 9, 9)
        assert (await life.begin()).in_sync == frozenset("b")
        life.kill()
        # It has begun its range, and another member is in sync.
        begun = entry.promoted_in * RANGE_RECORDS + 5
        await MemoryCoordinator.write(
            etcd, [Write(key_of(0, "a"), Generation(JOURNAL, 5, "u", 1, next_lsn=begun).encode())]
        )
        await etcd.change(entry.added("c"))
        life = Life(etcd, tmp_path / "b", "b", 9, 9)
        assert (await life.begin()).in_sync == frozenset("c")
        life.kill()

    run(story)


def test_a_directory_that_is_newer_than_an_etcd_that_was_set_back_stays_in_sync(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        life = Life(etcd, tmp_path / "b", "b")
        await life.begin()
        life.kill()
        then = await etcd.generation("b")
        for _ in range(3):
            life = Life(etcd, tmp_path / "b", "b")
            await life.begin()
            life.kill()
        await MemoryCoordinator.write(etcd, [Write(key_of(0, "b"), then.encode())])
        life = Life(etcd, tmp_path / "b", "b")
        assert (await life.begin()).in_sync == ABC.in_sync
        assert (await etcd.generation("b")).number == 5
        life.kill()

    run(story)


def test_a_directory_from_before_members_had_generations_is_taken_up_once(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        Life(etcd, tmp_path / "b", "b").kill()
        shutil.copytree(tmp_path / "b", tmp_path / "copy")
        life = Life(etcd, tmp_path / "b", "b")
        assert (await life.begin()).in_sync == ABC.in_sync
        life.kill()
        life = Life(etcd, tmp_path / "copy", "b")
        assert (await life.begin()).in_sync == frozenset("ac")
        life.kill()

    run(story)


def test_a_member_without_a_journal_begins_as_well(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        life = Life(etcd, tmp_path / "b", "b")
        life.mirror = None
        await life.begin()
        assert (await etcd.generation("b")).next_lsn == 1
        await life.end()
        assert (await etcd.generation("b")).closed

    run(story, ABC.withdrawn("b"))


def test_a_former_owner_withdraws_and_is_not_the_owner_by_that(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        life = Life(etcd, tmp_path / "a", "a")
        await life.begin()
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        life.kill()
        life = Life(etcd, tmp_path / "copy", "a")
        found = await life.begin()
        assert (found.owner, found.epoch, found.in_sync) == ("a", ABC.epoch, frozenset("bc"))
        life.kill()

    run(story)


@pytest.mark.parametrize("is_written", [False, True])
def test_a_process_that_dies_after_it_has_withdrawn_leaves_an_outdated_directory(
    tmp_path: Path, is_written: bool
) -> None:
    class Killed(BaseException):
        pass

    async def die(_: str) -> None:
        raise Killed

    async def story(etcd: Etcd) -> None:
        life = Life(etcd, tmp_path / "b", "b")
        await life.begin()
        shutil.copytree(tmp_path / "b", tmp_path / "copy")
        life.kill()

        async def then_die(key: str) -> None:
            assert key == set_key(0)
            etcd.before = die
            if not is_written:
                await die(key)

        etcd.before = then_die
        with pytest.raises(Killed):
            await Life(etcd, tmp_path / "copy", "b").begin()
        expected = frozenset("ac") if is_written else ABC.in_sync
        assert (await etcd.entry_of_set()).in_sync == expected
        etcd.before = None
        life = Life(etcd, tmp_path / "copy", "b")
        assert (await life.begin()).in_sync == frozenset("ac")
        life.kill()

    run(story)


def test_a_late_write_that_adds_an_outdated_member_fails(tmp_path: Path) -> None:
    """The owner has sent it before the directory was set back."""

    async def story(etcd: Etcd) -> None:
        life = Life(etcd, tmp_path / "b", "b")
        await life.begin()
        shutil.copytree(tmp_path / "b", tmp_path / "copy")
        life.kill()
        sent = await etcd.entry_of_set()
        life = Life(etcd, tmp_path / "copy", "b")
        await life.begin()
        life.kill()
        with pytest.raises(ConflictError):
            await etcd.write([sent.write_of(sent.added("b"))])

    run(story, ABC.withdrawn("b"))


def test_a_set_that_changes_meanwhile_is_read_again(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        life = Life(etcd, tmp_path / "b", "b")
        await life.begin()
        shutil.copytree(tmp_path / "b", tmp_path / "copy")
        life.kill()

        async def another_takes_over(_: str) -> None:
            await etcd.change(ABC.taken_over("c", "host-c"))

        etcd.before = another_takes_over
        life = Life(etcd, tmp_path / "copy", "b")
        found = await life.begin()
        assert (found.owner, found.epoch, found.in_sync) == ("c", ABC.epoch + 1, frozenset("ac"))
        life.kill()

    run(story)


def test_of_two_directories_that_start_at_once_one_has_withdrawn(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        life = Life(etcd, tmp_path / "b", "b")
        await life.begin()
        shutil.copytree(tmp_path / "b", tmp_path / "copy")
        life.kill()

        async def copy_is_faster(_: str) -> None:
            copy = Life(etcd, tmp_path / "copy", "b")
            await copy.begin()
            copy.kill()
            await etcd.change(ABC)

        etcd.before = copy_is_faster
        life = Life(etcd, tmp_path / "b", "b")
        assert (await life.begin()).in_sync == frozenset("ac")
        assert (await etcd.generation("b")).number == 3
        life.kill()

    run(story)


def test_a_lost_answer_is_no_other_start_and_etcd_is_waited_for(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        async def is_away(_: str) -> None:
            raise CoordinatorError("etcd is away")

        etcd.before = is_away
        life = Life(etcd, tmp_path / "b", "b")
        assert (await life.begin()).in_sync == ABC.in_sync
        assert (await etcd.generation("b")).number == 1
        life.kill()

    run(story)


def test_a_take_over_goes_on_with_the_generation_of_the_follower(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        life = Life(etcd, tmp_path / "b", "b")
        await life.begin()
        before = await etcd.generation("b")
        # As an owner that has accepted nothing yet.
        await life.start.begin(JOURNAL, Extent(0, 1, 1))
        await life.start._report(Extent(0, 1, 1))
        assert await etcd.generation("b") == before
        await life.start._report(Extent(2, 60, 70))
        assert (await etcd.generation("b")).next_lsn == 70
        life.kill()

    run(story)


def test_a_shard_without_its_entry_is_refused(tmp_path: Path) -> None:
    async def story(etcd: Etcd) -> None:
        await MemoryCoordinator.write(etcd, [Write(set_key(0), None)])
        with pytest.raises(CannotServeError, match="expected the entry of shard 0 with replicas, found none"):
            await Life(etcd, tmp_path / "b", "b").begin()

    run(story)
