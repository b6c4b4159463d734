"""What a journal says of the messages of captured queues, read with lightrail.journal alone, as others do.

One event per message and target, by the rules of the journal's format (docs/formats/journal.md): what the
cleaner, the disk or a change of annotations made written again is none, nor is what a copy does to follow its
source; a group counts whole or not at all.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lightrail.journal.layout import APPEND, decode_append_head, decode_small
from lightrail.journal.record import (
    CONTINUED,
    MOVED,
    MOVED_REASON,
    REWRITTEN,
    Delivered,
    Outcome,
    Queue,
    QueueEvent,
    Settle,
    Snapshot,
)
from lightrail.journal.scan import Found, Readable, Scan
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE, decode_segment_header


class Event(NamedTuple):
    """Something that happened to one message."""

    queue: str
    sequence: int
    event: str
    """`enqueued`, `moved`, `delivered`, or an outcome in lower case."""
    who: int = 0
    """Producer or consumer, boot << 32 | link; 0 for nobody."""
    message: bytes = b""
    reason: str = ""
    attempts: int = 0
    durable: bool = False


class _File(Readable, Protocol):
    def size(self) -> int: ...

    def close(self) -> None: ...


class _Files(Protocol):
    def names(self) -> list[str]: ...

    def open(self, name: str) -> _File: ...


class Reading:
    """Goes through a journal from its first segment to the last whole record."""

    def __init__(self, *, captured_only: bool = True) -> None:
        self._captured_only = captured_only
        self._queues: dict[int, tuple[str, bool]] = {}
        """Name, and whether it is captured, at this record of the journal."""
        self._group: list[Found] = []
        self.events: list[Event] = []
        self.codes: list[int] = []
        """Types of all records."""

    def segment(self, file: _File) -> bool:
        """Returns whether it is one that was begun."""
        header = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
        if header is None:
            return False
        for found in Scan(file, header.salt, SEGMENT_HEADER_SIZE, file.size(), header.first_lsn):
            self.codes.append(found.code)
            if found.flags & CONTINUED:
                self._group.append(found._replace(view=memoryview(bytes(found.view))))
                continue
            record = None if found.code == APPEND else decode_small(found.view, found.start, found.length)
            if isinstance(record, Snapshot):
                self._snapshot(record)
                continue
            for each in (*self._group, found):
                self._record(each)
            self._group.clear()
        return True

    def _snapshot(self, record: Snapshot) -> None:
        for entry in record.queues:
            self._queues[entry.queue] = (entry.name, json.loads(entry.policy).get("capture") is True)

    def _record(self, found: Found) -> None:
        if found.code == APPEND:
            self._append(found)
            return
        record = decode_small(found.view, found.start, found.length)
        if isinstance(record, Queue):
            if record.event == QueueEvent.DELETED:
                self._queues.pop(record.queue, None)
            else:
                captured = json.loads(record.policy).get("capture") is True
                self._queues[record.queue] = (record.name, captured)
        elif isinstance(record, Settle):
            if record.reason != MOVED_REASON:
                event = Outcome(record.outcome).name.lower()
                self._add(record.queue, record.ranges, event, reason=record.reason, attempts=record.attempts)
        elif isinstance(record, Delivered):
            self._add(record.queue, record.ranges, "delivered", who=record.consumer)

    def _add(
        self,
        number: int,
        ranges: Sequence[tuple[int, int]],
        event: str,
        *,
        who: int = 0,
        reason: str = "",
        attempts: int = 0,
    ) -> None:
        name, captured = self._queues[number]
        if captured or not self._captured_only:
            for first, last in ranges:
                for sequence in range(first, last):
                    self.events.append(Event(name, sequence, event, who, b"", reason, attempts))

    def _append(self, found: Found) -> None:
        if found.flags & REWRITTEN:
            return
        head, targets, column = decode_append_head(found.view, found.start, found.length)
        ends = found.view[column : column + 4 * head.messages].cast("I")
        start = column + 4 * head.messages
        event = "moved" if found.flags & MOVED else "enqueued"
        for number, sequence in targets:
            name, captured = self._queues[number]
            if not captured and self._captured_only:
                continue
            before = 0
            for index, end in enumerate(ends):
                data = bytes(found.view[start + before : start + end])
                before = end
                self.events.append(
                    Event(
                        name,
                        sequence + index,
                        event,
                        head.producer,
                        data,
                        "",
                        head.attempts,
                        bool(head.attributes & 1),
                    )
                )


def read(files: _Files, *, captured_only: bool = True) -> Reading:
    """All that a journal's segments say."""
    reading = Reading(captured_only=captured_only)
    for name in sorted(files.names()):
        if name.endswith(".segment"):
            file = files.open(name)
            try:
                if not reading.segment(file):
                    break
            finally:
                file.close()
    return reading


def events(files: _Files, queue: str | None = None) -> list[tuple[int, str]]:
    """(sequence, event) of a captured queue, or of all of them, in the journal's order."""
    return [
        (each.sequence, each.event) for each in read(files).events if queue is None or each.queue == queue
    ]


def broken_laws(found: list[Event], *, whole: bool = True) -> list[str]:
    """What a journal says that can't be, of queues that were captured from their first message on.

    A message is enqueued, or comes with its queue, before anything else happens to it; nobody says what
    became of a delivery that was not made; after its end nothing happens to it.

    Args:
        whole: the journal still has its first segment.
    """
    wrong: list[str] = []
    state: dict[tuple[str, int], str] = {}
    for each in found:
        key = each.queue, each.sequence
        before = state.get(key)
        if before is None and not whole:
            before = "delivered"
        if each.event in ("enqueued", "moved"):
            if key in state and before != "gone":
                wrong.append(f"{each}: it was there, {before}")
            # Who held it when its queue moved still does.
            state[key] = "there" if each.event == "enqueued" else "delivered"
        elif before in (None, "gone"):
            wrong.append(f"{each}: it was {before}")
        elif each.event == "delivered":
            state[key] = "delivered"
        elif each.event in ("released", "modified"):
            if before != "delivered":
                wrong.append(f"{each}: it was not delivered")
            state[key] = "there"
        else:
            if each.event in ("accepted", "rejected") and before != "delivered":
                wrong.append(f"{each}: it was not delivered")
            state[key] = "gone"
    return wrong
