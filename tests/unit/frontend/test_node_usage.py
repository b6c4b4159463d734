"""The usage of dynamic nodes: whose links and messages count, and when a count is not known."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.frontend.node_usage import NodeUsage, Usage
from lightrail.model import limits, names
from lightrail.model.policy import QUEUE, Policy, Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.wire.bodies import Answer

NODE = "$temporary/n"
EMPTY = {"consumer_count": 0, "producer_count": 0, "ready": 0, "delayed": 0, "deferred": 0, "in_flight": 0}


def never(_: Usage) -> bool:
    return False


def always(_: Usage) -> bool:
    return True


class Rig:
    """A directory, and shards whose queues have the figures that the test sets."""

    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self.directory = Directory(coordinator)
        self.service = Service(coordinator, self.directory)
        self.peer = SimpleNamespace(shard=0, greetings=1)
        self.unplaced: set[str] = set()
        self.shards = SimpleNamespace(moved=0, peers={0: self.peer}, placement=self.placement)
        self.figures: dict[str, dict[str, int]] = {}
        self.asked: list[str] = []
        self.closed: list[str] = []
        """Queues that were asked not to open links any more."""
        self.during: Callable[[], None] = lambda: None
        self.now_ms = 1_000
        self.usage = NodeUsage(
            self.directory,
            self.shards,  # type: ignore[arg-type]
            self.ask,
            lambda: self.now_ms,
        )

    def placement(self, queue: str) -> tuple[int, int] | None:
        return None if queue in self.unplaced else (0, 1)

    async def ask(self, queue: str, op: str, fields: dict[str, Any]) -> Answer:
        assert op == "queue"
        if fields:
            node = self.directory.get(NODE)
            assert fields == {"closes_without": ["links"], "revision": node.revision}
            self.closed.append(queue)
        else:
            self.asked.append(queue)
        self.during()
        return Answer(EMPTY | self.figures.get(queue, {}), memoryview(b""))

    async def of(self, is_over: Callable[[Usage], bool] = always) -> Usage | None:
        self.asked.clear()
        self.closed.clear()
        found = await self.usage.of(NODE, is_over)
        if found is None or not is_over(found):
            return found
        return await self.usage.close(self.directory.get(NODE), is_over, ["links"])

    async def topic(self, *keys: str) -> list[str]:
        """A topic with these subscriptions, whose queues are returned."""
        await self.service.give(ANYBODY, NODE, Policy(Role.ROUTER, {}))
        await self.service.give(ANYBODY, names.senders_name(NODE), QUEUE)
        queues = [names.subscription_name(NODE, key) for key in keys]
        for key, queue in zip(keys, queues, strict=True):
            await self.service.give(ANYBODY, queue, QUEUE)
            await self.service.subscribe(ANYBODY, NODE, queue, id=key)
        self.usage.follow(NODE)
        return queues

    async def queue(self) -> None:
        await self.service.give(ANYBODY, NODE, QUEUE)
        self.usage.follow(NODE)


def play(test: Callable[[Rig], Awaitable[None]]) -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.set_shards(1)
        await test(Rig(coordinator))

    asyncio.run(run())


def test_a_queue_has_its_own_links_and_messages() -> None:
    async def check(rig: Rig) -> None:
        await rig.queue()
        rig.figures[NODE] = dict.fromkeys(EMPTY, 3)
        assert await rig.of() == (6, 12)

    play(check)


def test_a_topic_has_those_of_its_subscriptions_and_its_senders() -> None:
    async def check(rig: Rig) -> None:
        one, other = await rig.topic("a", "b")
        await rig.service.give(ANYBODY, "elsewhere", QUEUE)
        await rig.service.subscribe(ANYBODY, NODE, "elsewhere")
        rig.figures |= {
            one: {"consumer_count": 1, "ready": 2},
            other: {"consumer_count": 2, "in_flight": 5},
            names.senders_name(NODE): {"producer_count": 10, "ready": 100},
            "elsewhere": {"consumer_count": 1_000, "ready": 1_000},
        }
        assert await rig.of() == (13, 7), "a queue that is not the topic's own has messages of its own"

    play(check)


def test_a_node_that_is_to_be_deleted_opens_no_link_any_more() -> None:
    async def check(rig: Rig) -> None:
        (queue,) = await rig.topic("a")
        both = [names.senders_name(NODE), queue]
        rig.figures[queue] = {"ready": 1}
        assert await rig.of(lambda usage: not usage.messages) == (0, 1)
        assert (rig.asked, rig.closed) == (both, [])
        rig.figures.clear()
        assert await rig.of() == (0, 0)
        assert (rig.asked, rig.closed) == (both, both)

    play(check)


def test_no_further_shard_is_asked_when_a_node_is_in_use() -> None:
    async def check(rig: Rig) -> None:
        await rig.topic("a", "b")
        rig.figures[names.senders_name(NODE)] = {"producer_count": 1}
        assert await rig.of(never) == (1, 0)
        assert rig.asked == [names.senders_name(NODE)]

    play(check)


def test_a_queue_without_a_placement_is_not_placed_again() -> None:
    async def check(rig: Rig) -> None:
        (queue,) = await rig.topic("a")
        rig.unplaced.add(queue)
        assert await rig.of() is None
        assert queue not in rig.asked

    play(check)


def test_a_shard_that_does_not_answer_leaves_the_usage_unknown() -> None:
    async def check(rig: Rig) -> None:
        await rig.queue()

        def down() -> None:
            raise ShardDownError("it does not serve")

        rig.during = down
        assert await rig.of() is None

    play(check)


def test_links_are_not_counted_before_frontends_had_time_to_open_them_again() -> None:
    """A shard that was killed has only the links of the frontends that have greeted it."""

    async def check(rig: Rig) -> None:
        await rig.queue()
        assert await rig.of() == (0, 0)
        for change in ("greeted", "moved"):
            if change == "greeted":
                rig.peer.greetings += 1
            else:
                rig.shards.moved += 1
            assert await rig.of() is None
            rig.now_ms += limits.PEER_SILENCE_MS - 1
            assert await rig.of() is None
            rig.now_ms += 1
            assert await rig.of() == (0, 0)

        def lost() -> None:
            rig.peer.greetings += 1

        rig.during = lost
        assert await rig.of() is None, "the shard was lost while it was asked"

    play(check)


def test_a_deleted_node_leaves_nothing() -> None:
    async def check(rig: Rig) -> None:
        await rig.queue()
        assert rig.usage._counted
        rig.usage.forget(NODE)
        assert not rig.usage._counted

    play(check)
