"""Held frames: settlements and closes of one queue that wait for the shard that owns it.

The links of the queue do not send these frames again when they are reopened, so this is their only copy.
"""

import logging
from collections.abc import Iterator
from typing import Final

from lightrail.model import limits
from lightrail.wire.frames import Kind

log = logging.getLogger("lightrail.shard_client.owners.held")

KEPT: Final = frozenset({int(Kind.SETTLE), int(Kind.CONSUMER_CLOSE)})
"""Kinds of frames that their links do not send again when they are reopened."""


class HeldFrames:
    """At most limits.OWNER_HELD_MAX frames, each once, in their order."""

    __slots__ = ("_frames", "_overflowed", "_queue")

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._frames: dict[bytes, None] = {}
        self._overflowed = False
        """Whether a frame was dropped and this was logged."""

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._frames)

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, part: bytes) -> None:
        if len(self._frames) < limits.OWNER_HELD_MAX:
            self._frames[part] = None
            self._overflowed = False
        elif not self._overflowed:
            # Logged once: the number of a client's settlements is not limited.
            self._overflowed = True
            log.error(
                "%d settlements wait for the shard of %s; further ones are dropped, and delivered again",
                limits.OWNER_HELD_MAX,
                self._queue,
            )

    def clear(self) -> None:
        self._frames.clear()
