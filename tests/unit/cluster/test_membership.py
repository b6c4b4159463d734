"""Who gets which number, and who is refused, on the coordinator in memory and with a clock of its own."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from lightrail.cluster.coordinator import Coordinator, CoordinatorError, Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.map import Member, ShardRecord
from lightrail.cluster.membership import (
    LEASE_MARGIN_MS,
    MemberRefusedError,
    allocate_shard,
    check_disk,
    displaced_by,
    free_number,
    holder,
    member_of,
    pin_disk,
    register,
    shard_records,
    take_number,
    until_free,
)
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model import limits
from tests.support.services import DyingCoordinator

OWN = Member(id=3, boot=1, disk="d3", host="here")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


class Clock:
    """Time passes only when somebody sleeps; `events` happen at their second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, Coroutine[Any, Any, Any]]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            await self.events.pop(0)[1]


async def wait_for(coordinator: Coordinator, clock: Clock, own: Member = OWN, **more: Any) -> int:
    return await until_free(
        coordinator, "shards/3", own, lease_ms=limits.ETCD_LEASE_MS, clock=clock, sleep=clock.sleep, **more
    )


def test_the_smallest_number_that_nobody_has() -> None:
    taken: list[list[int]] = [[], [0], [1], [0, 2], [0, 1, 2], [5, 0, 1]]
    assert [free_number(each) for each in taken] == [0, 1, 0, 1, 3, 2]


def test_an_empty_disk_under_an_old_name_is_refused() -> None:
    known = ShardRecord(3, disk="old")
    check_disk(3, None, None, "dir")
    check_disk(3, ShardRecord(3), "new", "dir")
    check_disk(3, known, "old", "dir")
    with pytest.raises(MemberRefusedError, match=r"3 was made by disk old, this directory \(dir\) is empty"):
        check_disk(3, known, None, "dir")
    with pytest.raises(MemberRefusedError, match=r"has disk new.*lightrail-admin shard forget-disk 3"):
        check_disk(3, known, "new", "dir")


def test_who_else_may_live() -> None:
    other = Member(id=3, boot=2, disk="d3", host="there")
    assert holder(None, OWN) is None
    assert holder(OWN, OWN) is None
    assert holder(other, OWN) is other
    assert holder(other, OWN, replaces=2) is None
    # The same disk on the same host is what a copy of a directory says as well.
    same_disk_and_host = Member(id=3, boot=2, disk="d3", host="here")
    assert holder(same_disk_and_host, OWN) is same_disk_and_host
    other_disk = Member(id=3, boot=2, disk="d4", host="here")
    assert holder(other_disk, OWN) is other_disk
    frontend = Member(id=3, boot=9, host="here")
    assert holder(Member(id=3, boot=2, host="here"), frontend) is not None


def test_a_registration_is_waited_for_until_its_lease_has_run_out() -> None:
    async def story() -> None:
        coordinator, clock = MemoryCoordinator(), Clock()
        assert await wait_for(coordinator, clock) == 0
        assert clock.now == 0
        other = Member(id=3, boot=2, disk="d3", host="there")
        await coordinator.write([Write("shards/3", other.encode())])
        clock.events.append((8.0, coordinator.write([Write("shards/3", None)])))
        told: list[str] = []
        assert await wait_for(coordinator, clock, waiting=told.append) == 0
        assert 8.0 <= clock.now < 9.0
        assert told[0] == "shards/3 is registered by a process on host 'there'; waiting whether it lives"

    run(story())


def test_a_registration_that_outlives_its_lease_is_alive_and_we_are_refused() -> None:
    async def story() -> None:
        coordinator, clock = MemoryCoordinator(), Clock()
        other = Member(id=3, boot=0xABC, disk="d3", host="there", address="tcp://there:1", version="9")
        await coordinator.write([Write("shards/3", other.encode())])
        with pytest.raises(MemberRefusedError) as refused:
            await wait_for(coordinator, clock)
        assert "a living process on host 'there' (boot 00000abc, at tcp://there:1" in str(refused.value)
        assert clock.now >= (limits.ETCD_LEASE_MS + LEASE_MARGIN_MS) / 1000

    run(story())


class Leases(MemoryCoordinator):
    """With the remaining life of one lease, by the clock of a test; in whole seconds, as etcd says it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.end = limits.ETCD_LEASE_MS / 1000

    async def remaining_ms(self, key: str) -> int | None:
        return max(0, int(self.end - self.clock())) * 1000

    async def extend(self) -> None:
        self.end = self.clock() + limits.ETCD_LEASE_MS / 1000


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_lease_that_etcd_gives_a_new_life_when_it_starts_again_is_no_living_process(restarts: int) -> None:
    async def story() -> None:
        clock = Clock()
        coordinator = Leases(clock)
        other = Member(id=3, boot=2, disk="d3", host="there")
        await coordinator.write([Write("shards/3", other.encode())])
        for number in range(restarts):
            clock.events.append((9.0 * (number + 1), coordinator.extend()))
        gone = 9.0 * restarts + limits.ETCD_LEASE_MS / 1000
        clock.events.append((gone, coordinator.write([Write("shards/3", None)])))
        assert await wait_for(coordinator, clock) == 0
        assert gone <= clock.now < gone + 1

    run(story())


def test_a_lease_that_is_refreshed_is_a_living_process() -> None:
    async def story() -> None:
        clock = Clock()
        coordinator = Leases(clock)
        await coordinator.write([Write("shards/3", Member(id=3, boot=2, disk="d3", host="there").encode())])
        third = limits.ETCD_LEASE_MS / 3000
        clock.events += [(third * number, coordinator.extend()) for number in range(1, 5)]
        with pytest.raises(MemberRefusedError, match="held by a living process"):
            await wait_for(coordinator, clock)
        assert clock.now < (limits.ETCD_LEASE_MS + LEASE_MARGIN_MS) / 1000 + 2
        for _, event in clock.events:
            event.close()

    run(story())


def test_who_is_started_at_the_same_time_and_was_faster_keeps_it() -> None:
    async def story() -> None:
        coordinator, clock = MemoryCoordinator(), Clock()
        for boot in (2, 4):
            value = Member(id=3, boot=boot, disk="d3", host="there").encode()
            clock.events.append((boot, coordinator.write([Write("shards/3", value)])))
        await clock.sleep(2)
        with pytest.raises(MemberRefusedError, match="boot 00000004"):
            await wait_for(coordinator, clock)
        assert clock.now < 5

    run(story())


def test_what_is_taken_over_at_once_gives_the_guard_of_the_write() -> None:
    async def story() -> None:
        coordinator, clock = MemoryCoordinator(), Clock()
        dead = Member(id=3, boot=2, disk="d3", host="here")
        revision = await coordinator.write([Write("shards/3", dead.encode())])
        assert await wait_for(coordinator, clock, replaces=2) == revision
        assert clock.now == 0

    run(story())


def test_every_disk_gets_a_number_of_its_own_and_keeps_it() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        numbers = await asyncio.gather(*(allocate_shard(coordinator, f"d{each}") for each in range(20)))
        assert sorted(numbers) == list(range(20))
        assert await allocate_shard(coordinator, "d7") == numbers[7]
        await coordinator.write([Write("shardsets/5", None)])
        assert await allocate_shard(coordinator, "another") == 5

    run(story())


def test_a_disk_is_pinned_by_the_first_and_what_is_known_of_the_shard_stays() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        await pin_disk(coordinator, 0, "d0", lasting=True, directory="dir")
        await coordinator.write([Write("shardsets/1", ShardRecord(1, state="draining").encode())])
        await pin_disk(coordinator, 1, "d1", lasting=True, directory="dir")
        for _ in range(2):
            known = await shard_records(coordinator)
            found = [(each.disk, each.state) for each in known.values()]
            assert found == [("d0", "active"), ("d1", "draining")]
            await pin_disk(coordinator, 1, "d1", lasting=True, directory="dir")
        with pytest.raises(MemberRefusedError, match="made by disk d1"):
            await pin_disk(coordinator, 1, "d2", lasting=True, directory="dir")
        await pin_disk(coordinator, 1, "d2", lasting=False, directory="dir")
        assert (await shard_records(coordinator))[1].disk == "d2"

    run(story())


def test_frontends_that_start_together_get_different_numbers() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        values = [Member(id=0, boot=boot).encode() for boot in range(10)]
        taken = await asyncio.gather(
            *(take_number(coordinator, "frontends/", value, lambda _: None) for value in values)
        )
        assert sorted(taken) == list(range(10))
        for id, value in zip(taken, values, strict=True):
            found = await coordinator.entry(f"frontends/{id}")
            assert found is not None
            assert found.value == value
        await coordinator.write([Write("frontends/4", None)])
        assert await take_number(coordinator, "frontends/", "{}", lambda _: None) == 4

    run(story())


def test_a_number_whose_registration_was_written_without_an_answer_is_kept() -> None:
    class Lossy(MemoryCoordinator):
        async def register(self, key: str, value: str, *rest: Any, **more: Any) -> None:
            await super().register(key, value, *rest, **more)
            if not self.lost:
                self.lost = True
                raise CoordinatorError("it is not known whether this was written")

        lost = False

    async def story() -> None:
        coordinator = Lossy()
        value = Member(id=0, boot=7).encode()
        with pytest.raises(CoordinatorError):
            await take_number(coordinator, "frontends/", value, lambda _: None)
        assert await take_number(coordinator, "frontends/", value, lambda _: None) == 0
        assert [each.key for each in await coordinator.entries("frontends/")] == ["frontends/0"]

    run(story())


def test_who_was_displaced_is_told_by_whom() -> None:
    own = Member(id=3, boot=1, disk="d3")
    assert displaced_by("shards/3", own.encode(), own) is None
    other = Member(id=3, boot=2, disk="d3", host="there")
    reason = displaced_by("shards/3", other.encode(), own)
    assert reason is not None
    assert reason.startswith("shards/3 was taken by another process, on host 'there' (boot 00000002).")
    assert "can't be read" in str(displaced_by("shards/3", "{", own))


def test_an_entry_that_nobody_can_read_is_an_error_that_says_so() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.write([Write("shardsets/0", json.dumps({"unknown": 1}))])
        with pytest.raises(Exception, match="the entry shardsets/0 can't be read"):
            await shard_records(coordinator)
        await coordinator.write([Write("shards/3", "no JSON")])
        with pytest.raises(Exception, match="the entry shards/3 can't be read"):
            await wait_for(coordinator, Clock())
        with pytest.raises(Exception, match="the entry shards can't be read"):
            member_of(Entry("shards", PREDECESSOR.encode(), 1, 1))
        assert isinstance(await coordinator.entry("shards/3"), Entry)

    run(story())


def test_the_registration_of_a_member_that_follows_has_the_number_of_its_shard() -> None:
    found = member_of(Entry("followers/3/5f2c", PREDECESSOR.encode(), 1, 1))
    assert found == PREDECESSOR


PREDECESSOR = Member(id=3, boot=7, disk="d3", host="here")


async def registered(coordinator: Coordinator, own: Member, displaced: list[str]) -> None:
    async def free() -> int:
        return await wait_for(coordinator, Clock(), own, replaces=PREDECESSOR.boot)

    await register(coordinator, "shards/3", own, displaced.append, free)


@pytest.mark.parametrize("is_later", [False, True])
def test_a_registration_that_arrives_after_the_end_of_its_process_displaces_nobody(is_later: bool) -> None:
    async def story() -> None:
        coordinator = DyingCoordinator()
        coordinator.lives_for = 0
        with pytest.raises(CoordinatorError, match="the process has died"):
            await registered(coordinator, PREDECESSOR, [])
        coordinator.lives_for = None
        displaced: list[str] = []
        if not is_later:
            coordinator.meanwhile = coordinator.arrive
        await registered(coordinator, OWN, displaced)
        if is_later:
            await coordinator.arrive()
        coordinator.news(0)
        await asyncio.sleep(0)
        entry = await coordinator.entry("shards/3")
        assert entry is not None
        assert entry.value == OWN.encode()
        assert displaced == []

    run(story())


def test_who_registers_meanwhile_and_lives_is_left_in_place() -> None:
    async def story() -> None:
        coordinator = DyingCoordinator()
        other = Member(id=3, boot=8, disk="d3", host="there")

        async def meanwhile() -> None:
            await coordinator.register("shards/3", other.encode(), lambda _: None)

        coordinator.meanwhile = meanwhile
        with pytest.raises(MemberRefusedError, match="held by a living process on host 'there'"):
            await registered(coordinator, OWN, [])
        entry = await coordinator.entry("shards/3")
        assert entry is not None
        assert entry.value == other.encode()

    run(story())
