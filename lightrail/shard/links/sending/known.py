"""Known: the numbers of producers' last batches, by which a shard recognises repeated ones."""

from collections.abc import Mapping
from typing import NamedTuple

from lightrail.model import limits
from lightrail.shard.effects.peers import Producer, RouteProducer


class Known(NamedTuple):
    """The last batches of producers, by producer id."""

    numbers: dict[int, int]
    """Number of the last batch, by producer id (boot << 32 | link)."""
    parts: dict[int, int]
    """Number of messages stored from each partially accepted last batch, by producer id."""
    sequences: dict[int, dict[int, int]]
    """The first sequence of each batch, for producers that requested sequences."""


class KnownNumbers:
    """The last batches of closed producers, which may open again."""

    __slots__ = ("_numbers", "_parts", "_sequences")

    def __init__(self, numbers: Mapping[int, int], parts: Mapping[int, int]) -> None:
        self._parts = dict(parts)
        """Number of messages stored from each partially accepted last batch, by producer id."""
        self._numbers = dict(numbers)
        """Last batch number of closed producers, the least recently active first."""
        self._sequences: dict[int, dict[int, int]] = {}
        """The first sequence of each batch, for closed producers that requested sequences."""

    def known_number(self, id: int) -> int:
        """The last number of a producer without a link here, such as a coordinator of transactions."""
        return self._numbers.get(id, 0)

    def note_number(self, id: int, number: int) -> None:
        """Stores the last number of a producer without a link here."""
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
        """Stores the state that a producer needs when it opens again."""
        self._keep_number(producer)
        if producer.stored and not producer.is_named:
            self._sequences[producer.id] = producer.stored
            if len(self._sequences) > limits.SEQUENCE_PRODUCERS_KEPT:
                del self._sequences[next(iter(self._sequences))]

    def _keep_number(self, producer: Producer | RouteProducer) -> None:
        """Stores the number of a closed link, which may open again after its frontend's HELLO."""
        if producer.last_number:
            self._numbers[producer.id] = producer.last_number
        if producer.part:
            self._parts[producer.id] = producer.part
