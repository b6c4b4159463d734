"""Router sender: HTTP messages to routers, by the same plans as in frontends, with one lane per shard."""

import asyncio
from collections.abc import Iterable

from lightrail.gateway.errors import ProblemError, refused, unknown
from lightrail.gateway.messages.outgoing import Outgoing
from lightrail.model import conditions, limits
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import Name
from lightrail.namespace.router_plan import Group, Plan
from lightrail.namespace.routers import Routers
from lightrail.namespace.routing import UNROUTABLE
from lightrail.namespace.spreading import Spread, Ways
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


class _Request(Spread):
    """One message on its way to the queues of a router."""

    __slots__ = ("answered", "carried", "refusals")

    def __init__(
        self, attributes: Attributes, came_ms: int, answered: "asyncio.Future[None]", carried: Carried
    ) -> None:
        super().__init__(attributes, came_ms)
        self.answered = answered
        """Completed when all loads are answered."""
        self.carried = carried
        self.refusals: list[Refusal] = []
        # The loads are not all sent before the shards of their queues are found: see `one_answered`.
        self.outstanding = 1

    def stored(self, load: Load) -> None:
        """Another attempt does not send this load again, even if the time of this one is up."""
        self.carried.update((load.payloads[0], queue) for queue in load.queues)
        self.one_answered()

    def refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)
        self.one_answered()

    def one_answered(self) -> None:
        """A load is answered, or, once, all loads are sent."""
        self.outstanding -= 1
        if not self.outstanding and not self.answered.done():
            self.answered.set_result(None)


class RouterSender:
    """Sends messages to routers."""

    def __init__(
        self, shards: ShardConnections, directory: Directory, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._shards = shards
        self._directory = directory
        self._loop = loop
        self.routers = Routers(
            directory, lambda wait_ms, call: loop.call_later(wait_ms / 1000, call), shards.now_ms
        )
        self._ways = Ways(shards, directory, self._open_lane)
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
            plan = await self.plan(record)
            if plan.problem:
                raise refused(conditions.RESOURCE_LIMIT_EXCEEDED, plan.problem)
            groups, unroutable = await self.routers.routed(plan.begin([message.message], self.routers.looks))
            if unroutable and not carried:
                if plan.policy["unroutable"] == "reject":
                    raise UnroutableError(record.name)
                return
            attributes = Attributes(message.durable, message.priority, message.expires_at_ms, 0)
            request = _Request(attributes, came_ms, self._loop.create_future(), carried)
            refusal = await self._spread(record.name, groups, plan, request)
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

    async def plan(self, record: Name) -> Plan:
        """The plan of a router. While it feeds no queue, senders wait for as long as its policy allows."""
        self._directory.refresh()
        wait_ms = record.policy.milliseconds("buffer_timeout") or 0
        deadline = self._loop.time() + wait_ms / 1000
        while True:
            plan = await self.routers.plan(record.name)
            if plan is None:
                raise refused(conditions.RESOURCE_DELETED, f"{record.name} is no router any more")
            left = deadline - self._loop.time()
            if not plan.is_empty or plan.problem or left <= 0:
                return plan
            await self.routers.change(left)

    async def _spread(
        self, router: str, groups: Iterable[Group], plan: Plan, request: _Request
    ) -> Refusal | None:
        """Sends the message to queues that have not stored it; returns the first refusal, or None."""
        for group in groups:
            for payload in group.payloads:
                queues = frozenset(queue for queue in group.queues if (payload, queue) not in request.carried)
                for queue in queues:
                    await self._shards.find(queue)
                missing: list[str] = []
                ways = self._ways.find(queues, plan.ages_ms, missing)
                for queue in missing:
                    if self._shards.placement(queue) is not None:
                        raise ShardDownError(f"the shard of {queue} is not registered; try again")
                    # It was deleted while the shard of another queue was looked up.
                    request.refusals.append(Refusal(conditions.RESOURCE_DELETED, f"{queue} was deleted"))
                for way in ways:
                    way.send(request, (0,), (payload,))
        request.one_answered()
        await asyncio.wait([request.answered], timeout=limits.REQUEST_MS / 1000)
        if not request.answered.done():
            raise unknown(router)
        # A final refusal has precedence over one after which the client may try again.
        refusals = sorted(request.refusals, key=lambda each: each.condition == conditions.MOVED)
        return refusals[0] if refusals else None

    def close(self) -> None:
        self._ways.close()

    def _open_lane(self, peer: ShardPeer) -> Lane:
        return Lane(
            peer,
            self._shards.next_link(),
            label="http",
            stored=_stored,
            refused=_refused,
            displaced=_displaced,
        )

    def _changed(self, changes: Changes) -> None:
        if changes.names:
            self._ways.forget()


def _stored(loads: list[Load]) -> None:
    for load in loads:
        load.batch.stored(load)


def _displaced(loads: list[Load]) -> None:
    for load in loads:
        _refused(load, Refusal(conditions.MOVED, accepted=load.accepted))


def _refused(load: Load, refusal: Refusal) -> None:
    load.batch.refused(refusal)
