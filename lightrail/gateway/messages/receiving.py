"""Receivers: HTTP requests that wait for messages, without a task, a thread or a poll for each.

One consumer per queue and gateway has as much credit as requests wait. A delivery answers the request that
has waited longest; without one it is released at once. A request that is cancelled withdraws its credit.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from lightrail.gateway.errors import AGAIN, ProblemError, refused
from lightrail.model import conditions
from lightrail.model.policy import LOCK_SECONDS_DEFAULT, Policy, Role
from lightrail.namespace.records import Name, Right, refused_by_forwarding, refused_by_status
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.receiving.queue_consumer import Delivery, QueueConsumer
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import OutcomeCode

RECEIVERS_MAX: Final[int] = 50_000
"""Requests of one gateway that wait for a message."""
RECEIVER_IDLE_MS: Final[int] = 200
"""Idle time after which a gateway's consumer is closed, because it counts as one of the queue's."""

STALE_MIN: Final = 64
"""Cancelled waiters that may stay in the line; if there are more, they are removed."""

Answer = TypeVar("Answer")

Waiter = asyncio.Future["LockedMessage | None"]


@dataclass(slots=True, eq=False)
class LockedMessage:
    """A message that is locked for one request."""

    receiver: "RequestLine"
    key: str
    delivery: Delivery
    locked_until_ms: int

    @property
    def lock(self) -> str:
        """The id of the message's lock."""
        return f"{self.key}-{self.delivery.number}"

    async def remove(self) -> bool:
        """Removes the message before the client gets it; False if nobody knows that it is removed."""
        return await self.receiver.remove(self)

    def keep(self) -> None:
        """The client received the message and its lock."""
        self.receiver.keep(self)

    def release(self) -> None:
        """No client received the message: it returns to the queue as if it had never been delivered."""
        self.receiver.release(self)


@dataclass(slots=True, eq=False, repr=False)
class WaitingLine(Generic[Answer]):
    """The line of requests that wait at one queue, the oldest first, with one timer for all time-outs.

    Requests are futures; the result is an answer, or None after its time-out.

    Args:
        timed_out: called with the number of requests that have just timed out.
    """

    _loop: asyncio.AbstractEventLoop
    _timed_out: Callable[[int], None]
    count: int = 0
    """Requests that wait."""
    _waiters: deque[asyncio.Future[Answer | None]] = field(default_factory=deque)
    _deadlines: list[tuple[float, int, asyncio.Future[Answer | None]]] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None
    _timer_at: float = 0.0

    def join(self, wait_ms: int) -> "asyncio.Future[Answer | None]":
        """Adds a waiter at the end of the line; 0 means no time-out."""
        waiter: asyncio.Future[Answer | None] = self._loop.create_future()
        self._waiters.append(waiter)
        self.count += 1
        if wait_ms:
            at = self._loop.time() + wait_ms / 1000
            heappush(self._deadlines, (at, id(waiter), waiter))
            if self._timer is None or at < self._timer_at:
                self._arm(at)
        return waiter

    def pop(self) -> "asyncio.Future[Answer | None] | None":
        """Removes the request that has waited longest; answer it, then call `left`."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                return waiter
        return None

    def left(self, count: int) -> None:
        """`count` requests no longer wait."""
        self.count -= count
        if len(self._waiters) > 2 * self.count + STALE_MIN:
            self._waiters = deque(waiter for waiter in self._waiters if not waiter.done())
        if len(self._deadlines) > 2 * self.count + STALE_MIN:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done()]
            heapify(self._deadlines)

    def close(self) -> "list[asyncio.Future[Answer | None]]":
        """Ends the line; returns the requests that still need an answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.count = 0
        return [waiter for waiter in self._waiters if not waiter.done()]

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        deadlines = self._deadlines
        over = 0
        while deadlines and (deadlines[0][0] <= now or deadlines[0][2].done()):
            waiter = heappop(deadlines)[2]
            if not waiter.done():
                waiter.set_result(None)
                over += 1
        if deadlines:
            self._arm(deadlines[0][0])
        if over:
            self._timed_out(over)


class RequestLine:
    """The requests that wait at one queue, and the consumer that receives for them."""

    def __init__(self, host: "Receivers", owner: Owner, record: Name, user: str) -> None:
        self.queue = record.name
        self.created = record.created
        """Revision that created the queue; a different revision means a different queue of this name."""
        self.closed = False
        self._host = host
        self._user = user
        self._owner = owner
        self._read(record.policy)
        self._posting = False
        self._line: WaitingLine[LockedMessage] = WaitingLine(host.loop, self._left)
        self._at_once: list[Waiter] = []
        """Requests that do not wait for messages: a drain answers them."""
        self._drain_waiters: list[Waiter] = []
        """Those of the drain that is not answered."""
        self._handed_out = 0
        """Deliveries of requests whose answer is not written yet."""
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._consumer = self._opened_consumer()

    @property
    def disconnected(self) -> bool:
        """Whether the shard is not connected, so that a drain has no answer now."""
        return not self._owner.is_there

    def _read(self, policy: Policy) -> None:
        self._lock_ms = policy.milliseconds("lock_duration") or int(LOCK_SECONDS_DEFAULT * 1000)
        # An open consumer may exclude other consumers, so it is closed as soon as no request waits.
        self._exclusive = bool(policy["exclusive"] or policy["single_active"] or policy["max_consumers"])
        self._is_open = not refused_by_status(policy, Right.LISTEN)

    def _opened_consumer(self) -> QueueConsumer:
        shards = self._host.shards
        options = ConsumerOpen(self.queue, lock_ms=self._lock_ms, label="http", user=self._user)
        self._consumer = QueueConsumer(self._owner, shards.next_link(), options, self, shards.now_ms)
        self._consumer.open()
        return self._consumer

    # --- from requests ---------------------------------------------------------------------------------

    def wait(self, wait_ms: int) -> Waiter:
        """Adds a waiter to the line; its result is a message, or None after `wait_ms`."""
        waiter = self._line.join(wait_ms)
        self._host.waiting += 1
        if not wait_ms:
            self._at_once.append(waiter)
        self._changed()
        return waiter

    def gave_up(self, waiter: Waiter) -> None:
        """The request was cancelled; a message that arrived for it at the same moment is released."""
        if waiter.cancelled():
            if not self.closed:  # Else it was counted with those that waited at the end.
                self._left()
        elif waiter.exception() is None and (message := waiter.result()) is not None:
            message.release()

    def release(self, message: LockedMessage) -> None:
        """Releases the message of a request: by the id of its lock, if the consumer was opened again since,
        or its shard is lost."""
        self.keep(message)
        if self._has(message):
            self._consumer.settle((message.delivery,), OutcomeCode.RELEASED)
        else:
            fields = {"lock": message.lock, "sequence": message.delivery.sequence}
            self._owner.ask_late("settle", {**fields, "outcome": "released"})

    async def remove(self, message: LockedMessage) -> bool:
        """Accepts the message of a request, and waits until that is on disk; see LockedMessage."""
        if not self._has(message):
            message.release()
            return False
        try:
            return await self._consumer.remove(message.delivery)
        finally:
            self.keep(message)

    def _has(self, message: LockedMessage) -> bool:
        """Whether the consumer of the message is open at its shard."""
        return message.key == self._consumer.lock_key and not (self.closed or self.disconnected)

    def keep(self, message: LockedMessage) -> None:
        """The client received the lock of a message: the consumer may be closed."""
        if message.key == self._consumer.lock_key:
            self._handed_out -= 1
            if not self._line.count:
                self._idle()

    def follow(self, policy: Policy) -> None:
        """Opens another consumer for other locks, exclusivity or status; requests wait, or are refused."""
        before = (self._lock_ms, self._exclusive, self._is_open)
        self._read(policy)
        if (self._lock_ms, self._exclusive, self._is_open) != before:
            self._consumer.close()
            self._opened_consumer()
        if why := refused_by_forwarding(policy, Right.LISTEN):
            self._consumer.close()
            self.ended(Refusal(conditions.NOT_ALLOWED, why))

    def close(self) -> None:
        """The gateway ends, or no request has waited for a while."""
        for waiter in self._end():
            waiter.set_result(None)
        self._consumer.close()

    # --- from the consumer -----------------------------------------------------------------------------

    def opened(self, generation: int) -> None:
        """See Listener; locks of the former key stay valid at the shard."""
        self._handed_out = 0
        self._at_once += self._drain_waiters
        self._drain_waiters = []
        self._post_credit()

    def arrived(self, deliveries: list[Delivery]) -> None:
        """Answers the requests that have waited longest with these messages."""
        for index, delivery in enumerate(deliveries):
            waiter = self._line.pop()
            if waiter is None:
                self._consumer.settle(deliveries[index:], OutcomeCode.RELEASED)
                break
            self._handed_out += 1
            self._left()
            # From the time of delivery: a slow gateway must not promise a longer lock than the shard keeps.
            until_ms = delivery.delivered_at_ms + self._lock_ms
            waiter.set_result(LockedMessage(self, self._consumer.lock_key, delivery, until_ms))
        self._changed()

    def drained(self, is_empty: bool) -> None:
        """The queue is empty: requests that do not wait are answered."""
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
                self._left()
        self._post_credit()

    def ended(self, refusal: Refusal) -> None:
        """The shard refused or closed the consumer."""
        problem = refused(refusal.condition, refusal.description)
        for waiter in self._end():
            waiter.set_exception(problem)

    # --- inside ----------------------------------------------------------------------------------------

    def _end(self) -> list[Waiter]:
        """Ends this receiver; returns the requests that still need an answer."""
        self.closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._host.forget(self)
        self._host.waiting -= self._line.count
        return self._line.close()

    def _left(self, count: int = 1) -> None:
        self._host.waiting -= count
        self._line.left(count)
        self._changed()

    def _changed(self) -> None:
        """Grants credit once per turn of the loop, however many requests joined and left."""
        if not self._posting:
            self._posting = True
            self._host.loop.call_soon(self._post_credit)

    def _post_credit(self) -> None:
        self._posting = False
        if self.closed:
            return
        if not self._line.count:
            self._idle()
        if self._drain_waiters or not self._consumer.lock_key:
            return
        self._drain_waiters = [waiter for waiter in self._at_once if not waiter.done()]
        self._at_once = []
        self._consumer.grant(self._line.count, drain=bool(self._drain_waiters), withdraws=True)

    def _idle(self) -> None:
        self._idle_since = self._host.loop.time()
        if self._idle_timer is None and not self.closed:
            wait_s = 0 if self._exclusive else RECEIVER_IDLE_MS / 1000
            self._idle_timer = self._host.loop.call_later(wait_s, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        if self._line.count or self._handed_out or self.closed:
            return
        left_s = self._idle_since + RECEIVER_IDLE_MS / 1000 - self._host.loop.time()
        if self._exclusive or left_s <= 0:
            self.close()
        else:
            self._idle_timer = self._host.loop.call_later(left_s, self._close_idle)


@dataclass(eq=False, repr=False)
class Receivers:
    """All requests of this gateway that wait for messages; one consumer for each queue."""

    shards: ShardConnections
    loop: asyncio.AbstractEventLoop
    waiting: int = 0
    """Requests that wait now."""
    _receivers: dict[str, RequestLine] = field(default_factory=dict)

    async def receive(self, record: Name, wait_ms: int, user: str = "") -> LockedMessage | None:
        """The next message of a queue, locked, or None if none arrived in time.

        A cancelled call leaves the line and releases a message that arrived for it at the same moment.

        Args:
            user: of the request; the consumer counts towards the share of the user whose request opened it.

        Raises ProblemError: the queue refuses (more) consumers, or was deleted; too many requests wait.
        """
        if self.waiting >= RECEIVERS_MAX:
            most = RECEIVERS_MAX
            raise ProblemError(503, f"{most} requests wait at this gateway already; try again", headers=AGAIN)
        receiver = self._receivers.get(record.name)
        if receiver is None or receiver.created != record.created:
            receiver = await self._open(record, user)
        if not wait_ms and receiver.disconnected:
            raise ProblemError(503, f"the shard of {record.name} is not connected; try again", headers=AGAIN)
        waiter = receiver.wait(wait_ms)
        try:
            return await waiter
        except asyncio.CancelledError:
            receiver.gave_up(waiter)
            raise

    async def _open(self, record: Name, user: str) -> RequestLine:
        owner = await self.shards.route(record.name)
        receiver = self._receivers.get(record.name)
        if receiver is None or receiver.created != record.created:
            # The shard closes the consumer of a deleted queue of this name.
            receiver = self._receivers[record.name] = RequestLine(self, owner, record, user)
        return receiver

    def changed(self, records: Iterable[Name]) -> None:
        """Follows policies that changed. Consumers of deleted queues are closed by their shard."""
        for record in records:
            receiver = self._receivers.get(record.name)
            if receiver is not None and record.role is Role.QUEUE:
                receiver.follow(record.policy)

    def forget(self, receiver: RequestLine) -> None:
        """A receiver was closed; the next request opens another."""
        if self._receivers.get(receiver.queue) is receiver:
            del self._receivers[receiver.queue]

    def close(self) -> None:
        """Answers all requests that wait: no message arrived."""
        for receiver in list(self._receivers.values()):
            receiver.close()
