"""Shards: the gateway's links to all shards, and where each name is; it speaks to them as a frontend does."""

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

from lightrail.cluster.coordinator import Coordinator
from lightrail.cluster.shard_connections import ShardConnections
from lightrail.model import limits
from lightrail.model.clock import wall_ms
from lightrail.wire.bodies import Answer
from lightrail.wire.bulk import BulkPeers
from lightrail.wire.keys import WireKey
from lightrail.wire.owner import Owner
from lightrail.wire.requests import ShardDownError
from lightrail.wire.shards import ShardPeer


class _Turn:
    """Those who want to know where a name is, one after the other."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Shards:
    """One link to each shard.

    Args:
        name: of this process, unique in the installation.
        boot: drawn when the process starts.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        loop: asyncio.AbstractEventLoop,
        *,
        name: str,
        boot: int,
        key: WireKey | None = None,
    ) -> None:
        self.shard_connections = ShardConnections(
            coordinator,
            loop,
            name=name,
            boot=boot,
            now_ms=self.now_ms,
            schedule_flush=self._schedule_flush,
            flush=self._flush,
            key=key,
        )
        self.peers: dict[int, ShardPeer] = self.shard_connections.peers
        self.bulk = BulkPeers(loop, name=name, boot=boot, address=self._address, now_ms=self.now_ms, key=key)
        """For answers of megabytes."""
        self._loop = loop
        self._turns: dict[str, _Turn] = {}
        """Names that are being looked up."""
        self._links = itertools.count(1)
        self._flush_scheduled = False

    @staticmethod
    def now_ms() -> int:
        """Wall clock: locks and expiry are meant in it."""
        return wall_ms()

    def add(self, shard: int, address: str) -> None:
        """Connects to a shard; it may come later."""
        self.shard_connections.add(shard, address)

    def not_ready(self) -> str | None:
        """Why messages can't be sent and received now, or None: see ShardConnections."""
        return self.shard_connections.not_ready()

    def _address(self, shard: int) -> str | None:
        peer = self.peers.get(shard)
        return None if peer is None else peer.address

    def next_link(self) -> int:
        """A number for a link, unique over the life of this process."""
        return next(self._links)

    async def route(self, name: str) -> Owner:
        """The owner of a queue or relay, for a link that is opened there before the loop turns; one that is
        nowhere yet is placed. Raises CoordinatorError."""
        return self.shard_connections.owners.at(name, await self.find(name))

    async def find(self, name: str) -> tuple[int, int]:
        """The shard and the epoch of the same."""
        known = self.shard_connections.where(name)
        if known is None or name in self._turns:
            known = await self._look_up(name)
        return known

    def looks_up(self, name: str) -> bool:
        """Whether some wait to know where a name is: what is sent to it now has to wait behind them."""
        return name in self._turns

    async def _look_up(self, name: str) -> tuple[int, int]:
        """Callers get on in the order they came, those who come meanwhile behind them.

        What each of them sends next would otherwise overtake what waits here, and a queue's order be lost.
        """
        turn = self._turns.setdefault(name, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                return await self.shard_connections.place(name)
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[name]

    def forget(self, names: Iterable[str]) -> None:
        """These may be elsewhere from now on."""
        for name in names:
            self.shard_connections.forget(name)

    async def request(self, name: str, op: str, fields: dict[str, Any]) -> Answer:
        """Asks the shard of a queue. Raises ShardDownError, ShardRefusedError, CoordinatorError."""
        return await self.shard_connections.request(name, op, fields)

    async def request_all(self, op: str, fields: dict[str, Any]) -> dict[int, Answer]:
        """Asks all at once: answers by shard, in order, where they answer. Raises ShardRefusedError."""
        peers = [(shard, peer) for shard, peer in sorted(self.peers.items()) if peer.speaks]
        asked = [peer.request(op, fields, wait_ms=limits.OVERVIEW_MS) for _, peer in peers]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: dict[int, Answer] = {}
        for (shard, _), answer in zip(peers, answers, strict=True):
            if isinstance(answer, ShardDownError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            found[shard] = answer
        return found

    def close(self) -> None:
        """Says goodbye to all of them."""
        self.bulk.close()
        self.shard_connections.close()
        self.shard_connections.end()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self.shard_connections.flush()
