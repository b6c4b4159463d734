"""Chunks: the messages of a task by target, in pieces that depend on the rows alone.

A chunk ends at a number of messages or bytes, so its end depends on the rows alone. The number of a chunk is
its position among the chunks of its target. A repeated task with the same rows in the same order makes the
same chunks, and the broker recognises those that it has stored.
"""

import struct
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, NamedTuple

SPARK_SINK_BYTES: Final[int] = 16 * 1024 * 1024
"""Bytes of messages for several targets that a task gathers before it sends them; the driver sends the
rest."""
SPARK_SINK_TARGETS: Final[int] = 10_000
"""Targets that a task gathers messages for before it sends them."""


class Chunk(NamedTuple):
    """Messages for one target."""

    target: str
    position: int
    """Index among the chunks of its target, from 0."""
    messages: list[bytes]

    def body(self) -> bytes:
        """Body of POST /NAME/!batch: count, ends, messages; little-endian."""
        ends = accumulate(map(len, self.messages))
        count = len(self.messages)
        return struct.pack(f"<{1 + count}I", count, *ends) + b"".join(self.messages)


class _Gathering:
    """Messages of one target that do not fill a chunk yet."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.bytes = 0


class Chunks:
    """Gathers the messages of one task.

    Args:
        messages_max: maximum number of messages of a chunk.
        bytes_max: maximum bytes of a chunk's messages; a single message may have more.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._gathering: dict[str, _Gathering] = {}
        self._counts: dict[str, int] = {}
        self._bytes = 0

    def add(self, target: str, message: bytes) -> Iterator[Chunk]:
        """Adds a message; returns the chunks that are full with it."""
        found = self._gathering.get(target)
        if found is None:
            found = self._gathering[target] = _Gathering()
        if found.messages and found.bytes + len(message) > self._bytes_max:
            yield self._end(target)
            found = self._gathering[target] = _Gathering()
        found.messages.append(message)
        found.bytes += len(message)
        self._bytes += len(message)
        if len(found.messages) >= self._messages_max or found.bytes >= self._bytes_max:
            yield self._end(target)
        elif self._bytes > SPARK_SINK_BYTES or len(self._gathering) > SPARK_SINK_TARGETS:
            yield from self.rest()

    def rest(self) -> Iterator[Chunk]:
        """All gathered messages as chunks, full or not, in the order of the targets' first messages."""
        for target in list(self._gathering):
            yield self._end(target)

    def _end(self, target: str) -> Chunk:
        found = self._gathering.pop(target)
        self._bytes -= found.bytes
        position = self._counts.get(target, 0)
        self._counts[target] = position + 1
        return Chunk(target, position, found.messages)
