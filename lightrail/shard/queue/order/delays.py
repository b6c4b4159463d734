"""Delays: messages that are not ready before their due time, by sequence and by time.

A message has its due time in the annotations `x-opt-delivery-time` (milliseconds since the epoch, a timestamp
or an integer), for which clients of Azure Service Bus write `x-opt-scheduled-enqueue-time`, or
`x-opt-delivery-delay` (milliseconds from when it was enqueued); with both, the later counts. They are read
from the message again after a restart.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from lightrail.model import limits
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.order.message_keys import MessageKeys
from lightrail.shard.queue.values.keys import Look
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queue.values.work import RUN, Work

TIME_PATH: Final = "message-annotations.x-opt-delivery-time"
SCHEDULED_PATH: Final = "message-annotations.x-opt-scheduled-enqueue-time"
DELAY_PATH: Final = "message-annotations.x-opt-delivery-delay"


class Delays:
    """The delayed messages of one queue, each in a separate run.

    Args:
        look: see `Look`.
    """

    __slots__ = ("_delay", "_due", "_scheduled", "_time", "line")

    def __init__(self, look: Look) -> None:
        self._time = look(TIME_PATH)
        self._scheduled = look(SCHEDULED_PATH)
        self._delay = look(DELAY_PATH)
        self.line = Sparse()
        """Delayed messages by sequence."""
        self._due: list[tuple[int, int]] = []
        """Heap of (milliseconds since the epoch, sequence), also of some messages that are no longer
        delayed."""

    def due_ms(self, run: Run) -> int:
        """Due time of a message in memory in milliseconds since the epoch; 0 if it is not delayed."""
        message = run.batch.message(run.first)
        time, delay = self._time(message), self._delay(message)
        if time is None:
            time = self._scheduled(message)
        due_ms = 0
        if isinstance(time, int) and not isinstance(time, bool):
            due_ms = int(time)
        if isinstance(delay, int) and not isinstance(delay, bool) and delay > 0:
            due_ms = max(due_ms, run.batch.enqueued_at_ms + int(delay))
        return due_ms

    def add(self, run: Run, due_ms: int) -> None:
        """Keeps a message until it is due."""
        self.line.give_back(run)
        heappush(self._due, (due_ms, run.sequence))

    def hold_back(self, run: Run, now_ms: int, keys: MessageKeys) -> bool:
        """Keeps a message that is not due yet, and its key; False for one that is ready."""
        if run.batch.message_format:
            return False
        due_ms = self.due_ms(run)
        if due_ms <= now_ms:
            return False
        keys.keep(run)
        self.add(run, due_ms)
        return True

    def take(self, sequence: int) -> Run | None:
        """Removes and returns a message; None if it is not delayed."""
        index = self.line.find(sequence, sequence + 1)
        if index < 0:
            return None
        run = self.line.take_single(index)[0]
        if len(self._due) > limits.STALE_ENTRIES_MIN + 2 * len(self.line):
            self._due = [each for each in self._due if self.line.has(each[1])]
            heapify(self._due)
        return run

    def clear(self) -> None:
        """Removes and returns all messages."""
        self.line.clear()
        self._due = []

    def take_due(self, now_ms: int, work: Work) -> list[Run]:
        """Removes and returns due messages, the earliest first, within this turn's budget of work."""
        due: list[Run] = []
        while self._due and self._due[0][0] <= now_ms and work.left > 0:
            work.left -= 2 * RUN
            run = self.take(heappop(self._due)[1])
            if run is not None:
                due.append(run)
        return due

    @property
    def next_ms(self) -> int | None:
        """Due time of the first message; None if there is none."""
        while self._due and not self.line.has(self._due[0][1]):
            heappop(self._due)
        return self._due[0][0] if self._due else None
