"""What Azure Service Bus refuses to its clients: on links, to addresses in messages, in transactions."""

from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.events import ACCEPTED
from lightrail.amqp.link import Link
from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.performatives import Rejected, Source, Target
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import Symbol
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.resolving import check_sendable
from lightrail.model import conditions
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.scheduled import scheduled_queue
from lightrail.namespace.transfer_queues import transfer_queue
from tests.support.amqp.frontend_scene import Client, Scene, play

BUS = {Symbol("com.microsoft:timeout"): 60_000}
REFUSED = ("q/$DeadLetterQueue", "q/$dlq", "t/Subscriptions/s", "t/subscriptions/S", "sessions")


async def entities(scene: Scene) -> None:
    service = scene.frontend.service
    await service.give(ANYBODY, "q", Policy.parse({"role": "queue"}))
    await service.give(ANYBODY, "sessions", Policy.parse({"role": "queue", "groups": True}))
    await service.give(ANYBODY, "t", Policy.parse({"role": "router"}))
    await service.give(ANYBODY, "t/Subscriptions/s", Policy.parse({"role": "queue"}))
    await service.subscribe(ANYBODY, "t", "t/Subscriptions/s", id="s")
    await scheduled_queue(service, "t")


async def without_target(client: Client, properties: Any) -> Link:
    session = await client.open()
    link = session.attach("s", True, source=Source(), target=Target(), properties=properties)
    await client.turn()
    return link


def letter(to: str) -> bytes:
    return write_message(Message(Properties(to=to), {}, 1))


async def outcomes(scene: Scene, client: Client, link: Link, *addresses: str) -> list[Any]:
    for each in addresses:
        link.send_one(letter(each))
    await client.turn()
    for producer in list(scene.shard.producers.values()):
        producer.answered(1, 100)
    await client.turn()
    found = {each.first: each.state for each in client.take(events.Outcome)}
    return [found[number] for number in sorted(found)]


def test_messages_with_an_address_are_refused_as_on_a_link() -> None:
    async def test(scene: Scene) -> None:
        await entities(scene)
        client = scene.client()
        link = await without_target(client, BUS)
        assert await outcomes(scene, client, link, "q") == [ACCEPTED]
        for address in REFUSED:
            (state,) = await outcomes(scene, client, link, address)
            assert isinstance(state, Rejected), address
            assert state.error is not None
            assert state.error.condition == conditions.NOT_ALLOWED

    play(test)


def test_other_clients_send_there() -> None:
    async def test(scene: Scene) -> None:
        await entities(scene)
        client = scene.client()
        link = await without_target(client, None)
        assert await outcomes(scene, client, link, "q/$dlq") == [ACCEPTED]
        assert await outcomes(scene, client, link, "t/Subscriptions/s") == [ACCEPTED]

    play(test)


@pytest.mark.parametrize("address", REFUSED)
def test_in_a_transaction_too(address: str) -> None:
    async def test(scene: Scene) -> None:
        await entities(scene)
        client = scene.client()
        await without_target(client, BUS)
        (connection,) = scene.connections
        with pytest.raises(ConditionError) as refused:
            check_sendable(connection, address, [letter(address)], delays=False, entity=True)
        assert refused.value.condition == conditions.NOT_ALLOWED
        check_sendable(connection, "q", [letter("q")], delays=False, entity=True)
        check_sendable(connection, address.replace("S", "s"), [letter(address)], delays=False, entity=False)

    play(test)


@pytest.mark.parametrize("name", ["q/$transfer", "t"])
def test_nobody_receives_from_a_topic_or_names_of_the_broker(name: str) -> None:
    async def test(scene: Scene) -> None:
        await entities(scene)
        await transfer_queue(scene.frontend.service, "q")
        client = scene.client()
        session = await client.open()
        await client.receiver(session, queue=name, properties=BUS)
        (detached,) = client.take(events.Detached)
        assert detached.error is not None
        assert detached.error.condition == conditions.NOT_ALLOWED
        await client.receiver(session, "another", "q", properties=BUS)
        assert not client.take(events.Detached)

    play(test)


def test_what_is_scheduled_in_a_topic_can_be_peeked_at_by_clients_that_attach_for_it() -> None:
    async def test(scene: Scene) -> None:
        await entities(scene)
        client = scene.client()
        session = await client.open()
        await client.receiver(session, queue="t/$scheduled", properties=BUS)
        assert not client.take(events.Detached)

    play(test)
