"""An event loop whose time is a number: it jumps to the next timer, and depends on nothing of the machine."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVarTuple

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

Ts = TypeVarTuple("Ts")


class NothingLeftError(Exception):
    """Everything waits for something that can't happen any more."""


class SimLoop(asyncio.BaseEventLoop):
    """Runs tasks and callbacks in the order of their times; no file, socket or signal belongs to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.readers: dict[FileDescriptorLike, Callable[[], object]] = {}
        """By the number that a simulated socket gives as its FD."""
        self._selector = self

    def time(self) -> float:
        return self.now_s

    def select(self, timeout_s: float | None) -> list[Any]:
        """In the place of a selector: nobody comes from outside, so waiting is jumping."""
        if timeout_s is None:
            raise NothingLeftError(f"nothing is scheduled any more after {self.now_s:.3f} s")
        if timeout_s > 0:
            self.now_s += timeout_s
        return []

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
