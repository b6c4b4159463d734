"""Messages by a time or a key of theirs: those with a delay, and those that newer ones replace.

In the order `last-value` a newer message replaces the older one with the same key (`LastValues`,
`Replacing`).

A message with a delay is not ready before its due time (`Delays`). It has its due time in the annotations
`x-opt-delivery-time` (milliseconds since the epoch, a timestamp or an integer), for which clients of Azure
Service Bus write `x-opt-scheduled-enqueue-time`, or `x-opt-delivery-delay` (milliseconds from when it was
enqueued); with both, the later counts. They are read from the message again after a restart.

A message that has only the time of Azure Service Bus, in a queue whose policy `enqueues_due`, is enqueued
when it is due: it leaves the queue, and enters it again as a new message. All others become ready in the
place that they had when they came.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final

from lightrail.model import limits
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.order.message_keys import MessageKeys
from lightrail.shard.queue.values.counters import LEAVING, LETTER, RUN, Counters, TurnWork
from lightrail.shard.queue.values.effects import Effect, Reason, Removed
from lightrail.shard.queue.values.keys import MISSING, Key, Look
from lightrail.shard.queue.values.runs import Run

TIME_PATH: Final = "message-annotations.x-opt-delivery-time"
SCHEDULED_PATH: Final = "message-annotations.x-opt-scheduled-enqueue-time"
DELAY_PATH: Final = "message-annotations.x-opt-delivery-delay"


class Delays:
    """The delayed messages of one queue, each in a separate run.

    Args:
        look: see `Look`.
        enqueues_due: see Policy.
    """

    __slots__ = (
        "_delay",
        "_due",
        "_scheduled",
        "_scheduled_due",
        "_time",
        "awaits",
        "enqueues_due",
        "line",
        "scheduled",
        "withheld",
    )

    def __init__(self, look: Look, *, enqueues_due: bool = False) -> None:
        self._time = look(TIME_PATH)
        self._scheduled = look(SCHEDULED_PATH)
        self._delay = look(DELAY_PATH)
        self.line = Sparse()
        """Delayed messages by sequence."""
        self._due: list[tuple[int, int]] = []
        """Heap of (milliseconds since the epoch, sequence), also of some messages that are no longer
        delayed."""
        self.enqueues_due = enqueues_due
        self.scheduled: set[int] = set()
        """Sequences of messages that are enqueued when they are due; until then they do not expire."""
        self._scheduled_due: list[tuple[int, int]] = []
        """The same heap for these messages."""
        self.awaits = False
        """Whether the first of them that is due is being read from disk."""
        self.withheld: dict[int, int | None] = {}
        """Sequences of messages that stay delayed (commands.Withhold), and the due time that has come."""

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
        if self.enqueues_due and self._is_scheduled(run):
            self.scheduled.add(run.sequence)
            heappush(self._scheduled_due, (due_ms, run.sequence))
        else:
            heappush(self._due, (due_ms, run.sequence))

    def _is_scheduled(self, run: Run) -> bool:
        """Whether a message has the time of Service Bus alone, and no delivery of it has failed."""
        message = run.batch.message(run.first)
        return not run.attempts and self._time(message) is None and self._delay(message) is None

    def hold_back(self, run: Run, now_ms: int, keys: MessageKeys) -> bool:
        """Keeps a message that is not due yet, and its key; False for one that is ready.

        A scheduled one that became due while nobody looked, as in a shard that was down, is kept until it is
        enqueued. One that was enqueued when it was due has come later than that.
        """
        if run.batch.message_format:
            return False
        due_ms = self.due_ms(run)
        if due_ms <= now_ms and not (
            (self.enqueues_due and due_ms > run.batch.enqueued_at_ms and self._is_scheduled(run))
            or run.sequence in self.withheld
        ):
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
        self.scheduled.discard(sequence)
        self.withheld.pop(sequence, None)
        self.awaits = False
        if len(self._due) + len(self._scheduled_due) > limits.STALE_ENTRIES_MIN + 2 * len(self.line):
            for heap in (self._due, self._scheduled_due):
                heap[:] = [each for each in heap if self.line.has(each[1])]
                heapify(heap)
        return run

    def clear(self) -> None:
        """Removes and returns all messages."""
        self.line.clear()
        self._due = []
        self._scheduled_due = []
        self.scheduled.clear()
        self.withheld.clear()
        self.awaits = False

    def take_due(self, now_ms: int, work: TurnWork) -> list[Run]:
        """Removes and returns due messages, the earliest first, within this turn's budget of work."""
        due: list[Run] = []
        while self._due and self._due[0][0] <= now_ms and work.left > 0:
            work.left -= 2 * RUN
            due_ms, sequence = heappop(self._due)
            if sequence in self.withheld:
                self.withheld[sequence] = due_ms
                continue
            run = self.take(sequence)
            if run is not None:
                due.append(run)
        return due

    def take_scheduled(self, now_ms: int, work: TurnWork) -> list[Run]:
        """Removes and returns due messages that are to be enqueued now, the earliest first.

        It stops at one that is only on disk, and `awaits` that one; see `on_disk`.
        """
        due: list[Run] = []
        while not self.awaits and (due_ms := self.next_scheduled_ms) is not None and due_ms <= now_ms:
            if work.left <= 0:
                break
            work.left -= LEAVING + LETTER
            sequence = self._scheduled_due[0][1]
            if sequence in self.withheld:
                self.withheld[sequence] = heappop(self._scheduled_due)[0]
                continue
            if self.line.runs[self.line.find(sequence, sequence + 1)].batch.data is None:
                self.awaits = True
                break
            heappop(self._scheduled_due)
            run = self.take(sequence)
            assert run is not None, "the first entry of the heap is in the line"
            due.append(run)
        return due

    def release(self, sequences: Iterable[int]) -> None:
        """No longer keeps messages delayed that are due."""
        for sequence in sequences:
            due_ms = self.withheld.pop(sequence, None)
            if due_ms is not None and self.line.has(sequence):
                heap = self._scheduled_due if sequence in self.scheduled else self._due
                heappush(heap, (due_ms, sequence))

    def on_disk(self, count: int) -> list[Run]:
        """The messages to be enqueued next that are only on disk, of the first `count`, by sequence."""
        first = sorted(sequence for _, sequence in nsmallest(count, self._scheduled_due))
        found = [self.line.find(sequence, sequence + 1) for sequence in first]
        runs = [self.line.runs[index] for index in found if index >= 0]
        return [run for run in runs if run.batch.data is None]

    @property
    def next_ms(self) -> int | None:
        """Due time of the first message that becomes ready; None if there is none."""
        return self._first(self._due)

    @property
    def next_scheduled_ms(self) -> int | None:
        """Due time of the first message that is enqueued then; None if there is none, or it is being read."""
        return None if self.awaits else self._first(self._scheduled_due)

    def _first(self, heap: list[tuple[int, int]]) -> int | None:
        while heap and not self.line.has(heap[0][1]):
            heappop(heap)
        return heap[0][0] if heap else None


class LastValues:
    """The highest sequence of each key in the queue, or formerly in it while an older message was in flight
    or delayed.

    So an older message that returns, or becomes ready after its delay, is replaced even if the newer message
    was delivered already: no old value is delivered after a new one.
    """

    __slots__ = ("_newest", "_thin_at")

    def __init__(self) -> None:
        self._newest: dict[Key, int] = {}
        self._thin_at = limits.STALE_RANGES_MIN

    def __len__(self) -> int:
        return len(self._newest)

    def note(self, key: Key, sequence: int) -> int:
        """A message with this key is ready; returns the sequence of the older of two, -1 if it is alone."""
        newest = self._newest.get(key, -1)
        if sequence < newest:
            return sequence
        self._newest[key] = sequence
        return newest if newest != sequence else -1

    def newest(self, key: Key) -> int:
        """The highest sequence of a key; -1 for an unknown key."""
        return self._newest.get(key, -1)

    @property
    def many(self) -> bool:
        """Whether there are enough keys for `thin` to be worth its cost."""
        return len(self._newest) >= self._thin_at

    def thin(self, held: set[Key], looked: int, present: Callable[[int], bool]) -> None:
        """Forgets keys without a message that is `present` (by sequence), in flight or delayed (`held`).

        `looked` messages were read to find the held keys: the same number of keys may be added until the next
        call, so that reading costs every message as little as one key.
        """
        self._newest = {
            key: sequence for key, sequence in self._newest.items() if present(sequence) or key in held
        }
        left = len(self._newest)
        self._thin_at = max(limits.STALE_RANGES_MIN, 2 * left, left + looked)


@dataclass(slots=True, eq=False, repr=False)
class Replacing:
    """Removes replaced messages; their effects wait for the next dispatch."""

    values: LastValues | None
    """The last values; None in a queue of another order, where nothing is replaced."""
    _keys: MessageKeys
    _ready: Sparse
    _counters: Counters
    _removed: list[Effect] = field(default_factory=list)
    """Messages that were replaced since the last dispatch."""
    gathers: bool = False
    """Whether the queue is loading, so that replaced messages leave only when all have been read."""
    _superseded: list[int] = field(default_factory=list)
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
