"""Carrier: a courier that consumes one queue for as long as it is wanted, and has a task per message.

A message whose task waits (for a target that has no room, for an endpoint that is down) keeps its place in
the window, so a target that takes nothing holds up its own queue and nothing else. An idle carrier is a
consumer with credit: it has no task and no timer.
"""

import asyncio
import logging
from collections.abc import Callable

from lightrail.gateway.couriers.letters import Delivery
from lightrail.gateway.couriers.sources import Links, Source
from lightrail.model import limits
from lightrail.wire.bodies import ConsumerOpen, Refusal, SettleDetail
from lightrail.wire.frames import OutcomeCode

log = logging.getLogger("lightrail.gateway.couriers.carrier")

Settlement = tuple[OutcomeCode, SettleDetail | None]
ACCEPTED: Settlement = (OutcomeCode.ACCEPTED, None)
RELEASED: Settlement = (OutcomeCode.RELEASED, None)


class Carrier:
    """What forwarders and pushers have in common.

    Args:
        window: messages that are held at a time.
        lost: told when the shard sends the consumer away: the queue is gone, or has moved.
    """

    __slots__ = ("_is_closed", "_label", "_lost", "_mean_bytes", "_source", "_tasks", "_window", "queue")

    def __init__(self, queue: str, *, window: int, label: str, lost: Callable[["Carrier"], None]) -> None:
        self.queue = queue
        self._window = window
        self._label = label
        self._lost = lost
        self._source: Source | None = None
        self._is_closed = False
        self._mean_bytes = 0.0
        """Of messages; 0 before the first."""
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}
        """By generation and number of the delivery."""

    @property
    def held(self) -> int:
        """Messages that are on their way."""
        return len(self._tasks)

    async def carry(self, delivery: Delivery) -> Settlement:
        """Brings a message to where it has to go, however long that takes; its outcome for the queue."""
        raise NotImplementedError

    async def open(self, links: Links) -> None:
        """Begins to consume. Raises ShardDownError, CoordinatorError: try again."""
        owner = await links.route(self.queue)
        if not self._is_closed and self._source is None:
            options = ConsumerOpen(self.queue, label=self._label)
            self._source = Source(links.next_link(), owner, options, self)
            self._source.open()

    def close(self) -> None:
        """Ends; what was not settled goes back to the queue."""
        self._is_closed = True
        self._leave()

    # --- from the source -------------------------------------------------------------------------------

    def opened(self, generation: int) -> None:
        """What was held is in the queue again and comes once more."""
        self._cancel()
        self._top_up()

    def arrived(self, deliveries: list[Delivery]) -> None:
        """A task for each, which begin in order."""
        loop = asyncio.get_running_loop()
        for delivery in deliveries:
            size = len(delivery.message) + 1
            self._mean_bytes = max(size, 0.75 * self._mean_bytes + 0.25 * size)
            self._tasks[delivery.generation, delivery.number] = loop.create_task(self._work(delivery))
        self._top_up()

    def drained(self, is_empty: bool) -> None:
        """Nobody asked."""

    def gone(self, refusal: Refusal) -> None:
        """The roster decides whether this carrier is still wanted."""
        log.info("%s: %s", self.queue, refusal.description or refusal.condition)
        self._leave()
        self._lost(self)

    # --- inside ----------------------------------------------------------------------------------------

    async def _work(self, delivery: Delivery) -> None:
        try:
            code, detail = await self.carry(delivery)
        except Exception:
            log.exception("a message of %s could not be carried; it is a failed delivery", self.queue)
            code, detail = OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True)
        self._tasks.pop((delivery.generation, delivery.number), None)
        if self._source is not None:
            self._source.settle((delivery,), code, detail)
            self._top_up()

    def _top_up(self) -> None:
        """Says credit for what the window has room for, once for many settlements."""
        if not self._mean_bytes:
            window = min(self._window, limits.CARRIER_WINDOW_FIRST)
        else:
            window = min(self._window, max(1, int(limits.CARRIER_WINDOW_BYTES / self._mean_bytes)))
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
