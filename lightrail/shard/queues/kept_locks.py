"""Kept locks: locks under a key that outlive the process of their shard, as a file has them (ADR 68).

`FileLocks` of lock_file.py has the file; here are its entries, and what a start makes of them.
"""

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lightrail.model.links import LockEnding
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.timed.lock_changes import Freed, KeyedLock

_KEY: Final = struct.Struct("<BIQQQBB")
"""Kind, queue, consumer, lock time of its own, lock time of its deliveries, what ends their locks, length of
the key, which follows."""
_LOCK: Final = struct.Struct("<BIQQQIIQB")
"""Kind, queue, consumer, number, sequence, count, attempts, end, whether the end counts."""
_FREED: Final = struct.Struct("<BIQI")
"""Kind, queue, sequence, count."""
_IS_KEY: Final = 1
_IS_LOCK: Final = 2
_IS_FREED: Final = 3
_ENDINGS: Final = (LockEnding.ALWAYS_BY_TIME, LockEnding.BY_TIME, LockEnding.BY_LINK)


class LockKey(NamedTuple):
    """A key, and what is known of the link that has it."""

    key: str
    own_lock_ms: int
    """The lock time that the link asked for; 0 for that of the policy."""
    lock_ms: int
    """The lock time that it had."""
    lock_ends: LockEnding


class KeptLock(NamedTuple):
    """The locks of messages with consecutive sequences and delivery numbers."""

    sequence: int
    number: int
    length: int
    key: LockKey
    attempts: int
    until_ms: int
    counts: bool
    """Whether the end by time counts as a failed delivery, although the link has ended."""
    left_ms: int = 0
    """Time from when the file was written last to the end; not above 0 if that had passed."""

    @property
    def end(self) -> int:
        """The sequence behind the last one."""
        return self.sequence + self.length

    def part(self, first: int, last: int) -> "KeptLock":
        """The locks of the messages from sequence `first` to before `last`."""
        return self._replace(sequence=first, number=self.number + first - self.sequence, length=last - first)


@dataclass(slots=True, eq=False, repr=False)
class KeptLine:
    """The locks of one queue, each message with one, in the order of their sequences."""

    locks: list[KeptLock] = field(default_factory=list)
    _firsts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._firsts = [each.sequence for each in self.locks]

    def put(self, first: int, last: int, lock: KeptLock | None) -> None:
        """Gives messages from sequence `first` to before `last` this lock, or none."""
        firsts, locks = self._firsts, self.locks
        low = bisect_right(firsts, first)
        if low and locks[low - 1].end > first:
            low -= 1
        high = bisect_left(firsts, last, low)
        found = [] if lock is None else [lock]
        if low < high:
            before, after = locks[low], locks[high - 1]
            if before.sequence < first:
                found.insert(0, before.part(before.sequence, first))
            if after.end > last:
                found.append(after.part(last, after.end))
        locks[low:high] = found
        firsts[low:high] = [each.sequence for each in found]

    def between(self, first: int, last: int) -> list[KeptLock]:
        """The locks of messages from sequence `first` to before `last`."""
        low = max(0, bisect_right(self._firsts, first) - 1)
        found = self.locks[low : bisect_left(self._firsts, last, low)]
        return [
            each.part(max(first, each.sequence), min(last, each.end)) for each in found if each.end > first
        ]


@dataclass(slots=True, eq=False, repr=False)
class LockEntries:
    """Encodes changes as entries of one file."""

    data: bytearray = field(default_factory=bytearray)
    """Those that were not taken yet."""
    _known: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Consumers whose keys are in the file, with their lock times."""

    def add(self, queue: int, change: KeyedLock | Freed) -> None:
        """Adds a change of a queue, named by its number in the journal."""
        if isinstance(change, Freed):
            self.data += _FREED.pack(_IS_FREED, queue, *change)
            return
        consumer, *columns, counts = change
        times = (consumer.options.lock_ms, consumer.lock_ms or consumer.lock_ms_before)
        if self._known.get(consumer.id) != times:
            self._known[consumer.id] = times
            self._add_key(queue, consumer, times)
        self.data += _LOCK.pack(_IS_LOCK, queue, consumer.id, *columns, counts)

    def _add_key(self, queue: int, consumer: Consumer, times: tuple[int, int]) -> None:
        options = consumer.options
        key = options.lock_key.encode()
        ends = _ENDINGS.index(options.lock_ends)
        self.data += _KEY.pack(_IS_KEY, queue, consumer.id, *times, ends, len(key)) + key

    def take(self) -> bytes:
        """The entries since the last call."""
        data = bytes(self.data)
        self.data.clear()
        return data


@dataclass(slots=True, eq=False, repr=False)
class FoundLocks:
    """The locks of all queues according to entries, which are applied in their order."""

    by_queue: dict[int, KeptLine] = field(default_factory=dict)
    _keys: dict[int, LockKey] = field(default_factory=dict)

    def apply(self, data: bytes) -> None:
        """Applies entries. Raises ValueError, struct.error, KeyError: they are damaged."""
        at = 0
        while at < len(data):
            if data[at] == _IS_KEY:
                _, _, consumer, own_ms, lock_ms, ends, size = _KEY.unpack_from(data, at)
                at += _KEY.size + size
                text = data[at - size : at].decode()
                self._keys[consumer] = LockKey(text, own_ms, lock_ms, _ENDINGS[ends])
            elif data[at] == _IS_LOCK:
                _, queue, consumer, number, sequence, count, attempts, until_ms, counts = _LOCK.unpack_from(
                    data, at
                )
                at += _LOCK.size
                key = self._keys[consumer]
                lock = KeptLock(sequence, number, count, key, attempts, until_ms, bool(counts))
                self.by_queue.setdefault(queue, KeptLine()).put(sequence, lock.end, lock)
            elif data[at] == _IS_FREED:
                _, queue, sequence, count = _FREED.unpack_from(data, at)
                at += _FREED.size
                if (line := self.by_queue.get(queue)) is not None:
                    line.put(sequence, sequence + count, None)
            else:
                raise ValueError(f"expected an entry of kind 1 to 3, found {data[at]}")

    def after(self, now_ms: int) -> dict[int, list[KeptLock]]:
        """The locks with the time that they had left when the file was written last."""
        return {
            queue: [lock._replace(left_ms=lock.until_ms - now_ms) for lock in line.locks]
            for queue, line in self.by_queue.items()
        }
