"""Scheduled messages of routers: they wait in ROUTER/$scheduled, and are routed when they are due.

The shard of ROUTER/$scheduled delivers a message when it is due. Every gateway consumes these queues; several
gateways share the work. A message is settled there when every queue that the router chooses has stored it. An
attempt that fails for some of the queues is repeated for those alone.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.forwarder import ACCEPTED, Forwarder, Settlement
from lightrail.gateway.forwarding.repeating import Attempt, Pause, RepeatingForwarder
from lightrail.gateway.forwarding.roster import Roster
from lightrail.gateway.forwarding.sink import NotSentError, Sink, due
from lightrail.gateway.messages.routing import Carried
from lightrail.model import conditions
from lightrail.model.names import scheduled_router
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.shard_client.receiving.queue_consumer import Delivery
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode

log = logging.getLogger("lightrail.gateway.forwarding.scheduled")


class ScheduledForwarder(RepeatingForwarder):
    """Routes the scheduled messages of one router."""

    def __init__(
        self,
        queue: str,
        router: str,
        shards: ShardConnections,
        sink: Sink,
        counts: ForwardingCounts,
        pause: Pause,
        lost: Callable[[Forwarder], None],
    ) -> None:
        waiting, again = (
            f"messages that are due wait in {queue}",
            f"{router} accepts its scheduled messages again",
        )
        super().__init__(queue, f"schedule of {router}", pause, lost, log=log, waiting=waiting, again=again)
        self._router = router
        self._shards = shards
        self._sink = sink
        self._counts = counts

    def attempt(self, delivery: Delivery) -> Attempt:
        """Accepted once every queue has stored the message; rejected if the router rejects it for good."""
        message = due(delivery, self._shards.now_ms())
        carried: Carried = set()

        async def route() -> Settlement | None:
            try:
                problem = await self._sink.route(self._router, message, carried)
            except Exception as error:
                log.exception("routing a scheduled message of %s failed", self._router)
                problem = NotSentError(conditions.INTERNAL_ERROR, str(error) or type(error).__name__)
            if problem is None:
                self.note("")
                self._counts.scheduled_routed += 1
                return ACCEPTED
            self._counts.scheduled_refused += 1
            if problem.is_final:
                detail = SettleDetail(condition=problem.condition, description=problem.description)
                return OutcomeCode.REJECTED, detail
            self.note(str(problem))
            return None

        return route


class ScheduledForwarders:
    """A forwarder for each router with a queue of scheduled messages; follows the directory."""

    def __init__(
        self,
        directory: Directory,
        shards: ShardConnections,
        sink: Sink,
        counts: ForwardingCounts,
        *,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._directory = directory
        self._counts = counts
        self._roster: Roster[str] = Roster(
            shards,
            lambda queue, router, lost: ScheduledForwarder(queue, router, shards, sink, counts, pause, lost),
        )

    def start(self) -> None:
        """Opens a forwarder for every such queue; `changed` follows later changes."""
        self.changed(record.name for record in self._directory.below(""))

    def changed(self, changed: Iterable[str]) -> None:
        """Follows names that may have been created or deleted."""
        for name in changed:
            router = scheduled_router(name)
            if router is not None:
                found = self._directory.find(name)
                is_queue = found is not None and found.role is Role.QUEUE
                self._roster.want(name, router if is_queue else None)
        self._counts.schedulers = len(self._roster)

    def close(self) -> None:
        self._roster.close()
