"""Routers, queues and subscriptions made for a test, in one line each."""

from typing import Any

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model.endpoint import Destinations
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Subscription
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service


class Graph:
    """A namespace in memory; time stands still until it is set."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator()
        self.now_ms = 1_000
        self.directory = Directory(self.coordinator, now_ms=lambda: self.now_ms)
        self.service = Service(
            self.coordinator,
            self.directory,
            now_ms=lambda: self.now_ms,
            destinations=Destinations(("localhost", "127.0.0.1")),
        )

    async def queue(self, *names: str) -> None:
        for name in names:
            await self.service.give(ANYBODY, name, Policy.parse({"role": "queue"}))

    async def router(self, name: str, **fields: Any) -> None:
        await self.service.give(ANYBODY, name, Policy.parse({"role": "router", **fields}))

    async def subscribe(self, router: str, target: str, **fields: Any) -> Subscription:
        return await self.service.subscribe(ANYBODY, router, target, **fields)

    async def unsubscribe(self, subscription: Subscription) -> None:
        await self.service.unsubscribe(ANYBODY, subscription.router, subscription.id)

    async def drop(self, name: str) -> None:
        await self.service.drop(ANYBODY, name)
