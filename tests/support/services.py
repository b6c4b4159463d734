"""Two services over a coordinator, whose process dies after any write that a test names."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model.endpoint import Destinations
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.service import Service


class DyingCoordinator(MemoryCoordinator):
    """One whose process dies after a number of transactions; the others arrive when `arrive` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.lives_for: int | None = None
        self.sent: list[Sequence[Write]] = []
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """Something that another process does before the next transaction arrives."""

    async def write(self, writes: Sequence[Write]) -> int:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        if self.lives_for == 0:
            self.sent.append(writes)
            raise CoordinatorError("the process has died")
        if self.lives_for is not None:
            self.lives_for -= 1
        return await super().write(writes)

    async def arrive(self) -> None:
        self.lives_for = None
        for writes in self.sent:
            with suppress(ConflictError):
                await super().write(writes)


class Scene:
    """Two services on one coordinator, as two processes have them."""

    def __init__(self, auto_create: bool = True) -> None:
        self.coordinator = DyingCoordinator()
        self.now_ms = 1_000
        self.one = self._service(auto_create)
        self.two = self._service(auto_create)

    def _service(self, auto_create: bool) -> Service:
        directory = Directory(self.coordinator, auto_create=auto_create, now_ms=lambda: self.now_ms)
        return Service(
            self.coordinator,
            directory,
            now_ms=lambda: self.now_ms,
            destinations=Destinations(("localhost",)),
        )


def run(check: Callable[[Scene], Awaitable[None]], auto_create: bool = True) -> None:
    async def checked() -> None:
        scene = Scene(auto_create)
        await scene.coordinator.set_shards(2)
        await check(scene)

    asyncio.run(checked())


def policy(role: str = "queue", **fields: Any) -> Policy:
    return Policy.parse({"role": role, **fields})


async def left(scene: Scene) -> set[str]:
    """Keys of the coordinator that are not about shards."""
    entries = await scene.coordinator.entries("")
    return {each.key for each in entries if each.key.startswith(("names/", "subscriptions/", "placement/"))}
