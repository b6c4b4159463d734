"""TOPIC/Subscriptions/NAME: the queue that a subscription has for itself, and how it ends."""

import asyncio

from lightrail.namespace.deleting import own_queue
from tests.support.routers import Graph


def test_a_queue_of_a_subscription_goes_with_its_topic() -> None:
    async def check() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(1)
        own = own_queue("t", "mine")
        await graph.queue(own, "q", own_queue("t", "other"))
        await graph.router("t")
        await graph.subscribe("t", own, id="mine")
        await graph.subscribe("t", "q", id="elsewhere")
        await graph.drop("t")
        left = {each.name for each in graph.directory.below("")}
        assert left == {"q", own_queue("t", "other")}
        assert not list(graph.directory.every_subscription())

    asyncio.run(check())
