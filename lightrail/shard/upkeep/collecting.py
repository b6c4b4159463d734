"""Schedules Python's garbage collector so that none of its passes walks a deep backlog.

Messages and runs are freed by reference counting; the collector is needed for cycles, which the steady work
of the engine does not make. CPython's default rules walk the backlog nevertheless: generation 1 after a
number of passes of generation 0, and all objects whenever a quarter more has survived. The rules here are:

- A pass of generation 1 walks three thresholds of objects, and no count starts a pass of generation 2.
- These counts also fall when old objects are freed. While as many messages leave a deep queue as arrive, the
  young generation would grow to the whole backlog without a pass, and the next pass would walk all of it. So
  while there are many objects, each look collects the new ones and then freezes all objects: the collector
  does not walk frozen objects.
- When few are left, all objects are thawed and walked once. A shard with many objects and no message, such as
  one with ten thousand queues, is not walked: cycles of old objects stay, new ones are collected as usual.

The number of objects is estimated by the count of allocated blocks: it is at least the number of objects that
a pass can walk, and takes 1.5 ms for six million; `gc.get_freeze_count()` walks every frozen object.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

COLLECT_YOUNG: Final[int] = 50_000
"""New objects after which Python's garbage collector scans the new objects of a shard; every third time it
also scans those of the two scans before."""
COLLECT_LOOK_MS: Final[int] = 500
"""How often a shard checks how many objects the collector would have to scan."""
COLLECT_ALL_BLOCKS: Final[int] = 400_000
"""Blocks of memory of a shard beyond which no full scan is made, since it takes 0.25 us for each object. A
shard without queues has 225,000 blocks, 60,000 of them scanned objects; a message that arrived alone adds six
blocks, four of them scanned objects."""
COLLECT_ALL_LOOKS: Final[int] = 120
"""Least number of these checks between two full scans."""

log = logging.getLogger("lightrail.shard.upkeep.collecting")

_NEVER: Final = 2**31 - 1
"""The largest threshold of the collector."""


class Collecting:
    """Controls the collector of this process from `begin` to `close`."""

    def __init__(self, blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        """`blocks` returns the number of memory blocks that this process has allocated for objects."""
        self._blocks = blocks
        self._has_frozen = False
        """Whether objects were frozen since the last full pass."""
        self._looks = 0
        """Number of looks since the last full pass."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bounds passes from now on; the loop calls `collect` periodically."""
        if not self._blocks():
            log.warning(
                "Python does not count its blocks of memory, as with PYTHONMALLOC=malloc: the collector may "
                "walk the whole backlog in one turn; unset PYTHONMALLOC"
            )
        gc.set_threshold(COLLECT_YOUNG, 1, _NEVER)
        self._arm(loop)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No pass while the process restores its state: it makes no cycles, and its objects stay."""
        gc.disable()
        try:
            yield
        finally:
            gc.freeze()
            self._has_frozen = True
            gc.enable()

    def collect(self) -> None:
        """Collects and freezes the objects of a deep backlog, or thaws and walks all objects if they are
        few."""
        self._looks += 1
        if self._blocks() > COLLECT_ALL_BLOCKS:
            gc.collect(0)
            gc.freeze()
            self._has_frozen = True
        elif self._looks >= COLLECT_ALL_LOOKS and (self._has_frozen or gc.get_count()[2]):
            gc.unfreeze()
            gc.collect()
            self._has_frozen = False
            self._looks = 0

    def close(self) -> None:
        """Ends collecting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(COLLECT_LOOK_MS / 1000, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self.collect()
        self._arm(loop)
