"""Receiving: requests that wait for a message, without a task, a thread or a poll of their own.

One consumer per queue and gateway has as much credit at the shard as requests wait. A delivery goes to the
request that has waited longest; one that finds nobody is released at once. Who gives up takes its credit
along. One timer per queue rings for the time-outs of all.

Each opening of a consumer has a lock key of its own, drawn at random: the lock of a delivery is KEY-NUMBER,
and any gateway may settle it by that name.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Final

from lightrail.gateway.errors import AGAIN, Problem, refused
from lightrail.gateway.shards import Shards
from lightrail.model import limits
from lightrail.model.policy import LOCK_SECONDS_DEFAULT, Policy, Role
from lightrail.namespace.records import Name
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import (
    DELIVER_COLUMNS,
    DELIVER_ENDS,
    DRAIN,
    HEADER_SIZE,
    Kind,
    OutcomeCode,
    delivered_at,
    frame,
)
from lightrail.wire.links import Consumer, MissingDeliveriesError
from lightrail.wire.owner import Owner

log = logging.getLogger("lightrail.gateway.receiving")

STALE_MIN: Final = 64
"""Waiters that gave up below which nobody clears them away."""

Waiter = asyncio.Future["Delivery | None"]


class Delivery:
    """A message that is locked for one request."""

    __slots__ = (
        "_consumer",
        "attempts",
        "enqueued_at_ms",
        "expires_at_ms",
        "key",
        "locked_until_ms",
        "message",
        "message_format",
        "number",
        "sequence",
    )

    def __init__(
        self,
        consumer: "QueueConsumer",
        key: str,
        number: int,
        sequence: int,
        message: bytes,
        columns: tuple[int, int, int, int],
        locked_until_ms: int,
    ) -> None:
        self._consumer = consumer
        self.key = key
        self.number = number
        self.sequence = sequence
        self.message = message
        self.expires_at_ms, self.enqueued_at_ms, self.attempts, self.message_format = columns
        self.locked_until_ms = locked_until_ms

    @property
    def lock(self) -> str:
        """The name of its lock."""
        return f"{self.key}-{self.number}"

    def accept(self) -> None:
        """It reached its receiver and is gone from the queue."""
        self._consumer.settle(self, OutcomeCode.ACCEPTED)

    def keep(self) -> None:
        """It reached its receiver, who has the lock now."""
        self._consumer.keep(self)

    def release(self) -> None:
        """It reached nobody and goes back, as if it had never been delivered."""
        self._consumer.settle(self, OutcomeCode.RELEASED)


class Receivers:
    """All requests of this gateway that wait for messages."""

    def __init__(self, shards: Shards, loop: asyncio.AbstractEventLoop) -> None:
        self.shards = shards
        self.loop = loop
        self.waiting = 0
        """Requests that wait now."""
        self._consumers: dict[str, QueueConsumer] = {}

    async def receive(self, record: Name, wait_ms: int) -> Delivery | None:
        """The next message of a queue, locked, or None when none came in time.

        Cancelled, it gives its place up, and a message that it had been given already.

        Raises:
            Problem: the queue does not take (more) consumers, or is gone; too many requests wait.
        """
        if self.waiting >= limits.RECEIVERS_MAX:
            most = limits.RECEIVERS_MAX
            raise Problem(503, f"{most} requests wait at this gateway already; try again", headers=AGAIN)
        consumer = self._consumers.get(record.name)
        if consumer is None or consumer.created != record.created:
            consumer = await self._open(record)
        if not wait_ms and consumer.away:
            raise Problem(503, f"the shard of {record.name} is not there now; try again", headers=AGAIN)
        waiter = consumer.wait(wait_ms)
        try:
            return await waiter
        except asyncio.CancelledError:
            consumer.gave_up(waiter)
            raise

    async def _open(self, record: Name) -> "QueueConsumer":
        owner = await self.shards.route(record.name)
        consumer = self._consumers.get(record.name)
        if consumer is None or consumer.created != record.created:
            # One of a queue of this name that was deleted is ended by its shard.
            consumer = QueueConsumer(self, owner, self.shards.next_link(), record)
            self._consumers[record.name] = consumer
            owner.open_consumer(consumer)
        return consumer

    def changed(self, records: Iterable[Name]) -> None:
        """These have another policy. Queues that are gone are not for us to end: the shard says so."""
        for record in records:
            consumer = self._consumers.get(record.name)
            if consumer is not None and record.role is Role.QUEUE:
                consumer.follow(record.policy)

    def forget(self, consumer: "QueueConsumer") -> None:
        if self._consumers.get(consumer.queue) is consumer:
            del self._consumers[consumer.queue]

    def close(self) -> None:
        """Whoever waits is told that nothing came."""
        for consumer in list(self._consumers.values()):
            consumer.close()


class QueueConsumer(Consumer):
    """The gateway's link that receives from one queue, for all requests that wait there."""

    __slots__ = (
        "_at_once",
        "_deadlines",
        "_drain_waiters",
        "_draining",
        "_handed_out",
        "_idle_since",
        "_idle_timer",
        "_key",
        "_live",
        "_lock_ms",
        "_loop",
        "_next",
        "_owner",
        "_receivers",
        "_said",
        "_saying",
        "_selfish",
        "_timer",
        "_timer_at",
        "_waiters",
        "closed",
        "created",
        "queue",
    )

    def __init__(self, receivers: Receivers, owner: Owner, number: int, record: Name) -> None:
        self.number = number
        self.queue = record.name
        self.created = record.created
        """Which queue of this name it is at."""
        self.closed = False
        self._receivers = receivers
        self._loop = receivers.loop
        self._owner = owner
        self._lock_ms = 0
        self._selfish = False
        """While it is there it keeps others out: it goes as soon as nobody waits."""
        self._read(record.policy)
        self._key = ""
        self._next = 0
        """Number of the next delivery under this key."""
        self._said = 0
        """Deliveries numbered below it may come."""
        self._saying = False
        self._live = 0
        """Requests that wait."""
        self._waiters: deque[Waiter] = deque()
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._at_once: list[Waiter] = []
        """Those of them that want to know what is there now."""
        self._draining = False
        self._drain_waiters: list[Waiter] = []
        self._handed_out = 0
        """Deliveries that were given to requests and whose answer is not written yet."""
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def away(self) -> bool:
        """Whether the shard is not there to say what it has."""
        return not self._owner.is_there

    def _read(self, policy: Policy) -> None:
        self._lock_ms = policy.milliseconds("lock_duration") or int(LOCK_SECONDS_DEFAULT * 1000)
        self._selfish = bool(policy["exclusive"] or policy["single_active"] or policy["max_readers"])

    # --- from requests ---------------------------------------------------------------------------------

    def wait(self, wait_ms: int) -> Waiter:
        """A place in the line; its result is a delivery, or None after `wait_ms`."""
        waiter: Waiter = self._loop.create_future()
        self._waiters.append(waiter)
        self._live += 1
        self._receivers.waiting += 1
        if wait_ms:
            at = self._loop.time() + wait_ms / 1000
            heappush(self._deadlines, (at, id(waiter), waiter))
            if self._timer is None or at < self._timer_at:
                self._arm(at)
        else:
            self._at_once.append(waiter)
        self._changed()
        return waiter

    def gave_up(self, waiter: Waiter) -> None:
        """The request was cancelled; what it was given in the same moment goes back."""
        if waiter.cancelled():
            self._left()
        elif waiter.exception() is None and (delivery := waiter.result()) is not None:
            delivery.release()

    def settle(self, delivery: Delivery, code: OutcomeCode) -> None:
        """The end of a delivery that was handed out. Late ones are told by name."""
        if delivery.key == self._key and not self.closed:
            self._handed_out -= 1
            self._post_settle(delivery.number, 1, code)
            if not self._live:
                self._idle()
        else:
            fields = {"lock": delivery.lock, "sequence": delivery.sequence, "outcome": code.name.lower()}
            task = self._loop.create_task(self._receivers.shards.request(self.queue, "settle", fields))
            task.add_done_callback(_noted)

    def keep(self, delivery: Delivery) -> None:
        """A delivery's lock is with its receiver: this consumer may go."""
        if delivery.key == self._key:
            self._handed_out -= 1
            if not self._live:
                self._idle()

    def follow(self, policy: Policy) -> None:
        """The policy is another one: open again where that matters here. Who waits goes on waiting."""
        before = (self._lock_ms, self._selfish)
        self._read(policy)
        if (self._lock_ms, self._selfish) != before:
            self._owner.close_consumer(self.number)
            self.number = self._receivers.shards.next_link()
            # Under a key of its own, even in the middle of a move.
            self._key = ""
            self._owner.open_consumer(self)

    def close(self) -> None:
        """The gateway ends."""
        self.closed = True
        self._cancel_timers()
        self._receivers.forget(self)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._receivers.waiting -= self._live
        self._live = 0
        self._owner.close_consumer(self.number)

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this consumer under a new key: what was locked under the former one stays so there. Where its
        queue moved, it goes on under the key that it has."""
        resumes = self._owner.resumes(self.number) and bool(self._key)
        if not resumes:
            self._key = secrets.token_hex(16)
            self._next = self._handed_out = 0
        self._said = self._next
        self._at_once += self._drain_waiters
        self._drain_waiters = []
        self._draining = False
        body = ConsumerOpen(
            self.queue,
            default_outcome=OutcomeCode.RELEASED,
            default_failed=False,
            lock_ms=self._lock_ms,
            lock_key=self._key,
            label="http",
            first=self._next,
            resume=resumes,
        ).encode()
        self._owner.post(frame(Kind.CONSUMER_OPEN, link=self.number, epoch=self._owner.epoch, body=body))
        self._say()

    def ready(self) -> None:
        """Nothing waits for it: credit was said with the opening."""

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        """Messages for those who have waited longest."""
        if number != self._next:
            raise MissingDeliveriesError(f"expected delivery {self._next} of {self.queue}, found {number}")
        sequence, expires, enqueued, attempts, message_format, base, _ = DELIVER_COLUMNS.unpack_from(
            part, HEADER_SIZE
        )
        columns = (expires, enqueued, attempts, message_format)
        start = blob_at = DELIVER_ENDS + 4 * count
        # Not from when it is read here: a gateway that is late would promise more than the shard keeps.
        until_ms = delivered_at(part, self._receivers.shards.now_ms()) + self._lock_ms
        self._next = number + count
        for index, end in enumerate(memoryview(part)[DELIVER_ENDS:blob_at].cast("I")):
            waiter = self._first()
            if waiter is None:
                self._post_settle(number + index, count - index, OutcomeCode.RELEASED)
                break
            stop = blob_at + end - base
            self._handed_out += 1
            self._left()
            waiter.set_result(
                Delivery(
                    self,
                    self._key,
                    number + index,
                    sequence + index,
                    bytes(part[start:stop]),
                    columns,
                    until_ms,
                )
            )
            start = stop
        self._changed()

    def drained(self, number: int) -> None:
        """There is nothing more now: who did not want to wait is told so."""
        if not self._draining:
            return
        self._draining = False
        self._said = self._next
        asked, self._drain_waiters = self._drain_waiters, []
        for waiter in asked:
            if not waiter.done():
                waiter.set_result(None)
                self._left()
        self._say()

    def gone(self, refusal: Refusal) -> None:
        """The shard will not have this consumer (any more)."""
        self.closed = True
        self._cancel_timers()
        self._receivers.forget(self)
        problem = refused(refusal.condition, refusal.description)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(problem)
        self._receivers.waiting -= self._live
        self._live = 0

    # --- inside ----------------------------------------------------------------------------------------

    def _first(self) -> Waiter | None:
        waiters = self._waiters
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                return waiter
        return None

    def _left(self, count: int = 1) -> None:
        self._live -= count
        self._receivers.waiting -= count
        self._changed()
        if len(self._waiters) > 2 * self._live + STALE_MIN:
            self._waiters = deque(waiter for waiter in self._waiters if not waiter.done())
        if len(self._deadlines) > 2 * self._live + STALE_MIN:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done()]
            heapify(self._deadlines)

    def _changed(self) -> None:
        """Credit is said once per turn, however many came and went in it."""
        if not self._saying:
            self._saying = True
            self._loop.call_soon(self._say)

    def _say(self) -> None:
        self._saying = False
        if self.closed:
            return
        if not self._live:
            self._idle()
        if self._draining or not self._key:
            return
        limit = self._next + self._live
        asked = [waiter for waiter in self._at_once if not waiter.done()]
        self._at_once = []
        if limit == self._said and not asked:
            return
        if asked:
            self._draining = True
            self._drain_waiters = asked
        self._said = limit
        flags = DRAIN if asked else 0
        self._owner.post(
            frame(Kind.CREDIT, flags=flags, link=self.number, epoch=self._owner.epoch, number=limit)
        )

    def _post_settle(self, number: int, count: int, code: OutcomeCode) -> None:
        self._owner.post(
            frame(
                Kind.SETTLE, flags=code, link=self.number, epoch=self._owner.epoch, count=count, number=number
            )
        )

    # --- time ------------------------------------------------------------------------------------------

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
            self._left(over)

    def _idle(self) -> None:
        self._idle_since = self._loop.time()
        if self._idle_timer is None and not self.closed:
            wait_s = 0 if self._selfish else limits.RECEIVER_IDLE_MS / 1000
            self._idle_timer = self._loop.call_later(wait_s, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        if self._live or self._handed_out or self.closed:
            return
        left_s = self._idle_since + limits.RECEIVER_IDLE_MS / 1000 - self._loop.time()
        if self._selfish or left_s <= 0:
            self.close()
        else:
            self._idle_timer = self._loop.call_later(left_s, self._close_idle)

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._idle_timer = None


def _noted(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a delivery could not be settled, its lock will run out: %s", error)
