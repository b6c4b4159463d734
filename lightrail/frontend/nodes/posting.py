"""A posting: sends single messages of the frontend to a queue, and waits until each is stored."""

import asyncio
from array import array
from typing import TYPE_CHECKING, Self

from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.resolving import resolve
from lightrail.model import conditions, limits
from lightrail.model.policy import Role
from lightrail.namespace.records import Right
from lightrail.shard_client.links import Producer
from lightrail.wire.bodies import ProducerOpen, Refusal
from lightrail.wire.frames import UNKNOWN_SEQUENCE, Kind, enqueue, frame

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend
    from lightrail.shard_client.owners.owner import Owner


class PostingError(Exception):
    """The message may not be in the queue: an error condition and a sentence."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


class Posting(Producer):
    """A producer of one queue for one message at a time.

    Args:
        sequences: the shard answers with the sequence of each message, which `post` returns.
    """

    __slots__ = (
        "_answer",
        "_frontend",
        "_next",
        "_owner",
        "_part",
        "_sequences",
        "closed",
        "queue",
        "sequence",
    )

    def __init__(self, frontend: "Frontend", owner: "Owner", queue: str, *, sequences: bool = False) -> None:
        self.number = frontend.next_link()
        self.queue = queue
        self.closed = False
        self._frontend = frontend
        self._owner = owner
        self._next = 0
        self._part = b""
        self._sequences = sequences
        self.sequence = UNKNOWN_SEQUENCE
        """Sequence of the last stored message, if the shard reports it."""
        self._answer: asyncio.Future[Refusal | None] | None = None

    @classmethod
    async def open(cls, connection: "ClientConnection", queue: str, *, sequences: bool = False) -> Self:
        """Opens a queue for messages on behalf of a client, which must have the right to send there.

        Raises:
            PostingError: the client lacks the right, or the name is no queue.
        """
        frontend = connection.frontend
        try:
            record = await resolve(connection, queue, Right.SEND, connection.client.owner)
        except ConditionError as error:
            raise PostingError(error.condition, error.description) from None
        if record.role is not Role.QUEUE:
            raise PostingError(conditions.NOT_FOUND, f"{queue} has role {record.role}; expected a queue")
        return await cls.open_at(frontend, record.name, sequences=sequences)

    @classmethod
    async def open_at(cls, frontend: "Frontend", queue: str, *, sequences: bool = False) -> Self:
        """Opens a queue for messages whose sender was checked before."""
        owner = await frontend.place(queue)
        posting = cls(frontend, owner, queue, sequences=sequences)
        owner.open_producer(posting)
        return posting

    async def post(
        self, message: bytes, *, durable: bool = False, priority: int = 4, expires_at_ms: int = 0
    ) -> None:
        """Stores one message in the queue. Raises PostingError: the shard refused it, or does not answer."""
        if self.closed:
            raise PostingError(conditions.RESOURCE_DELETED, f"{self.queue} is no longer open")
        self._next += 1
        self._answer = asyncio.get_running_loop().create_future()
        self._part = enqueue(
            self.number,
            self._owner.epoch,
            self._next,
            array("I", [len(message)]).tobytes(),
            [message],
            durable=durable,
            afresh=True,
            priority=priority,
            expires_at_ms=expires_at_ms,
            message_format=0,
            size=len(message),
        )
        self._owner.post(self._part)
        try:
            refusal = await asyncio.wait_for(self._answer, limits.NODE_POST_MS / 1000)
        except TimeoutError:
            self.close()
            raise PostingError(
                conditions.INTERNAL_ERROR, f"the shard of {self.queue} did not answer in time"
            ) from None
        finally:
            self._answer = None
            self._part = b""
        if refusal is not None:
            raise PostingError(refusal.condition, f"{self.queue}: {refusal.description}")

    def close(self) -> None:
        """Closes the posting."""
        if not self.closed:
            self.closed = True
            self._owner.close_producer(self.number)

    # --- from the shard --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Opens the producer at the shard, and repeats an unanswered message."""
        sent_below = self._next + 1 if self._part else 0
        opening = ProducerOpen(self.queue, sequences=self._sequences, sent_below=sent_below).encode()
        self._owner.post(
            frame(
                Kind.PRODUCER_OPEN,
                link=self.number,
                epoch=self._owner.epoch,
                number=self._next + 1,
                body=opening,
            )
        )
        if self._part:
            self._owner.post(self._part)

    def ready(self) -> None:
        """No action: messages are sent with the opening."""

    def answered(self, number: int, count: int) -> None:
        """The message is stored."""
        if number + count > self._next:
            self._settle(None)

    def stored(self, number: int, sequence: int) -> None:
        """The message is stored under this sequence."""
        if number == self._next:
            self.sequence = sequence
            self._settle(None)

    def refused(self, number: int, refusal: Refusal) -> None:
        """The message could not be stored."""
        if number == self._next:
            self._settle(refusal)

    def ended(self, refusal: Refusal) -> None:
        """The shard refuses this producer, or has closed it."""
        self.closed = True
        self._settle(refusal)

    def _settle(self, refusal: Refusal | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(refusal)
