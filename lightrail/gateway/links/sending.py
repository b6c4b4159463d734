"""Sender: sends messages of HTTP requests to queues and routers, with one producer for each queue."""

import asyncio
from collections.abc import Iterable
from time import monotonic
from typing import Self

from lightrail.gateway.errors import AGAIN, ProblemError, refused
from lightrail.gateway.links.outgoing import Outgoing
from lightrail.gateway.links.producer import QueueProducer, Stored
from lightrail.gateway.links.routing import Carried, RouterSender
from lightrail.model import conditions, limits
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.shard_client.shard_connections import ShardConnections


class Sender:
    """Sends messages to names: to each queue through one producer, to routers through lanes."""

    def __init__(
        self, shards: ShardConnections, directory: Directory, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._shards = shards
        self._loop = loop
        self.routers = RouterSender(shards, directory, loop)
        self._producers: dict[str, QueueProducer] = {}
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
        producer = self._producers.get(record.name)
        if producer is None or not producer.knows(record) or self._shards.looks_up(record.name):
            owner = await self._shards.route(record.name)
            producer = self._producers.get(record.name)
            if producer is None or not producer.knows(record):
                # A shard reads the policy when a producer is opened. Through the former producer the message
                # would be stored under the former policy, or get lost with a queue that was deleted.
                if producer is not None:
                    producer.retire()
                producer = self._producers[record.name] = QueueProducer(
                    owner, self._shards.next_link(), record, self._loop, self._forget
                )
                owner.open_producer(producer)
                self._watch()
        wait_ms = limits.REQUEST_MS + (record.policy.milliseconds("enqueue_timeout") or 0)
        return await producer.send(message, wait_ms)

    async def send_many(self, record: Name, messages: Iterable[Outgoing]) -> list[Stored | BaseException]:
        """Sends all messages at once, in order; returns for each its sequence, or why it is not stored."""
        sending = (self.send(record, message) for message in messages)
        return await asyncio.gather(*sending, return_exceptions=True)

    def _forget(self, producer: QueueProducer) -> None:
        """A producer was closed; the next message opens another."""
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
        """Closes producers that sent no message for limits.SENDER_IDLE_MS."""
        self._sweeping = None
        before = monotonic() - limits.SENDER_IDLE_MS / 1000
        for producer in list(self._producers.values()):
            if producer.idle_since is not None and producer.idle_since < before:
                producer.close()
        if self._producers:
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
        if bytes and bytes + size > limits.HTTP_BODIES_BYTES:
            raise ProblemError(
                503, "the memory of this gateway for request bodies is in use; try again", headers=AGAIN
            )
        self._sender.bytes += size
        self._size += size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.bytes -= self._size
