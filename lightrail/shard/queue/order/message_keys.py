"""The keys of messages: fields that the order of a queue reads, and keeps while messages are on disk."""

from collections.abc import Callable, Hashable
from typing import Any, Final

from lightrail.model import limits, orders
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.values.keys import MISSING, TEXT, Key, Look, key_of, size_of
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Run

KEYED_BYTES: Final[int] = 150
"""Further bytes of such a message in an order by key, with a key of 16 characters."""
GROUP_PATH: Final = "properties.group-id"


class MessageKeys:
    """Reads the key of a message that is in memory, and keeps those of delayed and evicted ones."""

    __slots__ = ("_held", "_kept", "_read", "_size_max", "singles")

    def __init__(self, policy: Policy, look: Look) -> None:
        self.singles = policy.reads_messages
        """Whether every message is a separate run."""
        self._read: Callable[[bytes], Any] | None = None
        if policy.order != orders.FIFO:
            self._read = look(policy.order_key)
        elif policy.groups:
            self._read = look(GROUP_PATH)
        self._kept: dict[int, Key] = {}
        """Keys by sequence: of delayed messages, and of those in flight that are only on disk."""
        self._held: set[int] = set()
        """The sequences in `_kept` that are in flight."""
        self._size_max = 0
        """Bytes of the largest key since the index was empty."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def are_read(self) -> bool:
        """Whether the order needs a key of a message."""
        return self._read is not None

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for a message in flight that is only on disk."""
        return KEYED_BYTES + self._size_max

    def pieces(self, run: Run) -> list[Run]:
        """The run, message by message where the queue reads them."""
        if not self.singles or run.last - run.first == 1:
            return [run]
        batch, shift = run.batch, run.sequence - run.first
        return [
            Run(batch, index, index + 1, shift + index, run.attempts, run.barred)
            for index in range(run.first, run.last)
        ]

    def key_of(self, run: Run) -> Key:
        """The key of a single message."""
        if self._read is None or run.batch.message_format:
            return MISSING
        if self._kept and run.sequence in self._kept:
            return self._kept[run.sequence]
        key = key_of(self._read(run.batch.message(run.first)))
        kind = key[0]
        if (kind == TEXT or 6 <= kind < MISSING[0]) and len(key[1]) > self._size_max:
            self._size_max = size_of(key)
        return key

    def group_of(self, run: Run) -> Hashable:
        """The key of a single message's group; None if it has no group."""
        key = self.key_of(run)
        return None if key == MISSING else key

    def keep(self, piece: Run) -> None:
        """Keeps the key of a message that becomes delayed."""
        if self._read is not None:
            self._kept[piece.sequence] = self.key_of(piece)

    def drop(self, sequence: int) -> None:
        """Removes the key of a message that is no longer delayed."""
        self._kept.pop(sequence, None)

    def remember(self, run: Run) -> None:
        """Keeps the keys of a run in flight that is about to leave memory."""
        for piece in self.pieces(run):
            self._kept[piece.sequence] = self.key_of(piece)
            self._held.add(piece.sequence)

    def forget(self, run: Run) -> None:
        """Removes the keys of a run that is no longer in flight, or is in memory again."""
        if self._held:
            for sequence in range(run.sequence, run.end):
                if sequence in self._held:
                    self._held.discard(sequence)
                    self._kept.pop(sequence, None)

    def is_remembered(self, sequence: int) -> bool:
        """Whether the key of a message in flight is kept."""
        return sequence in self._held

    def cleared(self) -> None:
        """Removes the keys of delayed messages, which have left the queue; those in flight may return."""
        self._kept = {sequence: self._kept[sequence] for sequence in self._held}

    def thin(self, delayed: Sparse) -> None:
        """Removes keys of messages that are neither in flight nor delayed, if there are many."""
        held = self._held
        if len(self._kept) > limits.STALE_ENTRIES_MIN + 2 * (len(delayed) + len(held)):
            self._kept = {each: key for each, key in self._kept.items() if each in held or delayed.has(each)}

    def bytes_of(self, count: int) -> int:
        """Bytes that `count` keys of this queue use in memory, besides those that are kept here."""
        count += len(self._kept)
        if not count:
            self._size_max = 0
        return count * (KEYED_BYTES + self._size_max)
