"""The shared state of a frontend's links to routers: plans, the budget of looks, and waiting links."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from lightrail.filters.looks import Looks
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.routing import Routing


class Resumable(Protocol):
    """A link with batches that wait."""

    def go_on(self) -> None:
        """Tries the waiting batches again."""


class Routers:
    """Shared state of links to routers, one per frontend."""

    __slots__ = ("_is_turning", "_later", "_links", "_tasks", "_waiting", "looks", "routing")

    def __init__(self, directory: Directory, later: Callable[[int, Callable[[], None]], object]) -> None:
        self._later = later
        self._waiting: dict[Resumable, None] = {}
        self.routing = Routing(directory)
        self.looks = Looks()
        """Budget of filtering of all links in one turn of the loop."""
        self._is_turning = False
        self._links: dict[Resumable, None] = {}
        """Links whose batches still have to be filtered, in the order in which they stopped."""
        self._tasks: list[asyncio.Future[None]] = []
        directory.listen(self._changed)

    def begin_turn(self) -> None:
        """Renews the budget in the next turn."""
        if not self._is_turning:
            self._is_turning = True
            self._later(0, self._next_turn)

    def wait_turn(self, link: Resumable) -> None:
        """The budget of this turn is used up: the link continues in one of the next turns."""
        self._links[link] = None
        self.begin_turn()

    async def turn(self) -> None:
        """Waits for new looks, as `wait_turn` does for a link."""
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.append(waits)
        self.begin_turn()
        await waits

    def _next_turn(self) -> None:
        self._is_turning = False
        self.looks.begin()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if not task.done():
                task.set_result(None)
        links, self._links = self._links, {}
        while links and self.looks.left > 0:
            link = next(iter(links))
            del links[link]
            link.go_on()
        # Links that had no turn precede those that had one and stopped again.
        self._links = {**links, **self._links}
        if self._links:
            self.begin_turn()

    def wait(self, link: Resumable) -> None:
        """Calls the link's `go_on` once when subscriptions or names change."""
        self._waiting[link] = None

    def _changed(self, changes: Changes) -> None:
        # Later, since the caller that refreshed the directory may be in the middle of a batch.
        waiting, self._waiting = self._waiting, {}
        for link in waiting:
            self._later(0, link.go_on)
