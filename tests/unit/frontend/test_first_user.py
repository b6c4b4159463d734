"""The first user that is defined ends the connections that needed none."""

from lightrail.amqp import events
from lightrail.cluster.users import UserRecord
from tests.support.amqp.frontend_scene import Client, Scene, play


async def define_a_user(scene: Scene) -> None:
    await scene.authenticator.coordinator.add_user(UserRecord.make("ann", "secret", 4_096))


def condition_of(client: Client) -> str | None:
    (closed,) = client.take(events.Closed)
    return None if closed.error is None else str(closed.error.condition)


def test_open_connections_are_closed_and_can_use_nothing_any_more() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        await client.sender(session)
        await define_a_user(scene)
        await scene.authenticator.refresh()
        await client.turn()
        assert condition_of(client) == "amqp:connection:forced"

    play(test)


def test_one_that_opens_after_it_was_accepted_is_closed_at_once() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        await define_a_user(scene)
        await scene.authenticator.refresh()
        client.amqp.open()
        await client.turn()
        assert condition_of(client) == "amqp:connection:forced"
        assert not client.protocol.client.caller.everything

    play(test)
