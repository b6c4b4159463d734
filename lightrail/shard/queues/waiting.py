"""Waiting: calls that are made when records are on disk."""

from collections.abc import Callable
from typing import Protocol


class Waiter(Protocol):
    """A producer, a request, or a sync that waits for the disk."""

    def accept(self, number: int) -> None:
        """The records are on disk.

        Args:
            number: number of a producer's batch; other waiters choose its meaning.
        """


CallWhenSynced = Callable[[Waiter, int], None]
"""Calls a waiter with this number when the records so far are on disk."""


class WhenSynced:
    """Makes a call when the records so far are on disk."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def accept(self, _: int) -> None:
        """The records are on disk."""
        self._call()
