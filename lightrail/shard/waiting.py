"""Waiting: calls that are made when records are on disk."""

from typing import Protocol


class Waiter(Protocol):
    """Waits for the disk: a producer, a request, or a sync."""

    def accept(self, number: int) -> None:
        """It is on disk.

        Args:
            number: of the batch of a producer; other waiters choose its meaning.
        """
