"""TOPIC/Subscriptions/NAME: the queue that a subscription has for itself, and how it ends."""

import asyncio

import pytest

from lightrail.cluster.coordinator import WRITES_MAX
from lightrail.namespace.deleting import deleted_with, own_queue
from lightrail.namespace.records import NAMES
from lightrail.namespace.statuses import ChangedError
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


def test_a_deletion_in_several_transactions_that_fails_leaves_queues_as_they_are() -> None:
    async def check() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(1)
        await graph.router("t")
        ids = [str(number) for number in range(WRITES_MAX // 2)]
        for id in ids:
            await graph.queue(own_queue("t", id))
            await graph.subscribe("t", own_queue("t", id), id=id)
        graph.directory.refresh()
        record = graph.directory.get("t")
        guards = {NAMES + each.name: each.revision for each in deleted_with(graph.directory, record)[1:]}
        guards |= {each.key: each.revision for each in graph.directory.subscriptions("t")}
        changed = graph.directory.get(own_queue("t", ids[-1]))
        await graph.service.keep(changed)
        with pytest.raises(ChangedError):
            await graph.service.drop_as_read(record, guards)
        left = {each.name for each in graph.directory.below("t")} - {"t"}
        assert changed.name in left
        placed = await graph.coordinator.entries("placement/")
        assert {each.key.removeprefix("placement/") for each in placed} == left
        assert {each.target for each in graph.directory.subscriptions("t")} == left
        await graph.service.drop_as_read(record)
        for prefix in ("names/", "subscriptions/", "placement/"):
            assert await graph.coordinator.entries(prefix) == []

    asyncio.run(check())


def test_what_stays_and_was_changed_keeps_a_deletion_in_several_transactions_from_its_beginning() -> None:
    async def check() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(1)
        await graph.router("t")
        for number in range(WRITES_MAX):
            await graph.queue(own_queue("t", str(number)))
            await graph.subscribe("t", own_queue("t", str(number)), id=str(number))
        before = await graph.coordinator.entries("")
        with pytest.raises(ChangedError):
            await graph.service.drop_as_read(graph.directory.get("t"), {"uses/t": 1})
        assert await graph.coordinator.entries("") == before

    asyncio.run(check())
