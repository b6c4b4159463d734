"""What a queue keeps by time: deadlines of messages, and message-ids of a window.

By the message-ids of a window (`Duplicates`) repeated messages are recognised. The queue keeps digests of 16
bytes, each until the end of its window; the oldest are dropped early if there are more than
`limits.DUPLICATE_IDS_MAX`, or more than their share of the memory in all queues of the shard. A message
without an id is never a duplicate.

The expiry times of ranges of sequences (`Deadlines`) are found without reading any message. A heap has one
entry per batch with a time to live. Entries are not removed when their messages are delivered: they are
dropped at the head of the heap when all messages up to them were delivered or they are due, or when the heap
has grown far beyond the waiting runs. Messages that return get a new entry.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple
from uuid import UUID

from lightrail.model import limits
from lightrail.shard.queue.values.counters import RUN, TurnWork
from lightrail.shard.queue.values.keys import Look
from lightrail.shard.queue.values.runs import Batch, Run


@dataclass(slots=True, eq=False, repr=False)
class Deadlines:
    """Expiry times of ranges of sequences; an entry may be stale, never missing."""

    heap: list[tuple[int, int, int]] = field(default_factory=list)
    """(milliseconds since the epoch, first sequence, last sequence)."""

    def add(self, run: Run) -> None:
        """Notes the expiry of a run that has one."""
        expires_at_ms = run.batch.expires_at_ms
        if expires_at_ms is not None:
            heappush(self.heap, (expires_at_ms, run.sequence, run.end))

    def due(self, now_ms: int, work: TurnWork) -> Iterable[tuple[int, int]]:
        """Takes out the ranges of sequences that are due, earliest first, while there is work left in
        this turn."""
        heap = self.heap
        while heap and heap[0][0] <= now_ms and work.left > 0:
            work.left -= RUN
            _, first, last = heappop(heap)
            yield first, last

    @property
    def next_ms(self) -> int | None:
        """The earliest time at which a message may expire, or None."""
        return self.heap[0][0] if self.heap else None

    def forget_before(self, sequence: int, now_ms: int) -> None:
        """Drops the earliest entries while all their messages are before `sequence`, where none waits."""
        heap = self.heap
        while heap and heap[0][2] <= sequence and heap[0][0] > now_ms:
            heappop(heap)

    def crowded(self, count: int) -> bool:
        """Whether there are more than twice as many entries as the `count` runs that wait."""
        return len(self.heap) > limits.STALE_ENTRIES_MIN + 2 * count

    def thin(self, runs: Iterable[Run]) -> None:
        """Drops all entries but those of the runs that wait."""
        self.heap = [
            (run.batch.expires_at_ms, run.sequence, run.end)
            for run in runs
            if run.batch.expires_at_ms is not None
        ]
        heapify(self.heap)


DIGEST_BYTES: Final = 16


class Fresh(NamedTuple):
    """A message that is not a duplicate: its index in the batch, and the digest of its id if it has one."""

    at: int
    digest: bytes | None


class Duplicates:
    """The ids of one queue."""

    __slots__ = ("_groups", "_known", "_read")

    def __init__(self, look: Look) -> None:
        self._read = look("message-id")
        self._known: dict[bytes, int] = {}
        """End of the window, by digest."""
        self._groups: deque[tuple[int, list[bytes]]] = deque()
        """(end of the window, digests) in the order of their arrival."""

    def __len__(self) -> int:
        return len(self._known)

    def groups(self) -> Iterator[tuple[int, bytes]]:
        """(end of the window, concatenated digests), as in Restore."""
        for until_ms, digests in self._groups:
            yield until_ms, b"".join(digests)

    def fresh(
        self, batch: Batch, first: int, end: int, now_ms: int, ahead: Set[bytes] = frozenset()
    ) -> list[Fresh]:
        """The messages `first` to before `end` of a batch that duplicate neither others nor each other.

        Args:
            ahead: digests of messages that will be stored before the batch.
        """
        self._forget(now_ms)
        known = self._known
        here = set(ahead)
        found: list[Fresh] = []
        for index in range(first, end):
            value = self._read(batch.message(index))
            if value is None:
                found.append(Fresh(index, None))
                continue
            digest = digest_of(value)
            if known.get(digest, 0) <= now_ms and digest not in here:
                here.add(digest)
                found.append(Fresh(index, digest))
        return found

    def remember(self, digests: Sequence[bytes], until_ms: int) -> None:
        """Adds the ids of enqueued messages."""
        self._groups.append((until_ms, list(digests)))
        for digest in digests:
            self._known[digest] = until_ms
        while len(self._known) > limits.DUPLICATE_IDS_MAX:
            self._drop()

    def restore(self, groups: Sequence[tuple[int, bytes]]) -> None:
        """Adds the digests that a store recovered."""
        for until_ms, column in groups:
            self.remember(
                [column[at : at + DIGEST_BYTES] for at in range(0, len(column), DIGEST_BYTES)], until_ms
            )

    def forget(self, count: int) -> None:
        """Drops about `count` of the oldest ids, before the end of their window."""
        left = len(self._known) - count
        while self._groups and len(self._known) > left:
            self._drop()

    def _forget(self, now_ms: int) -> None:
        while self._groups and self._groups[0][0] <= now_ms:
            self._drop()

    def _drop(self) -> None:
        until_ms, digests = self._groups.popleft()
        for digest in digests:
            if self._known.get(digest) == until_ms:
                del self._known[digest]


def digest_of(value: object) -> bytes:
    """The digest of a message-id: an unsigned number, a UUID, bytes or text (messaging 3.2.11 to 3.2.14)."""
    if isinstance(value, str):
        encoded = b"s" + value.encode()
    elif isinstance(value, bytes | bytearray | memoryview):
        encoded = b"b" + bytes(value)
    elif isinstance(value, UUID):
        encoded = b"u" + value.bytes
    else:
        encoded = b"n" + str(value).encode()
    return blake2b(encoded, digest_size=DIGEST_BYTES).digest()
