"""Waiting: calls that are made when records are on disk."""

from collections.abc import Callable
from typing import Protocol


class Waiter(Protocol):
    """Waits for the disk: a producer, a request, or a sync."""

    def accept(self, number: int) -> None:
        """It is on disk.

        Args:
            number: of the batch of a producer; other waiters choose its meaning.
        """


class WhenSynced:
    """Makes a call when the records so far are on disk."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def accept(self, _: int) -> None:
        """It is on disk."""
        self._call()
