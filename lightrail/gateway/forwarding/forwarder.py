"""Forwarder: consumes one queue for as long as the namespace requires it, with a task per message.

A message whose task waits, for a full target or an endpoint that is down, stays in the window, so a
target that refuses messages delays its own queue and no other. An idle forwarder is a consumer with credit;
it has no task and no timer.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from lightrail.shard_client.receiving.queue_consumer import Delivery, QueueConsumer
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import ConsumerOpen, Refusal, SettleDetail
from lightrail.wire.frames import OutcomeCode

FORWARDER_WINDOW_BYTES: Final[int] = 8 * 1024 * 1024
"""Bytes of unsettled messages of a forwarder or pusher, by their mean size; at least one message."""
FORWARDER_WINDOW_FIRST: Final[int] = 8
"""Messages of the same while their size is unknown."""

log = logging.getLogger("lightrail.gateway.forwarding.forwarder")

Settlement = tuple[OutcomeCode, SettleDetail | None]
ACCEPTED: Settlement = (OutcomeCode.ACCEPTED, None)


class Forwarder:
    """Common to forwarders of dead letters and pushers.

    Args:
        window: messages in flight at a time.
        lost: called when the shard closes the consumer: the queue was deleted, or has moved.
    """

    __slots__ = ("_is_closed", "_label", "_lost", "_mean_bytes", "_source", "_tasks", "_window", "queue")

    def __init__(self, queue: str, *, window: int, label: str, lost: Callable[["Forwarder"], None]) -> None:
        self.queue = queue
        self._window = window
        self._label = label
        self._lost = lost
        self._source: QueueConsumer | None = None
        self._is_closed = False
        self._mean_bytes = 0.0
        """Mean size of messages; 0 before the first."""
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}
        """Tasks by generation and number of the delivery."""

    @property
    def held(self) -> int:
        """Messages in flight."""
        return len(self._tasks)

    async def carry(self, delivery: Delivery) -> Settlement:
        """Sends a message to its target, however long that takes; returns its outcome for the queue."""
        raise NotImplementedError

    async def open(self, shards: ShardConnections) -> None:
        """Starts to consume. Raises ShardDownError, CoordinatorError: try again."""
        owner = await shards.route(self.queue)
        if not self._is_closed and self._source is None:
            options = ConsumerOpen(self.queue, label=self._label)
            self._source = QueueConsumer(owner, shards.next_link(), options, self, shards.now_ms)
            self._source.open()

    def close(self) -> None:
        """Stops; unsettled messages return to the queue."""
        self._is_closed = True
        self._leave()

    # --- from the source -------------------------------------------------------------------------------

    def opened(self, generation: int) -> None:
        """Unsettled messages are in the queue again and are delivered once more."""
        self._cancel()
        self._top_up()

    def arrived(self, deliveries: list[Delivery]) -> None:
        """Starts a task for each delivery, in order."""
        loop = asyncio.get_running_loop()
        for delivery in deliveries:
            size = len(delivery.message) + 1
            self._mean_bytes = max(size, 0.75 * self._mean_bytes + 0.25 * size)
            self._tasks[delivery.generation, delivery.number] = loop.create_task(self._work(delivery))
        self._top_up()

    def drained(self, is_empty: bool) -> None:
        """Not used: forwarders never drain."""

    def ended(self, refusal: Refusal) -> None:
        """Leaves it to the roster whether this forwarder is opened again."""
        log.info("%s: %s", self.queue, refusal.description or refusal.condition)
        self._leave()
        self._lost(self)

    # --- inside ----------------------------------------------------------------------------------------

    async def _work(self, delivery: Delivery) -> None:
        try:
            code, detail = await self.carry(delivery)
        except Exception:
            log.exception("a message of %s could not be forwarded: a failed delivery", self.queue)
            code, detail = OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True)
        self._tasks.pop((delivery.generation, delivery.number), None)
        if self._source is not None:
            self._source.settle((delivery,), code, detail)
            self._top_up()

    def _top_up(self) -> None:
        """Grants credit for the free part of the window, once per group of settlements."""
        if not self._mean_bytes:
            window = min(self._window, FORWARDER_WINDOW_FIRST)
        else:
            window = min(self._window, max(1, int(FORWARDER_WINDOW_BYTES / self._mean_bytes)))
        room = window - len(self._tasks)
        source = self._source
        if source is not None and room > 0 and source.granted <= room // 2:
            source.grant(room)

    def _leave(self) -> None:
        self._cancel()
        if self._source is not None:
            self._source.close()
            self._source = None

    def _cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
