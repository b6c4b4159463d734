"""Lock changes: which locks under a key have begun, changed or been given up since the last look.

A file beside the journal has these locks, so that they outlive the process (shard/queues/lock_file.py). An
outcome by which a message leaves the queue needs no note: the journal shows it.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lightrail.model.attempts import of_journal
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.values.runs import Run


class KeyedLock(NamedTuple):
    """Deliveries of consecutive numbers and sequences that are locked under a key until one time."""

    consumer: Consumer
    number: int
    sequence: int
    length: int
    attempts: int
    """As in the journal."""
    until_ms: int
    counts: bool
    """Whether the end by time counts as a failed delivery, although the link has ended."""


class Freed(NamedTuple):
    """Messages that are locked no longer."""

    sequence: int
    length: int


@dataclass(slots=True, eq=False, repr=False)
class LockChanges:
    """The changes of one queue."""

    queue: int
    """Number of the queue in the journal."""
    _changed: "dict[LockChanges, None]"
    """Queues with changes, of all of the shard."""
    _notes: list[tuple[Consumer, int, int] | Freed] = field(default_factory=list)

    def locked(self, consumer: Consumer, first: int, last: int) -> None:
        """Notes deliveries of a consumer with a key, from number `first` to before `last`."""
        self._changed[self] = None
        self._notes.append((consumer, first, last))

    def freed(self, runs: Iterable[Run]) -> None:
        """Notes messages that return to the queue."""
        self._changed[self] = None
        self._notes += (Freed(run.sequence, run.count) for run in runs if run.batch.durable)

    def take(self) -> Iterator[KeyedLock | Freed]:
        """The changes in their order, the locks as they are now; the notes are forgotten."""
        notes, self._notes = self._notes, []
        for note in notes:
            if isinstance(note, Freed):
                yield note
            else:
                yield from keyed_locks(*note)


class LockedPart(NamedTuple):
    """Deliveries of consecutive numbers and sequences whose locks have one end."""

    number: int
    sequence: int
    length: int
    until_ms: int
    """0 for locks without an end."""
    counts: bool
    """As in KeyedLock."""


def keyed_locks(consumer: Consumer, first: int, last: int) -> Iterator[KeyedLock]:
    """The locks of deliveries in flight, from number `first` to before `last`, that outlive their link.

    Transient messages are left out, as they do not outlive the process.
    """
    if not consumer.keeps_locks:
        return
    line = consumer.in_flight
    index = line.index(first)
    while index < len(line.runs) and line.keys[index] < last:
        run = line.runs[index]
        for number, sequence, length, until_ms, counts in (
            parts_at(consumer, index, first, last) if run.batch.durable else ()
        ):
            if until_ms:
                attempts = of_journal(run.attempts)
                yield KeyedLock(consumer, number, sequence, length, attempts, until_ms, counts)
        index += 1


def parts_at(consumer: Consumer, index: int, first: int, last: int) -> Iterator[LockedPart]:
    """The parts of the run at an index in flight, from number `first` to before `last`."""
    assert consumer.ends is not None, "a consumer with a key knows the ends of its locks"
    number, run = consumer.in_flight.keys[index], consumer.in_flight.runs[index]
    blame, renewed = consumer.blame, consumer.renewed
    for start, stop, given_ms in consumer.ends.parts(max(first, number), min(last, number + run.count)):
        for low, high in _parted(consumer, start, stop):
            counts = blame is not None and blame.counts(low)
            sequence = run.sequence + low - number if low > number else run.sequence
            yield LockedPart(low, sequence, high - low, renewed.get(low, given_ms), counts)


def _parted(consumer: Consumer, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Parts of a range of numbers: those with an end or a blame of their own are apart."""
    apart = within(consumer.renewed, first, last)
    if (blame := consumer.blame) is not None:
        oldest = () if blame.oldest is None else (blame.oldest,)
        apart = sorted({*apart, *within(blame.renewed, first, last), *within(oldest, first, last)})
    for number in apart:
        if first < number:
            yield first, number
        yield number, number + 1
        first = number + 1
    if first < last:
        yield first, last


def within(numbers: Collection[int], first: int, last: int) -> list[int]:
    """Those of some numbers that are in a range, in order."""
    if not numbers:
        return []
    if last - first <= len(numbers):
        return [number for number in range(first, last) if number in numbers]
    return sorted(number for number in numbers if first <= number < last)
