"""Producer of a queue for all HTTP requests that send to it.

A shard that refused one message refuses all later ones until a message is marked afresh
(docs/formats/wire.md). Messages of other requests that are refused for this reason alone are sent again, so
that a refused request does not fail others.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from lightrail.gateway.errors import ProblemError, not_sent, refused, unknown
from lightrail.gateway.links.outgoing import Outgoing
from lightrail.namespace.records import Name
from lightrail.shard_client.links import Producer
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.sending.window import SendWindow
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import Kind, enqueue, frame

Stored = int | None
"""Sequence of a stored message, or None from a shard that does not report it."""


@dataclass(slots=True, eq=False)
class _Batch:
    """One unanswered message."""

    message: Outgoing
    answer: "asyncio.Future[Stored]"
    number: int = 0
    part: bytes = b""


class QueueProducer(Producer):
    """The gateway's link that sends to one queue.

    Args:
        ended: called when the shard refused or closed this producer, or it was closed here.
    """

    __slots__ = (
        "_ended",
        "_loop",
        "_owner",
        "_refused",
        "_retired",
        "_revision",
        "_waiting",
        "_window",
        "idle_since",
        "queue",
    )

    def __init__(
        self,
        owner: Owner,
        number: int,
        record: Name,
        loop: asyncio.AbstractEventLoop,
        ended: "Callable[[QueueProducer], None]",
    ) -> None:
        self.number = number
        self.queue = record.name
        self._revision = record.revision
        self.idle_since: float | None = monotonic()
        """Time of the last answer, or None while messages are unanswered."""
        self._ended = ended
        self._owner = owner
        self._loop = loop
        self._window: SendWindow[_Batch] = SendWindow()
        self._waiting: deque[_Batch] = deque()
        """Messages to send once all others are answered: until then the shard refuses them."""
        self._refused = False
        self._retired = False

    def knows(self, record: Name) -> bool:
        """Whether the shard opened this producer with the policy of this record, or a later one."""
        return record.revision <= self._revision

    def retire(self) -> None:
        """Closes this producer once every message is answered; send no more messages."""
        self._retired = True
        self._go_on()

    async def send(self, message: Outgoing, wait_ms: int) -> Stored:
        """Sends one message and waits for its answer. Raises ProblemError."""
        batch = _Batch(message, self._loop.create_future())
        self.idle_since = None
        if self._refused:
            self._waiting.append(batch)
        else:
            self._post(batch)
        timer = self._loop.call_later(wait_ms / 1000, self._late, batch)
        try:
            return await batch.answer
        finally:
            timer.cancel()
            if self._window.answer(batch.number) is not None:
                # The call was cancelled: the message is not sent again if the shard restarts.
                self._go_on()

    def _post(self, batch: _Batch) -> None:
        if batch.answer.done():
            return
        message = batch.message
        size = len(message.message)
        number = batch.number = self._window.next
        batch.part = enqueue(
            self.number,
            self._owner.epoch,
            number,
            array("I", (size,)).tobytes(),
            (message.message,),
            durable=message.durable,
            afresh=not self._window,
            priority=message.priority,
            expires_at_ms=message.expires_at_ms,
            message_format=message.message_format,
            size=size,
        )
        self._window.add(number, batch)
        self._owner.post(batch.part)

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this producer, and sends unanswered messages again whose callers still wait."""
        body = ProducerOpen(
            self.queue, sequences=True, label="http", sent_below=self._window.sent_below
        ).encode()
        self._owner.post(
            frame(
                Kind.PRODUCER_OPEN,
                link=self.number,
                epoch=self._owner.epoch,
                number=self._window.next,
                body=body,
            )
        )
        for batch in self._window:
            self._owner.post(batch.part)
        self._window.mark_sent()

    def disconnected(self) -> None:
        """The shard is disconnected (see Producer)."""
        self._window.mark_sent()

    def ready(self) -> None:
        """No action: frames are handled in order."""

    def stored(self, number: int, sequence: int) -> None:
        """One message is stored as the queue's policy requires."""
        batch = self._window.answer(number)
        if batch is not None and not batch.answer.done():
            batch.answer.set_result(sequence)
        self._go_on()

    def answered(self, number: int, count: int) -> None:
        """Messages are stored, by a shard that does not report sequences."""
        for batch in self._window.answer_run(number, count):
            if not batch.answer.done():
                batch.answer.set_result(None)
        self._go_on()

    def refused(self, number: int, refusal: Refusal) -> None:
        """One message is not stored; the shard refuses later messages as well, and they are sent again."""
        batch = self._window.answer(number)
        if batch is not None and not batch.answer.done():
            if self._refused:
                self._waiting.append(batch)
            else:
                batch.answer.set_exception(refused(refusal.condition, refusal.description))
        self._refused = True
        self._go_on()

    def ended(self, refusal: Refusal) -> None:
        """The shard refused or closed this producer."""
        self._ended(self)
        self._fail(refused(refusal.condition, refusal.description))

    def close(self) -> None:
        """Closes this producer; unanswered messages fail with `unknown`: they may or may not be stored."""
        self._ended(self)
        self._owner.close_producer(self.number)
        self._fail(unknown(self.queue))

    def _go_on(self) -> None:
        """Once all messages are answered, sends the waiting messages, the first of them marked afresh."""
        if self._window:
            return
        self._refused = False
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._post(batch)
        if not self._window:
            self.idle_since = monotonic()
            if self._retired:
                self._owner.close_producer(self.number)

    def _fail(self, problem: ProblemError) -> None:
        for batch in (*self._window.clear(), *self._waiting):
            if not batch.answer.done():
                batch.answer.set_exception(problem)
        self._waiting.clear()

    def _late(self, batch: _Batch) -> None:
        if not batch.answer.done():
            never_posted = not batch.number or (
                not self._owner.is_there and not self._window.may_be_stored(batch.number)
            )
            batch.answer.set_exception(not_sent(self.queue) if never_posted else unknown(self.queue))
