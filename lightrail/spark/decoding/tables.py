"""Tables: names, epochs and capture of a journal's queues, by number, as of a position."""

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from lightrail.journal.record import Queue, QueueEvent, Snapshot

UNKNOWN: Final = -1
"""Index of a queue that is not selected."""


class Entry(NamedTuple):
    """A queue's values for columns."""

    name: str
    epoch: int
    captured: bool


def read_policy(name: str, text: str) -> Entry:
    """The contents of a Queue record's text (docs/formats/journal.md, 3 Queue)."""
    try:
        fields = json.loads(text)
        return Entry(name, int(fields.get("epoch", 1)), fields.get("capture") is True)
    except (ValueError, AttributeError, TypeError):
        return Entry(name, 1, False)


class Tables:
    """Follows the Queue records; `indexes` maps a number to the queue's index in `entries`, or UNKNOWN for
    one that is not selected."""

    def __init__(self, wanted: Callable[[Entry], bool]) -> None:
        self._wanted = wanted
        self._known: dict[int, tuple[str, str]] = {}
        self._by_entry: dict[Entry, int] = {}
        self.entries: list[Entry] = []
        self.indexes = _Indexes(self._resolve)
        self.undeclared: set[int] = set()
        """Indexes of queues without a Queue record, which is possible only after records were lost."""

    def restore(self, record: Snapshot) -> None:
        """The Snapshot at the head of the segment."""
        self._known = {entry.queue: (entry.name, entry.policy) for entry in record.queues}
        self.indexes.clear()

    def apply(self, record: Queue) -> None:
        """Applies a Queue record."""
        if record.event == QueueEvent.DELETED:
            self._known.pop(record.queue, None)
        else:
            self._known[record.queue] = (record.name, record.policy)
        self.indexes.pop(record.queue, None)

    def _resolve(self, number: int) -> int:
        known = self._known.get(number)
        # The name that recovery assigns to a queue whose records were lost (shard/journal/recovery.py).
        entry = Entry(f"lost-and-found/{number}", 1, False) if known is None else read_policy(*known)
        if not self._wanted(entry):
            return UNKNOWN
        index = self._by_entry.get(entry)
        if index is None:
            index = self._by_entry[entry] = len(self.entries)
            self.entries.append(entry)
        if known is None:
            self.undeclared.add(index)
        return index


class _Indexes(dict[int, int]):
    """Looks a queue up when its number first appears: most queues of a shard have no record in a part."""

    def __init__(self, resolve: Callable[[int], int]) -> None:
        super().__init__()
        self._resolve = resolve

    def __missing__(self, number: int) -> int:
        index = self[number] = self._resolve(number)
        return index
