"""A link that sends to a router: a plan distributes its batches, and each is answered when all parts are.

A batch is routed by the plan when it arrives, and becomes one frame per set of queues on one shard
(shard_client/sending/lanes.py). It is accepted when every frame with its messages is; messages of a refused
frame are rejected with the frame's reason. While the shard of a queue has to be looked up, or there is no
subscription yet and the policy lets senders wait, batches wait in their order; credit bounds their number.

When a queue moves, its shard returns frames for it, with all frames behind them. They are sent to the queues'
new shards, in their order, before any other frames of the link.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from lightrail.amqp.events import Transfers
from lightrail.frontend.links.batched import BATCHED
from lightrail.frontend.links.incoming import IncomingLink
from lightrail.frontend.links.routed import OneOutcome, RoutedBatch, settle, until_placed
from lightrail.frontend.links.terminus import container_of, left_out
from lightrail.model import conditions, limits
from lightrail.namespace.ages import ages_again
from lightrail.namespace.router_plan import Plan, Routed
from lightrail.namespace.routers import Routers
from lightrail.namespace.routing import NO_ROUTER, UNROUTABLE
from lightrail.namespace.spreading import ShardRoute, Ways, left_over
from lightrail.shard_client.sending.lanes import Again, Lane, Load, again
from lightrail.shard_client.sending.window import MAYBE_STORED, NOT_STORED, Attributes
from lightrail.wire.bodies import Refusal

if TYPE_CHECKING:
    from lightrail.shard_client.peers.shards import ShardPeer

log = logging.getLogger("lightrail.frontend.links.routing")


@dataclass(slots=True, eq=False, repr=False)
class RouterLink(IncomingLink):
    """One incoming link (the client sends) bound to a router."""

    _: KW_ONLY
    router: str
    label: str = ""
    _routers: Routers = field(init=False)
    _ways: Ways = field(init=False)
    _plan: Plan | None = None
    _waiting: deque[RoutedBatch] = field(default_factory=deque)
    _looking_up: bool = False
    _has_timer: bool = False
    _adrift: list[Load] = field(default_factory=list)
    """Loads that shards returned, in order."""
    _pause_ms: int = limits.OWNER_RETRY_MS

    def __post_init__(self) -> None:
        IncomingLink.__post_init__(self)
        frontend = self._frontend
        self._routers = frontend.routers
        self._ways = Ways(frontend.shard_connections, frontend.directory, self._open_lane)

    def _open_lane(self, peer: "ShardPeer") -> Lane:
        return Lane(
            peer,
            self._frontend.next_link(),
            label=self.label,
            on_stored=self._answered,
            on_refused=self._refused,
            on_displaced=self._displaced,
            on_time_out=self._timed_out,
            on_reconnect=self._go_on_after_wait,
        )

    def start(self) -> None:
        """Answers the attach: there is no shard to wait for."""
        self._attach()

    # --- from the client -------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """Distributes a batch by the plan."""
        if event.message_format == BATCHED:
            for found in self._unpacked(event, now_ms, by_priority=True):
                whole = OneOutcome(len(found))
                for run in found:
                    self._accept(run.event, now_ms, whole)
            return
        self._accept(event, now_ms)

    def _accept(self, event: Transfers, now_ms: int, whole: OneOutcome | None = None) -> None:
        size = sum(map(len, event.payloads))
        attributes = Attributes(*self._attributes(event, now_ms), event.message_format)
        batch = RoutedBatch(event, size, attributes, now_ms, whole)
        self._take(batch.count, size)
        if self._waiting or self._adrift or not self._route(batch, now_ms):
            self._waiting.append(batch)

    def _route(self, batch: RoutedBatch, now_ms: int) -> bool:
        """Sends a batch to its queues, or refuses it; returns False if it has to wait."""
        self._frontend.poll()
        ways = self._ways
        if ways.moved != ways.connections.moved:
            ways.follow()
        if ways.leaving and not ways.has_left:
            return False
        routers = self._routers
        if not routers.routing.prepare(self.router, now_ms, routers.looks):
            routers.wait_prepared(self)
            return False
        plan = routers.routing.plan(self.router, now_ms)
        if plan is not self._plan:
            self._plan = plan
            ways.forget()
        if plan is None:
            self._end_with(batch)
            return True
        if plan.problem:
            self._give_up(batch, plan.problem)
            return True
        if plan.is_empty and self._may_wait(batch, plan, now_ms):
            return False
        routed = self._routed(batch, plan)
        return routed is not None and self._distribute(batch, plan, routed)

    def _distribute(self, batch: RoutedBatch, plan: Plan, routed: Routed) -> bool:
        """Sends the groups of a batch; returns False if the shard of a queue has to be looked up."""
        groups, unroutable = left_out(routed, plan, container_of(self._link)) if plan.no_local else routed
        ways = self._ways
        unknown: list[str] = []
        found = [(group, ways.to(group.queues, plan.ages_ms, unknown)) for group in groups]
        if unknown:
            self._look_up(unknown)
            return False
        if unroutable:
            self._unroutable(batch, unroutable, plan)
        copies = 0
        for group, its_ways in found:
            copies += len(group.indices) * len(group.queues)
            for way in its_ways:
                way.send(batch, group.indices, group.payloads)
        self._counts.messages_routed += copies
        if self._closed:
            ways.abandon()
        if not batch.outstanding:
            self._finish([batch])
        return True

    def _routed(self, batch: RoutedBatch, plan: Plan) -> Routed | None:
        """The queues of each message by the plan; None if the looks of this turn are used up."""
        routers = self._routers
        walk = batch.walk
        if walk is None:
            routed = plan.at_once(batch.payloads, routers.looks)
            if routed is not None:
                if routers.looks.is_used:
                    routers.begin_turn()
                return routed
        if walk is None or walk.plan is not plan:
            walk = batch.walk = plan.begin(batch.payloads, routers.looks, batch.came_ms)
        routers.begin_turn()
        if not walk.route_more():
            routers.wait_turn(self)
        return walk.routed

    # --- queues that move ------------------------------------------------------------------------------

    def _displaced(self, loads: list[Load]) -> None:
        """A shard returned loads: sends them again when their queues are found, or after a pause."""
        self._ways.known.clear()
        if not self._adrift:
            self._frontend.spawn(self._send_again())
        self._adrift += loads

    async def _send_again(self) -> None:
        frontend = self._frontend
        await frontend.shard_connections.owners.change(self._pause_ms)
        # An answer may have set it back meanwhile.
        self._pause_ms = min(2 * self._pause_ms, limits.OWNER_RETRY_MS_MAX)
        try:
            for queue in {queue for load in self._adrift for queue in load.queues}:
                await frontend.find(queue)
        except Exception:
            log.exception("the new shards of the queues of %s could not be found", self.router)
            frontend.spawn(self._send_again())
            return
        loads, self._adrift = self._adrift, []
        self._ways.follow()
        ages_ms = {} if self._plan is None else self._plan.ages_ms
        for index, load in enumerate(loads):
            unknown: list[str] = []
            ways = self._ways.find(load.queues, ages_again(load.queues, ages_ms), unknown)
            if unknown:
                # The shard of a queue is not registered yet.
                self._adrift = loads[index:]
                frontend.spawn(self._send_again())
                return
            self._send_elsewhere(load, ways)
        self.route_waiting()

    def _send_elsewhere(self, load: Load, ways: list[ShardRoute]) -> None:
        batch: RoutedBatch = load.batch
        indices = load.indices[load.accepted :]
        payloads = load.payloads[load.accepted :]
        for way in ways:
            way.send(batch, indices, payloads, is_repeated=load.is_repeated)
            if self._closed:
                way.lane.abandon()
        batch.loads.remove(load)
        self._stored([load])

    def _timed_out(self, loads: list[Load]) -> None:
        """A shard is lost for longer than senders wait: releases the messages, or modifies them."""
        for load in loads:
            load.batch.refuse(load.indices, MAYBE_STORED if load.may_be_stored else NOT_STORED)
        self._wait()
        self._stored(loads)

    # --- waiting batches -------------------------------------------------------------------------------

    def _may_wait(self, batch: RoutedBatch, plan: Plan, now_ms: int) -> bool:
        """Whether a batch without any queue waits for a first subscription, as the policy allows."""
        wait_ms = plan.policy.milliseconds("buffer_timeout") or 0
        left = batch.came_ms + wait_ms - now_ms
        if left <= 0:
            return False
        self._routers.wait(self)
        if not self._has_timer:
            self._has_timer = True
            self._frontend.later(left, self._end_wait)
        return True

    def _end_wait(self) -> None:
        self._has_timer = False
        self.route_waiting()

    def _look_up(self, queues: list[str]) -> None:
        if not self._looking_up:
            self._looking_up = True
            self._frontend.spawn(self._find(queues))

    async def _find(self, queues: list[str]) -> None:
        """Looks up the shards of queues, then continues with the batches that wait for them."""
        refusal: Refusal | None = None
        try:
            for queue in queues:
                await self._frontend.find(queue)
                if self._frontend.placed(queue) is None:
                    # The shard of a queue is not registered yet.
                    await self._frontend.shard_connections.owners.change(limits.OWNER_RETRY_MS_MAX)
        except Exception:
            log.exception("the coordinator could not place the queues of %s", self.router)
            refusal = Refusal(conditions.INTERNAL_ERROR, "the shard of a queue is not known; try again")
        self._looking_up = False
        if refusal is not None and self._waiting:
            self._give_up(self._waiting.popleft(), refusal)
        self.route_waiting()

    def route_waiting(self) -> None:
        """Tries the waiting batches again: something has changed."""
        if self._looking_up or self._adrift:
            return
        waiting = self._waiting
        while waiting and self._route(waiting[0], self._frontend.now_ms()):
            waiting.popleft()

    # --- from the shards -------------------------------------------------------------------------------

    def _answered(self, loads: list[Load]) -> None:
        """Loads are stored."""
        self._pause_ms = limits.OWNER_RETRY_MS
        self._stored(loads)

    def _stored(self, loads: list[Load]) -> None:
        finished = []
        for load in loads:
            batch: RoutedBatch = load.batch
            batch.outstanding -= 1
            if not batch.outstanding:
                finished.append(batch)
        if finished:
            self._finish(finished)
        ways = self._ways
        if ways.leaving and ways.has_left:
            ways.leaving.clear()
            # Later, since this is in the middle of a lane's answers.
            self._frontend.later(0, self.route_waiting)

    def _refused(self, load: Load, refusal: Refusal) -> None:
        plan = self._plan
        if again(refusal, is_repeated=load.is_repeated) is Again.ANEW:
            self._frontend.spawn(self._attempt(self._repeat(load), load, refusal))
        elif plan is not None and plan.forwarded and plan.forwards(load.queues):
            at_sources = self._store_at_sources(load, refusal.accepted, plan)
            self._frontend.spawn(self._attempt(at_sources, load, refusal))
        else:
            self._fail(load, refusal)

    async def _attempt(self, work: Awaitable[None], load: Load, refusal: Refusal) -> None:
        """Sends a refused load again; where that fails by an error, the load is refused."""
        try:
            await work
        except Exception:
            log.exception("messages for %s could not be routed again", self.router)
            self._fail(load, refusal)

    def _fail(self, load: Load, refusal: Refusal) -> None:
        batch: RoutedBatch = load.batch
        batch.refuse(load.indices[refusal.accepted :], refusal)
        self._hold_back(refusal)
        self._stored([load])

    async def _repeat(self, load: Load) -> None:
        """A queue of a load was deleted: the present plan distributes its messages again, once."""
        plan = await self._plan_anew(load)
        if plan is None:
            self._fail(load, Refusal(conditions.RESOURCE_DELETED, NO_ROUTER.format(router=self.router)))
            return
        await self._distribute_again(load, plan)
        load.batch.loads.remove(load)
        self._stored([load])

    async def _store_at_sources(self, load: Load, stored: int, plan: Plan) -> None:
        """Stores what a set of queues refused in the others, and in sources for ends of chains (ADR 66)."""
        queues = plan.at_sources(load.queues)
        await until_placed(self._frontend, queues)
        for way in self._ways.find(queues, ages_again(queues, plan.ages_ms), []):
            way.send(load.batch, load.indices[stored:], load.payloads[stored:], is_repeated=True)
            if self._closed:
                way.lane.abandon()
        load.indices, load.payloads = load.indices[:stored], load.payloads[:stored]
        self._stored([load])

    async def _plan_anew(self, load: Load) -> Plan | None:
        for queue in load.queues:
            self._frontend.forget_route(queue)
        self._ways.known.clear()
        self._frontend.poll()
        return await self._routers.plan(self.router)

    async def _distribute_again(self, load: Load, plan: Plan) -> None:
        """Sends messages of a load to those of their queues that are in no other load of the batch."""
        batch: RoutedBatch = load.batch
        carried = batch.carried_beside(load)
        positions = sorted(set(load.indices))
        messages = [batch.payloads[index] for index in positions]
        routed = await self._routers.routed(plan.begin(messages, self._routers.looks, batch.came_ms))
        groups, unroutable = left_out(routed, plan, container_of(self._link))
        if unroutable:
            elsewhere = {index for index, _, _ in carried}
            nowhere = [position for i in unroutable if (position := positions[i]) not in elsewhere]
            self._unroutable(batch, nowhere, plan)
        await until_placed(self._frontend, {queue for group in groups for queue in group.queues})
        for queues, indices, payloads in left_over(groups, positions, carried, plan.forwarded):
            for way in self._ways.find(queues, plan.ages_ms, []):
                way.send(batch, indices, payloads, is_repeated=True)
        if self._closed:
            self._ways.abandon()

    # --- answers to the client -------------------------------------------------------------------------

    def _unroutable(self, batch: RoutedBatch, indices: Sequence[int], plan: Plan) -> None:
        self._counts.messages_unroutable += len(indices)
        if plan.policy["unroutable"] == "reject":
            batch.refuse(indices, Refusal(conditions.NOT_FOUND, UNROUTABLE.format(router=self.router)))

    def _give_up(self, batch: RoutedBatch, refusal: Refusal) -> None:
        batch.refuse(range(batch.count), refusal)
        self._finish([batch])

    def _end_with(self, batch: RoutedBatch) -> None:
        """The name is no longer a router: the link ends."""
        refusal = Refusal(conditions.RESOURCE_DELETED, NO_ROUTER.format(router=self.router))
        self._give_up(batch, refusal)
        self._lose(refusal)

    def _finish(self, batches: list[RoutedBatch]) -> None:
        """Settles batches whose loads are all answered."""
        counts = self._counts
        count = size = 0
        for batch in batches:
            count += batch.count
            size += batch.size
            refused = len(batch.refused or ())
            counts.messages_accepted += batch.count - refused
            counts.messages_refused += refused
        if not self._closed:
            settle(self._link, batches, self._not_stored, self._maybe_stored)
        self._give(len(batches), count, size)
        if self._closed and not self._unanswered_messages:
            self._ways.close()

    # --- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """The client's link has ended. Messages that it sent are still stored, if there is room for them."""
        self._closed = True
        if not self._unanswered_messages:
            self._ways.close()
            return
        self._ways.abandon()
