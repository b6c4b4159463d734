"""Send window: the batches of one producer that a shard has not answered, in the order of their numbers.

A producer keeps each batch until its answer arrives, and repeats unanswered batches, in order and unchanged,
whenever its link is opened again. Numbers rise over the lifetime of the producer, so a shard recognizes a
batch that it has already stored. Pure: the frames that a producer sends are values of its callers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from lightrail.model import conditions
from lightrail.wire.bodies import Refusal

NOT_STORED: Final = Refusal(conditions.INTERNAL_ERROR, "its shard is not connected, and can't have stored it")
MAYBE_STORED: Final = Refusal(conditions.INTERNAL_ERROR, "its shard is not connected, and may have stored it")
"""Reasons of senders that no longer wait, and not of a shard: they are compared by identity."""


class Attributes(NamedTuple):
    """Common fields of all messages of a frame."""

    durable: bool
    priority: int
    expires_at_ms: int
    """0: the messages do not expire."""
    message_format: int


class Repeatable(Protocol):
    """A batch that may have to be repeated."""

    @property
    def part(self) -> bytes:
        """The frame of the batch."""
        ...


Batch = TypeVar("Batch", bound=Repeatable)


@dataclass(slots=True, eq=False, repr=False)
class SendWindow(Generic[Batch]):
    """Unanswered batches by number."""

    next: int = 1
    """Number of the next batch."""
    _sent_below: int = 0
    """Batches numbered below it may have reached a shard whose connection was lost later."""
    _unanswered: dict[int, Batch] = field(default_factory=dict)

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


class OrderedWindow(SendWindow[Batch]):
    """A window whose batches are sent again, in order, if they were refused only for a batch before them.

    A shard that refused a batch refuses all batches behind it until one is marked afresh (rule 4 of
    docs/formats/wire.md). So after a refusal new batches wait until the last answer has arrived.
    """

    __slots__ = ("_again", "_later", "is_refusing")

    def __init__(self) -> None:
        super().__init__()
        self.is_refusing = False
        """Whether the shard refuses what is sent now: batches behind a refused one are unanswered."""
        self._again: list[Batch] = []
        """Batches that were refused only for a batch before them."""
        self._later: list[Batch] = []
        """Batches that came meanwhile."""

    def wait(self, batch: Batch) -> None:
        """Adds a batch that is not sent now, since the shard would refuse it."""
        self._later.append(batch)

    def refused(self, batch: Batch | None, *, is_displaced: bool = False) -> bool:
        """A batch was refused, which `answer` has removed; None for a batch that nobody waits for.

        Args:
            is_displaced: the batch is for another shard, and `take_waiting` returns it before the others.

        Returns:
            Whether the batch is sent again, since the refusal is not its own.
        """
        goes_again = batch is not None and (self.is_refusing or is_displaced)
        if batch is not None and goes_again:
            self._again.append(batch)
        self.is_refusing = self.is_refusing or is_displaced or len(self) > 0
        return goes_again

    def take_waiting(self) -> list[Batch]:
        """The batches to send under new numbers, in order, once the last answer has arrived; else none."""
        if not self.is_refusing or len(self):
            return []
        self.is_refusing = False
        waiting = [*self._again, *self._later]
        self._again.clear()
        self._later.clear()
        return waiting

    def everything(self) -> list[Batch]:
        """All batches without an outcome, in order."""
        return [*self._again, *self, *self._later]

    def clear(self) -> list[Batch]:
        """Removes all batches, and returns them in order."""
        batches = self.everything()
        super().clear()
        self._again.clear()
        self._later.clear()
        self.is_refusing = False
        return batches
