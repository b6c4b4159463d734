"""Shards: the gateway's links to all shards, and where each name is; it speaks to them as a frontend does."""

import asyncio
import itertools
import time
from collections.abc import Iterable
from typing import Any

import zmq

from lightrail.cluster.coordinator import Coordinator
from lightrail.model import limits
from lightrail.wire.messages import Answer
from lightrail.wire.shards import ShardAway, ShardPeer, State


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
        self, coordinator: Coordinator, loop: asyncio.AbstractEventLoop, *, name: str, boot: int
    ) -> None:
        self.peers: dict[int, ShardPeer] = {}
        self._coordinator = coordinator
        self._loop = loop
        self._name = name
        self._boot = boot
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._routes: dict[str, tuple[int, int]] = {}
        self._turns: dict[str, _Turn] = {}
        """Names that are being looked up."""
        self._links = itertools.count(1)
        self._flush_scheduled = False

    @staticmethod
    def now_ms() -> int:
        """Wall clock: locks and expiry are meant in it."""
        return time.time_ns() // 1_000_000

    def add(self, shard: int, address: str) -> None:
        """Connects to a shard; it may come later."""
        self.peers[shard] = ShardPeer(
            self._loop,
            self._context,
            shard=shard,
            address=address,
            frontend=self._name,
            boot=self._boot,
            now_ms=self.now_ms,
            schedule_flush=self._schedule_flush,
            flush=self._flush,
        )

    def not_ready(self) -> str | None:
        """Why messages can't be sent and received now, or None: every shard has greeted us."""
        away = [str(shard) for shard, peer in self.peers.items() if peer.state is not State.SERVING]
        return f"waiting for shard {', '.join(away)}" if away else None

    async def until_serving(self) -> None:
        """Waits until every shard has greeted us; asked again every few milliseconds, once in our life."""
        while self.not_ready():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def next_link(self) -> int:
        """A number for a link, unique over the life of this process."""
        return next(self._links)

    async def route(self, name: str) -> tuple[ShardPeer, int]:
        """The shard and the epoch of a queue or relay; one that is nowhere yet is placed."""
        known = self._routes.get(name)
        if known is None or name in self._turns:
            known = await self._look_up(name)
        peer = self.peers.get(known[0])
        if peer is None:
            raise ShardAway(f"{name} is on shard {known[0]}, which this gateway does not know")
        return peer, known[1]

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
                known = self._routes.get(name)
                if known is None:
                    if len(self._routes) >= limits.QUEUES_MAX:
                        self._routes.clear()
                    placed = await self._coordinator.place(name)
                    known = self._routes[name] = (placed.shard, placed.epoch)
                return known
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[name]

    def forget(self, names: Iterable[str]) -> None:
        """These may be elsewhere from now on."""
        for name in names:
            self._routes.pop(name, None)
            self._routes.pop(f"{name}/$dlq", None)

    async def request(self, name: str, op: str, fields: dict[str, Any]) -> Answer:
        """Asks the shard of a queue. Raises ShardAway, ShardRefused."""
        peer, _ = await self.route(name)
        return await peer.request(op, {"queue": name, **fields})

    async def request_all(self, op: str, fields: dict[str, Any]) -> list[Answer]:
        """Asks every shard at once, in order of their numbers. Raises ShardAway, ShardRefused."""
        peers = [peer for _, peer in sorted(self.peers.items())]
        return list(await asyncio.gather(*(peer.request(op, fields) for peer in peers)))

    def close(self) -> None:
        """Says goodbye to all of them."""
        for peer in self.peers.values():
            peer.close()
        self._context.term()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        for peer in self.peers.values():
            peer.flush()
