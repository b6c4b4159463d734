"""A piece: messages of a queue by sequence, the answer to one request of an export."""

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightrail.model.attempts import of_journal
from lightrail.shard.effects.actions import Read
from lightrail.shard.moving.columns import Columns, ColumnsError, pack, put, rows
from lightrail.shard.queue.values.runs import Batch, Run, ends_of

if TYPE_CHECKING:
    from lightrail.shard.moving.exporting import Exporting

Done = Callable[[dict[str, Any], bytes], None]
"""Receives the answer: the fields of its JSON, and the blob."""

RUN_COLUMNS = {
    "sequence": "Q",
    "count": "I",
    "attempts": "I",
    "durable": "B",
    "priority": "B",
    "expires_at_ms": "q",
    "enqueued_at_ms": "q",
    "message_format": "I",
    "size": "I",
}
"""Columns of the runs of a piece: name and type; `expires_at_ms` is 0 for never. Then follow `ends` (u32, of
all messages, each run's counted from its own first byte) and `data`."""


class Piece:
    """The answer to one request for a piece.

    It waits for the next commit (`Waiter`), then for messages that are read from disk.
    """

    __slots__ = (
        "_bytes_max",
        "_done",
        "_export",
        "_first",
        "_mark",
        "_messages_max",
        "_missing",
        "_next",
        "_pieces",
        "_rewritten",
    )

    def __init__(
        self,
        export: "Exporting",
        first: int,
        mark: int,
        bytes_max: int,
        messages_max: int,
        done: Done,
        rewritten: bool,
    ) -> None:
        self._export = export
        self._first = first
        self._mark = mark
        self._bytes_max = bytes_max
        self._messages_max = messages_max
        self._done = done
        self._rewritten = rewritten
        self._pieces: list[tuple[Run, list[Run]]] = []
        """Each run as it is in the queue, with the runs in memory that have its messages."""
        self._next: int | None = None
        self._missing = 0

    def accept(self, number: int) -> None:
        """See `Waiter`: all records before the request are on disk."""
        if self._export.ended:
            return
        selected = self._export.selection.select(
            self._first, self._mark, self._bytes_max, self._messages_max, self._rewritten
        )
        self._next = selected.next
        self._pieces = [(run, [] if run.batch.data is None else [run]) for run in selected.runs]
        evicted = [(run, pieces) for run, pieces in self._pieces if not pieces]
        self._missing = len(evicted)
        for run, pieces in evicted:
            self._export.read(run, self._on_read(pieces))
        if not evicted:
            self._answer()

    def _on_read(self, pieces: list[Run]) -> Callable[[Read], None]:
        def add(read: Read) -> None:
            pieces.extend(read.runs)
            self._missing -= 1
            if not self._missing:
                self._answer()

        return add

    def _answer(self) -> None:
        if self._export.ended:
            return
        runs: list[tuple[Run, int]] = []
        failed = None
        for run, pieces in self._pieces:
            position = run.sequence
            for piece in pieces:
                if piece.sequence != position:
                    break
                runs.append((piece, run.attempts))
                position = piece.end
            if position != run.end:
                self._next = position
                failed = f"messages {position} to {run.end - 1} can't be read back now"
                break
        columns: dict[str, Any] = {}
        put(columns, "", RUN_COLUMNS, (_row(run, attempts) for run, attempts in runs))
        ends: array[int] = array("I")
        for run, _ in runs:
            ends.frombytes(bytes(ends_of(run)))
        columns["ends"] = ends
        columns["data"] = [run.batch.blob(run.first, run.last) for run, _ in runs]
        described, blob = pack(columns)
        header = self._header() | described
        if failed is not None:
            header["failed"] = failed
        self._done(header, blob)

    def _header(self) -> dict[str, Any]:
        export = self._export
        view = export.contents.queue.view
        return {
            "export": export.identity,
            "lowest": export.contents.lowest,
            "next": self._next,
            "mark": self._mark,
            "messages": view.held,
            "bytes": view.held_bytes,
            "rewritten": self._rewritten,
            "notes": export.selection.notes,
        }


def _row(run: Run, attempts: int) -> tuple[int, ...]:
    batch = run.batch
    # Until when they wait is part of the state.
    return (
        run.sequence,
        run.count,
        of_journal(attempts),
        batch.durable,
        batch.priority,
        batch.expires_at_ms or 0,
        batch.enqueued_at_ms,
        batch.message_format,
        run.size,
    )


def decode_runs(columns: Columns) -> list[Run]:
    """The runs of a piece, each with a separate batch. Raises ColumnsError."""
    runs: list[Run] = []
    ends, data = columns["ends"], columns["data"]
    at = position = before = 0
    for (
        sequence,
        count,
        attempts,
        durable,
        priority,
        expires_at_ms,
        enqueued_at_ms,
        message_format,
        size,
    ) in rows(columns, *RUN_COLUMNS):
        column = ends[at : at + count]
        if not count or len(column) != count or column[-1] != size or sequence < before:
            raise ColumnsError(f"the run at sequence {sequence} has other ends than its size and count")
        batch = Batch(
            bytes(data[position : position + size]),
            column,
            count,
            size,
            0,
            bool(durable),
            priority,
            expires_at_ms or None,
            enqueued_at_ms,
            None,
            message_format,
        )
        runs.append(Run(batch, 0, count, sequence, attempts))
        at += count
        position += size
        before = sequence + count
    if position != len(data) or at != len(ends):
        raise ColumnsError(f"the runs have {position} bytes, found {len(data)}")
    return runs
