"""Router sender: HTTP messages to routers, by the same plans as in frontends, with one lane per shard."""

import asyncio
from collections.abc import Iterable, Mapping

from lightrail.filters.looks import Looks
from lightrail.gateway.errors import ProblemError, refused, unknown
from lightrail.gateway.links.outgoing import Outgoing
from lightrail.model import conditions, limits
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import Name
from lightrail.namespace.router_plan import Group, Plan, Routed, Walk, earlier_expiry
from lightrail.namespace.routing import UNROUTABLE, Routing
from lightrail.namespace.statuses import STATUS_OF
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.shard_client.sending.lanes import QUEUE_MISSING, Lane, Load
from lightrail.shard_client.sending.window import Attributes
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import Refusal

Carried = set[tuple[bytes, str]]
"""(encoded message, queue) of each stored message."""


class UnroutableError(ProblemError):
    """No subscription matches a message, and the router's policy rejects such messages."""

    def __init__(self, router: str) -> None:
        condition = conditions.NOT_FOUND
        super().__init__(STATUS_OF[condition], UNROUTABLE.format(router=router), condition=condition)


class RouterSender:
    """Sends messages to routers."""

    def __init__(
        self, shards: ShardConnections, directory: Directory, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._shards = shards
        self._directory = directory
        self._loop = loop
        self._routing = Routing(directory)
        self._lanes: dict[int, Lane] = {}
        self.looks = Looks()
        """Budget of filtering for all requests in one turn of the loop."""
        self._next_turn: asyncio.Future[None] | None = None
        self._change: asyncio.Future[None] = loop.create_future()
        """Completed when a name or subscription changes."""
        directory.listen(self._changed)

    async def send(self, record: Name, message: Outgoing, carried: Carried | None = None) -> None:
        """Sends a message to a router; returns once every queue that the router chooses has stored it.

        Args:
            carried: of earlier attempts to send this message; it gets what this attempt stores.

        Raises ProblemError: no queue is chosen and the policy rejects such messages, a queue refused the
        message, or a shard did not answer in time. Raises ShardDownError.
        """
        carried = set() if carried is None else carried
        until = self._loop.time() + limits.REQUEST_MS / 1000
        came_ms = self._shards.now_ms()
        pause_ms = limits.OWNER_RETRY_MS
        is_repeated = False
        while True:
            plan = await self.plan(record, self._routing)
            if plan.problem:
                raise refused(conditions.RESOURCE_LIMIT_EXCEEDED, plan.problem)
            groups, unroutable = await self.walked(plan.begin([message.message], self.looks))
            if unroutable and not carried:
                if plan.policy["unroutable"] == "reject":
                    raise UnroutableError(record.name)
                return
            latest = {queue: came_ms + age_ms for queue, age_ms in plan.ages_ms.items()}
            refusal = await self._spread(record.name, groups, message, carried, latest)
            if refusal is None:
                return
            if refusal.condition == conditions.MOVED:
                # Its queue was moving: the message is sent again to queues that have not stored it.
                if self._loop.time() + pause_ms / 1000 > until:
                    raise unknown(record.name)
                await self._shards.owners.change(pause_ms)
                pause_ms = min(2 * pause_ms, limits.OWNER_RETRY_MS_MAX)
                continue
            if refusal.condition not in QUEUE_MISSING or is_repeated:
                break
            is_repeated = True
            # A queue was deleted: the message is routed once more, to the queues that exist now.
            for queue in {queue for group in groups for queue in group.queues}:
                self._shards.forget(queue)
        raise refused(refusal.condition, refusal.description)

    async def walked(self, walk: Walk) -> Routed:
        """Applies a plan to messages and returns their queues; a long walk yields to other requests."""
        self._begin_turn()
        while not walk.go_on():
            await self._turn()
        assert walk.routed is not None
        return walk.routed

    def _begin_turn(self) -> None:
        """Renews the budget of filtering in the next turn of the loop."""
        if self._next_turn is None:
            self._next_turn = self._loop.create_future()
            self._loop.call_later(0, self._end_turn)

    async def _turn(self) -> None:
        self._begin_turn()
        assert self._next_turn is not None
        await asyncio.shield(self._next_turn)

    def _end_turn(self) -> None:
        turn, self._next_turn = self._next_turn, None
        self.looks.begin()
        if turn is not None:
            turn.set_result(None)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    async def plan(self, record: Name, routing: Routing) -> Plan:
        """The plan of a router. While it feeds no queue, senders wait for as long as its policy allows."""
        self._directory.refresh()
        wait_ms = record.policy.milliseconds("buffer_timeout") or 0
        deadline = self._loop.time() + wait_ms / 1000
        while True:
            while not routing.prepare(record.name, self._shards.now_ms(), self.looks):
                await self._turn()
            plan = routing.plan(record.name, self._shards.now_ms())
            if plan is None:
                raise refused(conditions.RESOURCE_DELETED, f"{record.name} is no router any more")
            left = deadline - self._loop.time()
            if not plan.is_empty or plan.problem or left <= 0:
                return plan
            await asyncio.wait([self._change], timeout=left)

    async def _spread(
        self,
        router: str,
        groups: Iterable[Group],
        message: Outgoing,
        carried: Carried,
        latest: Mapping[str, int],
    ) -> Refusal | None:
        """Sends the message to queues that have not stored it; returns the first refusal, or None.

        Args:
            latest: time of the latest expiry by queue, in milliseconds since the epoch, where there is one.
        """
        attributes = Attributes(message.durable, message.priority, message.expires_at_ms, 0)
        sent: list[tuple[bytes, Load]] = []
        for group in groups:
            for payload in group.payloads:
                by_shard: dict[tuple[int, int | None], tuple[ShardPeer, set[str]]] = {}
                for queue in group.queues:
                    if (payload, queue) not in carried:
                        shard, _ = await self._shards.find(queue)
                        peer = self._shards.peer(shard)
                        if peer is None:
                            raise ShardDownError(f"{queue} is on shard {shard}, which is not registered")
                        by_shard.setdefault((peer.shard, latest.get(queue)), (peer, set()))[1].add(queue)
                for (_, latest_ms), (peer, queues) in by_shard.items():
                    load = Load(self._loop.create_future(), frozenset(queues), (0,))
                    aged = attributes
                    if latest_ms is not None:
                        expires = earlier_expiry(attributes.expires_at_ms, latest_ms)
                        aged = attributes._replace(expires_at_ms=expires)
                    self._lane(peer).send(load, [payload], aged)
                    sent.append((payload, load))
        if not sent:
            return None
        done, late = await asyncio.wait([load.batch for _, load in sent], timeout=limits.REQUEST_MS / 1000)
        if late:
            raise unknown(router)
        for payload, load in sent:
            if load.batch.result() is None:
                carried.update((payload, queue) for queue in load.queues)
        refusals = [each.result() for each in done if each.result() is not None]
        # A final refusal has precedence over one after which the client may try again.
        refusals.sort(key=lambda refusal: refusal.condition == conditions.MOVED)
        return refusals[0] if refusals else None

    def _lane(self, peer: ShardPeer) -> Lane:
        lane = self._lanes.get(peer.shard)
        if lane is None or lane.peer is not peer:
            lane = self._lanes[peer.shard] = Lane(
                peer,
                self._shards.next_link(),
                label="http",
                stored=_stored,
                refused=_refused,
                displaced=_displaced,
            )
        return lane

    def _changed(self, changes: Changes) -> None:
        if changes.names:
            for lane in self._lanes.values():
                lane.forget_sets()
        change, self._change = self._change, self._loop.create_future()
        change.set_result(None)


def _stored(loads: list[Load]) -> None:
    for load in loads:
        if not load.batch.done():
            load.batch.set_result(None)


def _displaced(loads: list[Load]) -> None:
    for load in loads:
        _refused(load, Refusal(conditions.MOVED, accepted=load.accepted))


def _refused(load: Load, refusal: Refusal) -> None:
    if not load.batch.done():
        load.batch.set_result(refusal)
