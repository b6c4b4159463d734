"""Requests that send to routers: frames for each shard, and what an attempt stored before its time was up."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lightrail.gateway.errors import ProblemError
from lightrail.gateway.messages.outgoing import Outgoing
from lightrail.gateway.messages.routing import Carried, RouterSender
from lightrail.model import limits
from lightrail.model.placement import Placement
from lightrail.wire.frames import Kind
from tests.support.routers import Graph
from tests.support.shard.fake_shards import FakePeer, FakeShards

MESSAGE = Outgoing(b"message", True, 4, 0)


class TwoShards(FakeShards):
    """Queues whose names begin with `far` are on the second shard."""

    def __init__(self) -> None:
        super().__init__()
        self.far = FakePeer()
        self.far.shard = 1
        self.deleted: set[str] = set()
        """Queues without a placement until they are forgotten."""

    def placement(self, queue: str) -> Placement | None:
        return None if queue in self.deleted else Placement(int(queue.startswith("far")), 1)

    def forget(self, queue: str) -> None:
        self.deleted.discard(queue)

    async def find(self, queue: str) -> Placement:
        return Placement(int(queue.startswith("far")), 1)

    def placed(self, queue: str) -> FakePeer | None:
        if queue in self.deleted:
            return None
        return self.far if queue.startswith("far") else self.peer


class Scene:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.shards = TwoShards()
        loop = asyncio.get_running_loop()
        self.sender = RouterSender(self.shards, graph.directory, loop)  # type: ignore[arg-type]

    async def send(self, carried: Carried | None = None) -> "asyncio.Task[None]":
        """Sends the message to the router `r`."""
        task = asyncio.create_task(self.sender.send(self.graph.directory.get("r"), MESSAGE, carried))
        for _ in range(5):
            await asyncio.sleep(0)
        return task

    def frames(self) -> tuple[int, int]:
        """How many frames with messages each shard got since the last look."""
        return len(self.shards.peer.said(Kind.ROUTE)), len(self.shards.far.said(Kind.ROUTE))


def run(check: Callable[[Scene], Awaitable[None]], *queues: str) -> None:
    async def within() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(2)
        await graph.router("r")
        await graph.queue(*queues)
        for queue in queues:
            await graph.subscribe("r", queue)
        graph.directory.refresh()
        await check(Scene(graph))

    asyncio.run(within())


def test_a_message_is_one_frame_for_all_queues_of_a_shard_as_far_as_a_set_may_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(scene: Scene) -> None:
        task = await scene.send()
        assert scene.frames() == (1, 1)
        scene.shards.peer.producer.answered(1, 1)
        scene.shards.far.producer.answered(1, 1)
        await task
        monkeypatch.setattr(limits, "ROUTE_TARGETS_MAX", 2)
        task = await scene.send()
        assert scene.frames() == (2, 1)
        scene.shards.peer.producer.answered(2, 1)
        scene.shards.far.producer.answered(2, 1)
        await asyncio.sleep(0)
        assert not task.done()
        scene.shards.peer.producer.answered(3, 1)
        await task

    run(check, "a", "b", "c", "far")


def test_what_an_attempt_has_stored_when_its_time_is_up_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REQUEST_MS", 10)

    async def check(scene: Scene) -> None:
        carried: Carried = set()
        task = await scene.send(carried)
        scene.shards.peer.producer.answered(1, 1)
        with pytest.raises(ProblemError):
            await task
        assert carried == {(b"message", "a")}
        scene.frames()
        monkeypatch.setattr(limits, "REQUEST_MS", 60_000)
        task = await scene.send(carried)
        assert scene.frames() == (0, 1)
        scene.shards.far.producer.answered(2, 1)
        await task

    run(check, "a", "far")


def test_a_queue_deleted_while_another_is_looked_up_lets_the_message_be_routed_once_more() -> None:
    async def check(scene: Scene) -> None:
        scene.shards.deleted.add("a")
        task = await scene.send()
        assert scene.frames() == (0, 1)
        scene.shards.far.producer.answered(1, 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert scene.frames() == (1, 0)
        scene.shards.peer.producer.answered(1, 1)
        await task

    run(check, "a", "far")
