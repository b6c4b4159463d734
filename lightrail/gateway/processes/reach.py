"""Reach: how far the journals of the members of a shard with replicas reach."""

import asyncio
from typing import TYPE_CHECKING, Final

from lightrail.wire.looking import look_around
from lightrail.wire.replication import Reach

if TYPE_CHECKING:
    from lightrail.cluster.replica_sets import ReplicaSet
    from lightrail.gateway.services import Services

LOOK_S: Final = 1.0
"""How long members are waited for that run."""


async def reach_of(services: "Services", found: "ReplicaSet") -> dict[str, Reach]:
    """How far the journals of the members of a shard reach, of those that run and answer within LOOK_S."""
    addresses = {
        member: each.address
        for (shard, member), each in services.map.followers.items()
        if shard == found.shard and member in found.members and each.address
    }
    # With the epoch 0 the answers promise nothing.
    return await look_around(
        asyncio.get_running_loop(), services.shards.wiring, addresses, 0, lambda _: LOOK_S
    )
