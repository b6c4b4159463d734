"""Loading: reads messages from disk if their outcomes in a transaction need their bytes.

A dead letter is a copy of its message with the reason, and annotations are merged into the message. Outside
of transactions such an outcome is deferred until the message is read (`queue/deferred.py`); in a transaction
its records are in one group with all others, so the message is read first.
"""

from collections.abc import Callable, Sequence

from lightrail.shard.effects.actions import Read
from lightrail.shard.effects.performer import Performer
from lightrail.shard.queue.memory.disk import gaps_of, pieces_of
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queues.shard_queue import Queue


class Loaded:
    """Messages that were read, by queue and sequence."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[Queue, list[Run]] = {}

    def add(self, queue: Queue, runs: Sequence[Run]) -> None:
        """Adds messages of a queue that no earlier call has added."""
        found = self._runs.setdefault(queue, [])
        found += runs
        found.sort(key=lambda run: run.sequence)

    def of(self, queue: Queue, run: Run) -> list[Run] | None:
        """The messages of a run that is only on disk; None if some of them were not read."""
        pieces = pieces_of(self._runs.get(queue, ()), run)
        return None if gaps_of(pieces, run) else pieces


class Loading:
    """Requests reads of messages by the reader thread."""

    __slots__ = ("_performer",)

    def __init__(self, performer: Performer) -> None:
        self._performer = performer

    def begin(self, wanted: Sequence[tuple[Queue, Run]], then: Callable[[Loaded], None]) -> None:
        """Reads runs that are only on disk; `then` is called once, even if some could not be read."""
        loaded = Loaded()
        left = len(wanted)

        def read(queue: Queue, ended: Read) -> None:
            nonlocal left
            left -= 1
            loaded.add(queue, ended.runs)
            if not left:
                then(loaded)

        for queue, run in wanted:
            self._performer.read(queue, run, lambda ended, queue=queue: read(queue, ended))  # type: ignore[misc]
