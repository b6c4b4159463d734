"""A frontend into which nothing plugs serves clients of AMQP alone; hooks decide about links at attaches."""

from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.performatives import Accepted
from lightrail.amqp.values import Symbol
from lightrail.frontend.connection import ClientConnection
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.hooks import FrontendHooks
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.scheduling import SchedulingRouterLink
from lightrail.model import conditions
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import DURABLE, Kind
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.amqp.requests import Requester
from tests.unit.amqp.peer import data
from tests.unit.frontend.test_deliveries import slice_of

PLAIN = FrontendHooks()
VENDOR = {Symbol("com.microsoft:receiver-name"): "x"}


class Receiving(ConsumerLink):
    """The class that a hook chooses."""


def refusals(client: Client) -> list[str]:
    return [str(each.error.condition) for each in client.take(events.Detached) if each.error]


def objects(scene: Scene) -> list[Any]:
    """The objects of the links that a client has."""
    (connection,) = scene.connections
    assert isinstance(connection, ClientConnection)
    return [type(each) for each in connection.links]


def test_without_hooks_the_clients_of_another_broker_are_clients_of_amqp() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        await client.receiver(session, properties=VENDOR)
        assert objects(scene) == [ConsumerLink]
        link = await client.sender(session, properties=VENDOR)
        scene.shard.ready()
        await client.turn()
        link.send_one(data(b"x"))
        await client.turn()
        (batch,) = scene.shard.take(Kind.ENQUEUE)
        assert not batch.flags & DURABLE

    play(test, PLAIN)


@pytest.mark.parametrize(
    ("address", "condition"),
    [("q/$management", conditions.NOT_FOUND), ("r/Subscriptions/mine", conditions.NOT_FOUND)],
)
def test_without_hooks_addresses_are_names(address: str, condition: str) -> None:
    async def test(scene: Scene) -> None:
        service = scene.frontend.service
        await service.give(ANYBODY, "q", Policy.parse({"role": "queue"}))
        await service.give(ANYBODY, "r", Policy.parse({"role": "router"}))
        await service.subscribe(ANYBODY, "r", "q", id="mine")
        client = scene.client()
        session = await client.open()
        await client.receiver(session, queue=address)
        assert refusals(client) == [condition]

    play(test, PLAIN, auto_create=False)


def test_without_hooks_cbs_reads_web_tokens_alone() -> None:
    async def test(scene: Scene) -> None:
        requester = await Requester.attach(scene.client(), "$cbs")
        for kind, status in (("servicebus.windows.net:sastoken", 400), ("jwt", 401)):
            answer = await requester.ask(
                "SharedAccessSignature sr=x", operation="put-token", type=kind, name="a"
            )
            assert answer.application["status-code"] == status

    play(test, PLAIN)


def test_a_hook_chooses_the_class_of_a_link_and_a_session() -> None:
    def consumer_link(attach: Any, options: ConsumerOpen) -> type[ConsumerLink]:
        options.any_session = attach.record.name == "q"
        return Receiving

    async def test(scene: Scene) -> None:
        await scene.frontend.service.give(ANYBODY, "r", Policy.parse({"role": "router"}))
        client = scene.client()
        session = await client.open()
        await client.receiver(session)
        await client.sender(session, queue="r")
        assert objects(scene) == [Receiving, SchedulingRouterLink]
        (consumer,) = scene.shard.consumers.values()
        assert consumer.options.is_session

    play(test, FrontendHooks(consumer_link=consumer_link, schedules=lambda _: True))


def test_no_hook_is_called_for_a_message() -> None:
    called: list[str] = []

    def counted(name: str, answer: Any = None) -> Any:
        def hook(*_: Any) -> Any:
            called.append(name)
            return answer

        return hook

    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        receiver = await client.receiver(session)
        sender = await client.sender(session)
        scene.shard.ready()
        await client.turn()
        receiver.grant(200)
        await client.turn()
        assert sorted(called) == ["consumer_link", "lost", "producer_link", "settles_itself", "stores_all"]
        (consumer,) = scene.shard.consumers.values()
        for first in (0, 100):
            consumer.deliver(slice_of(first, [data(b"x")] * 100), first, 100)
            sender.send_one(data(b"x"))
            await client.turn()
            receiver.settle(first, first + 99, Accepted())
            await client.turn()
        said = [each.kind for each in scene.shard.take()]
        assert said.count(Kind.ENQUEUE) == said.count(Kind.SETTLE) == 2
        assert sorted(called) == ["consumer_link", "lost", "producer_link", "settles_itself", "stores_all"]

    hooks = FrontendHooks(
        stores_all=counted("stores_all", False),
        lost=counted("lost"),
        settles_itself=counted("settles_itself", False),
        schedules=counted("schedules", False),
        producer_link=counted("producer_link"),
        consumer_link=counted("consumer_link"),
        node=counted("node"),
    )
    play(test, hooks)


def test_a_hook_refuses_an_attach_with_its_condition() -> None:
    def refuse(*_: Any) -> Any:
        raise ConditionError(conditions.NOT_ALLOWED, "not this link")

    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        await client.receiver(session)
        assert refusals(client) == [conditions.NOT_ALLOWED]

    play(test, FrontendHooks(consumer_link=refuse))
