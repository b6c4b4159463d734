"""A link that sends to a router: its batches are taken apart by the plan, and answered when all parts are.

A batch goes through the plan when it comes, and becomes one frame per set of queues that live on one shard
(wire/lanes.py). It is accepted when every frame that carries it is; messages of a frame that is refused are
rejected with the frame's reason. While the shard of a queue has to be asked for, or nobody has subscribed yet
and the policy lets senders wait, batches wait in their order; credit bounds how many.

When a queue moves, its shard gives frames for it back, with all that were behind them. They are sent where
the queues are then, in their order, before anything else of the link.
"""

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightrail.amqp.events import ACCEPTED, RELEASED, Transfers
from lightrail.amqp.performatives import AmqpError, Rejected
from lightrail.amqp.types import Symbol
from lightrail.filters.looks import Looks
from lightrail.frontend.incoming import IncomingLink
from lightrail.frontend.transfers import FAILED
from lightrail.model import conditions, limits
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.routing import UNROUTABLE, Group, Plan, Routed, Routing, Walk
from lightrail.wire.bodies import Refusal
from lightrail.wire.lanes import QUEUE_AWAY, Attributes, Lane, Load

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection
    from lightrail.wire.shards import ShardPeer

log = logging.getLogger("lightrail.frontend.routing")


AWAY: Final = Refusal(conditions.INTERNAL_ERROR, "its shard is away, and can't have it")
PERHAPS: Final = Refusal(conditions.INTERNAL_ERROR, "its shard is away, and may have it")
"""Why messages are given up; they are released, or modified with delivery-failed, and not rejected."""


class Way(NamedTuple):
    """To queues of one shard."""

    lane: Lane
    queues: frozenset[str]
    most: int
    """Messages of one load: each is looked into for each of the queues that do so."""


class RoutedBatch:
    """What a client sent in one go, and what became of it so far."""

    __slots__ = (
        "attributes",
        "came_ms",
        "count",
        "first_id",
        "loads",
        "outstanding",
        "payloads",
        "refused",
        "settled",
        "size",
        "walk",
    )

    def __init__(self, event: Transfers, size: int, attributes: Attributes, now_ms: int) -> None:
        self.first_id = event.first_delivery_id
        self.settled = event.settled
        self.payloads = event.payloads
        self.count = len(event.payloads)
        self.size = size
        self.attributes = attributes
        self.came_ms = now_ms
        self.outstanding = 0
        """Loads that have no answer."""
        self.loads: list[Load] = []
        self.refused: dict[int, Refusal] | None = None
        """Why, by place in the batch."""
        self.walk: Walk | None = None
        """Through the plan, where messages have to be looked at."""

    def refuse(self, indices: Iterable[int], refusal: Refusal) -> None:
        """These messages are not where they have to be."""
        if self.refused is None:
            self.refused = {}
        for index in indices:
            self.refused.setdefault(index, refusal)


class RouterLink(IncomingLink):
    """One incoming link (the client sends) bound to a router."""

    __slots__ = (
        "_adrift",
        "_has_timer",
        "_label",
        "_lanes",
        "_leaving",
        "_looking_up",
        "_moved",
        "_pause_ms",
        "_plan",
        "_splits",
        "_waiting",
        "router",
    )

    def __init__(
        self, connection: "ClientConnection", link: "Link", *, number: int, router: str, label: str = ""
    ) -> None:
        super().__init__(connection, link, number)
        self.router = router
        self._label = label
        self._lanes: dict[int, Lane] = {}
        """By shard."""
        self._plan: Plan | None = None
        self._splits: dict[frozenset[str], list[Way]] = {}
        """Sets of queues of that plan, by the shards that they live on."""
        self._waiting: deque[RoutedBatch] = deque()
        self._looking_up = False
        self._has_timer = False
        self._moved = connection.frontend.shard_connections.moved
        self._leaving: list[Lane] = []
        """Lanes with something on its way to a queue that is elsewhere now: what comes next waits for it."""
        self._adrift: list[Load] = []
        """What shards gave back, in order."""
        self._pause_ms = limits.OWNER_RETRY_MS

    def start(self) -> None:
        """Answers the attach: there is no shard to wait for."""
        self._attach()

    # --- from the client -------------------------------------------------------------------------------

    def transfers(self, event: Transfers, now_ms: int) -> None:
        """A batch came: it goes where the plan says."""
        durable, priority, expires = self._attributes(event, now_ms)
        size = sum(map(len, event.payloads))
        attributes = Attributes(durable, priority, expires, event.message_format)
        batch = RoutedBatch(event, size, attributes, now_ms)
        self._take(batch.count, size)
        if self._waiting or self._adrift or not self._route(batch, now_ms):
            self._waiting.append(batch)

    def _route(self, batch: RoutedBatch, now_ms: int) -> bool:
        """Sends a batch on its way, or refuses it; False when it has to wait."""
        frontend = self._connection.frontend
        frontend.poll()
        if self._moved != frontend.shard_connections.moved:
            self._follow()
        if self._leaving and any(not lane.is_idle for lane in self._leaving):
            return False
        routers = frontend.routers
        if not routers.routing.prepare(self.router, now_ms, routers.looks):
            routers.wait_turn(self)
            return False
        plan = routers.routing.plan(self.router, now_ms)
        if plan is not self._plan:
            self._plan = plan
            self._splits.clear()
            for lane in self._lanes.values():
                lane.forget_sets()
        if plan is None:
            self._gone(batch)
            return True
        if plan.problem:
            refusal = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, plan.problem)
            self._give_up(batch, range(batch.count), refusal)
            return True
        if plan.is_empty and self._may_wait(batch, plan, now_ms):
            return False
        routed = None if batch.walk is not None else plan.at_once(batch.payloads, routers.looks)
        if routed is None:
            routed = self._walked(batch, plan)
            if routed is None:
                return False
        elif routers.looks.is_used:
            routers.begin_turn()
        groups, unroutable = routed
        ways: list[tuple[Group, list[Way]]] = []
        unknown: list[str] = []
        for group in groups:
            way = self._splits.get(group.queues) or self._split(group.queues, unknown)
            ways.append((group, way))
        if unknown:
            self._look_up(unknown)
            return False
        if unroutable:
            self._unroutable(batch, unroutable, plan)
        copies = 0
        for group, way in ways:
            copies += len(group.indices) * len(group.queues)
            for each in way:
                self._send(batch, each, group.indices, group.payloads)
        frontend.counts.messages_routed += copies
        if self._closed:
            self._abandon_lanes()
        if not batch.outstanding:
            self._finish([batch])
        return True

    def _send(
        self,
        batch: RoutedBatch,
        way: Way,
        indices: Sequence[int],
        payloads: Sequence[bytes],
        *,
        is_repeated: bool = False,
    ) -> None:
        """Messages of a batch leave for queues of one shard."""
        lane, queues, most = way
        for start in range(0, len(indices), most):
            load = Load(batch, queues, indices[start : start + most], is_repeated)
            batch.loads.append(load)
            batch.outstanding += 1
            lane.send(load, payloads[start : start + most], batch.attributes)

    def _walked(self, batch: RoutedBatch, plan: Plan) -> Routed | None:
        """What the filters of the plan say of a batch; None where the looks of this turn are used up."""
        routers = self._connection.frontend.routers
        walk = batch.walk
        if walk is None or walk.plan is not plan:
            walk = batch.walk = plan.begin(batch.payloads, routers.looks)
        routers.begin_turn()
        if not walk.go_on():
            routers.wait_turn(self)
        return walk.routed

    def _split(self, queues: frozenset[str], unknown: list[str]) -> list[Way]:
        """The queues of each shard; what nobody knows the shard of is added to `unknown`."""
        by_shard: dict[int, tuple[Lane, list[str]]] = {}
        complete = True
        for queue in queues:
            peer = self._connection.frontend.placed(queue)
            if peer is None:
                unknown.append(queue)
                complete = False
                continue
            by_shard.setdefault(peer.shard, (self._lane(peer), []))[1].append(queue)
        most = limits.ROUTE_TARGETS_MAX
        found = [
            self._way(lane, names[start : start + most])
            for lane, names in by_shard.values()
            for start in range(0, len(names), most)
        ]
        if complete:
            self._splits[queues] = found
        return found

    def _way(self, lane: Lane, queues: list[str]) -> Way:
        directory = self._connection.frontend.directory
        looking = sum(directory.get(queue).policy.examines for queue in queues)
        most = max(1, limits.ROUTED_LOOKS_AT_ONCE // looking) if looking else sys.maxsize
        return Way(lane, frozenset(queues), most)

    def _lane(self, peer: "ShardPeer") -> Lane:
        lane = self._lanes.get(peer.shard)
        if lane is None or lane.peer is not peer:
            lane = self._lanes[peer.shard] = Lane(
                peer,
                self._connection.frontend.next_link(),
                label=self._label,
                stored=self._answered,
                refused=self._refused,
                displaced=self._displaced,
                given_up=self._given_up,
                returned=self._go_on_after_wait,
            )
        return lane

    # --- queues that move ------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Some queues are elsewhere: what is on its way to them goes before what comes next."""
        shard_connections = self._connection.frontend.shard_connections
        self._moved = shard_connections.moved
        self._splits.clear()
        self._leaving = [
            lane
            for lane in self._lanes.values()
            if not lane.is_idle
            and any(
                place is not None and place[0] != lane.peer.shard
                for queues in lane.sets_under_way()
                for place in map(shard_connections.where, queues)
            )
        ]

    def _displaced(self, loads: list[Load]) -> None:
        """A shard gave these back: they are sent anew when it is known where to, or after a short wait."""
        self._splits.clear()
        if not self._adrift:
            self._connection.frontend.spawn(self._send_again())
        self._adrift += loads

    async def _send_again(self) -> None:
        frontend = self._connection.frontend
        await frontend.shard_connections.owners.change(self._pause_ms)
        self._pause_ms = min(2 * self._pause_ms, limits.OWNER_RETRY_MS_MAX)
        loads: list[Load] = []
        try:
            for queue in {queue for load in self._adrift for queue in load.queues}:
                await frontend.find(queue)
        except Exception:
            log.exception("where the queues of %s are now can't be known", self.router)
            frontend.spawn(self._send_again())
            return
        loads, self._adrift = self._adrift, []
        self._follow()
        for place, load in enumerate(loads):
            unknown: list[str] = []
            ways = self._split(load.queues, unknown)
            if unknown:
                # The shard of one has not been heard of yet.
                self._adrift = loads[place:]
                frontend.spawn(self._send_again())
                return
            self._send_elsewhere(load, ways)
        self.go_on()

    def _send_elsewhere(self, load: Load, ways: list[Way]) -> None:
        batch: RoutedBatch = load.batch
        indices = load.indices[load.accepted :]
        payloads = [batch.payloads[index] for index in indices]
        for way in ways:
            self._send(batch, way, indices, payloads, is_repeated=load.is_repeated)
            if self._closed:
                way.lane.abandon()
        batch.loads.remove(load)
        self._stored([load])

    def _given_up(self, loads: list[Load]) -> None:
        """A shard is away for longer than senders wait."""
        for load in loads:
            load.batch.refuse(load.indices, PERHAPS if load.may_be_stored else AWAY)
        self._wait()
        self._stored(loads)

    # --- what has to wait ------------------------------------------------------------------------------

    def _may_wait(self, batch: RoutedBatch, plan: Plan, now_ms: int) -> bool:
        """Nobody is there at all: a batch waits for a first subscriber for as long as the policy says."""
        wait_ms = plan.policy.milliseconds("buffer_timeout") or 0
        left = batch.came_ms + wait_ms - now_ms
        if left <= 0:
            return False
        frontend = self._connection.frontend
        frontend.routers.wait(self)
        if not self._has_timer:
            self._has_timer = True
            frontend.later(left, self._ring)
        return True

    def _ring(self) -> None:
        self._has_timer = False
        self.go_on()

    def _look_up(self, queues: list[str]) -> None:
        if not self._looking_up:
            self._looking_up = True
            self._connection.frontend.spawn(self._place(queues))

    async def _place(self, queues: list[str]) -> None:
        """Asks the coordinator where queues are, then goes on with what waits for it."""
        refusal: Refusal | None = None
        try:
            for queue in queues:
                await self._connection.frontend.find(queue)
                if self._connection.frontend.placed(queue) is None:
                    # Its shard has not been heard of yet.
                    await self._connection.frontend.shard_connections.owners.change(limits.OWNER_RETRY_MS_MAX)
        except Exception:
            log.exception("the coordinator could not say where the queues of %s are", self.router)
            refusal = Refusal(conditions.INTERNAL_ERROR, "the place of a queue is not known; try again")
        self._looking_up = False
        if refusal is not None and self._waiting:
            batch = self._waiting.popleft()
            self._give_up(batch, range(batch.count), refusal)
        self.go_on()

    def go_on(self) -> None:
        """Something has changed that batches may be waiting for."""
        if self._looking_up or self._adrift:
            return
        waiting = self._waiting
        while waiting and self._route(waiting[0], self._connection.frontend.now_ms()):
            waiting.popleft()

    # --- from the shards -------------------------------------------------------------------------------

    def _answered(self, loads: list[Load]) -> None:
        """Loads are where they have to be."""
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
        if self._leaving and all(lane.is_idle for lane in self._leaving):
            self._leaving.clear()
            # Not within the answers of a lane.
            self._connection.frontend.later(0, self.go_on)

    def _refused(self, load: Load, refusal: Refusal) -> None:
        if refusal.condition in QUEUE_AWAY and not load.is_repeated and not refusal.accepted:
            self._connection.frontend.spawn(self._repeat(load, refusal))
            return
        self._fail(load, refusal)

    def _fail(self, load: Load, refusal: Refusal) -> None:
        batch: RoutedBatch = load.batch
        batch.refuse(load.indices[refusal.accepted :], refusal)
        self._hold_back(refusal)
        self._stored([load])

    async def _repeat(self, load: Load, refusal: Refusal) -> None:
        """A queue of a load went away: what is there now gets its messages, once."""
        try:
            await self._resolve(load)
        except Exception:
            log.exception("messages for %s could not be resolved anew", self.router)
            self._fail(load, refusal)

    async def _resolve(self, load: Load) -> None:
        frontend = self._connection.frontend
        batch: RoutedBatch = load.batch
        for queue in load.queues:
            frontend.forget_route(queue)
        self._splits.clear()
        frontend.poll()
        routers = frontend.routers
        while not routers.routing.prepare(self.router, frontend.now_ms(), routers.looks):
            await routers.turn()
        plan = routers.routing.plan(self.router, frontend.now_ms())
        if plan is None:
            deleted = Refusal(conditions.RESOURCE_DELETED, f"{self.router} is no router any more")
            self._fail(load, deleted)
            return
        carried: dict[int, set[str]] = {}
        for other in batch.loads:
            if other is not load:
                for index in other.indices:
                    carried.setdefault(index, set()).update(other.queues)
        places = sorted(set(load.indices))
        walk = plan.begin([batch.payloads[place] for place in places], routers.looks)
        while not walk.go_on():
            await routers.turn()
        assert walk.routed is not None
        groups, unroutable = walk.routed
        if unroutable:
            self._unroutable(
                batch, [places[index] for index in unroutable if places[index] not in carried], plan
            )
        for group in groups:
            for queue in group.queues:
                await frontend.find(queue)
        for group in groups:
            parts: dict[frozenset[str], tuple[list[int], list[bytes]]] = {}
            for index, payload in zip(group.indices, group.payloads, strict=True):
                left = group.queues - carried.get(places[index], frozenset())
                if left:
                    indices, payloads = parts.setdefault(left, ([], []))
                    indices.append(places[index])
                    payloads.append(payload)
            for queues, (indices, payloads) in parts.items():
                for way in self._split(queues, []):
                    self._send(batch, way, indices, payloads, is_repeated=True)
        if self._closed:
            self._abandon_lanes()
        batch.loads.remove(load)
        self._stored([load])

    # --- answers to the client -------------------------------------------------------------------------

    def _unroutable(self, batch: RoutedBatch, indices: Sequence[int], plan: Plan) -> None:
        self._connection.frontend.counts.messages_unroutable += len(indices)
        if plan.policy["unroutable"] == "reject":
            batch.refuse(indices, Refusal(conditions.NOT_FOUND, UNROUTABLE.format(router=self.router)))

    def _give_up(self, batch: RoutedBatch, indices: Sequence[int], refusal: Refusal) -> None:
        batch.refuse(indices, refusal)
        self._finish([batch])

    def _gone(self, batch: RoutedBatch) -> None:
        """The router is none any more: so is the link."""
        refusal = Refusal(conditions.RESOURCE_DELETED, f"{self.router} is no router any more")
        self._give_up(batch, range(batch.count), refusal)
        self._lose(refusal)

    def _finish(self, batches: list[RoutedBatch]) -> None:
        """Batches that have all their answers: the client gets its own, neighbours in one."""
        counts = self._connection.frontend.counts
        count = size = 0
        first = last = -1
        for batch in batches:
            count += batch.count
            size += batch.size
            counts.messages_accepted += batch.count
            if batch.refused is not None:
                counts.messages_accepted -= len(batch.refused)
                counts.messages_refused += len(batch.refused)
            if batch.settled or self._closed:
                continue
            if batch.refused is not None:
                self._settle_apart(batch, batch.refused)
                continue
            if first >= 0 and batch.first_id == last + 1:
                last += batch.count
                continue
            if first >= 0:
                self._link.settle(first, last, ACCEPTED)
            first = batch.first_id
            last = first + batch.count - 1
        if first >= 0:
            self._link.settle(first, last, ACCEPTED)
        self._give(len(batches), count, size)
        if self._closed and not self._unanswered_messages:
            self._close_lanes()

    def _settle_apart(self, batch: RoutedBatch, refused: dict[int, Refusal]) -> None:
        """Some messages of a batch were refused: ranges of one outcome each."""
        start = 0
        for index in range(1, batch.count + 1):
            refusal = refused.get(start)
            if index < batch.count and refused.get(index) == refusal:
                continue
            state: Any = ACCEPTED
            if refusal is AWAY:
                # Where a copy of it is stored elsewhere, it can't be said that nothing has happened.
                state = FAILED if len(batch.loads) > 1 else RELEASED
            elif refusal is PERHAPS:
                state = FAILED
            elif refusal is not None:
                error = AmqpError(condition=Symbol(refusal.condition), description=refusal.description)
                state = Rejected(error=error)
            self._link.settle(batch.first_id + start, batch.first_id + index - 1, state)
            start = index

    # --- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """The client's link is gone. What it sent still goes where it has to, if there is room for it."""
        self._closed = True
        if not self._unanswered_messages:
            self._close_lanes()
            return
        self._abandon_lanes()

    def _abandon_lanes(self) -> None:
        for lane in self._lanes.values():
            lane.abandon()

    def _close_lanes(self) -> None:
        for lane in self._lanes.values():
            lane.close()


class Routers:
    """What a frontend's links to routers share: plans, looks into messages, who waits for a first
    subscriber."""

    __slots__ = ("_is_turning", "_later", "_links", "_tasks", "_waiting", "looks", "routing")

    def __init__(self, directory: Directory, later: Callable[[int, Callable[[], None]], object]) -> None:
        self._later = later
        self._waiting: dict[RouterLink, None] = {}
        self.routing = Routing(directory)
        self.looks = Looks()
        """Of all links in one turn of the loop."""
        self._is_turning = False
        self._links: dict[RouterLink, None] = {}
        """Whose batches have yet to be looked at, in the order in which they stopped."""
        self._tasks: list[asyncio.Future[None]] = []
        directory.listen(self._changed)

    def begin_turn(self) -> None:
        """Looks are about to be used: there are new ones in the next turn."""
        if not self._is_turning:
            self._is_turning = True
            self._later(0, self._next_turn)

    def wait_turn(self, link: RouterLink) -> None:
        """The looks of this turn are used up: the link goes on in one of the next."""
        self._links[link] = None
        self.begin_turn()

    async def turn(self) -> None:
        """The same for a task."""
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.append(waits)
        self.begin_turn()
        await waits

    def _next_turn(self) -> None:
        self._is_turning = False
        self.looks.begin()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if not task.done():
                task.set_result(None)
        links, self._links = self._links, {}
        while links and self.looks.left > 0:
            link = next(iter(links))
            del links[link]
            link.go_on()
        # Who had no turn comes before those who had one and stopped again.
        self._links = {**links, **self._links}
        if self._links:
            self.begin_turn()

    def wait(self, link: RouterLink) -> None:
        """A link is told when subscriptions or names change, once."""
        self._waiting[link] = None

    def _changed(self, changes: Changes) -> None:
        # Not at once: whoever refreshed the directory may be in the middle of a batch.
        waiting, self._waiting = self._waiting, {}
        for link in waiting:
            self._later(0, link.go_on)
