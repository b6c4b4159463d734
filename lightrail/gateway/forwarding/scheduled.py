"""Scheduled messages of routers: they wait in ROUTER/$scheduled, and are routed when they are due.

The shard of ROUTER/$scheduled delivers a message when it is due. Every gateway consumes these queues; several
gateways share the work. A message is settled there when every queue that the router chooses has stored it. An
attempt that fails for some of the queues is repeated for those alone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.delivery import Delivery, due
from lightrail.gateway.forwarding.forwarder import ACCEPTED, Forwarder, Settlement
from lightrail.gateway.forwarding.roster import Roster
from lightrail.gateway.forwarding.sink import NotSentError, Sink
from lightrail.gateway.forwarding.source import Links
from lightrail.gateway.links.routing import Carried
from lightrail.model import conditions, limits
from lightrail.model.names import scheduled_router
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode

log = logging.getLogger("lightrail.gateway.forwarding.scheduled")

Pause = Callable[[float], Awaitable[None]]
"""Waits the given number of seconds; tests inject it."""


class ScheduledForwarder(Forwarder):
    """Routes the scheduled messages of one router, and repeats attempts that fail for the moment for ever."""

    def __init__(
        self,
        queue: str,
        router: str,
        links: Links,
        sink: Sink,
        counts: ForwardingCounts,
        pause: Pause,
        lost: Callable[[Forwarder], None],
    ) -> None:
        super().__init__(queue, window=limits.FORWARD_WINDOW, label=f"schedule of {router}", lost=lost)
        self._router = router
        self._links = links
        self._sink = sink
        self._counts = counts
        self._pause = pause
        self._problem = ""
        """The last logged problem of the router."""

    async def carry(self, delivery: Delivery) -> Settlement:
        """Accepted once every queue has stored the message; rejected if the router rejects it for good."""
        message = due(delivery, self._links.now_ms())
        carried: Carried = set()
        pause_ms = limits.FORWARD_PAUSE_MS
        while True:
            try:
                problem = await self._sink.route(self._router, message, carried)
            except Exception as error:
                log.exception("routing a scheduled message of %s failed", self._router)
                problem = NotSentError(conditions.INTERNAL_ERROR, str(error) or type(error).__name__)
            if problem is None:
                self._note("")
                self._counts.scheduled_routed += 1
                return ACCEPTED
            self._counts.scheduled_refused += 1
            if problem.is_final:
                detail = SettleDetail(condition=problem.condition, description=problem.description)
                return OutcomeCode.REJECTED, detail
            self._note(str(problem))
            await self._pause(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, limits.FORWARD_PAUSE_MS_MAX)

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            if problem:
                log.warning("messages that are due wait in %s: %s", self.queue, problem)
            else:
                log.info("%s accepts its scheduled messages again", self._router)


class ScheduledForwarders:
    """A forwarder for each router with a queue of scheduled messages; follows the directory."""

    def __init__(
        self,
        directory: Directory,
        links: Links,
        sink: Sink,
        counts: ForwardingCounts,
        *,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._directory = directory
        self._counts = counts
        self._roster: Roster[str] = Roster(
            links,
            lambda queue, router, lost: ScheduledForwarder(queue, router, links, sink, counts, pause, lost),
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
