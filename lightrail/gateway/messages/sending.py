"""Sends messages of HTTP requests: a `NameSender` to queues, by one producer for each, and to routers.

A `RouterSender` uses the plans and the decisions of frontends (namespace/spreading.py), with one lane per
shard; a request is sent again within its time only.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Self

from lightrail.gateway.errors import AGAIN, ProblemError, not_sent, refused, unknown
from lightrail.gateway.messages.outgoing import Outgoing
from lightrail.model import conditions, limits
from lightrail.model.policy import Role
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import Name
from lightrail.namespace.router_plan import CopyGroup, Plan
from lightrail.namespace.routers import Routers
from lightrail.namespace.routing import UNROUTABLE
from lightrail.namespace.spreading import Former, Spread, Ways, left_over
from lightrail.namespace.statuses import STATUS_OF
from lightrail.namespace.topic_uses import TopicUses, UseNotes
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.shard_client.peers.shards import ShardPeer
from lightrail.shard_client.sending.lanes import Again, Lane, Load, again
from lightrail.shard_client.sending.queue_producer import QueueProducer
from lightrail.shard_client.sending.window import MAYBE_STORED, NOT_STORED, Attributes
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
        self,
        shards: ShardConnections,
        directory: Directory,
        loop: asyncio.AbstractEventLoop,
        uses: TopicUses | None = None,
    ) -> None:
        self._shards = shards
        self._directory = directory
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

        def later(wait_ms: int, call: Callable[[], None]) -> object:
            return loop.call_later(wait_ms / 1000, call)

        def spawn(work: Coroutine[Any, Any, None]) -> None:
            task = loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        notes = None if uses is None else UseNotes(uses, shards.now_ms, spawn, later)
        self.routers = Routers(directory, later, shards.now_ms, notes)
        self._ways = Ways(shards, directory, self._open_lane)
        directory.listen(self._changed)

    async def send(
        self,
        record: Name,
        message: Outgoing,
        carried: Carried | None = None,
        came_ms: int | None = None,
    ) -> None:
        """Sends a message to a router; returns once every queue that the router chooses has stored it.

        Args:
            carried: of earlier attempts to send this message; it gets what this attempt stores.
            came_ms: when the router got it, in milliseconds since 1970; None for now.

        Raises ProblemError: no queue is chosen and the policy rejects such messages, a queue refused the
        message, or a shard did not answer in time. Raises ShardDownError.
        """
        carried = set() if carried is None else carried
        until = self._loop.time() + limits.REQUEST_MS / 1000
        came_ms = self._shards.now_ms() if came_ms is None else came_ms
        pause_ms = limits.OWNER_RETRY_MS
        is_repeated = at_sources = False
        while True:
            plan = await self.plan(record)
            if plan.problem:
                raise refused(plan.problem.condition, plan.problem.description)
            walk = plan.begin([message.message], self.routers.looks, came_ms)
            groups, unroutable = await self.routers.routed(walk)
            if unroutable and not carried:
                if plan.policy["unroutable"] == "reject":
                    raise UnroutableError(record.name)
                return
            if at_sources:
                groups = list(_at_sources(groups, plan, carried))
            attributes = _attributes(message)
            request = _Request(attributes, came_ms, self._loop.create_future(), carried)
            refusal = await self._spread(record.name, groups, plan, request)
            if refusal is None:
                return
            how = again(refusal, is_repeated=is_repeated)
            if how is Again.ELSEWHERE:
                if self._loop.time() + pause_ms / 1000 > until:
                    raise unknown(record.name)
                pause_ms = await self._shards.owners.change(pause_ms)
            elif how is Again.ANEW:
                is_repeated = True
                for queue in {queue for group in groups for queue in group.queues}:
                    self._shards.forget(queue)
            elif not at_sources and any(plan.forwards(group.queues) for group in groups):
                at_sources = True
            else:
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
        self, router: str, groups: Sequence[CopyGroup], plan: Plan, request: _Request
    ) -> Refusal | None:
        """Sends the message to queues that have not stored it; returns the first refusal, or None."""
        carried = {(0, payload, queue) for payload, queue in request.carried}
        for queues, _, payloads in left_over(groups, [0], carried, plan.forwarded):
            for payload in payloads:
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
        refusals = sorted(request.refusals, key=lambda each: again(each) is Again.ELSEWHERE)
        return refusals[0] if refusals else None

    def close(self) -> None:
        self._ways.close()

    def _open_lane(self, peer: ShardPeer) -> Lane:
        return Lane(
            peer,
            self._shards.next_link(),
            label="http",
            on_stored=_stored,
            on_refused=_refused,
            on_displaced=_displaced,
        )

    def _changed(self, changes: Changes) -> None:
        if changes.names:
            self._ways.forget()


def _at_sources(groups: Sequence[CopyGroup], plan: Plan, carried: Carried) -> Iterator[CopyGroup]:
    """The groups with the sources of those ends of chains that do not have a message, whatever an action has
    made of it."""
    wanted = {(payload, queue) for each in groups for payload in each.payloads for queue in each.queues}
    former = Former(
        [(queue, payload) for payload, queue in carried - wanted],
        ((queue, payload) for payload, queue in wanted - carried),
    )
    for group in groups:
        for index, payload in zip(group.indices, group.payloads, strict=True):
            there = frozenset(
                queue for queue in group.queues if (payload, queue) in carried or former.has(queue, payload)
            )
            yield CopyGroup(there | plan.at_sources(group.queues - there), [index], [payload])


def _attributes(message: Outgoing) -> Attributes:
    return Attributes(message.durable, message.priority, message.expires_at_ms, message.message_format)


def _stored(loads: list[Load]) -> None:
    for load in loads:
        load.batch.stored(load)


def _displaced(loads: list[Load]) -> None:
    for load in loads:
        _refused(load, Refusal(conditions.MOVED, accepted=load.accepted))


def _refused(load: Load, refusal: Refusal) -> None:
    load.batch.refused(refusal)


HTTP_BODIES_BYTES: Final[int] = 256 * 1024 * 1024
"""Bytes of messages that one gateway receives and has not stored; further requests are answered with 503."""
SENDER_IDLE_MS: Final[int] = 60_000
"""Idle time after which a gateway's producer is closed."""

Stored = int | None
"""Sequence of a stored message, or None from a shard that does not report it."""


@dataclass(slots=True)
class _Open:
    """The producer of a queue."""

    producer: QueueProducer
    revision: int
    """Of the queue's record: a shard reads the policy when the producer is opened."""
    used_at: float
    """Time of the last answer."""


class NameSender:
    """Sends messages to names: to each queue through one producer, to routers through lanes."""

    def __init__(
        self,
        shards: ShardConnections,
        directory: Directory,
        loop: asyncio.AbstractEventLoop,
        uses: TopicUses | None = None,
    ) -> None:
        self._shards = shards
        self._loop = loop
        self.routers = RouterSender(shards, directory, loop, uses)
        self._open: dict[str, _Open] = {}
        self.bytes = 0
        """Bytes of bodies that are being read or sent."""
        self._sweeping: asyncio.TimerHandle | None = None

    def room(self) -> "Room":
        """Memory for the body of one request; nothing is reserved yet."""
        return Room(self)

    async def send(
        self,
        record: Name,
        message: Outgoing,
        carried: Carried | None = None,
        came_ms: int | None = None,
    ) -> Stored:
        """Stores a message at a name; returns once it is stored as the policy requires.

        Args:
            carried, came_ms: see RouterSender.send.

        Raises:
            ProblemError: refused (full, too large), or not answered in time: it may or may not be stored.
            ShardDownError.
        """
        if record.role not in (Role.QUEUE, Role.ROUTER):
            raise ProblemError(501, f"messages can't be sent to a {record.role} over HTTP in this version")
        most = record.policy["max_message_bytes"]
        if most is not None and len(message.message) > most:
            raise refused(
                conditions.MESSAGE_SIZE_EXCEEDED,
                f"the message has {len(message.message)} bytes; {record.name} accepts at most {most}",
            )
        if record.role is Role.ROUTER:
            await self.routers.send(record, message, carried, came_ms)
            return None
        open = self._present(record)
        if open is None or self._shards.looks_up(record.name):
            owner = await self._shards.route(record.name)
            open = self._present(record)
            if open is None:
                # Through the former producer the message would be stored under the former policy, or get lost
                # with a queue that was deleted.
                if (former := self._open.get(record.name)) is not None:
                    former.producer.close_when_answered()
                producer = QueueProducer(owner, self._shards.next_link(), label="http", sequences=True)
                open = self._open[record.name] = _Open(producer, record.revision, monotonic())
                self._watch()
        wait_ms = limits.REQUEST_MS + (record.policy.milliseconds("enqueue_timeout") or 0)
        try:
            sent = await open.producer.send([(_attributes(message), (message.message,))], wait_ms)
        finally:
            open.used_at = monotonic()
        if sent.refusal is None:
            return sent.sequence
        if sent.refusal is NOT_STORED:
            raise not_sent(record.name)
        if sent.refusal is MAYBE_STORED:
            raise unknown(record.name)
        raise refused(sent.refusal.condition, sent.refusal.description)

    def _present(self, record: Name) -> _Open | None:
        """The open producer of a queue, if it was opened with the policy of this record or a later one."""
        open = self._open.get(record.name)
        is_usable = open is not None and not open.producer.is_closed and open.revision >= record.revision
        return open if is_usable else None

    async def send_many(self, record: Name, messages: Iterable[Outgoing]) -> list[Stored | BaseException]:
        """Sends all messages at once, in order; returns for each its sequence, or why it is not stored."""
        sending = (self.send(record, message) for message in messages)
        return await asyncio.gather(*sending, return_exceptions=True)

    def close(self) -> None:
        """Closes all producers: messages without an answer may or may not be stored."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for open in self._open.values():
            open.producer.close()
        self.routers.close()

    def _watch(self) -> None:
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(SENDER_IDLE_MS / 1000, self._sweep)

    def _sweep(self) -> None:
        """Closes producers that sent no message for SENDER_IDLE_MS."""
        self._sweeping = None
        before = monotonic() - SENDER_IDLE_MS / 1000
        for name, open in list(self._open.items()):
            if open.producer.is_closed or (open.producer.is_idle and open.used_at < before):
                open.producer.close()
                del self._open[name]
        if self._open:
            self._watch()


@dataclass(slots=True, eq=False, repr=False)
class Room:
    """Memory reserved for the body of one request; leaving the block frees it."""

    _sender: NameSender
    _size: int = 0

    def take(self, size: int) -> None:
        """Reserves memory before bytes are read. Raises ProblemError: all requests together have too many."""
        bytes = self._sender.bytes
        if bytes and bytes + size > HTTP_BODIES_BYTES:
            raise ProblemError(
                503, "the memory of this gateway for request bodies is in use; try again", headers=AGAIN
            )
        self._sender.bytes += size
        self._size += size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.bytes -= self._size
