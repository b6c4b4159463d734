"""Receivers at routers: which subscription a source means, and that nothing stays of a client that went."""

import asyncio
from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.types import Symbol
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.placement import Placement
from lightrail.frontend.subscribing import wanted
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.wire.messages import Answer, ConsumerOpen
from tests.support.frontend_scene import Client, Scene, play

DURABLE = Source(address="r", durable=2)


def asked(name: str, *, container: str = "c", **fields: Any) -> Any:
    """What a link of this name and source means."""

    class Peer:
        container_id = container

    class Stub:
        peer_open = Peer

    class Session:
        connection = Stub

    class Link:
        session = Session

    Link.name = name  # type: ignore[attr-defined]
    return wanted(Link, Source(address="r", **fields))  # type: ignore[arg-type]


def test_a_durable_subscription_is_of_its_container_and_name() -> None:
    first = asked("news", durable=2)
    assert (first.durable, first.shared, first.of_link) == (True, False, False)
    assert first == asked("news", durable=1)
    assert first == asked("news", expiry_policy=Symbol("never"))
    others = [asked("other", durable=2), asked("news", container="d", durable=2), asked("news|x", durable=2)]
    assert first.key not in {each.key for each in others}


def test_links_that_share_have_one_name_up_to_the_bar() -> None:
    shared = [Symbol("shared")]
    first = asked("news|volatile1", capabilities=shared)
    assert (first.durable, first.shared, first.of_link) == (False, True, False)
    assert first == asked("news|volatile2", capabilities=Symbol("shared"))
    assert first != asked("news|volatile1", capabilities=shared, durable=2)
    assert first != asked("news|volatile1", capabilities=shared, container="d")
    everywhere = [Symbol("shared"), Symbol("global")]
    assert asked("news", capabilities=everywhere) == asked("news", container="d", capabilities=everywhere)


def test_any_other_receiver_has_a_subscription_of_its_own() -> None:
    assert asked("news").of_link
    assert asked("news") != asked("news")


async def router(scene: Scene) -> None:
    await scene.frontend.service.give(ANYBODY, "r", Policy.parse({"role": "router"}))


def subscriptions(scene: Scene) -> list[str]:
    scene.frontend.directory.refresh()
    return [each.target for each in scene.frontend.directory.subscriptions("r")]


def test_the_attach_is_answered_when_the_subscription_is_there() -> None:
    async def test(scene: Scene) -> None:
        await router(scene)
        client = scene.client()
        session = await client.open()
        await client.receiver(session, queue="r")
        (queue,) = subscriptions(scene)
        (consumer,) = scene.shard.consumers.values()
        assert ConsumerOpen.decode(scene.shard.said[0].body).queue == queue
        assert client.take(events.Attached) == []
        consumer.ready()
        await client.turn()
        assert len(client.take(events.Attached)) == 1

    play(test)


def test_a_durable_answer_says_that_it_is_and_a_second_link_is_refused_by_the_shard() -> None:
    async def test(scene: Scene) -> None:
        await router(scene)
        client = scene.client()
        session = await client.open()
        session.attach("news", False, source=DURABLE, target=Target())
        await client.turn()
        scene.shard.ready()
        await client.turn()
        (attached,) = client.take(events.Attached)
        assert attached.link.source.durable == 2
        assert attached.link.source.expiry_policy == "never"
        assert ConsumerOpen.decode(scene.shard.said[0].body).exclusive

    play(test)


@pytest.mark.parametrize("shared", [True, False])
def test_nothing_stays_of_a_client_that_goes_while_its_subscription_is_made(shared: bool) -> None:
    class Slow(MemoryCoordinator):
        """The client goes while the place of the queue is looked up."""

        client: Client | None = None
        asked = False

        async def place(self, queue: str) -> Placement:
            if not self.asked and self.client is not None:
                self.asked = True
                self.client.transport.abort()
                for _ in range(5):
                    await asyncio.sleep(0)
            return await super().place(queue)

    async def test() -> None:
        coordinator = Slow()
        scene = await Scene.start(coordinator)
        await router(scene)

        async def request(op: str, *_: Any, **__: Any) -> Answer:
            return Answer({"consumer_count": 0}, memoryview(b""))

        scene.shard.request = request  # type: ignore[attr-defined]
        coordinator.client = client = scene.client()
        session = await client.open()
        capabilities = [Symbol("shared")] if shared else None
        session.attach("r", False, source=Source(address="r", capabilities=capabilities), target=Target())
        await client.turn()
        assert coordinator.asked
        await scene.settle()
        assert subscriptions(scene) == []
        assert [record.name for record in scene.frontend.directory.below("")] == ["r"]
        scene.frontend.fleet.end()
        if scene.frontend._timer is not None:
            scene.frontend._timer.cancel()

    asyncio.run(test())
