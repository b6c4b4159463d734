"""Routers: the state that all senders to routers of a process share: plans, the budget of looks, turns."""

import asyncio
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Protocol

from lightrail.filters.matcher import Looks
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.router_plan import Plan, Routed, Walk
from lightrail.namespace.routing import Routing
from lightrail.namespace.topic_uses import UseNotes


class Resumable(Protocol):
    """A sender with batches that wait."""

    def route_waiting(self) -> None:
        """Tries the waiting batches again."""


@dataclass(slots=True, eq=False, repr=False)
class Routers:
    """One per process.

    Args:
        later: makes a call after so many milliseconds; 0: in the next turn of the loop.
        now_ms: wall clock.
        notes: of the topics that the process uses.
    """

    directory: InitVar[Directory]
    _later: Callable[[int, Callable[[], None]], object]
    _now_ms: Callable[[], int]
    _notes: UseNotes | None = None
    _waiting: dict[Resumable, None] = field(default_factory=dict)
    routing: Routing = field(init=False)
    looks: Looks = field(default_factory=Looks)
    """Budget of filtering of all senders in one turn of the loop."""
    _is_turning: bool = False
    _senders: dict[Resumable, None] = field(default_factory=dict)
    """Senders whose batches still have to be filtered, in the order in which they stopped."""
    _tasks: list[asyncio.Future[None]] = field(default_factory=list)
    _change: asyncio.Future[None] | None = None
    """Completed when a name or subscription changes."""

    def __post_init__(self, directory: Directory) -> None:
        self.routing = Routing(directory, notes=self._notes)
        directory.listen(self._changed)

    # --- turns -----------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Renews the budget in the next turn."""
        if not self._is_turning:
            self._is_turning = True
            self._later(0, self._next_turn)

    def wait_turn(self, sender: Resumable) -> None:
        """The budget of this turn is used up: the sender continues in one of the next turns."""
        self._senders[sender] = None
        self.begin_turn()

    def wait_prepared(self, sender: Resumable) -> None:
        """`prepare` has returned False: the sender continues when the use of its topic is noted, or as
        `wait_turn` says."""
        if self._notes is not None and self._notes.is_writing:
            self._notes.wait(sender)
        else:
            self.wait_turn(sender)

    async def turn(self) -> None:
        """Waits for new looks, as `wait_turn` does for a sender."""
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
        senders, self._senders = self._senders, {}
        while senders and self.looks.left > 0:
            sender = next(iter(senders))
            del senders[sender]
            sender.route_waiting()
        # Senders that had no turn precede those that had one and stopped again.
        self._senders = {**senders, **self._senders}
        if self._senders:
            self.begin_turn()

    # --- for tasks -------------------------------------------------------------------------------------

    async def plan(self, router: str) -> Plan | None:
        """The plan of a router; None for another name. Waits for turns while filters are compiled, and until
        the use of the router is noted."""
        while not self.routing.prepare(router, self._now_ms(), self.looks):
            if self._notes is not None and self._notes.is_writing:
                await self._notes.written()
            else:
                await self.turn()
        return self.routing.plan(router, self._now_ms())

    async def routed(self, walk: Walk) -> Routed:
        """Applies a plan to messages; a long walk lets other senders have their turns."""
        self.begin_turn()
        while not walk.route_more():
            await self.turn()
        assert walk.routed is not None
        return walk.routed

    # --- changes ---------------------------------------------------------------------------------------

    def wait(self, sender: Resumable) -> None:
        """Calls the sender's `route_waiting` once when subscriptions or names change."""
        self._waiting[sender] = None

    async def change(self, wait_s: float) -> None:
        """Waits until subscriptions or names change, at most `wait_s` seconds."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._change], timeout=wait_s)

    def _changed(self, changes: Changes) -> None:
        change, self._change = self._change, None
        if change is not None:
            change.set_result(None)
        # Later, since the caller that refreshed the directory may be in the middle of a batch.
        waiting, self._waiting = self._waiting, {}
        for sender in waiting:
            self._later(0, sender.route_waiting)
