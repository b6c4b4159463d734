"""Shards: the gateway's connections to all shards, as those of a frontend, and the shard of each name."""

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

from lightrail.cluster.coordinator import Coordinator
from lightrail.model import limits
from lightrail.model.clock import wall_ms
from lightrail.model.placement import Placement
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.peers.bulk import BulkPeer
from lightrail.shard_client.peers.pool import Pool
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import Answer
from lightrail.wire.keys import WireKey


class _Turn:
    """Callers that look up one name, one after the other."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Shards:
    """One connection to each shard.

    Args:
        name: of this process, unique in the installation.
        boot: random number, drawn when the process starts.
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
        self.bulk = Pool(
            loop,
            name=f"{name}/bulk",
            boot=boot,
            address=self._address,
            now_ms=self.now_ms,
            idle_ms=limits.BULK_IDLE_MS,
            key=key,
            make=BulkPeer,
        )
        """Connections for answers of megabytes."""
        self._loop = loop
        self._turns: dict[str, _Turn] = {}
        """Names that are being looked up."""
        self._links = itertools.count(1)
        self._flush_scheduled = False

    now_ms = staticmethod(wall_ms)
    """Wall clock in milliseconds since 1970, the unit of locks and expiry times."""

    def add(self, shard: int, address: str) -> None:
        """Connects to a shard, which may start later."""
        self.shard_connections.add(shard, address)

    def not_ready(self) -> str | None:
        """Why messages can't be sent and received now, or None: see ShardConnections."""
        return self.shard_connections.not_ready()

    def _address(self, shard: int) -> str | None:
        peer = self.peers.get(shard)
        return None if peer is None else peer.address

    def next_link(self) -> int:
        """A number for a link, unique in the lifetime of this process."""
        return next(self._links)

    async def route(self, name: str) -> Owner:
        """The owner of a queue or relay, which is placed if necessary; open a link before the loop turns.

        Raises CoordinatorError.
        """
        return self.shard_connections.owners.at(name, await self.find(name))

    async def find(self, name: str) -> Placement:
        """The placement of a queue or relay, which is placed if necessary. Raises CoordinatorError."""
        known = self.shard_connections.placement(name)
        if known is None or name in self._turns:
            known = await self._look_up(name)
        return known

    def looks_up(self, name: str) -> bool:
        """Whether callers look up a name now; later callers have to wait behind them to keep the order."""
        return name in self._turns

    async def _look_up(self, name: str) -> Placement:
        """Callers continue in the order of their calls, so that messages don't overtake one another."""
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
        """Forgets the placements of these names; the next call looks them up again."""
        for name in names:
            self.shard_connections.forget(name)

    async def request(self, name: str, op: str, fields: dict[str, Any]) -> Answer:
        """Sends a request to the shard of a queue.

        Raises ShardDownError, ShardRefusedError, CoordinatorError.
        """
        return await self.shard_connections.owners.request(name, op, fields)

    async def request_all(self, op: str, fields: dict[str, Any]) -> dict[int, Answer]:
        """Sends a request to all shards. Returns the answers by shard, without shards that do not answer.
        Raises ShardRefusedError."""
        peers = [(shard, peer) for shard, peer in sorted(self.peers.items()) if peer.speaks]
        requests = [peer.request(op, fields, wait_ms=limits.OVERVIEW_MS) for _, peer in peers]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        found: dict[int, Answer] = {}
        for (shard, _), answer in zip(peers, answers, strict=True):
            if isinstance(answer, ShardDownError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            found[shard] = answer
        return found

    def close(self) -> None:
        """Disconnects from all shards."""
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
