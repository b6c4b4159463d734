"""Resolving: what an attach gets under a name that others make and delete meanwhile."""

import pytest

from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.resolving import resolve
from lightrail.model import conditions
from lightrail.model.policy import QUEUE
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
