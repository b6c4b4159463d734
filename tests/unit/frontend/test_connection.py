"""A client's connection: attaching through coordinator and shard, and what its links get."""

import asyncio
from typing import Any

import pytest

from lightrail.amqp import events, frames
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.values import Symbol
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model import conditions, limits
from lightrail.model.placement import Placement
from lightrail.wire.bodies import ConsumerOpen, ProducerOpen, Refusal, SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.amqp.frontend_links import both, slice_of
from tests.support.amqp.frontend_scene import Scene, play


def test_a_sender_is_attached_when_its_shard_is_ready_and_gets_credit() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        link = await client.sender(session)
        (said,) = scene.shard.take()
        assert ProducerOpen.decode(said.body).queue == "q"
        assert client.take(events.Attached) == []
        scene.shard.ready()
        await client.turn()
        assert [event.link for event in client.take(events.Attached)] == [link]
        assert link.credit == limits.LINK_CREDIT_MAX
        link.send_one(b"\x00\x53\x75\xa0\x01x")
        await client.turn()
        (said,) = scene.shard.take()
        assert (said.kind, said.count) == (Kind.ENQUEUE, 1)
        (producer,) = scene.shard.producers.values()
        producer.answered(1, 1)
        await client.turn()
        (outcome,) = client.take(events.Outcome)
        assert (outcome.first, outcome.last, outcome.settled) == (0, 0, True)

    play(test)


def test_a_receiver_is_attached_and_gets_what_it_gave_credit_for() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        source = Source(address="q", filter={Symbol("f"): 1})
        link = session.attach("r", False, source=source, target=Target())
        await client.turn()
        (opened, _) = scene.shard.take()
        opening = ConsumerOpen.decode(opened.body)
        assert opening == ConsumerOpen("q", label="client/r", user="anonymous")
        scene.shard.ready()
        await client.turn()
        assert link.source.filter is None
        link.grant(10)
        await client.turn()
        (credit,) = scene.shard.take()
        assert (credit.kind, credit.number) == (Kind.CREDIT, 10)
        (consumer,) = scene.shard.consumers.values()
        consumer.deliver(slice_of(0, 3), 0, 3)
        await client.turn()
        (transfers,) = client.take(events.Transfers)
        assert len(transfers.payloads) == 3
        link.settle(transfers.first_delivery_id, transfers.first_delivery_id + 2)
        await client.turn()
        (settled,) = scene.shard.take()
        assert (settled.kind, settled.number, settled.count) == (Kind.SETTLE, 0, 3)
        assert settled.flags == OutcomeCode.ACCEPTED

    play(test)


def test_links_of_one_queue_ask_the_coordinator_once() -> None:
    class Counting(MemoryCoordinator):
        asked = 0

        async def place(self, queue: str) -> Placement:
            self.asked += 1
            await asyncio.sleep(0)
            return await super().place(queue)

    async def test() -> None:
        coordinator = Counting()
        scene = await Scene.start(coordinator)
        client = scene.client()
        session = await client.open()
        for number in range(5):
            session.attach(f"r{number}", False, source=Source(address="q"), target=Target())
        await client.turn()
        assert len(scene.shard.consumers) == 5
        assert coordinator.asked == 1
        scene.frontend.shard_connections.wiring.close()

    asyncio.run(test())


@pytest.mark.parametrize("end", ["detach", "end", "close", "lost"])
def test_gone_before_its_queue_was_placed(end: str) -> None:
    """The answer of the coordinator finds nobody: nothing is opened at the shard."""

    class Slow(MemoryCoordinator):
        def __init__(self) -> None:
            super().__init__()
            self.go_on = asyncio.Event()

        async def place(self, queue: str) -> Placement:
            await self.go_on.wait()
            return await super().place(queue)

    async def test() -> None:
        coordinator = Slow()
        scene = await Scene.start(coordinator)
        client = scene.client()
        session = await client.open()
        link = await client.receiver(session)
        if end == "detach":
            link.detach()
        elif end == "end":
            session.end()
        elif end == "close":
            client.amqp.close()
        else:
            client.transport.abort()
        await client.turn()
        coordinator.go_on.set()
        await client.turn()
        assert scene.shard.take() == []
        assert scene.links_attached() == 0
        assert scene.frontend._tasks == set()
        scene.frontend.shard_connections.wiring.close()

    asyncio.run(test())


def test_a_coordinator_that_fails_refuses_the_link() -> None:
    class Broken(MemoryCoordinator):
        async def place(self, queue: str) -> Placement:
            raise OSError("no disk")

    async def test() -> None:
        scene = await Scene.start(Broken())
        client = scene.client()
        session = await client.open()
        await client.sender(session)
        (detached,) = client.take(events.Detached)
        assert detached.error is not None
        assert detached.error.condition == conditions.INTERNAL_ERROR
        assert scene.frontend.shard_connections._look_ups == {}
        scene.frontend.shard_connections.wiring.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("is_sender", "source", "target", "condition"),
    [
        (True, Source(), None, conditions.INVALID_FIELD),
        (True, Source(), Target(dynamic=True, address="q"), conditions.INVALID_FIELD),
        (True, Source(), Target(address="a" * 600), conditions.INVALID_FIELD),
        (False, Source(), Target(), conditions.INVALID_FIELD),
        (False, None, Target(), conditions.NOT_FOUND),
        (False, Source(dynamic=True, address="q"), Target(), conditions.INVALID_FIELD),
    ],
)
def test_what_can_not_be_attached_is_refused_with_its_condition(
    is_sender: bool, source: Any, target: Any, condition: str
) -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        session.attach("l", is_sender, source=source, target=target)
        await client.turn()
        (attached,) = client.take(events.Attached)
        attach = attached.link.attach
        assert attach is not None
        assert (attach.target if is_sender else attach.source) is None
        (detached,) = client.take(events.Detached)
        assert detached.closed
        assert detached.error is not None
        assert detached.error.condition == condition
        assert detached.error.description
        assert scene.frontend.counts.links_refused == 1
        assert scene.shard.take() == []

    play(test)


@pytest.mark.parametrize("ready", [True, False])
def test_a_link_that_the_shard_will_not_have(ready: bool) -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        await client.receiver(session)
        if ready:
            scene.shard.ready()
            await client.turn()
        (consumer,) = scene.shard.consumers.values()
        consumer.ended(Refusal(conditions.RESOURCE_LOCKED, "somebody else has it"))
        await client.turn()
        (detached,) = client.take(events.Detached)
        assert detached.error is not None
        assert detached.error.condition == conditions.RESOURCE_LOCKED
        assert scene.links_attached() == 0

    play(test)


def test_a_message_that_is_larger_than_the_receiver_takes_returns_and_its_neighbours_are_sent() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        link = session.attach("r", False, source=Source(address="q"), target=Target())
        link.max_message_size = 100
        # The attach is on its way already: what it says is what counts.
        client.amqp.output.clear()
        client.amqp.output.append(frames.frame(0, link.attach_body(None, None, None)))
        await client.turn()
        scene.shard.ready()
        await client.turn()
        link.grant(10)
        await client.turn()
        (consumer,) = scene.shard.consumers.values()
        consumer.deliver(slice_of(0, 1, 200), 0, 1)
        consumer.deliver(slice_of(1, 1, 50), 1, 1)
        await client.turn()
        (transfers,) = client.take(events.Transfers)
        assert [len(each) for each in transfers.payloads] == [50]
        (said,) = scene.shard.take(Kind.SETTLE)
        detail = SettleDetail.decode(said.body)
        assert (said.number, said.count, detail.undeliverable_here, detail.delivery_failed) == (
            0,
            1,
            True,
            False,
        )
        assert scene.frontend.counts.messages_too_large == 1
        assert scene.links_attached() == 1

    play(test)


def test_a_client_that_does_not_read_gets_a_window() -> None:
    async def test(scene: Scene) -> None:
        client, _, _, receiver = await both(scene)
        receiver.grant(100_000)
        await client.turn()
        (credit,) = scene.shard.take()
        first = credit.number
        client.protocol.pause_writing()
        (consumer,) = scene.shard.consumers.values()
        consumer.deliver(slice_of(0, first), 0, first)
        assert scene.shard.take() == []
        client.protocol.resume_writing()
        (credit,) = scene.shard.take()
        assert credit.number > first
        assert scene.frontend.counts.write_stalls == 1

    play(test)
