"""Producer of a queue for all HTTP requests that send to it.

A shard that refused one message refuses all later ones until one is marked afresh (docs/formats/wire.md).
Messages of other requests that are refused for this reason alone are sent again, so that no request suffers
for another.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable
from time import monotonic

from lightrail.gateway.errors import ProblemError, away, refused, unknown
from lightrail.gateway.links.outgoing import Outgoing
from lightrail.namespace.records import Name
from lightrail.wire.frames import Kind, enqueue, frame
from lightrail.wire.home import Home
from lightrail.wire.messages import ProducerOpen, Refusal
from lightrail.wire.shards import Producer

Stored = int | None
"""Sequence of a stored message, or None from a shard that does not report it."""


class _Batch:
    """One message that has no answer yet."""

    __slots__ = ("answer", "message", "number", "part")

    def __init__(self, message: Outgoing, answer: "asyncio.Future[Stored]") -> None:
        self.message = message
        self.answer = answer
        self.number = 0
        self.part = b""


class QueueProducer(Producer):
    """The gateway's link that sends to one queue.

    Args:
        ended: called when the shard refused or closed this producer, or it was closed here.
    """

    __slots__ = (
        "_ended",
        "_held",
        "_home",
        "_loop",
        "_next",
        "_posted_to",
        "_refused",
        "_retired",
        "_revision",
        "_unanswered",
        "idle_since",
        "queue",
    )

    def __init__(
        self,
        home: Home,
        number: int,
        record: Name,
        loop: asyncio.AbstractEventLoop,
        ended: "Callable[[QueueProducer], None]",
    ) -> None:
        self.number = number
        self.queue = record.name
        self._revision = record.revision
        self.idle_since: float | None = monotonic()
        """When the last answer was given, or None while messages are under way."""
        self._ended = ended
        self._home = home
        self._loop = loop
        self._next = 1
        self._posted_to = 0
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
        """Sends one message and waits for its answer. Raises ProblemError."""
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
            self._home.epoch,
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
        self._home.post(batch.part)

    # --- from the shard --------------------------------------------------------------------------------

    def say_all(self) -> None:
        """Opens this producer, and sends again what has no answer and is still waited for."""
        body = ProducerOpen(self.queue, sequences=True, label="http").encode()
        self._home.post(
            frame(
                Kind.PRODUCER_OPEN,
                link=self.number,
                epoch=self._home.epoch,
                number=self._next,
                body=body,
            )
        )
        for batch in self._unanswered.values():
            self._home.post(batch.part)
        self._posted_to = self._next

    def away(self) -> None:
        """See Producer."""
        self._posted_to = self._next

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
        self._ended(self)
        self._fail(refused(refusal.condition, refusal.description))

    def close(self) -> None:
        """Whoever still waits is told that nothing is known."""
        self._ended(self)
        self._home.close_producer(self.number)
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
                self._home.close_producer(self.number)

    def _fail(self, problem: ProblemError) -> None:
        for batch in (*self._unanswered.values(), *self._held):
            if not batch.answer.done():
                batch.answer.set_exception(problem)
        self._unanswered.clear()
        self._held.clear()

    def _late(self, batch: _Batch) -> None:
        if not batch.answer.done():
            never_posted = not batch.number or (not self._home.is_there and batch.number >= self._posted_to)
            batch.answer.set_exception(away(self.queue) if never_posted else unknown(self.queue))
