"""Send window: the batches of one producer that a shard has not answered, in the order of their numbers.

A producer keeps each batch until its answer arrives, and repeats unanswered batches, in order and unchanged,
whenever its link is opened again. Numbers rise over the lifetime of the producer, so a shard recognizes a
batch that it has already stored. Pure: the frames that a producer sends are values of its callers.
"""

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Numbered(Protocol):
    """A batch that may have to be repeated."""

    @property
    def part(self) -> bytes:
        """The frame of the batch."""
        ...


Batch = TypeVar("Batch", bound=Numbered)


class SendWindow(Generic[Batch]):
    """Unanswered batches by number."""

    __slots__ = ("_sent_below", "_unanswered", "next")

    def __init__(self) -> None:
        self.next = 1
        """Number of the next batch."""
        self._sent_below = 0
        """Batches numbered below it may have reached a shard whose connection was lost later."""
        self._unanswered: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self._unanswered)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._unanswered.values())

    @property
    def first(self) -> int:
        """Number of the first unanswered batch; 0 without one."""
        return next(iter(self._unanswered), 0)

    def add(self, number: int, batch: Batch) -> None:
        """Adds a batch that is sent under this number: `next`, or a number above all earlier ones."""
        self.next = number + 1
        self._unanswered[number] = batch

    def answer(self, number: int) -> Batch | None:
        """Removes the batch whose answer arrived; None if it was answered or removed before."""
        return self._unanswered.pop(number, None)

    def answer_run(self, number: int, count: int) -> list[Batch]:
        """Removes the unanswered ones of the batches number .. number+count-1, and returns them."""
        pop = self._unanswered.pop
        return [batch for each in range(number, number + count) if (batch := pop(each, None)) is not None]

    def take(self, wanted: Callable[[Batch], bool]) -> list[tuple[int, Batch]]:
        """Removes the batches for which `wanted` is true, and returns them with their numbers."""
        found = [(number, batch) for number, batch in self._unanswered.items() if wanted(batch)]
        for number, _ in found:
            del self._unanswered[number]
        return found

    def clear(self) -> list[Batch]:
        """Removes all batches, and returns them."""
        batches = list(self._unanswered.values())
        self._unanswered.clear()
        return batches

    def mark_sent(self) -> None:
        """All batches may have reached a shard: the connection was lost, or they were repeated."""
        self._sent_below = self.next

    @property
    def sent_below(self) -> int:
        """See `ProducerOpen`; 0 if no unanswered batch may have reached a shard."""
        return self._sent_below if 0 < self.first < self._sent_below else 0

    def may_be_stored(self, number: int) -> bool:
        """Whether a batch may have reached a shard; valid while no shard is connected."""
        return number < self._sent_below
