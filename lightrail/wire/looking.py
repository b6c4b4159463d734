"""Looking: asks the members of a shard with replicas how far their journals reach."""

import asyncio
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Final

from lightrail.wire.frames import WireError
from lightrail.wire.replication import MemberMessage, MessageKind, Reach, decode
from lightrail.wire.sockets.wiring import Wiring

LOOK_AGAIN_S: Final = 0.02
"""How often it is looked whether the time is over."""


async def look_around(
    loop: asyncio.AbstractEventLoop,
    wiring: Wiring,
    addresses: Mapping[str, str],
    epoch: int,
    wait_s: Callable[[AbstractSet[str]], float],
) -> dict[str, Reach]:
    """How far the members at these addresses reach, of those that answer in time, by the id of the member.

    Args:
        epoch: in which the asking process owns the shard: who answers follows no older owner from then on.
            0: the answers promise nothing.
        wait_s: for how many seconds, from the begin on, members are waited for if these are missing.
    """
    found: dict[str, Reach] = {}
    change = asyncio.Event()

    def receive(member: str, parts: list[bytes]) -> None:
        with suppress(WireError):
            message = decode(parts)
            if message.kind is MessageKind.SEEN:
                found[member] = Reach(message.epoch, message.lsn)
        change.set()

    sockets = {
        # Each answers once.
        member: wiring.connect(address, partial(receive, member), receive_max=1, on_open=change.set)
        for member, address in addresses.items()
    }
    unasked, began = set(sockets), loop.time()
    look = MemberMessage(MessageKind.LOOK, epoch).encode()
    try:
        while (missing := sockets.keys() - found) and loop.time() < began + wait_s(missing):
            unasked -= {each for each in unasked if sockets[each].send(look)}
            with suppress(TimeoutError):
                await asyncio.wait_for(change.wait(), LOOK_AGAIN_S)
            change.clear()
    finally:
        for socket in sockets.values():
            socket.close()
    return found
