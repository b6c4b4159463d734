"""Receivers at routers: which subscription a source means, and that nothing stays of a client that went."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.link import ATTACHED, DETACHED, DETACHING, Link
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.session import Session
from lightrail.amqp.values import Symbol
from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.frontend.links import subscribing
from lightrail.frontend.links.subscribing import unsubscribe, wanted
from lightrail.model.placement import Placement
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.wire.bodies import Answer, ConsumerOpen
from lightrail.wire.frames import Kind
from tests.support.amqp.frontend_scene import Client, Scene, play

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
        opening = ConsumerOpen.decode(scene.shard.said[0].body)
        assert (opening.queue, opening.user) == (queue, "anonymous")
        assert client.take(events.Attached) == []
        consumer.ready()
        await client.turn()
        assert len(client.take(events.Attached)) == 1

    play(test)


def test_copy_means_the_subscription_and_not_browsing() -> None:
    """Qpid JMS attaches so to durable subscriptions: a browser would consume nothing."""

    async def test(scene: Scene) -> None:
        await router(scene)
        client = scene.client()
        session = await client.open()
        copy = Symbol("copy")
        source = Source(address="r", durable=2, distribution_mode=copy)
        session.attach("news", False, source=source, target=Target())
        await client.turn()
        (queue,) = subscriptions(scene)
        # At the queue behind it, it is browsing, as at every queue.
        session.attach("b", False, source=Source(address=queue, distribution_mode=copy), target=Target())
        await client.turn()
        opened = [each.body for each in scene.shard.said if each.kind is Kind.CONSUMER_OPEN]
        assert [ConsumerOpen.decode(body).browse for body in opened] == [False, True]

    play(test)


class Held(MemoryCoordinator):
    """Writes wait while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()
        self.error: CoordinatorError | None = None

    async def write(self, writes: Sequence[Write]) -> int:
        await self.free.wait()
        if self.error is not None:
            raise self.error
        return await super().write(writes)


async def durable(scene: Scene, client: Client, session: Session, name: str = "news") -> Link:
    """A receiver with a durable subscription, attached."""
    link = session.attach(name, False, source=replace(DURABLE), target=Target())
    await client.turn()
    scene.shard.ready()
    await client.turn()
    assert link.state == ATTACHED
    return link


def held(test: Callable[[Scene, Held, Client, Session], Awaitable[None]], *, consumers: int = 0) -> None:
    """Runs a test with a router, a client, and a coordinator that can be held."""

    async def run() -> None:
        coordinator = Held()
        scene = await Scene.start(coordinator)
        await router(scene)

        async def request(op: str, *_: Any, **__: Any) -> Answer:
            return Answer({"consumer_count": consumers}, memoryview(b""))

        scene.shard.request = request  # type: ignore[attr-defined]
        client = scene.client()
        session = await client.open()
        try:
            await test(scene, coordinator, client, session)
        finally:
            scene.frontend.shard_connections.wiring.close()
            scene.frontend.deadlines.close()

    asyncio.run(run())


def test_a_closing_detach_is_answered_when_the_subscription_has_ended() -> None:
    async def test(scene: Scene, coordinator: Held, client: Client, session: Session) -> None:
        link = await durable(scene, client, session)
        coordinator.free.clear()
        link.detach()
        await client.turn()
        assert link.state == DETACHING
        assert len(subscriptions(scene)) == 1
        coordinator.free.set()
        await client.turn()
        assert link.state == DETACHED
        assert subscriptions(scene) == []

    held(test)


def test_unsubscribing_by_a_look_up_is_answered_when_it_is_done() -> None:
    async def test(scene: Scene, coordinator: Held, client: Client, session: Session) -> None:
        link = await durable(scene, client, session)
        link.detach(closed=False)
        await client.turn()
        assert link.state == DETACHED
        found = session.attach("news", False, source=None, target=Target())
        await client.turn()
        assert found.source.address == "r"
        coordinator.free.clear()
        found.detach()
        await client.turn()
        assert found.state == DETACHING
        coordinator.free.set()
        await client.turn()
        assert found.state == DETACHED
        assert subscriptions(scene) == []

    held(test)


def test_a_subscription_that_can_not_be_ended_is_an_error_of_the_detach() -> None:
    async def test(scene: Scene, coordinator: Held, client: Client, session: Session) -> None:
        link = await durable(scene, client, session)
        coordinator.error = CoordinatorError("etcd is away")
        link.detach()
        await client.turn()
        assert link.state == DETACHED
        assert b"which still exists: etcd is away" in client.heard
        assert len(subscriptions(scene)) == 1

    held(test)


def test_the_end_of_an_old_subscription_leaves_a_newer_one_of_its_name() -> None:
    async def test(scene: Scene, coordinator: Held, client: Client, session: Session) -> None:
        await durable(scene, client, session)
        (queue,) = subscriptions(scene)
        old = scene.frontend.directory.get(queue)
        assert await unsubscribe(scene.frontend, old, False) is None
        assert subscriptions(scene) == []
        await client.turn()
        await durable(scene, client, session, "news")
        assert subscriptions(scene) == [queue]
        assert await unsubscribe(scene.frontend, old, False) is None
        assert subscriptions(scene) == [queue]

    held(test)


def test_a_subscription_ends_though_its_policy_is_changed_meanwhile() -> None:
    async def test(scene: Scene, coordinator: Held, client: Client, session: Session) -> None:
        await durable(scene, client, session)
        (queue,) = subscriptions(scene)
        old = scene.frontend.directory.get(queue)
        coordinator.free.clear()
        ending = asyncio.ensure_future(unsubscribe(scene.frontend, old, False))
        await scene.settle()
        changed = replace(old, policy=Policy.parse({"role": "queue", "max_length": 5}))
        await MemoryCoordinator.write(coordinator, [Write("names/" + queue, changed.to_value())])
        coordinator.free.set()
        assert await ending is None
        assert subscriptions(scene) == []

    held(test)


def test_a_shared_subscription_that_others_receive_from_is_not_ended_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscribing, "UNUSED_AGAIN_MS", 0)

    async def test(scene: Scene, coordinator: Held, client: Client, session: Session) -> None:
        source = replace(DURABLE, capabilities=[Symbol("shared")])
        session.attach("news|1", False, source=source, target=Target())
        await client.turn()
        # Without a capability, too, which is how Qpid JMS asks when it has a client identifier.
        for capabilities in (None, [Symbol("shared")]):
            found = session.attach(
                "news", False, source=None, target=Target(), desired_capabilities=capabilities
            )
            await client.turn()
            assert found.state == DETACHED
        assert client.heard.count(b"amqp:resource-locked") == 2
        assert len(subscriptions(scene)) == 1

    held(test, consumers=1)


def test_a_look_up_that_others_come_before_is_answered_with_that() -> None:
    async def test(scene: Scene, coordinator: Held, client: Client, session: Session) -> None:
        source = replace(DURABLE, capabilities=[Symbol("shared")])
        session.attach("news|1", False, source=source, target=Target())
        await client.turn()
        found = session.attach("news", False, source=None, target=Target())
        await client.turn()
        assert found.state == ATTACHED

        async def request(op: str, *_: Any, **__: Any) -> Answer:
            return Answer({"consumer_count": 2}, memoryview(b""))

        scene.shard.request = request  # type: ignore[attr-defined]
        found.detach()
        await client.turn()
        assert found.state == DETACHED
        assert b"found 2 links at that of r; close them first" in client.heard
        assert len(subscriptions(scene)) == 1

    held(test)


@pytest.mark.parametrize("topic", [True, False])
def test_a_durable_subscription_leaves_its_former_topic(topic: bool) -> None:
    async def test(scene: Scene, coordinator: Held, client: Client, session: Session) -> None:
        await scene.frontend.service.give(ANYBODY, "other", Policy.parse({"role": "router"}))
        capabilities = [Symbol("topic")] if topic else None
        for address in ("r", "other"):
            source = replace(DURABLE, address=address, capabilities=capabilities)
            link = session.attach("news", False, source=source, target=Target())
            await client.turn()
            scene.shard.ready()
            await client.turn()
            link.detach(closed=False)
            await client.turn()
        assert len(scene.frontend.directory.subscriptions("other")) == 1
        assert len(subscriptions(scene)) == (0 if topic else 1)

    held(test)


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
        """The client goes while the placement of the queue is looked up."""

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
        scene.frontend.shard_connections.wiring.close()
        scene.frontend.deadlines.close()

    asyncio.run(test())
