"""Reach: how far the journals of the members of a shard with replicas reach."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from lightrail.wire.frames import WireError
from lightrail.wire.replication import MemberMessage, MessageKind, decode
from lightrail.wire.socket import LoopSocket, dealer

if TYPE_CHECKING:
    from lightrail.cluster.replica_sets import ReplicaSet
    from lightrail.gateway.services import Services

LOOK_S: Final = 1.0
"""How long members are waited for that run."""
CONNECT_S: Final = 0.02
"""How often a member that is not connected yet is asked again."""


class JournalReach(NamedTuple):
    """How far the journal of a member reaches; a larger one has everything that a smaller one has."""

    epoch: int
    """Of its newest segment."""
    next_lsn: int
    """1: the member has no journal."""


async def reach_of(services: "Services", found: "ReplicaSet") -> dict[str, JournalReach]:
    """How far the journals of the members of a shard reach, of those that run and answer within LOOK_S."""
    loop = asyncio.get_running_loop()
    seen: dict[str, JournalReach] = {}
    change = asyncio.Event()

    def receive(member: str, parts: list[bytes]) -> None:
        with suppress(WireError):
            message = decode(parts)
            if message.kind is MessageKind.SEEN:
                seen[member] = JournalReach(message.epoch, message.lsn)
        change.set()

    sockets = {
        member: LoopSocket(
            loop,
            dealer(services.shards.context, each.address, send_max=0, receive_max=1),
            partial(receive, member),
            _nothing,
        )
        for (shard, member), each in services.map.followers.items()
        if shard == found.shard and member in found.members and each.address
    }
    unasked = set(sockets)
    # With the epoch 0 the answers promise nothing.
    look = MemberMessage(MessageKind.LOOK, 0).encode()
    try:
        async with asyncio.timeout(LOOK_S):
            while sockets.keys() - seen:
                unasked -= {each for each in unasked if sockets[each].send(look)}
                with suppress(TimeoutError):
                    await asyncio.wait_for(change.wait(), CONNECT_S)
                change.clear()
    except TimeoutError:
        pass
    finally:
        for socket in sockets.values():
            socket.close()
    return seen


def _nothing() -> None:
    """Nothing is to be done at the end of a turn."""
