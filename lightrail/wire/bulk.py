"""Bulk: connections to shards for answers of megabytes, apart from those of messages.

Each has a socket of its own, so that no small frame waits behind a large one, and passes on the parts
without copying them: of 1 ms of CPU per MiB that shard and gateway took together, copies and the
memory that they were made in were a half (docs/operate/readers.md has the measurement).
"""

import asyncio
from collections.abc import Callable
from typing import Any

import zmq

from lightrail.model import limits
from lightrail.wire import keys
from lightrail.wire.bodies import Answer
from lightrail.wire.frames import BLOB_FOLLOWS, HEADER, Kind
from lightrail.wire.keys import WireKey
from lightrail.wire.requests import ShardDownError
from lightrail.wire.shards import ShardPeer
from lightrail.wire.socket import Parts
from lightrail.wire.watch import Watch


class BulkPeer(ShardPeer):
    """A connection to a shard for requests with large answers."""

    __slots__ = ()

    def _receive(self, parts: Parts) -> None:
        """A blob may be a part of its own, behind the answer that it belongs to."""
        plain: Parts = []
        rest = iter(parts)
        for part in rest:
            kind, flags, _, _, _, _, number = HEADER.unpack_from(part)
            blob = next(rest, None) if kind == Kind.RESPONSE and flags & BLOB_FOLLOWS else None
            if blob is not None:
                self._requests.answered(number, part, memoryview(blob))
            else:
                plain.append(part)
        super()._receive(plain)


class Way(Watch[ShardPeer]):
    """A bulk connection, and whether its shard serves."""

    def __init__(self) -> None:
        self.peer: BulkPeer
        self.there = asyncio.Event()
        self.users = 0
        self.idle: asyncio.TimerHandle | None = None

    def welcomed(self, peer: ShardPeer) -> None:
        self.there.set()

    def lost(self, peer: ShardPeer) -> None:
        self.there.clear()


class BulkPeers:
    """One connection to each shard with requests under way, and for a while afterwards.

    Args:
        name: of this process, unique in the installation, without what is added here.
        boot: drawn when the process starts.
        address: of a shard now, or None while it is not registered.
        key: of the wire.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        name: str,
        boot: int,
        address: Callable[[int], str | None],
        now_ms: Callable[[], int],
        key: WireKey | None = None,
    ) -> None:
        self._loop = loop
        self._name = f"{name}/bulk"
        self._boot = boot
        self._address = address
        self._now_ms = now_ms
        self._key = key
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._ways: dict[int, Way] = {}
        self._flush_scheduled = False

    def __len__(self) -> int:
        """Ways that are open."""
        return len(self._ways)

    async def request(self, shard: int, op: str, fields: dict[str, Any]) -> Answer:
        """As ShardPeer.request. Raises ShardDownError, ShardRefusedError."""
        address = self._address(shard)
        if address is None:
            raise ShardDownError(f"shard {shard} is away now; try again")
        way = self._ways.get(shard) or self._open(shard, address)
        if way.peer.address != address:
            way.there.clear()
            way.peer.reach(address)
        way.users += 1
        if way.idle is not None:
            way.idle.cancel()
            way.idle = None
        try:
            if not way.there.is_set():
                await asyncio.wait_for(way.there.wait(), limits.BULK_GREETING_MS / 1000)
            return await way.peer.request(op, fields)
        except TimeoutError:
            raise ShardDownError(f"shard {shard} is away now; try again") from None
        finally:
            way.users -= 1
            if not way.users:
                way.idle = self._loop.call_later(limits.BULK_IDLE_MS / 1000, self._close_idle, shard)

    def close(self) -> None:
        """Closes all connections, for the process ends."""
        for way in self._ways.values():
            if way.idle is not None:
                way.idle.cancel()
            way.peer.close()
        self._ways.clear()
        if self._context is not None:
            self._context.term()

    def _open(self, shard: int, address: str) -> Way:
        if self._context is None:
            self._context = keys.context(self._key)
        way = self._ways[shard] = Way()
        way.peer = BulkPeer(
            self._loop,
            self._context,
            shard=shard,
            address=address,
            frontend=self._name,
            boot=self._boot,
            now_ms=self._now_ms,
            schedule_flush=self._schedule_flush,
            flush=self._flush,
            watch=way,
        )
        return way

    def _close_idle(self, shard: int) -> None:
        self._ways.pop(shard).peer.close()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        for way in list(self._ways.values()):
            way.peer.flush()
