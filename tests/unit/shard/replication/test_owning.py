"""Owning: which members the owner removes and adds, and who is required while a change is under way."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.map import Map
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.replica_sets import ReplicaSet, SetMember, key_of
from lightrail.shard.replicas.leases import Grant
from lightrail.shard.replicas.marks import MISSING
from lightrail.shard.replication.owning import ALONE_NS, KEPT_UP_NS, KEPT_UP_NS_MAX, SILENT_NS, Owning
from tests.support.shard.replicated import World
from tests.unit.shard.replication.test_stream import declare, send

SECOND = 1_000_000_000


class Scene:
    """An owner "a" with the members of a world, and the entry in a coordinator."""

    def __init__(self, world: World, in_sync: str, *, replicas: int = 3, min_in_sync: int = 1) -> None:
        self.world = world
        self.coordinator = MemoryCoordinator()
        self.map = Map(self.coordinator)
        self.now_ns = 100 * SECOND
        self.deposed = ""
        self.begun = ReplicaSet(
            0,
            world.epoch,
            "a",
            frozenset(in_sync),
            {each: SetMember() for each in "a" + "".join(world.members)},
            replicas,
            min_in_sync,
        )

    async def begin(self) -> None:
        revision = await self.coordinator.write([self.begun.write_of(self.begun)])
        self.map.refresh()
        owner = self.world.owner
        assert owner is not None
        self.owner = owner
        self.owning = Owning(
            "a",
            self.map.replica_sets[0],
            owner.journal,
            owner.stream,
            owner.leases,
            Grant(0),
            self.coordinator,
            self.map,
            on_accepted=lambda: None,
            on_deposed=self._end,
        )
        self.owning._require()
        self.coordinator.fence.set(key_of(0), revision)

    def _end(self, reason: str) -> None:
        self.deposed = reason

    async def look(self, after_ns: int = 0) -> None:
        """Time passes, and the owner looks at its members; a change of the set ends."""
        self.now_ns += after_ns
        self.owning.follow(self.now_ns)
        if self.owning._changing is not None:
            await self.owning._changing
        self.map.refresh()

    @property
    def in_sync(self) -> str:
        return "".join(sorted(self.map.replica_sets[0].in_sync))

    @property
    def required(self) -> set[str]:
        return set(self.owner.journal.marks.others)


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_a_learner_that_keeps_up_is_required_and_then_in_sync() -> None:
    async def story() -> None:
        world = World("b")
        scene = Scene(world, "a", min_in_sync=2)
        await scene.begin()
        declare(world)
        await scene.look()
        assert scene.required == {MISSING}, "fewer than the minimum are in sync"
        world.settle_down()
        await scene.look()
        assert (scene.in_sync, scene.required) == ("a", {"b", MISSING})
        await scene.look()
        assert (scene.in_sync, scene.required) == ("ab", {"b"})

    play(story())


def test_a_learner_that_lacks_accepted_records_is_not_added() -> None:
    async def story() -> None:
        world = World("b")
        scene = Scene(world, "a")
        await scene.begin()
        owner = declare(world)
        world.settle_down()
        send(owner, 0)
        owner.begin()
        owner.end()
        for _ in range(3):
            await scene.look()
        assert (scene.in_sync, scene.required) == ("a", {"b"})
        world.settle_down()
        await scene.look()
        assert scene.in_sync == "ab"

    play(story())


def test_a_silent_member_is_removed_and_comes_back_when_it_has_kept_up() -> None:
    async def story() -> None:
        world = World("bc", required="bc")
        scene = Scene(world, "abc", min_in_sync=2)
        await scene.begin()
        declare(world)
        world.settle_down()
        await scene.look()
        wait_ns = KEPT_UP_NS
        for _ in range(3):
            world.disconnect("c")
            await scene.look()
            await scene.look(SILENT_NS - 1)
            assert scene.in_sync == "abc"
            await scene.look(1)
            assert (scene.in_sync, scene.required) == ("ab", {"b"})
            world.settle_down()
            await scene.look()
            await scene.look(wait_ns - 1)
            assert scene.in_sync == "ab"
            await scene.look(1)
            await scene.look()
            assert scene.in_sync == "abc"
            wait_ns = min(2 * wait_ns, KEPT_UP_NS_MAX)

    play(story())


def test_an_owner_that_hears_nobody_waits_longer_before_it_removes_them() -> None:
    async def story() -> None:
        world = World("bc", required="bc")
        scene = Scene(world, "abc")
        await scene.begin()
        declare(world)
        world.settle_down()
        await scene.look()
        for name in "bc":
            world.disconnect(name)
        await scene.look()
        await scene.look(ALONE_NS - 1)
        assert scene.in_sync == "abc"
        await scene.look(1)
        assert scene.in_sync == "a"

    play(story())


def test_the_set_stays_at_the_minimum() -> None:
    async def story() -> None:
        world = World("b", required="b")
        scene = Scene(world, "ab", min_in_sync=2)
        await scene.begin()
        declare(world)
        world.settle_down()
        await scene.look()
        world.disconnect("b")
        await scene.look()
        await scene.look(10 * ALONE_NS)
        assert (scene.in_sync, scene.required) == ("ab", {"b"})

    play(story())


def test_while_the_outcome_of_a_removal_is_unknown_the_member_is_required() -> None:
    async def story() -> None:
        world = World("bc", required="bc")
        scene = Scene(world, "abc")
        await scene.begin()
        declare(world)
        world.settle_down()
        await scene.look()
        world.disconnect("c")
        await scene.look()
        write = scene.coordinator.write

        async def unknown(_: object) -> int:
            raise CoordinatorError("no answer")

        scene.coordinator.write = unknown  # type: ignore[assignment, method-assign]
        await scene.look(SILENT_NS)
        assert scene.required == {"b", "c"}
        scene.coordinator.write = write  # type: ignore[method-assign]
        await scene.look()
        assert (scene.in_sync, scene.required) == ("ab", {"b"})

    play(story())


def test_an_owner_ends_when_the_entry_names_another() -> None:
    async def story() -> None:
        world = World("b", required="b")
        scene = Scene(world, "ab")
        await scene.begin()
        found = scene.map.replica_sets[0]
        other = MemoryCoordinator.write
        scene.coordinator.fence.lift(key_of(0))
        await other(scene.coordinator, [found.write_of(found.taken_over("b", ""))])
        await scene.look()
        assert "member b owns shard 0 in epoch 2" in scene.deposed

    play(story())
