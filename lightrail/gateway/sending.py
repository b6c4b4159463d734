"""Sending: messages of HTTP requests on their way to shards, one producer per queue for all who send to it.

A shard that refused one message refuses those behind it until one comes that is marked afresh (wire.md). The
messages of other requests that are refused only for that are sent again by the producer, so that one
request's bad luck is not another's.
"""

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Iterable
from time import monotonic

from lightrail.gateway.errors import AGAIN, Problem, away, refused, unknown
from lightrail.gateway.outgoing import Outgoing
from lightrail.gateway.routing import RouterSender
from lightrail.gateway.shards import Shards
from lightrail.model import conditions, limits
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import Kind, enqueue, frame
from lightrail.wire.links import Producer
from lightrail.wire.owner import Owner

log = logging.getLogger("lightrail.gateway.sending")

Stored = int | None
"""Sequence of a stored message, or None where the shard does not say it."""


class Sender:
    """Sends to names; the seam for roles that are no queue."""

    def __init__(self, shards: Shards, directory: Directory, loop: asyncio.AbstractEventLoop) -> None:
        self._shards = shards
        self._loop = loop
        self.routers = RouterSender(shards, directory, loop)
        self._producers: dict[str, QueueProducer] = {}
        self.bytes = 0
        """Of bodies that room was taken for."""
        self._sweeping: asyncio.TimerHandle | None = None

    def reserve(self, size: int) -> None:
        """Room for a body, before it is read. Raises Problem: too many are under way."""
        if self.bytes + size > limits.HTTP_BODIES_BYTES and self.bytes:
            raise Problem(503, "this gateway is being sent as much as it can hold; try again", headers=AGAIN)
        self.bytes += size

    def release(self, size: int) -> None:
        self.bytes -= size

    async def send(self, record: Name, message: Outgoing) -> Stored:
        """Stores a message at a name; the answer comes when it is where its policy wants it.

        Raises:
            Problem: refused (full, too large), or nothing was heard in time: it may or may not be stored.
            ShardDownError.
        """
        if record.role not in (Role.QUEUE, Role.ROUTER):
            raise Problem(501, f"messages can't be sent to a {record.role} over HTTP in this version")
        most = record.policy["max_message_bytes"]
        if most is not None and len(message.message) > most:
            raise refused(
                conditions.MESSAGE_SIZE_EXCEEDED,
                f"the message has {len(message.message)} bytes; {record.name} takes at most {most}",
            )
        if record.role is Role.ROUTER:
            await self.routers.send(record, message)
            return None
        producer = self._producers.get(record.name)
        if producer is None or not producer.knows(record) or self._shards.looks_up(record.name):
            owner = await self._shards.route(record.name)
            producer = self._producers.get(record.name)
            if producer is None or not producer.knows(record):
                # Shards look at the directory when a producer is opened. Through the former one the message
                # would be taken as the former policy says, or get lost with a queue that was deleted.
                if producer is not None:
                    producer.retire()
                producer = self._producers[record.name] = QueueProducer(
                    self, owner, self._shards.next_link(), record, self._loop
                )
                owner.open_producer(producer)
                self._watch()
        wait_ms = limits.REQUEST_MS + (record.policy.milliseconds("enqueue_timeout") or 0)
        return await producer.send(message, wait_ms)

    async def send_many(self, record: Name, messages: Iterable[Outgoing]) -> list[Stored | BaseException]:
        """Each message by itself, in order and at once: the sequence of each, or why it is not stored."""
        sending = (self.send(record, message) for message in messages)
        return await asyncio.gather(*sending, return_exceptions=True)

    def forget(self, producer: "QueueProducer") -> None:
        """A producer has ended; the next message opens another."""
        if self._producers.get(producer.queue) is producer:
            del self._producers[producer.queue]

    def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for producer in list(self._producers.values()):
            producer.close()
        self.routers.close()

    def _watch(self) -> None:
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(limits.SENDER_IDLE_MS / 1000, self._sweep)

    def _sweep(self) -> None:
        """Producers that nobody sent through for a while are closed."""
        self._sweeping = None
        before = monotonic() - limits.SENDER_IDLE_MS / 1000
        for producer in list(self._producers.values()):
            if producer.idle_since is not None and producer.idle_since < before:
                producer.close()
        if self._producers:
            self._watch()


class _Batch:
    """One message that has no answer yet."""

    __slots__ = ("answer", "message", "number", "part")

    def __init__(self, message: Outgoing, answer: "asyncio.Future[Stored]") -> None:
        self.message = message
        self.answer = answer
        self.number = 0
        self.part = b""


class QueueProducer(Producer):
    """The gateway's link that sends to one queue."""

    __slots__ = (
        "_held",
        "_loop",
        "_next",
        "_owner",
        "_refused",
        "_retired",
        "_revision",
        "_said_to",
        "_sender",
        "_unanswered",
        "idle_since",
        "queue",
    )

    def __init__(
        self,
        sender: Sender,
        owner: Owner,
        number: int,
        record: Name,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.number = number
        self.queue = record.name
        self._revision = record.revision
        self.idle_since: float | None = monotonic()
        """When the last answer was given, or None while messages are under way."""
        self._sender = sender
        self._owner = owner
        self._loop = loop
        self._next = 1
        self._said_to = 0
        """Messages numbered below it may have reached a shard; of use only while none is there."""
        self._unanswered: dict[int, _Batch] = {}
        self._held: deque[_Batch] = deque()
        """What waits until everything has its answer: the shard refuses all that is not afresh."""
        self._refused = False
        self._retired = False

    def knows(self, record: Name) -> bool:
        """Whether the shard had this policy, or a later one, when this producer was opened."""
        return record.revision <= self._revision

    def retire(self) -> None:
        """Nothing more is sent through it: it goes when everything has its answer."""
        self._retired = True
        self._turn()

    async def send(self, message: Outgoing, wait_ms: int) -> Stored:
        """Sends one message and waits for its answer. Raises Problem."""
        batch = _Batch(message, self._loop.create_future())
        self.idle_since = None
        if self._refused:
            self._held.append(batch)
        else:
            self._post(batch)
        timer = self._loop.call_later(wait_ms / 1000, self._late, batch)
        try:
            return await batch.answer
        finally:
            timer.cancel()
            if self._unanswered.pop(batch.number, None) is not None:
                # Nobody waits any more: it is not sent again, whatever becomes of the shard.
                self._turn()

    def _post(self, batch: _Batch) -> None:
        if batch.answer.done():
            return
        message = batch.message
        size = len(message.message)
        number = batch.number = self._next
        self._next = number + 1
        batch.part = enqueue(
            self.number,
            self._owner.epoch,
            number,
            array("I", (size,)).tobytes(),
            (message.message,),
            durable=message.durable,
            afresh=not self._unanswered,
            priority=message.priority,
            expires_at_ms=message.expires_at_ms,
            message_format=message.message_format,
            size=size,
        )
        self._unanswered[number] = batch
        self._owner.post(batch.part)

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this producer, and sends again what has no answer and is still waited for."""
        body = ProducerOpen(self.queue, sequences=True, label="http").encode()
        self._owner.post(
            frame(
                Kind.PRODUCER_OPEN,
                link=self.number,
                epoch=self._owner.epoch,
                number=self._next,
                body=body,
            )
        )
        for batch in self._unanswered.values():
            self._owner.post(batch.part)
        self._said_to = self._next

    def away(self) -> None:
        """See Producer."""
        self._said_to = self._next

    def ready(self) -> None:
        """Nothing waits for it: frames are taken in order."""

    def stored(self, number: int, sequence: int) -> None:
        """One message is where it has to be."""
        batch = self._unanswered.pop(number, None)
        if batch is not None and not batch.answer.done():
            batch.answer.set_result(sequence)
        self._turn()

    def answered(self, number: int, count: int) -> None:
        """The same, from a shard that does not say sequences."""
        for each in range(number, number + count):
            batch = self._unanswered.pop(each, None)
            if batch is not None and not batch.answer.done():
                batch.answer.set_result(None)
        self._turn()

    def refused(self, number: int, refusal: Refusal) -> None:
        """One message could not be stored; those behind it are refused as well, and are sent again."""
        batch = self._unanswered.pop(number, None)
        if batch is not None and not batch.answer.done():
            if self._refused:
                self._held.append(batch)
            else:
                batch.answer.set_exception(refused(refusal.condition, refusal.description))
        self._refused = True
        self._turn()

    def gone(self, refusal: Refusal) -> None:
        """The shard will not have this producer (any more)."""
        self._sender.forget(self)
        self._fail(refused(refusal.condition, refusal.description))

    def close(self) -> None:
        """Whoever still waits is told that nothing is known."""
        self._sender.forget(self)
        self._owner.close_producer(self.number)
        self._fail(unknown(self.queue))

    def _turn(self) -> None:
        """When everything has its answer, what was held back goes on, the first of it afresh."""
        if self._unanswered:
            return
        self._refused = False
        held, self._held = self._held, deque()
        for batch in held:
            self._post(batch)
        if not self._unanswered:
            self.idle_since = monotonic()
            if self._retired:
                self._owner.close_producer(self.number)

    def _fail(self, problem: Problem) -> None:
        for batch in (*self._unanswered.values(), *self._held):
            if not batch.answer.done():
                batch.answer.set_exception(problem)
        self._unanswered.clear()
        self._held.clear()

    def _late(self, batch: _Batch) -> None:
        if not batch.answer.done():
            never_said = not batch.number or (not self._owner.is_there and batch.number >= self._said_to)
            batch.answer.set_exception(away(self.queue) if never_said else unknown(self.queue))
