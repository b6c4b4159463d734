"""Peeking: reads messages of a queue without a delivery; evicted messages are read from disk first.

Recalling: returns deferred messages that were locked by their sequences; reads evicted ones first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.amqp.sections import decode_header
from lightrail.model.attempts import failures
from lightrail.model.orders import PRIORITY_MIXED
from lightrail.shard.effects.actions import Read
from lightrail.shard.effects.performer import Performer
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.effects import Peeked, State
from lightrail.shard.queue.values.runs import Batch, Run
from lightrail.shard.queues.shard_queue import Queue

LOCKED: Final = "locked"

Seen = Callable[[dict[str, Any], bytes], None]


@dataclass(slots=True, eq=False, repr=False)
class Peeking:
    """One request to peek, from `begin` until all of its messages are in memory."""

    _queue: Queue
    _performer: Performer
    _start: int
    _count: int
    _bytes: int
    _seen: Seen
    _pieces: list[tuple[Run, str, list[Run]]] = field(default_factory=list)
    """Each run as it is in the queue, its state, and its messages in memory."""
    _missing: int = 0

    def begin(self) -> None:
        """Chooses the messages; reads those on disk, and answers when they are read."""
        left = self._bytes
        chosen: list[tuple[Run, str]] = []
        for run, state in self._runs():
            if left <= 0:
                break
            left -= run.size
            chosen.append((run, state))
        self._pieces = [(run, state, [] if run.batch.evicted else [run]) for run, state in chosen]
        for index, (run, _) in enumerate(chosen):
            if run.batch.evicted:
                self._missing += 1
                self._performer.read(self._queue, run, self._came(index))
        if not self._missing:
            self._answer()

    def _runs(self) -> list[tuple[Run, str]]:
        """Up to `count` messages from the start on, in order of their sequences."""
        found: list[tuple[Run, str]] = []
        for effect in self._queue.machine.apply(commands.Peek(self._start, self._count), 0):
            if isinstance(effect, Peeked):
                found += zip(effect.runs, map(str, effect.states), strict=True)
        for run in self._queue.view.locked_runs():
            if run.end > self._start:
                found.append((run.cut(max(self._start - run.sequence, 0), run.count), LOCKED))
        found.sort(key=lambda each: each[0].sequence)
        left = self._count
        within = []
        for run, state in found:
            if not left:
                break
            run = run.cut(0, min(run.count, left))
            left -= run.count
            within.append((run, state))
        return within

    def _came(self, index: int) -> Callable[[Read], None]:
        def came(read: Read) -> None:
            self._pieces[index][2].extend(read.runs)
            self._missing -= 1
            if not self._missing:
                self._answer()

        return came

    def _answer(self) -> None:
        messages: list[dict[str, Any]] = []
        blob: list[bytes] = []
        left = self._bytes
        for run, state, pieces in self._pieces:
            due_ms = None
            for piece in pieces:
                for index in range(piece.count):
                    if state == State.DELAYED:
                        due_ms = self._queue.view.due_ms(piece.cut(index, index + 1))
                    message = piece.batch.message(piece.first + index)
                    if messages and len(message) > left:
                        self._seen({"messages": messages, "next": piece.sequence + index}, b"".join(blob))
                        return
                    left -= len(message)
                    batch = piece.batch
                    blob.append(message)
                    messages.append(
                        {
                            "sequence": piece.sequence + index,
                            "state": state,
                            "attempts": failures(run.attempts),
                            "deferred": run.is_deferred,
                            "enqueued_at_ms": batch.enqueued_at_ms,
                            "expires_at_ms": batch.expires_at_ms,
                            "due_ms": due_ms,
                            "priority": _priority(batch, message),
                            "durable": batch.durable,
                            "message_format": batch.message_format,
                            "size": len(message),
                        }
                    )
        end = self._pieces[-1][0].end if self._pieces else self._queue.view.next_sequence
        next_ = end if end < self._queue.view.next_sequence else None
        self._seen({"messages": messages, "next": next_}, b"".join(blob))


def _priority(batch: Batch, message: bytes) -> int:
    if batch.priority != PRIORITY_MIXED:
        return batch.priority
    priority: int = decode_header(message).priority
    return priority


Came = Callable[[list[dict[str, Any]], bytes], None]
"""Called with a row per message that could be read, and the messages one after another."""


class Recalling:
    """One request, from `begin` until all of its messages are in memory.

    Args:
        runs: runs of one message each.
    """

    __slots__ = ("_came", "_found", "_missing", "_performer", "_queue", "_runs")

    def __init__(self, queue: Queue, performer: Performer, runs: list[Run], came: Came) -> None:
        self._queue = queue
        self._performer = performer
        self._runs = runs
        self._came = came
        self._found: list[Run | None] = [None if run.batch.evicted else run for run in runs]
        self._missing = 0

    def begin(self) -> None:
        """Reads messages that are only on disk, and then answers."""
        for index, run in enumerate(self._runs):
            if run.batch.evicted:
                self._missing += 1
                self._performer.read(self._queue, run, self._read(index))
        if not self._missing:
            self._answer()

    def _read(self, index: int) -> Callable[[Read], None]:
        def read(answer: Read) -> None:
            # A message that can't be read stays locked until its lock ends.
            self._found[index] = next(iter(answer.runs), None)
            self._missing -= 1
            if not self._missing:
                self._answer()

        return read

    def _answer(self) -> None:
        rows: list[dict[str, Any]] = []
        blob: list[bytes] = []
        for run, found in zip(self._runs, self._found, strict=True):
            if found is None:
                continue
            message = found.batch.message(found.first)
            blob.append(message)
            rows.append(
                {
                    "sequence": run.sequence,
                    "attempts": failures(run.attempts),
                    "enqueued_at_ms": found.batch.enqueued_at_ms,
                    "expires_at_ms": found.batch.expires_at_ms,
                    "message_format": found.batch.message_format,
                    "size": len(message),
                }
            )
        self._came(rows, b"".join(blob))
