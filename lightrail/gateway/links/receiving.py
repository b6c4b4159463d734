"""Receivers: HTTP requests that wait for messages, without a task, a thread or a poll for each."""

import asyncio
from collections.abc import Iterable

from lightrail.gateway.errors import AGAIN, ProblemError
from lightrail.gateway.links.consumer import Delivery, QueueConsumer
from lightrail.model import limits
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.shard_client.shard_connections import ShardConnections


class Receivers:
    """All requests of this gateway that wait for messages; one consumer for each queue."""

    def __init__(self, shards: ShardConnections, loop: asyncio.AbstractEventLoop) -> None:
        self.shards = shards
        self.loop = loop
        self.waiting = 0
        """Requests that wait now."""
        self._consumers: dict[str, QueueConsumer] = {}

    async def receive(self, record: Name, wait_ms: int, user: str = "") -> Delivery | None:
        """The next message of a queue, locked, or None if none arrived in time.

        A cancelled call leaves the line and releases a message that arrived for it at the same moment.

        Args:
            user: of the request. The consumer of a queue counts towards the share of the user whose request
                opened it.

        Raises:
            ProblemError: the queue refuses (more) consumers, or was deleted; too many requests wait.
        """
        if self.waiting >= limits.RECEIVERS_MAX:
            most = limits.RECEIVERS_MAX
            raise ProblemError(503, f"{most} requests wait at this gateway already; try again", headers=AGAIN)
        consumer = self._consumers.get(record.name)
        if consumer is None or consumer.created != record.created:
            consumer = await self._open(record, user)
        if not wait_ms and consumer.disconnected:
            raise ProblemError(503, f"the shard of {record.name} is not connected; try again", headers=AGAIN)
        waiter = consumer.wait(wait_ms)
        try:
            return await waiter
        except asyncio.CancelledError:
            consumer.gave_up(waiter)
            raise

    async def _open(self, record: Name, user: str) -> QueueConsumer:
        owner = await self.shards.route(record.name)
        consumer = self._consumers.get(record.name)
        if consumer is None or consumer.created != record.created:
            # The shard closes the consumer of a deleted queue of this name.
            consumer = QueueConsumer(self, owner, self.shards.next_link(), record, user)
            self._consumers[record.name] = consumer
            owner.open_consumer(consumer)
        return consumer

    def changed(self, records: Iterable[Name]) -> None:
        """Follows policies that changed. Consumers of deleted queues are closed by their shard."""
        for record in records:
            consumer = self._consumers.get(record.name)
            if consumer is not None and record.role is Role.QUEUE:
                consumer.follow(record.policy)

    def forget(self, consumer: QueueConsumer) -> None:
        """A consumer was closed; the next request opens another."""
        if self._consumers.get(consumer.queue) is consumer:
            del self._consumers[consumer.queue]

    def close(self) -> None:
        """Answers all requests that wait: no message arrived."""
        for consumer in list(self._consumers.values()):
            consumer.close()
