"""Sender: sends messages of HTTP requests to queues and routers, with one producer for each queue."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Final, Self

from lightrail.gateway.errors import AGAIN, ProblemError, not_sent, refused, unknown
from lightrail.gateway.messages.outgoing import Outgoing
from lightrail.gateway.messages.routing import Carried, RouterSender
from lightrail.model import conditions, limits
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.shard_client.sending.queue_producer import QueueProducer
from lightrail.shard_client.sending.window import MAYBE_STORED, NOT_STORED, Attributes
from lightrail.shard_client.shard_connections import ShardConnections

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


class Sender:
    """Sends messages to names: to each queue through one producer, to routers through lanes."""

    def __init__(
        self, shards: ShardConnections, directory: Directory, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._shards = shards
        self._loop = loop
        self.routers = RouterSender(shards, directory, loop)
        self._open: dict[str, _Open] = {}
        self.bytes = 0
        """Bytes of bodies that are being read or sent."""
        self._sweeping: asyncio.TimerHandle | None = None

    def room(self) -> "Room":
        """Memory for the body of one request; nothing is reserved yet."""
        return Room(self)

    async def send(self, record: Name, message: Outgoing, carried: Carried | None = None) -> Stored:
        """Stores a message at a name; returns once it is stored as the policy requires.

        Args:
            carried: see RouterSender.send.

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
            await self.routers.send(record, message, carried)
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
        attributes = Attributes(
            message.durable, message.priority, message.expires_at_ms, message.message_format
        )
        try:
            sent = await open.producer.send([(attributes, (message.message,))], wait_ms)
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


class Room:
    """Memory reserved for the body of one request; leaving the block frees it."""

    __slots__ = ("_sender", "_size")

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._size = 0

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
