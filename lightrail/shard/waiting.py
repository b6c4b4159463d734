"""Waiting: who is called when what it asked for is on disk."""

from typing import Protocol


class Waiter(Protocol):
    """Who waits for the disk: a producer, a request, or whoever asks for a sync."""

    def accept(self, number: int) -> None:
        """It is on disk.

        Args:
            number: of the batch, where a producer waits; what else waits chooses its meaning.
        """
