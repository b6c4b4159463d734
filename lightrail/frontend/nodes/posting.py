"""A posting: sends single messages of the frontend to a queue, and waits until each is stored."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Self

from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.resolving import resolve
from lightrail.model import conditions
from lightrail.model.policy import Role
from lightrail.namespace.records import Right
from lightrail.shard_client.deadlines import left_ms
from lightrail.shard_client.sending.queue_producer import QueueProducer
from lightrail.shard_client.sending.window import MAYBE_STORED, NOT_STORED, Attributes
from lightrail.wire.frames import UNKNOWN_SEQUENCE

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend

NODE_POST_MS: Final[int] = 5_000
"""How long an answer waits for the shard of the queue that it goes to."""
TRANSIENT: Final = Attributes(durable=False, priority=4, expires_at_ms=0, message_format=0)


class PostingError(Exception):
    """The message may not be in the queue: an error condition and a sentence."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


class Posting:
    """A producer of one queue."""

    __slots__ = ("_producer",)

    def __init__(self, producer: QueueProducer) -> None:
        self._producer = producer

    @classmethod
    async def open(
        cls, connection: "ClientConnection", queue: str, *, sequences: bool = False, entity: bool = False
    ) -> Self:
        """Opens a queue for messages on behalf of a client, which must have the right to send there.

        Args:
            sequences: the shard answers with the sequence of each message.
            entity: see `resolve`.

        Raises:
            PostingError: the client lacks the right, or the name is no queue.
        """
        frontend = connection.frontend
        try:
            owner = connection.client.owner
            record = await resolve(connection, queue, Right.SEND, owner, entity=entity)
        except ConditionError as error:
            raise PostingError(error.condition, error.description) from None
        if record.role is not Role.QUEUE:
            raise PostingError(conditions.NOT_FOUND, f"{queue} has role {record.role}; expected a queue")
        return await cls.open_at(frontend, record.name, sequences=sequences)

    @classmethod
    async def open_at(cls, frontend: "Frontend", queue: str, *, sequences: bool = False) -> Self:
        """Opens a queue for messages whose sender was checked before.

        Args:
            sequences: see `open`. Then the posting is for messages that are stored at once: no shard opens
                it when nobody waits for them any more.
        """
        owner = await frontend.place(queue)
        producer = QueueProducer(owner, frontend.next_link(), sequences=sequences, is_whole=True)
        if sequences:
            producer.left_ms = _until(left_ms(NODE_POST_MS))
        producer.open()
        return cls(producer)

    @property
    def closed(self) -> bool:
        """Whether it accepts no message any more."""
        return self._producer.is_closed

    async def post(self, message: bytes) -> None:
        """Stores one transient message. Raises PostingError: the shard refused it, or does not answer."""
        await self.store((message,), TRANSIENT)

    async def store(self, messages: Sequence[bytes], attributes: Attributes) -> int:
        """Stores messages together, all or none; returns the sequence of the first.

        The sequence is UNKNOWN_SEQUENCE if no message is new in the queue, or the shard reports none.
        Raises PostingError: the shard refused the messages, or does not answer.
        """
        queue = self._producer.queue
        if self.closed:
            raise PostingError(conditions.RESOURCE_DELETED, f"{queue} is no longer open")
        left = self._producer.left_ms
        sent = await self._producer.send([(attributes, messages)], NODE_POST_MS if left is None else left())
        if sent.refusal is NOT_STORED or sent.refusal is MAYBE_STORED:
            self.close()
            raise PostingError(conditions.INTERNAL_ERROR, f"the shard of {queue} did not answer in time")
        if sent.refusal is not None:
            raise PostingError(sent.refusal.condition, f"{queue}: {sent.refusal.description}")
        return UNKNOWN_SEQUENCE if sent.sequence is None else sent.sequence

    def close(self) -> None:
        """Closes the posting."""
        self._producer.close()


def _until(wait_ms: int) -> Callable[[], int]:
    """What is left of a time that begins now, in milliseconds."""
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + wait_ms / 1000
    return lambda: max(0, int(1000 * (until_s - now_s())))
