"""Dynamic nodes: what their properties may be (messaging 3.5.9)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.performatives import DeleteOnClose, DeleteOnNoLinks, Source, Target
from lightrail.amqp.values import Array, Symbol, UInt
from lightrail.amqp.windows import END_SENT, ENDED
from lightrail.cluster.coordinator import Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model import names
from tests.support.amqp.frontend_scene import Client, Scene, play

LIFETIME = Symbol("lifetime-policy")
MODES = Symbol("supported-dist-modes")


async def attach(client: Client, properties: dict[Symbol, Any]) -> None:
    """Asks for a dynamic source with these properties."""
    session = await client.open()
    source = Source(dynamic=True, dynamic_node_properties=properties)
    session.attach("r", False, source=source, target=Target())
    await client.turn()
    client.scene.shard.ready()
    await client.turn()


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {LIFETIME: DeleteOnNoLinks()},
        {MODES: Symbol("move")},
        {MODES: Array([Symbol("move"), Symbol("copy")], 0xA3)},
    ],
)
def test_a_node_is_made_with_properties_of_the_right_types(properties: dict[Symbol, Any]) -> None:
    async def check(scene: Scene) -> None:
        client = scene.client()
        await attach(client, properties)
        (attached,) = client.take(events.Attached)
        assert attached.link.source.address
        assert client.take(events.Detached) == []

    play(check)


@pytest.mark.parametrize("policy", [UInt(0x2B), "delete-on-close", Symbol("amqp:delete-on-close:list"), True])
def test_lifetime_policies_of_another_type_are_refused(policy: Any) -> None:
    async def check(scene: Scene) -> None:
        client = scene.client()
        await attach(client, {LIFETIME: policy})
        (detached,) = client.take(events.Detached)
        assert detached.error is not None
        assert detached.error.condition == "amqp:decode-error"
        assert "lifetime-policy" in (detached.error.description or "")

    play(check)


@pytest.mark.parametrize("modes", [UInt(5), "move", Array([UInt(1)], 0x70), [Symbol("move")], True])
def test_distribution_modes_of_another_type_are_refused(modes: Any) -> None:
    async def check(scene: Scene) -> None:
        client = scene.client()
        await attach(client, {MODES: modes})
        (detached,) = client.take(events.Detached)
        assert detached.error is not None
        assert detached.error.condition == "amqp:decode-error"
        assert "supported-dist-modes" in (detached.error.description or "")

    play(check)


class Slow(MemoryCoordinator):
    """A coordinator whose deletions wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.may_delete = asyncio.Event()

    async def _commit(self, writes: Sequence[Write]) -> int:
        if any(each.value is None for each in writes):
            await self.may_delete.wait()
        return await super()._commit(writes)


@pytest.mark.parametrize("with_node", [True, False])
def test_the_end_of_a_session_is_answered_when_its_names_are_deleted(with_node: bool) -> None:
    """Its client, or another one, may attach to them at another frontend after the answer."""
    coordinator = Slow()

    async def check(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        other = client.amqp.begin()
        if with_node:
            source = Source(dynamic=True, dynamic_node_properties={LIFETIME: DeleteOnClose()})
            session.attach("r", False, source=source, target=Target())
            await client.turn()
            scene.shard.ready()
            await client.turn()
        session.end()
        await client.turn()
        assert session.state == (END_SENT if with_node else ENDED)
        other.end()
        await client.turn()
        assert other.state == ENDED, "other sessions go on"
        coordinator.may_delete.set()
        while session.state != ENDED:
            await client.turn()
        assert [name for name in scene.frontend.directory.below("") if names.is_dynamic_node(name.name)] == []

    play(check, coordinator=coordinator)


def test_links_of_a_session_that_end_late_leave_the_names_of_the_next_one_on_its_channel() -> None:
    async def check(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        (connection,) = scene.connections
        (first,) = connection.amqp.sessions.values()  # type: ignore[union-attr]
        owner = connection.client.session_owner(first)
        session.end()
        await client.turn()
        client.amqp.begin()
        await client.turn()
        (second,) = connection.amqp.sessions.values()  # type: ignore[union-attr]
        assert second.channel == first.channel
        assert connection.client.session_owner(second) != owner

    play(check)
