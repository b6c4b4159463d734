"""Known: what a shard remembers of the last batches of producers."""

from collections.abc import Mapping
from typing import NamedTuple

from lightrail.model import limits
from lightrail.shard.peers import Producer, RouteProducer


class Known(NamedTuple):
    """The last batches of producers, by producer id."""

    numbers: dict[int, int]
    """By producer (boot << 32 | link)."""
    parts: dict[int, int]
    """Number of messages stored from each partially accepted last batch, by producer id."""
    sequences: dict[int, dict[int, int]]
    """The first sequence of each batch, for producers that asked for sequences."""


class KnownNumbers:
    """The last batches of producers that are not open now, and may open again."""

    __slots__ = ("_numbers", "_parts", "_sequences")

    def __init__(self, numbers: Mapping[int, int], parts: Mapping[int, int]) -> None:
        self._parts = dict(parts)
        """Number of messages stored from each partially accepted last batch, by producer id."""
        self._numbers = dict(numbers)
        """Last batch number of producers that are not open now, the longest silent first."""
        self._sequences: dict[int, dict[int, int]] = {}
        """The first sequence of each batch, for closed producers that asked for sequences."""

    def known_number(self, id: int) -> int:
        """The last number of a producer that has no link here, as a coordinator of transactions."""
        return self._numbers.get(id, 0)

    def note_number(self, id: int, number: int) -> None:
        """Remembers the last number of such a producer."""
        self._numbers.pop(id, None)
        self._numbers[id] = number
        self._forget_silent()

    def learn(self, found: Known) -> None:
        """Adds the numbers of producers of a queue that moved here, so that repeated batches are
        recognised."""
        for id, number in found.numbers.items():
            if number >= self._numbers.get(id, 0):
                self._numbers.pop(id, None)
                self._numbers[id] = number
                self._parts.pop(id, None)
                if id in found.parts:
                    self._parts[id] = found.parts[id]
                if id in found.sequences:
                    self._sequences[id] = found.sequences[id]
        while len(self._sequences) > limits.SEQUENCE_PRODUCERS_KEPT:
            del self._sequences[next(iter(self._sequences))]
        self._forget_silent()

    def _forget_silent(self) -> None:
        numbers = self._numbers
        while len(numbers) > limits.PRODUCERS_MAX:
            silent = next(iter(numbers))
            del numbers[silent]
            self._parts.pop(silent, None)

    def _keep(self, producer: Producer) -> None:
        """Remembers what a producer needs when it opens again."""
        self._keep_number(producer)
        if producer.stored and not producer.is_named:
            self._sequences[producer.id] = producer.stored
            if len(self._sequences) > limits.SEQUENCE_PRODUCERS_KEPT:
                del self._sequences[next(iter(self._sequences))]

    def _keep_number(self, producer: Producer | RouteProducer) -> None:
        """Forgets a link, which may open again under its number after its frontend's HELLO."""
        if producer.last_number:
            self._numbers[producer.id] = producer.last_number
        if producer.part:
            self._parts[producer.id] = producer.part
