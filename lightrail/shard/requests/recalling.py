"""Recalling: returns deferred messages that were locked by their sequences; reads evicted ones first."""

from collections.abc import Callable
from typing import Any

from lightrail.model.attempts import failures
from lightrail.shard.effects.actions import Read
from lightrail.shard.effects.performer import Performer
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queues.shard_queue import Queue

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
