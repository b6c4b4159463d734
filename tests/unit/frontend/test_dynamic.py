"""Dynamic nodes: what their properties may be (messaging 3.5.9)."""

from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.performatives import DeleteOnNoLinks, Source, Target
from lightrail.amqp.values import Array, Symbol, UInt
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
