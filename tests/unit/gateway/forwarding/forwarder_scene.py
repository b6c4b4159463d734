"""A namespace whose changes forwarders follow, with one queue that they consume."""

import asyncio
from typing import Any, cast

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.forwarding import DeadLetterForwarders, ScheduledForwarders
from lightrail.gateway.forwarding.room import ForwardingRoom
from lightrail.namespace.directory import Directory
from lightrail.namespace.service import Service
from tests.support.shard.engine_links import EngineLinks
from tests.unit.gateway.forwarding.fake_sink import FakeSink


class ForwarderScene:
    """Forwarders of one kind, whose pauses end when the test lets them go on.

    Args:
        forwarders: the kind.
        queue: the name of the queue.
    """

    def __init__(
        self, forwarders: type[DeadLetterForwarders] | type[ScheduledForwarders], queue: str
    ) -> None:
        self.coordinator = MemoryCoordinator()
        self.directory = Directory(self.coordinator)
        self.service = Service(self.coordinator, self.directory)
        self.links = EngineLinks()
        self.sink = FakeSink()
        self.counts = ForwardingCounts()
        self.pauses: list[float] = []
        self.go_on = asyncio.Semaphore(0)
        links, sink = cast(Any, self.links), cast(Any, self.sink)
        self.room = ForwardingRoom()
        self.forwarders = forwarders(self.directory, links, sink, self.counts, self.room, pause=self.pause)
        self.directory.listen(lambda changes: self.forwarders.changed(changes.names))
        self.queue = self.links.peer.queue(queue)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.go_on.acquire()

    def has_paused(self, times: int) -> bool:
        return len(self.pauses) == times
