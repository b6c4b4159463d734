"""Duplicates: the message-ids of the window, by which repeated messages are recognised.

The queue keeps digests of 16 bytes, each until the end of its window; the oldest are dropped early if there
are more than `limits.DUPLICATE_IDS_MAX`, or more than their share of the memory in all queues of the shard. A
message without an id is never a duplicate.
"""

from collections import deque
from collections.abc import Iterator, Sequence, Set
from hashlib import blake2b
from typing import Final, NamedTuple
from uuid import UUID

from lightrail.model import limits
from lightrail.shard.queue.values.keys import Look
from lightrail.shard.queue.values.runs import Batch

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
