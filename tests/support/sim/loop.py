"""An event loop whose time is a number: it jumps to the next timer, and depends on nothing of the machine.

What a process schedules belongs to the process (`Turns`, a context variable that its tasks and timers
inherit): while the process is paused all of that waits, and after its end nothing of it runs any more.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVarTuple

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

Ts = TypeVarTuple("Ts")


class NothingLeftError(Exception):
    """Everything waits for something that can't happen any more."""


@dataclass(slots=True, eq=False, repr=False)
class Turns:
    """Whether the callbacks of one process run."""

    is_paused: bool = False
    is_ended: bool = False
    waiting: list["_Call"] = field(default_factory=list)
    """Callbacks that were due during a pause, in their order."""
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    """Those that have not ended. They live as long as the simulation, so that none of them is collected, and
    runs its last lines, at a time that no seed decides."""


TURNS: ContextVar[Turns | None] = ContextVar("TURNS", default=None)
"""Of the process to which the running code belongs; None for the simulation itself."""
OUTSIDE = Context()
"""The context of what happens outside of all processes: messages on their way, and etcd."""


def context_of(turns: Turns) -> Context:
    """A context for the callbacks of a process that something else causes."""
    context = Context()
    context.run(TURNS.set, turns)
    return context


class _Call:
    """One callback of a process."""

    __slots__ = ("_args", "_callback", "_loop", "_turns", "handle")

    def __init__(
        self, loop: "SimLoop", turns: Turns, callback: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        self._loop = loop
        self._turns = turns
        self._callback = callback
        self._args = args
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        turns, handle = self._turns, self.handle
        assert handle is not None
        if turns.is_ended or handle.cancelled():
            return
        if turns.is_paused:
            turns.waiting.append(self)
            return
        self._callback(*self._args)

    def again(self) -> None:
        """The process goes on."""
        handle = self.handle
        assert handle is not None
        if not handle.cancelled():
            # The handle has run, and can still be cancelled by those who know it.
            self._loop.run_soon(self, handle._context)  # type: ignore[attr-defined]


class SimLoop(asyncio.BaseEventLoop):
    """Runs tasks and callbacks in the order of their times; no file, socket or signal belongs to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.readers: dict[FileDescriptorLike, Callable[[], object]] = {}
        """By the number that a simulated socket gives as its FD."""
        self._selector = self
        self.set_task_factory(self._task)  # type: ignore[arg-type]

    @staticmethod
    def _task(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], context: Context | None = None
    ) -> "asyncio.Task[Any]":
        task = asyncio.Task(coroutine, loop=loop, context=context)
        turns = TURNS.get()
        if turns is not None:
            turns.tasks.add(task)
            task.add_done_callback(turns.tasks.discard)
        return task

    def time(self) -> float:
        return self.now_s

    def select(self, timeout_s: float | None) -> list[Any]:
        """In the place of a selector: nobody comes from outside, so waiting is jumping."""
        if timeout_s is None:
            raise NothingLeftError(f"nothing is scheduled any more after {self.now_s:.3f} s")
        if timeout_s > 0:
            self.now_s += timeout_s
        return []

    # --- callbacks of processes ----------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        turns = TURNS.get() if context is None else context.get(TURNS)
        if turns is None:
            return super().call_soon(callback, *args, context=context)
        call = _Call(self, turns, callback, args)
        call.handle = super().call_soon(call, context=context)
        return call.handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        # Threads run in turns with the loop (disk.py).
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        turns = TURNS.get() if context is None else context.get(TURNS)
        if turns is None:
            return super().call_at(when, callback, *args, context=context)
        call = _Call(self, turns, callback, args)
        handle = call.handle = super().call_at(when, call, context=context)
        return handle

    def run_soon(self, call: Callable[[], None], context: Context) -> None:
        """Runs a callback that waited for the end of a pause."""
        super().call_soon(call, context=context)

    def resume(self, turns: Turns) -> None:
        """A process goes on after a pause: first with what was due meanwhile."""
        turns.is_paused = False
        waiting, turns.waiting = turns.waiting, []
        for call in waiting:
            call.again()

    # --- sockets -------------------------------------------------------------------------------------------

    def add_reader(self, fd: "FileDescriptorLike", callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        self.readers[fd] = lambda: callback(*args)

    def remove_reader(self, fd: "FileDescriptorLike") -> bool:
        return self.readers.pop(fd, None) is not None

    def close(self) -> None:
        if not self.is_closed():
            super().close()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none: readers are called by the network."""

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""
