"""Resolving: what an attach gets under a name that others make and delete meanwhile."""

from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.values import Symbol
from lightrail.cluster.users import UserRecord
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.resolving import resolve
from lightrail.model import conditions
from lightrail.model.policy import QUEUE, Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Right
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from tests.support.amqp.frontend_scene import Scene, play


def test_a_name_made_for_a_connection_that_has_ended_is_not_given_to_the_next_when_it_becomes_known_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        await client.open()
        (connection,) = scene.connections
        directory, lifetimes = scene.frontend.directory, scene.frontend.lifetimes
        other = Service(scene.coordinator, Directory(scene.coordinator))
        owner = lifetimes.connection(99)
        lifetimes.ended(owner)
        refresh, hidden = directory.refresh, 1

        def late() -> None:
            nonlocal hidden
            if not hidden:
                refresh()
            hidden = 0

        refresh()
        await other.give(ANYBODY, "q", QUEUE, owner=owner)
        monkeypatch.setattr(directory, "refresh", late)
        with pytest.raises(ConditionError) as caught:
            await resolve(connection, "q", Right.SEND, connection.client.owner)
        assert caught.value.condition == conditions.RESOURCE_DELETED

    play(test)


AZURE = {Symbol("user-agent"): "azsdk-net-ServiceBus/7.21.0"}
MISSING = ("missing", "missing/$dlq", "missing/Subscriptions/x", "topic/Subscriptions/none")


async def attached(scene: Scene, properties: dict[Symbol, Any], name: str, *, sends: bool) -> str | None:
    """Attaches a link of a client to a name; the condition that it is refused with."""
    settings = ConnectionSettings(
        is_server=False, container_id="c", idle_time_out_ms=0, properties=properties
    )
    client = scene.client(settings=settings)
    session = await client.open()
    await (client.sender if sends else client.receiver)(session, queue=name)
    scene.shard.ready()
    await client.turn()
    refused = [str(each.error.condition) for each in client.take(events.Detached) if each.error]
    return refused[0] if refused else None


def made(scene: Scene) -> list[str]:
    scene.frontend.directory.refresh()
    return sorted(record.name for record in scene.frontend.directory.below(""))


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("name", MISSING)
def test_the_first_use_of_an_entity_is_refused_and_makes_nothing(name: str, sends: bool) -> None:
    async def test(scene: Scene) -> None:
        await scene.frontend.service.give(ANYBODY, "topic", Policy.parse({"role": "router"}))
        assert await attached(scene, AZURE, name, sends=sends) == conditions.NOT_FOUND
        assert made(scene) == ["topic"]

    play(test)


def test_the_first_use_of_an_entity_makes_a_queue_where_a_policy_or_the_setting_says_so() -> None:
    async def test(scene: Scene) -> None:
        await scene.frontend.service.give(
            ANYBODY, "made", Policy.parse({"role": "none", "auto_create": True})
        )
        assert await attached(scene, AZURE, "made/q", sends=True) is None
        assert await attached(scene, AZURE, "other", sends=True) == conditions.NOT_FOUND
        assert made(scene) == ["made", "made/q"]

    async def with_setting(scene: Scene) -> None:
        assert await attached(scene, AZURE, "other", sends=True) is None
        assert made(scene) == ["other"]

    play(test)
    play(with_setting, service_bus_auto_create=True)


def test_a_name_is_found_without_regard_to_case_by_these_clients_alone() -> None:
    async def test(scene: Scene) -> None:
        await scene.frontend.service.give(ANYBODY, "CamelCase", QUEUE)
        assert await attached(scene, AZURE, "camelcase", sends=True) is None
        assert await attached(scene, AZURE, "CAMELCASE/$DeadLetterQueue", sends=False) is None
        assert made(scene) == ["CamelCase"]
        assert await attached(scene, {}, "camelcase", sends=True) is None
        assert made(scene) == ["CamelCase", "camelcase"]
        # A second spelling diverts no client that writes one of them; one that writes a third gets an error.
        assert await attached(scene, AZURE, "CamelCase", sends=True) is None
        assert await attached(scene, AZURE, "camelCASE", sends=True) == conditions.NOT_ALLOWED

    play(test)


@pytest.mark.parametrize("asked", ["orders", "Orders", "ORDERS"])
def test_rights_are_those_at_the_name_that_is_found(asked: str) -> None:
    async def test(scene: Scene) -> None:
        await scene.coordinator.add_user(UserRecord.make("ann", "secret", 4_096))
        await scene.authenticator.refresh()
        service = scene.frontend.service
        await service.permit(ANYBODY, "anonymous", "Orders", frozenset({Right.SEND}))
        await service.give(ANYBODY, "orders", QUEUE)
        # A right at `Orders` is none at `orders`, which is all that exists.
        assert await attached(scene, AZURE, asked, sends=True) == (
            None if asked == "Orders" and "Orders" in made(scene) else conditions.UNAUTHORIZED_ACCESS
        )
        await service.give(ANYBODY, "Orders", QUEUE)
        expected = {
            "Orders": None,
            "orders": conditions.UNAUTHORIZED_ACCESS,
            "ORDERS": conditions.NOT_ALLOWED,
        }
        assert await attached(scene, AZURE, asked, sends=True) == expected[asked]

    play(test, allow_anonymous=True)


@pytest.mark.parametrize("properties", [AZURE, {}])
@pytest.mark.parametrize("name", ["topic/Subscriptions/mine", *MISSING])
def test_a_client_without_the_right_gets_no_information_about_what_exists(
    name: str, properties: dict[Symbol, Any]
) -> None:
    async def test(scene: Scene) -> None:
        await scene.coordinator.add_user(UserRecord.make("ann", "secret", 4_096))
        await scene.authenticator.refresh()
        service = scene.frontend.service
        await service.give(ANYBODY, "topic", Policy.parse({"role": "router"}))
        await service.give(ANYBODY, "q", QUEUE)
        await service.subscribe(ANYBODY, "topic", "q", id="mine")
        assert await attached(scene, properties, name, sends=False) == conditions.UNAUTHORIZED_ACCESS

    play(test, allow_anonymous=True)


def test_an_entity_that_another_process_has_just_created_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        directory, current = scene.frontend.directory, scene.coordinator.current
        refresh, is_late = directory.refresh, True

        async def read(key: str) -> Any:
            nonlocal is_late
            is_late = False
            return await current(key)

        other = Service(scene.coordinator, Directory(scene.coordinator))
        await other.give(ANYBODY, "q", QUEUE)
        # The view of this process is older than the answer that the administration client got.
        monkeypatch.setattr(directory, "refresh", lambda: None if is_late else refresh())
        monkeypatch.setattr(scene.coordinator, "current", read)
        assert await attached(scene, AZURE, "q", sends=True) is None

    play(test)
