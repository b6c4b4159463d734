"""Numbered batches of a named producer: stored once, however often they are sent.

A shard keeps the last number of each producer in its journal, and transfers it when a queue moves. The
producer is not a link but a name chosen by the client, per queue and user, so the same batch may be sent
again through any gateway. Batches of one producer are sent one after the other, with rising numbers.

Messages that differ in durability, priority or time to live are sent in separate frames, in order. The number
of a frame is (batch + 1) << 16 | index, so the same batch always has the same frames.
"""

import asyncio
from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate, groupby
from typing import Final, NamedTuple

from lightrail.gateway.errors import AGAIN, ProblemError, refused
from lightrail.model import conditions
from lightrail.namespace.router_plan import earlier_expiry
from lightrail.shard_client.links import Producer
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.sending.window import SendWindow
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import IDENTITY, UNKNOWN_SEQUENCE, Kind, enqueue, frame

_INDEX_BITS: Final = 16


class Message(NamedTuple):
    """An encoded message, and the fields of its header and properties that a frame needs."""

    data: bytes | memoryview
    durable: bool
    priority: int
    ttl_ms: int | None
    expires_at_ms: int | None


class Batch(NamedTuple):
    """The messages of one request for one queue."""

    user: str
    producer: str
    number: int
    messages: Sequence[Message]

    def identity(self, queue: str) -> int:
        """The producer's id at the shard of a queue.

        The id depends on the user, so that batches of two users are never taken for the same batch.
        """
        text = "\0".join((self.user, self.producer, queue)).encode(errors="surrogatepass")
        return int.from_bytes(blake2b(text, digest_size=8).digest()) | IDENTITY


class Stored(NamedTuple):
    """The result of a batch that one queue has stored as its policy requires."""

    messages: int
    """Messages that this request stored; the others were stored before."""


class _Run(NamedTuple):
    """An unanswered frame."""

    part: bytes
    messages: int


class NumberedProducer(Producer):
    """The gateway's link for one batch of a named producer, open until the batch is answered.

    Args:
        number: of the link; unique in the lifetime of this process.
        age_ms: at which messages expire at the latest, by the policies of routers; None for no bound.
    """

    __slots__ = ("_age_ms", "_answer", "_batch", "_loop", "_new", "_owner", "_refusal", "_settled", "_window")

    def __init__(
        self,
        owner: Owner,
        number: int,
        batch: Batch,
        loop: asyncio.AbstractEventLoop,
        *,
        age_ms: int | None = None,
    ) -> None:
        self.number = number
        self._age_ms = age_ms
        self._owner = owner
        self._batch = batch
        self._loop = loop
        self._answer: asyncio.Future[Stored] = loop.create_future()
        self._window: SendWindow[_Run] = SendWindow()
        self._new = 0
        """Messages stored by this request."""
        self._settled = 0
        """Messages stored by this request or earlier."""
        self._refusal: Refusal | None = None

    async def send(self, now_ms: int, wait_ms: int) -> Stored:
        """Stores the batch at its queue; returns once all of it is stored as the policy requires.

        Raises ProblemError: only a part of the batch is stored, or the shard did not answer in time.
        """
        for index, (part, count) in enumerate(self._frames(now_ms)):
            number = self._batch.number + 1 << _INDEX_BITS | index
            self._window.add(number, _Run(part, count))
        self._owner.open_producer(self)
        timer = self._loop.call_later(wait_ms / 1000, self._late)
        try:
            return await self._answer
        finally:
            timer.cancel()
            self._owner.close_producer(self.number)

    def _frames(self, now_ms: int) -> Iterator[tuple[bytes, int]]:
        for index, (shared, run) in enumerate(groupby(self._batch.messages, key=_shared)):
            durable, priority, ttl_ms, expires = shared
            found = [message.data for message in run]
            ends = array("I", accumulate(map(len, found)))
            expires_at_ms = now_ms + ttl_ms if ttl_ms is not None else 0
            if expires is not None:
                expires_at_ms = max(1, min(expires_at_ms, expires) if expires_at_ms else expires)
            # The frames stay the same whatever the age, so that a repeated batch has the same frames.
            if self._age_ms is not None:
                expires_at_ms = earlier_expiry(expires_at_ms, now_ms + self._age_ms)
            part = enqueue(
                self.number,
                self._owner.epoch,
                self._batch.number + 1 << _INDEX_BITS | index,
                ends.tobytes(),
                found,
                durable=durable,
                afresh=not index,
                priority=priority,
                expires_at_ms=expires_at_ms,
                message_format=0,
                size=ends[-1],
            )
            yield part, len(found)

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens this producer, and sends unanswered frames again."""
        queue = self._owner.queue
        opened = ProducerOpen(
            queue,
            True,
            label="http batch",
            identity=self._batch.identity(queue),
            sent_below=self._window.sent_below,
        )
        # Frames of one batch have no gap, unless a frame was refused; the shard refuses later frames, too.
        first = self._window.first if self._refusal is None else 0
        self._owner.post(
            frame(
                Kind.PRODUCER_OPEN,
                link=self.number,
                epoch=self._owner.epoch,
                number=first,
                body=opened.encode(),
            )
        )
        for run in self._window:
            self._owner.post(run.part)
        self._window.mark_sent()

    def ready(self) -> None:
        """No action: frames are sent with the opening."""

    def stored(self, number: int, sequence: int) -> None:
        """One frame is stored; without a sequence it was stored before."""
        run = self._window.answer(number)
        if run is not None:
            self._settled += run.messages
            if sequence != UNKNOWN_SEQUENCE:
                self._new += run.messages
        self._turn()

    def answered(self, number: int, count: int) -> None:
        """Frames are stored, by a shard of an earlier version, which does not report sequences."""
        for each in range(number, number + count):
            self.stored(each, UNKNOWN_SEQUENCE)

    def refused(self, number: int, refusal: Refusal) -> None:
        """One frame is not stored, or only a part of it; later frames are not stored."""
        run = self._window.answer(number)
        if run is not None and self._refusal is None:
            self._refusal = refusal
            self._settled += refusal.accepted
        self._turn()

    def ended(self, refusal: Refusal) -> None:
        """The shard refused or closed this producer."""
        if refusal.condition == conditions.STOLEN:
            self._fail(
                ProblemError(
                    503,
                    f"another request of the producer {self._batch.producer!a} reached {self._owner.queue} "
                    "while this one was under way; send the batch again, under the same number",
                    headers=AGAIN,
                    condition=refusal.condition,
                )
            )
        else:
            self._fail(refused(refusal.condition, refusal.description))

    def _turn(self) -> None:
        if self._window or self._answer.done():
            return
        if self._refusal is None:
            self._answer.set_result(Stored(self._new))
            return
        refusal, messages = self._refusal, len(self._batch.messages)
        why = refused(refusal.condition, refusal.description)
        detail = (
            f"{why.detail}; the first {self._settled} of {messages} messages are stored in "
            f"{self._owner.queue}: send the batch again, under the same number, and the rest will be"
        )
        members = why.members | {"stored": self._settled, "messages": messages}
        self._fail(ProblemError(why.status, detail, headers=why.headers, **members))

    def _late(self) -> None:
        self._fail(
            ProblemError(
                503,
                f"the shard of {self._owner.queue} has not answered in time: the batch may or may not be "
                "stored; send it again, under the same number",
                headers=AGAIN,
            )
        )

    def _fail(self, problem: ProblemError) -> None:
        if not self._answer.done():
            self._answer.set_exception(problem)


def _shared(message: Message) -> tuple[bool, int, int | None, int | None]:
    return message[1:]
