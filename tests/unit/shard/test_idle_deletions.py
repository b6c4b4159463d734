"""The deletion of an idle queue by the directory: a change in another process that was before it wins."""

import asyncio

import pytest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import PLACEMENT, Map, Placed
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model.policy import QUEUE, Policy
from lightrail.namespace.deleting import own_queue
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import MissingError
from lightrail.shard.links.idle import IDLE_CHECK_MS
from lightrail.shard.queues.declarations import Deletions
from lightrail.shard.queues.ownership import OwnershipState
from tests.support.shard.scene import Scene

MAX_MS = 300_000


class Administered:
    """A shard with the own queue of a subscription, which leaves; an administrator in another process."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator()
        self.here, self.there = Directory(self.coordinator), Directory(self.coordinator)
        self.admin = Service(self.coordinator, self.there)
        self.queue = own_queue("t", "s")

    async def begin(self, *, is_subscribed: bool = True) -> None:
        await self.coordinator.set_shards(1)
        scene = self.scene = Scene(names=self.here, map=Map(self.coordinator))
        await self.admin.give(ANYBODY, "t", Policy.parse({"role": "router"}))
        await self.admin.give(ANYBODY, self.queue, Policy.parse({"role": "queue", "max_idle": 300}))
        if is_subscribed:
            await self.subscribe()
        scene.refresh()
        for _ in range((MAX_MS + 3 * IDLE_CHECK_MS) // 5_000):
            scene.tick(5_000)
            scene.settle_down()
        assert self.state() is OwnershipState.LEAVING

    async def subscribe(self, **rule: str) -> None:
        filter = {"sql": "x = 1"} if rule else None
        await self.admin.subscribe(ANYBODY, "t", self.queue, id="s", replace_it=True, filter=filter)

    def state(self) -> OwnershipState | None:
        found = self.scene.engine._queues.find(self.queue)
        return None if found is None else found.state

    async def delete(self) -> None:
        """The deletion that the shard has requested arrives."""
        deletions = Deletions(Service(self.coordinator, self.here))
        deletions.begin(self.scene.retired)
        await deletions.close()
        self.scene.refresh()


def test_the_deletion_of_a_queue_that_another_shard_has_by_then_fails() -> None:
    """An operator has given up the disk of the shard: what is accepted since is in the other one."""

    async def check() -> None:
        story = Administered()
        await story.begin()
        value = Placed.encode(1, 1_000, 1_000)
        await story.coordinator.write([Write(PLACEMENT + story.queue, value)])
        await story.delete()
        story.there.refresh()
        assert story.there.find(story.queue) is not None
        assert story.state() is OwnershipState.UNOWNED

    asyncio.run(check())


@pytest.mark.parametrize("changed", ["nothing", "queue", "rules", "new"])
def test_the_directory_deletes_what_nobody_has_changed_and_a_change_wins(changed: str) -> None:
    async def check() -> None:
        story = Administered()
        await story.begin(is_subscribed=changed != "new")
        if changed == "queue":
            policy = Policy.parse({"role": "queue", "max_idle": 300, "description": "used"})
            await story.admin.change(ANYBODY, story.queue, policy)
        elif changed == "rules":
            await story.subscribe(filter="x = 1")
        elif changed == "new":
            await story.subscribe()
        await story.delete()
        story.there.refresh()
        is_there = changed != "nothing"
        assert (story.there.find(story.queue) is not None) is is_there
        assert (story.there.subscription("t", "s") is not None) is is_there
        assert story.state() is (OwnershipState.SERVING if is_there else None)
        if not is_there:
            with pytest.raises(MissingError):
                await story.admin.change(ANYBODY, story.queue, QUEUE)

    asyncio.run(check())
