"""Replacing: newer messages replace older ones with the same key (the order `last-value`)."""

from collections.abc import Iterable

from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.order.last_values import LastValues
from lightrail.shard.queue.order.message_keys import MessageKeys
from lightrail.shard.queue.values.counters import Counters
from lightrail.shard.queue.values.effects import Effect, Reason, Removed
from lightrail.shard.queue.values.keys import MISSING, Key
from lightrail.shard.queue.values.runs import Run


class Replacing:
    """Removes replaced messages; their effects wait for the next dispatch."""

    __slots__ = ("_counters", "_keys", "_ready", "_removed", "_superseded", "gathers", "values")

    def __init__(
        self, values: LastValues | None, keys: MessageKeys, ready: Sparse, counters: Counters
    ) -> None:
        self.values = values
        """The last values; None in a queue of another order, where nothing is replaced."""
        self._keys = keys
        self._ready = ready
        self._counters = counters
        self._removed: list[Effect] = []
        """Messages that were replaced since the last dispatch."""
        self.gathers = False
        """Whether the queue is loading, so that replaced messages leave only when all have been read."""
        self._superseded: list[int] = []
        """Sequences of replaced messages, while it gathers."""

    def __len__(self) -> int:
        return 0 if self.values is None else len(self.values)

    @property
    def has_effects(self) -> bool:
        """Whether messages were replaced since the last dispatch."""
        return bool(self._removed)

    def add(self, run: Run) -> bool:
        """Notes a message; removes the older one of it and the one with its key.

        Returns:
            Whether the older one is this message, which must not become ready.
        """
        if self.values is None:
            return False
        key = self._keys.key_of(run)
        if key == MISSING:
            return False
        older = self.values.note(key, run.sequence)
        if self.gathers:
            if older >= 0:
                self._superseded.append(older)
            return False
        if older == run.sequence:
            self._drop(run)
            return True
        if older >= 0:
            self._take_out(older)
        return False

    def outdate(self, key: Key, above: int) -> None:
        """Notes that a message with this key and a higher sequence was known elsewhere."""
        if self.values is not None:
            older = self.values.note(key, above)
            if older >= 0:
                self._superseded.append(older)

    def remove_superseded(self, count_max: int) -> bool:
        """Removes some of the messages that were replaced while it gathered; returns whether all are
        removed."""
        while self._superseded and count_max > 0:
            count_max -= 1
            self._take_out(self._superseded.pop())
        return not self._superseded

    def cleared(self) -> None:
        """Notes that all ready and delayed messages have left the queue."""
        self._superseded.clear()

    def tell(self, effects: list[Effect]) -> None:
        """Adds the effects of replaced messages: not before the engine has given their batches a location."""
        if self._removed:
            effects.extend(self._removed)
            self._removed = []

    def thin(self, held_back: Iterable[Run]) -> None:
        """Forgets keys that are not needed, when there are many: between steps, when each message is in a
        line.

        Args:
            held_back: what is in flight or delayed, and may come back to a newer message with its key.
        """
        values = self.values
        if values is not None and values.many:
            pieces = [piece for run in held_back for piece in self._keys.pieces(run)]
            values.thin({self._keys.key_of(piece) for piece in pieces}, len(pieces), self._ready.has)

    def newest_of(self, held_back: Iterable[Run]) -> dict[int, int] | None:
        """The newest sequence with its key, by the sequence of each held-back message that is replaced."""
        if self.values is None:
            return None
        newest: dict[int, int] = {}
        for run in held_back:
            for piece in self._keys.pieces(run):
                above = self.values.newest(self._keys.key_of(piece))
                if above > piece.sequence:
                    newest[piece.sequence] = above
        return newest

    def _take_out(self, sequence: int) -> None:
        index = self._ready.find(sequence, sequence + 1)
        if index >= 0:
            self._drop(self._ready.take_single(index)[0])

    def _drop(self, run: Run) -> None:
        self._counters.replaced += 1
        self._removed.append(Removed(run.batch, run.sequence, run.end, run.size, Reason.REPLACED))
