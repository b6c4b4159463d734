"""Lifetimes: names go with their owners, whatever the coordinator does meanwhile; nobody else's do."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from lightrail.amqp.performatives import DeleteOnNoLinks, DeleteOnNoLinksOrMessages, DeleteOnNoMessages
from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.frontend import lifetimes
from lightrail.frontend.lifetimes import Lifetimes, Policy
from lightrail.frontend.node_usage import Usage
from lightrail.model import limits
from lightrail.model.policy import QUEUE
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service


class Away(MemoryCoordinator):
    """A coordinator that writes nothing for a while."""

    failures = 0
    meanwhile: Callable[[], None] = staticmethod(lambda: None)
    """Called at each failure."""
    lose: Callable[[Sequence[Write]], None] | None = None
    """Called with the next writes, whose result is not known."""

    async def write(self, writes: Sequence[Write]) -> int:
        if self.lose is not None:
            lose, self.lose = self.lose, None
            lose(writes)
            raise CoordinatorError("no answer, so whether it was written is not known")
        if self.failures:
            self.failures -= 1
            self.meanwhile()
            raise CoordinatorError("the disk is full")
        return await super().write(writes)


class Rig:
    def __init__(self, coordinator: Away) -> None:
        self.coordinator = coordinator
        self.directory = Directory(coordinator)
        self.service = Service(coordinator, self.directory)
        self.tasks: set[asyncio.Task[None]] = set()
        self.usage: Usage | None = Usage(0, 0)
        self.usage_when_closed: Usage | None = None
        self.closed_at: list[int] = []
        """Revisions for whose deletion a node was closed."""
        self.asked = asyncio.Event()
        self.followed: set[str] = set()
        self.lifetimes = Lifetimes(self.service, "frontend-0", 7, self.spawn, cast(Any, self))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(asyncio.get_running_loop().create_task(work))

    def follow(self, name: str) -> None:
        assert name not in self.followed
        self.followed.add(name)

    def forget(self, name: str) -> None:
        self.followed.remove(name)

    async def of(self, name: str, is_over: Callable[[Usage], bool]) -> Usage | None:
        assert name in self.followed
        self.asked.set()
        return self.usage

    async def close(
        self, node: Name, is_over: Callable[[Usage], bool], closes_without: Sequence[str]
    ) -> Usage | None:
        assert node.name in self.followed
        self.closed_at.append(node.revision)
        return self.usage if self.usage_when_closed is None else self.usage_when_closed

    async def give(self, name: str, owner: str) -> None:
        await self.service.give(ANYBODY, name, QUEUE, owner=owner)

    async def names(self) -> set[str]:
        """What is left when everything that was begun has ended."""
        while self.tasks:
            await self.tasks.pop()
        self.directory.refresh()
        return {record.name for record in self.directory.below("")}


def play(test: Callable[[Rig], Awaitable[None]]) -> None:
    async def run() -> None:
        coordinator = Away()
        await coordinator.set_shards(1)
        await test(Rig(coordinator))

    asyncio.run(run())


def test_names_go_with_the_part_that_owns_them() -> None:
    async def check(rig: Rig) -> None:
        one, other = rig.lifetimes.connection(1), rig.lifetimes.connection(10)
        owners = {"c": one, "s": f"{one}/0", "l": f"{one}/0/5", "l2": f"{one}/0/55", "other": f"{other}/0"}
        for name, owner in owners.items():
            await rig.give(name, owner)
        await rig.give("mine", "")
        for ended, left in (
            (f"{one}/0/5", {"c", "s", "l2", "other", "mine"}),
            (f"{one}/0", {"c", "other", "mine"}),
            (one, {"other", "mine"}),
            (other, {"mine"}),
        ):
            rig.lifetimes.ended(ended)
            assert await rig.names() == left

    play(check)


def test_a_start_sweeps_what_former_processes_of_the_name_left() -> None:
    async def check(rig: Rig) -> None:
        await rig.give("left", "frontend-0/00000006/1/0/3")
        await rig.give("mine", f"{rig.lifetimes.connection(1)}/0")
        await rig.give("neighbour's", "frontend-1/00000006/1")
        await rig.give("longer", "frontend-01/00000006/1")
        await rig.lifetimes.sweep()
        assert await rig.names() == {"mine", "neighbour's", "longer"}

    play(check)


def test_a_coordinator_that_is_away_is_asked_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPIRE_AGAIN_MS", 0)

    async def check(rig: Rig) -> None:
        owner = rig.lifetimes.connection(1)
        for name in ("a", "b"):
            await rig.give(name, owner)
        rig.coordinator.failures = 3
        rig.lifetimes.ended(owner)
        assert await rig.names() == set()

    play(check)


def test_a_name_that_was_made_again_meanwhile_is_another() -> None:
    async def check(rig: Rig) -> None:
        owner = rig.lifetimes.connection(1)
        await rig.give("a", owner)
        rig.lifetimes.ended(owner)
        await rig.service.drop(ANYBODY, "a")
        await rig.give("a", "")
        assert await rig.names() == {"a"}

    play(check)


def test_dynamic_nodes_are_counted_per_connection() -> None:
    async def check(rig: Rig) -> None:
        owner = rig.lifetimes.connection(1)
        await rig.give("$temporary/a", owner)
        await rig.give("$temporary/b", f"{owner}/0/1")
        await rig.give("named", owner)
        await rig.give("$temporary/c", rig.lifetimes.connection(2))
        assert rig.lifetimes.temporary_count(owner) == 2
        rig.lifetimes.ended(f"{owner}/0")
        await rig.names()
        assert rig.lifetimes.temporary_count(owner) == 1

    play(check)


POLICIES: dict[str, Policy] = {
    "no links": DeleteOnNoLinks(),
    "no messages": DeleteOnNoMessages(),
    "no links or messages": DeleteOnNoLinksOrMessages(),
}
ENDS = {"no links": {(0, 0), (0, 1)}, "no messages": {(0, 0), (1, 0)}, "no links or messages": {(0, 0)}}
"""With which (links, messages) a node is over, once the link that made it has ended (3.5.11 to 3.5.13)."""


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("usage", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("ended", ["link", "connection"])
def test_links_and_messages_decide(
    monkeypatch: pytest.MonkeyPatch, name: str, usage: tuple[int, int], ended: str
) -> None:
    monkeypatch.setattr(lifetimes, "DYNAMIC_NODES_CHECK_MS", 0)

    async def check(rig: Rig) -> None:
        owner = rig.lifetimes.connection(1)
        await rig.give("$temporary/a", owner)
        rig.lifetimes.follow("$temporary/a", POLICIES[name], f"{owner}/0/5")
        rig.lifetimes.unused("$temporary/a")
        assert await rig.names() == {"$temporary/a"}, "the link that made it is there"
        rig.usage = Usage(*usage)
        rig.lifetimes.ended(f"{owner}/0/5" if ended == "link" else owner)
        if usage in ENDS[name]:
            assert await rig.names() == set()
            return
        await rig.asked.wait()
        assert rig.lifetimes.temporary_count(owner) == 1
        rig.usage = None
        rig.asked.clear()
        await rig.asked.wait()
        assert rig.lifetimes.temporary_count(owner) == 1, "a shard that does not answer ends nothing"
        rig.usage = Usage(0, 0)
        assert await rig.names() == set()

    play(check)


def test_a_node_that_is_used_again_before_etcd_could_delete_it_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifetimes, "DYNAMIC_NODES_CHECK_MS", 0)
    monkeypatch.setattr(limits, "EXPIRE_AGAIN_MS", 0)

    async def check(rig: Rig) -> None:
        owner = rig.lifetimes.connection(1)
        await rig.give("$temporary/a", owner)
        rig.lifetimes.follow("$temporary/a", DeleteOnNoMessages(), f"{owner}/0/5")
        failed = asyncio.Event()

        def somebody_sends() -> None:
            rig.usage = Usage(1, 1)
            failed.set()

        rig.coordinator.failures = 1
        rig.coordinator.meanwhile = somebody_sends
        rig.lifetimes.ended(f"{owner}/0/5")
        await failed.wait()
        await rig.lifetimes.finish()
        rig.directory.refresh()
        assert rig.lifetimes.temporary_count(owner) == 1
        rig.usage = Usage(1, 0)
        assert await rig.names() == set()

    play(check)


def test_a_deletion_that_seemed_lost_is_not_applied_to_a_node_that_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The write may reach the coordinator at any time; the queues open only when it can't be applied."""
    monkeypatch.setattr(lifetimes, "DYNAMIC_NODES_CHECK_MS", 0)
    monkeypatch.setattr(limits, "EXPIRE_AGAIN_MS", 0)

    async def check(rig: Rig) -> None:
        owner = rig.lifetimes.connection(1)
        await rig.give("$temporary/a", owner)
        rig.lifetimes.follow("$temporary/a", DeleteOnNoMessages(), f"{owner}/0/5")
        lost: list[Sequence[Write]] = []

        def lose(writes: Sequence[Write]) -> None:
            lost.append(writes)
            rig.usage = Usage(0, 1)
            rig.directory.listen(lambda _: written_anew.set())

        written_anew = asyncio.Event()
        rig.coordinator.lose = lose
        rig.lifetimes.ended(f"{owner}/0/5")
        await written_anew.wait()
        closed_at = rig.closed_at[0]
        with pytest.raises(ConflictError):
            await rig.coordinator.write(lost[0])
        assert rig.lifetimes.temporary_count(owner) == 1
        rig.usage = Usage(0, 0)
        assert await rig.names() == set()
        assert rig.closed_at[-1] > closed_at, "it was closed anew before it was deleted"

    play(check)


def test_a_node_of_which_one_queue_was_closed_and_another_is_in_use_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifetimes, "DYNAMIC_NODES_CHECK_MS", 0)

    async def check(rig: Rig) -> None:
        owner = rig.lifetimes.connection(1)
        await rig.give("$temporary/a", owner)
        rig.lifetimes.follow("$temporary/a", DeleteOnNoLinks(), f"{owner}/0/5")
        rig.usage_when_closed = Usage(1, 0)
        written_anew = asyncio.Event()
        rig.directory.listen(lambda _: written_anew.set())
        rig.lifetimes.ended(f"{owner}/0/5")
        await written_anew.wait()
        assert rig.directory.get("$temporary/a").revision > rig.closed_at[0], "that opens the queues"
        rig.usage_when_closed = None
        assert await rig.names() == set()

    play(check)


def test_a_node_whose_coordinator_does_not_answer_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetimes, "DYNAMIC_NODES_CHECK_MS", 0)
    monkeypatch.setattr(limits, "EXPIRE_AGAIN_MS", 0)

    async def check(rig: Rig) -> None:
        owner = rig.lifetimes.connection(1)
        await rig.give("$temporary/a", owner)
        rig.lifetimes.follow("$temporary/a", DeleteOnNoMessages(), f"{owner}/0/5")
        rig.coordinator.failures = 10

        def somebody_sends() -> None:
            rig.usage = Usage(0, 1) if rig.coordinator.failures > 3 else Usage(0, 0)

        rig.coordinator.meanwhile = somebody_sends
        rig.lifetimes.ended(f"{owner}/0/5")
        assert await rig.names() == set()
        assert len(set(rig.closed_at)) == 1, "no write opened it, though it was in use meanwhile"

    play(check)


def test_the_oldest_of_too_many_orphans_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetimes, "ORPHANED_NODES_MAX", 2)

    async def check(rig: Rig) -> None:
        rig.usage = Usage(0, 1)
        for number in range(lifetimes.ORPHANED_NODES_MAX + 1):
            owner = rig.lifetimes.connection(number)
            await rig.give(f"$temporary/{number}", owner)
            rig.lifetimes.follow(f"$temporary/{number}", DeleteOnNoMessages(), f"{owner}/0/5")
            rig.lifetimes.ended(owner)
        await rig.lifetimes.finish()
        rig.directory.refresh()
        assert {record.name for record in rig.directory.below("")} == {"$temporary/1", "$temporary/2"}
        rig.lifetimes.expire_all()
        assert await rig.names() == set()

    play(check)


def test_many_names_that_can_not_be_deleted_delay_the_answer_to_an_end_as_little_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep, waits = asyncio.sleep, 0

    async def count(seconds: float) -> None:
        nonlocal waits
        waits += seconds == limits.ATTACH_AGAIN_MS / 1000
        await sleep(0)

    monkeypatch.setattr("lightrail.frontend.lifetimes.asyncio.sleep", count)

    async def check(rig: Rig) -> None:
        owner = rig.lifetimes.connection(1)
        for number in range(3):
            await rig.give(f"q{number}", f"{owner}/7")
        rig.coordinator.failures = 1_000_000
        rig.lifetimes.ended(f"{owner}/7")
        answered = asyncio.Event()
        assert rig.lifetimes.after_end(f"{owner}/7", answered.set)
        await answered.wait()
        assert waits == limits.ATTACH_REPEATED_MS // limits.ATTACH_AGAIN_MS
        rig.coordinator.failures = 0
        assert await rig.names() == set()

    play(check)


def test_an_orderly_end_leaves_nothing() -> None:
    async def check(rig: Rig) -> None:
        owner = rig.lifetimes.connection(1)
        await rig.give("$temporary/a", owner)
        rig.lifetimes.follow("$temporary/a", DeleteOnNoMessages(), f"{owner}/0/5")
        rig.lifetimes.expire_all()
        assert await rig.names() == set()

    play(check)
