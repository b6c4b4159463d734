"""Shard connections: the connections of one frontend or gateway, with the map and the owners of queues.

There is a connection to every shard that is registered or was named at the start (`add`). It stays while the
shard is down, follows the shard to another address, and is closed when the shard is removed.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, Final

from lightrail.cluster.coordinator import Coordinator, CoordinatorError
from lightrail.cluster.map import Map, MapChanges
from lightrail.model import conditions, limits, names
from lightrail.model.clock import wall_ms
from lightrail.model.placement import Placement
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.owners.owners import Owners
from lightrail.shard_client.peers.pool import BulkPeer, OncePerTurn, Pool
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.shard_client.peers.shards import ConnectionState, ShardPeer
from lightrail.wire.bodies import Answer, Refusal
from lightrail.wire.sockets.wiring import Wiring

BULK_IDLE_MS: Final[int] = 60_000
"""Idle time after which the connection for large answers is closed."""

log = logging.getLogger("lightrail.shard_client.shard_connections")

START_WAIT_S: Final = 10.0
"""How long a start waits for registered shards; after that the process serves with the connected ones."""


class _LookUp:
    """The look-up of a queue's shard, and those who wait for it, one after the other."""

    __slots__ = ("placing", "turn", "users")

    def __init__(self, placing: "asyncio.Future[Placement]") -> None:
        self.turn = asyncio.Lock()
        self.users = 0
        self.ask(placing)

    def ask(self, placing: "asyncio.Future[Placement]") -> None:
        self.placing = placing
        """The answer of the coordinator, for those who ask before it comes."""
        # An error is for those who still wait.
        placing.add_done_callback(lambda done: done.cancelled() or done.exception())


class ShardConnections:
    """One connection to each shard.

    Args:
        name: of this process, unique in the installation.
        boot: random number of this process.
        now_ms: wall clock, in milliseconds since 1970.
        schedule_flush: requests a call of `flush` at the end of this turn.
        flush: calls that of this object, with what else the process sends; None: the connections do both.
        shard_wait_ms: how long senders wait for a shard that does not serve; 0: no limit.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        loop: asyncio.AbstractEventLoop,
        wiring: Wiring,
        *,
        name: str,
        boot: int,
        now_ms: Callable[[], int] = wall_ms,
        schedule_flush: Callable[[], None] | None = None,
        flush: Callable[[], None] | None = None,
        shard_wait_ms: int = 0,
    ) -> None:
        self.peers: dict[int, ShardPeer] = {}
        self.now_ms = now_ms
        self.map = Map(coordinator)
        self.owners = Owners(self, loop, now_ms=now_ms, shard_wait_ms=shard_wait_ms)
        self.moved = 0
        """Counts moves of queues."""
        self._coordinator = coordinator
        self._loop = loop
        self._name = name
        self.boot = boot
        own = OncePerTurn(loop, self.flush)
        self._schedule_flush = schedule_flush or own.request
        self._flush = flush or own.call
        self.wiring = wiring
        self.bulk = Pool(
            loop,
            wiring,
            name=f"{name}/bulk",
            boot=boot,
            address=self._address,
            now_ms=now_ms,
            idle_ms=BULK_IDLE_MS,
            make=BulkPeer,
        )
        """Connections for answers of megabytes; none is open before the first request."""
        self._links = itertools.count(1)
        self._look_ups: dict[str, _LookUp] = {}
        self.boots: dict[int, int] = {}
        """Boot numbers of the registered shard processes."""
        self._answers: dict[str, Placement] = {}
        """Placements from answers of the coordinator that are not in the map yet."""
        self._unreadable = False
        self._was_ready = False
        self._started = loop.time()
        self.map.listen(self._changed)
        coordinator.on_news(self.refresh)

    # --- shards ----------------------------------------------------------------------------------------

    def add(self, shard: int, address: str) -> None:
        """Connects to a shard, which need not serve yet."""
        peer = self.peers[shard] = ShardPeer(
            self._loop,
            self.wiring,
            shard=shard,
            address=address,
            frontend=self._name,
            boot=self.boot,
            now_ms=self.now_ms,
            schedule_flush=self._schedule_flush,
            flush=self._flush,
            watch=self.owners,
        )
        self.owners.joined(peer)

    def _follow(self, shard: int) -> None:
        """Handles a shard that was registered, has ended, or has a new address."""
        member = self.map.shards.get(shard)
        peer = self.peers.get(shard)
        if member is not None and member.address:
            if peer is None:
                log.info("shard %d is at %s", shard, member.address)
                self.add(shard, member.address)
            elif peer.address != member.address or (
                self.boots.get(shard, member.boot) != member.boot
                # The shard may have answered the greeting before its registration arrived here; a new
                # connection would repeat all unsettled deliveries.
                and peer.serving_boot != member.boot
            ):
                log.info("shard %d is at %s now", shard, member.address)
                peer.reach(member.address)
            self.boots[shard] = member.boot
        elif member is None and peer is not None and shard in self.boots.keys() - self.map.shard_records:
            log.info("shard %d is no longer part of this installation", shard)
            del self.peers[shard], self.boots[shard]
            self.owners.removed(peer)
            peer.close()

    def flush(self) -> None:
        """Sends the collected frames of each shard."""
        for peer in self.peers.values():
            peer.flush()

    def not_serving(self) -> list[int]:
        """Shards that do not serve."""
        return sorted(
            shard for shard, peer in self.peers.items() if peer.state is not ConnectionState.SERVING
        )

    def not_ready(self) -> str | None:
        """Why messages can't be sent and received now, or None.

        Once every shard was greeted, or START_WAIT_S have passed, the process stays ready, so that it stays
        in service when one of many shards is down.
        """
        if self._was_ready:
            return None
        missing = self.not_serving()
        if (missing or not self.peers) and self._loop.time() - self._started < START_WAIT_S:
            return f"waiting for shard {', '.join(map(str, missing))}" if missing else "waiting for a shard"
        self._was_ready = True
        return None

    async def until_ready(self) -> None:
        """Waits until `not_ready` is None; polls every few milliseconds, once in the life of the process."""
        while self.not_ready():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def _address(self, shard: int) -> str | None:
        peer = self.peers.get(shard)
        return None if peer is None else peer.address

    # --- links and requests ----------------------------------------------------------------------------

    def next_link(self) -> int:
        """A number for a link, unique in the lifetime of this process."""
        return next(self._links)

    async def route(self, queue: str) -> Owner:
        """The owner of a queue or relay, which is placed if necessary; open a link before the loop turns.

        Raises CoordinatorError.
        """
        return self.owners.at(queue, await self.find(queue))

    async def find(self, queue: str) -> Placement:
        """The placement of a queue or relay, which is placed if necessary.

        Callers continue in the order of their calls, so that messages don't overtake one another. Raises
        CoordinatorError, to all who wait for one look-up.
        """
        known = self.placement(queue)
        look_up = self._look_ups.get(queue)
        if look_up is None:
            if known is not None:
                return known
            look_up = self._look_ups[queue] = _LookUp(self._loop.create_task(self.place(queue)))
        elif known is None and look_up.placing.done():
            # Others still wait for their turn, with an error or a placement that is outdated.
            look_up.ask(self._loop.create_task(self.place(queue)))
        placing = look_up.placing
        look_up.users += 1
        try:
            async with look_up.turn:
                known = self.placement(queue)
                return await asyncio.shield(placing) if known is None else known
        finally:
            look_up.users -= 1
            if not look_up.users:
                del self._look_ups[queue]

    def looks_up(self, queue: str) -> bool:
        """Whether callers look up a queue now; later callers have to wait behind them to keep the order."""
        return queue in self._look_ups

    def placed(self, queue: str) -> ShardPeer | None:
        """The shard of a queue if both are known here, otherwise None."""
        known = self.placement(queue)
        return None if known is None else self.peers.get(known.shard)

    async def request(self, queue: str, op: str, fields: dict[str, Any]) -> Answer:
        """See Owners.request."""
        return await self.owners.request(queue, op, fields)

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

    # --- placements ------------------------------------------------------------------------------------

    def peer(self, shard: int) -> ShardPeer | None:
        """The connection to a shard, or None while its address is not known."""
        return self.peers.get(shard)

    def placement(self, queue: str) -> Placement | None:
        """The placement of a queue that this process knows, or None."""
        placed = self.map.placed(queue)
        if placed is not None:
            return placed.placement
        return self._answers.get(queue)

    def is_frozen(self, queue: str, epoch: int) -> bool:
        """Whether a move is known to freeze the queue at its shard in this epoch.

        The shard refuses links until the queue is placed anew.
        """
        move = self.map.moves.get(names.owner(queue))
        return move is not None and move.phase == "frozen" and move.epoch == epoch

    async def place(self, queue: str) -> Placement:
        """The placement of a queue; a queue without one is placed. Raises CoordinatorError."""
        known = self.placement(queue)
        if known is None:
            coordinator = self._coordinator
            answer = await coordinator.placement(queue) or await coordinator.place(queue)
            self.refresh()
            known = self.placement(queue)
            if known is None:
                if len(self._answers) >= limits.QUEUES_MAX:
                    self._answers.clear()
                known = self._answers[queue] = answer
        return known

    def forget(self, queue: str) -> None:
        """Forgets the coordinator's answer about a queue, because it may be outdated."""
        if self._answers:
            self._answers.pop(queue, None)
            self._answers.pop(names.dead_letter_name(queue), None)

    async def lost(self, queue: str) -> Refusal | None:
        """Why a queue does not exist, by the coordinator; None if it exists, or this is not known."""
        try:
            if await self._coordinator.placement(queue) is not None:
                return None
        except CoordinatorError:
            return None
        self.refresh()
        if self.map.placed(queue) is not None:
            return None
        return Refusal(conditions.RESOURCE_DELETED, f"{queue} was deleted")

    # --- news ------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Applies changes of placements and shards, if the coordinator can be read."""
        try:
            self.map.refresh()
        except CoordinatorError as error:
            if not self._unreadable:
                log.warning("placements can't be read: %s", error)
            self._unreadable = True
        else:
            self._unreadable = False

    def _changed(self, changes: MapChanges) -> None:
        for shard in changes.shards:
            self._follow(shard)
        for queue in changes.placements:
            self.forget(queue)
        for queue in changes.placements:
            placed = self.map.placed(queue)
            # No frames are in transit to a queue that was placed for the first time.
            if placed is not None and placed.moved:
                self.moved += 1
                break
        if changes.placements or changes.shards:
            self.owners.changed(changes.placements)

    def close(self) -> None:
        """Closes all connections, with a GOODBYE to each shard."""
        self.bulk.close()
        self.owners.close()
        for peer in self.peers.values():
            peer.close()
