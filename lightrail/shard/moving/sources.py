"""Sources: this shard's ways to the others, kept while queues come from them."""

import asyncio
from collections.abc import Callable

import zmq

from lightrail.model import limits
from lightrail.wire import keys
from lightrail.wire.keys import WireKey
from lightrail.wire.requests import ShardDownError
from lightrail.wire.shards import ShardPeer


class ShardSources:
    """A `ShardPeer` per source that a queue comes from, spoken to as a frontend would.

    Args:
        shard: this one.
        boot: of this process.
        address: where a shard is now, or None while nobody knows.
        key: of the wire between machines.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        shard: int,
        boot: int,
        address: Callable[[int], str | None],
        now_ms: Callable[[], int],
        key: WireKey | None = None,
    ) -> None:
        self._loop = loop
        self._name = f"shard-{shard}"
        self._boot = boot
        self._address = address
        self._now_ms = now_ms
        self._context: zmq.Context[zmq.Socket[bytes]] = keys.context(key)
        self._peers: dict[int, ShardPeer] = {}
        self._users: dict[int, int] = {}
        self._idle: dict[int, asyncio.TimerHandle] = {}
        """Ways that nobody uses now, and when they end."""

    def take(self, shard: int) -> ShardPeer:
        """A way to a shard, which may not serve now. Raises ShardDownError where its address is unknown."""
        address = self._address(shard)
        peer = self._peers.get(shard)
        if peer is not None and address is not None and peer.address != address:
            # It was started elsewhere; whoever still asks at the former address is told that it is away.
            peer.close()
            peer = None
        if peer is None:
            if address is None:
                raise ShardDownError(f"shard {shard} is not registered now; its queues can't be copied")
            peer = self._peers[shard] = self._connect(shard, address)
        self._users[shard] = self._users.get(shard, 0) + 1
        # Whoever looks in again and again while the source greets us must find the way that he began.
        if (ends := self._idle.pop(shard, None)) is not None:
            ends.cancel()
        return peer

    def leave(self, shard: int) -> None:
        """Whoever took it needs it no more."""
        self._users[shard] -= 1
        if not self._users[shard]:
            del self._users[shard]
            after_s = limits.MOVE_SOURCE_IDLE_MS / 1000
            self._idle[shard] = self._loop.call_later(after_s, self._close_idle, shard)

    def close(self) -> None:
        """This process ends."""
        for ends in self._idle.values():
            ends.cancel()
        self._idle.clear()
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        self._context.term()

    def _close_idle(self, shard: int) -> None:
        del self._idle[shard]
        peer = self._peers.pop(shard, None)
        if peer is not None:
            peer.close()

    def _connect(self, shard: int, address: str) -> ShardPeer:
        found: list[ShardPeer] = []

        def flush() -> None:
            for peer in found:
                peer.flush()

        def schedule() -> None:
            self._loop.call_soon(flush)

        peer = ShardPeer(
            self._loop,
            self._context,
            shard=shard,
            address=address,
            frontend=self._name,
            boot=self._boot,
            now_ms=self._now_ms,
            schedule_flush=schedule,
            flush=flush,
        )
        found.append(peer)
        return peer
