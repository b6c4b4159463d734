"""Consumer of a queue for all HTTP requests that wait there.

One consumer per queue and gateway has as much credit at the shard as requests wait. A delivery answers the
request that has waited longest; if no request waits, it is released at once. A request that is cancelled
withdraws its credit.

Each opening of a consumer has a new random lock key: the lock of a delivery is KEY-NUMBER, and any gateway
may settle the delivery by that id.
"""

import asyncio
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightrail.gateway.errors import refused
from lightrail.gateway.links.waiting import WaitingLine
from lightrail.model import limits
from lightrail.model.ending import Ending
from lightrail.model.policy import LOCK_SECONDS_DEFAULT, Policy
from lightrail.namespace.records import Name
from lightrail.shard_client.links import Consumer
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.receiving.window import ReceiveWindow, decode_slice
from lightrail.wire.bodies import ConsumerOpen, Refusal
from lightrail.wire.frames import DRAIN, Kind, OutcomeCode, delivered_at, frame

if TYPE_CHECKING:
    from lightrail.gateway.links.receiving import Receivers

log = logging.getLogger("lightrail.gateway.links.consumer")

Waiter = asyncio.Future["Delivery | None"]


@dataclass(slots=True, eq=False)
class Delivery:
    """A message that is locked for one request."""

    consumer: "QueueConsumer"
    key: str
    number: int
    sequence: int
    message: bytes
    expires_at_ms: int
    enqueued_at_ms: int
    attempts: int
    """Failed deliveries before this one."""
    message_format: int
    locked_until_ms: int

    @property
    def lock(self) -> str:
        """The id of the message's lock."""
        return f"{self.key}-{self.number}"

    def accept(self) -> None:
        """The client received the message, which leaves the queue."""
        self.consumer.settle(self, OutcomeCode.ACCEPTED)

    def keep(self) -> None:
        """The client received the message and its lock."""
        self.consumer.keep(self)

    def release(self) -> None:
        """No client received the message: it returns to the queue as if it had never been delivered."""
        self.consumer.settle(self, OutcomeCode.RELEASED)


class QueueConsumer(Consumer):
    """The gateway's link that receives from one queue, for all requests that wait there."""

    __slots__ = (
        "_at_once",
        "_drain_waiters",
        "_draining",
        "_exclusive",
        "_handed_out",
        "_host",
        "_idle_since",
        "_idle_timer",
        "_key",
        "_line",
        "_lock_ms",
        "_loop",
        "_owner",
        "_posting",
        "_user",
        "_window",
        "closed",
        "created",
        "queue",
    )

    def __init__(self, host: "Receivers", owner: Owner, number: int, record: Name, user: str) -> None:
        self.number = number
        self.queue = record.name
        self.created = record.created
        """Revision that created the queue; a different revision means a different queue of this name."""
        self.closed = False
        self._host = host
        self._user = user
        self._loop = host.loop
        self._owner = owner
        self._lock_ms = 0
        self._exclusive = False
        """An open consumer may exclude other consumers, so it is closed as soon as no request waits."""
        self._read(record.policy)
        self._key = ""
        self._window = ReceiveWindow()
        """Number of the last delivery under this key."""
        self._posting = False
        self._line: WaitingLine[Delivery] = WaitingLine(self._loop, self._left)
        self._at_once: list[Waiter] = []
        """Requests that do not wait for messages: a drain answers them."""
        self._draining = False
        self._drain_waiters: list[Waiter] = []
        self._handed_out = 0
        """Deliveries of requests whose answer is not written yet."""
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def disconnected(self) -> bool:
        """Whether the shard is not connected, so that a drain has no answer now."""
        return not self._owner.is_there

    def _read(self, policy: Policy) -> None:
        self._lock_ms = policy.milliseconds("lock_duration") or int(LOCK_SECONDS_DEFAULT * 1000)
        self._exclusive = bool(policy["exclusive"] or policy["single_active"] or policy["max_consumers"])

    # --- from requests ---------------------------------------------------------------------------------

    def wait(self, wait_ms: int) -> Waiter:
        """Adds a waiter to the line; its result is a delivery, or None after `wait_ms`."""
        waiter = self._line.join(wait_ms)
        self._host.waiting += 1
        if not wait_ms:
            self._at_once.append(waiter)
        self._changed()
        return waiter

    def gave_up(self, waiter: Waiter) -> None:
        """The request was cancelled; a delivery that arrived for it at the same moment is released."""
        if waiter.cancelled():
            if not self.closed:  # Else it was counted with those that waited at the end.
                self._left()
        elif waiter.exception() is None and (delivery := waiter.result()) is not None:
            delivery.release()

    def settle(self, delivery: Delivery, code: OutcomeCode) -> None:
        """Settles a delivery of a request: by the id of its lock, if the consumer was opened again since."""
        if delivery.key == self._key and not self.closed:
            self._handed_out -= 1
            self._post_settle(delivery.number, 1, code)
            if not self._line.count:
                self._idle()
        else:
            fields = {"lock": delivery.lock, "sequence": delivery.sequence, "outcome": code.name.lower()}
            task = self._loop.create_task(self._host.shards.request(self.queue, "settle", fields))
            task.add_done_callback(_noted)

    def keep(self, delivery: Delivery) -> None:
        """The client received the lock of a delivery: this consumer may be closed."""
        if delivery.key == self._key:
            self._handed_out -= 1
            if not self._line.count:
                self._idle()

    def follow(self, policy: Policy) -> None:
        """Opens this consumer again if a new policy changes locks or exclusivity; requests still wait."""
        before = (self._lock_ms, self._exclusive)
        self._read(policy)
        if (self._lock_ms, self._exclusive) != before:
            self._owner.close_consumer(self.number, Ending.BY_BROKER)
            self.number = self._host.shards.next_link()
            # With a new key, even while the queue moves.
            self._key = ""
            self._owner.open_consumer(self)

    def close(self) -> None:
        """The gateway ends, or no request has waited for a while."""
        for waiter in self._end():
            waiter.set_result(None)
        self._owner.close_consumer(self.number, Ending.BY_BROKER)

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this consumer with a new key; locks of the former key stay valid at the shard.

        If the queue moved, the consumer keeps its key.
        """
        resumes = self._owner.resumes(self.number) and bool(self._key)
        if not resumes:
            self._key = secrets.token_hex(16)
            self._window = ReceiveWindow()
            self._handed_out = 0
        self._window.withdraw()
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
            first=self._window.next,
            resume=resumes,
            user=self._user,
        ).encode()
        self._owner.post(frame(Kind.CONSUMER_OPEN, link=self.number, epoch=self._owner.epoch, body=body))
        self._post_credit()

    def ready(self) -> None:
        """No action: credit was granted with the opening."""

    def deliver(self, part: bytes | memoryview, number: int, count: int) -> None:
        """Answers the requests that have waited longest with these messages."""
        self._window.advance(number, count, self.queue)
        found = decode_slice(part, count)
        # From the time of delivery: a slow gateway must not promise a longer lock than the shard keeps.
        until_ms = delivered_at(part, self._host.shards.now_ms()) + self._lock_ms
        for index, message in enumerate(found.messages):
            waiter = self._line.pop()
            if waiter is None:
                self._post_settle(number + index, count - index, OutcomeCode.RELEASED)
                break
            self._handed_out += 1
            self._left()
            waiter.set_result(
                Delivery(
                    self,
                    self._key,
                    number + index,
                    found.sequence + index,
                    message,
                    found.expires_at_ms,
                    found.enqueued_at_ms,
                    found.attempts,
                    found.message_format,
                    until_ms,
                )
            )
        self._changed()

    def drained(self, number: int) -> None:
        """The queue is empty: requests that do not wait are answered."""
        if not self._draining:
            return
        self._draining = False
        self._window.withdraw()
        waiters, self._drain_waiters = self._drain_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
                self._left()
        self._post_credit()

    def ended(self, refusal: Refusal) -> None:
        """The shard refused or closed this consumer."""
        problem = refused(refusal.condition, refusal.description)
        for waiter in self._end():
            waiter.set_exception(problem)

    # --- inside ----------------------------------------------------------------------------------------

    def _end(self) -> list[Waiter]:
        """Ends this consumer; returns the requests that still need an answer."""
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
            self._loop.call_soon(self._post_credit)

    def _post_credit(self) -> None:
        self._posting = False
        if self.closed:
            return
        if not self._line.count:
            self._idle()
        if self._draining or not self._key:
            return
        limit = self._window.next + self._line.count
        waiters = [waiter for waiter in self._at_once if not waiter.done()]
        self._at_once = []
        if limit == self._window.limit and not waiters:
            return
        if waiters:
            self._draining = True
            self._drain_waiters = waiters
        self._window.limit = limit
        flags = DRAIN if waiters else 0
        self._owner.post(
            frame(Kind.CREDIT, flags=flags, link=self.number, epoch=self._owner.epoch, number=limit)
        )

    def _post_settle(self, number: int, count: int, code: OutcomeCode) -> None:
        self._owner.post(
            frame(
                Kind.SETTLE, flags=code, link=self.number, epoch=self._owner.epoch, count=count, number=number
            )
        )

    def _idle(self) -> None:
        self._idle_since = self._loop.time()
        if self._idle_timer is None and not self.closed:
            wait_s = 0 if self._exclusive else limits.RECEIVER_IDLE_MS / 1000
            self._idle_timer = self._loop.call_later(wait_s, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        if self._line.count or self._handed_out or self.closed:
            return
        left_s = self._idle_since + limits.RECEIVER_IDLE_MS / 1000 - self._loop.time()
        if self._exclusive or left_s <= 0:
            self.close()
        else:
            self._idle_timer = self._loop.call_later(left_s, self._close_idle)


def _noted(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a delivery could not be settled, its lock will expire: %s", error)
