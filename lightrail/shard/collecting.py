"""When a shard's cyclic garbage is collected: no pass of Python's collector walks a deep backlog.

Messages and runs die by reference counting; the collector is there for cycles, which the steady work of the
engine does not make. CPython's own rules walk the backlog all the same: generation 1 after a number of passes
of generation 0, and everything whenever a quarter more has survived. Here instead:

- A pass of generation 1 walks three thresholds of objects, and no count starts a pass of generation 2.
- Those counts fall whenever an object dies, of whatever age. While a deep queue takes in as much as it gives
  out, the young generation would grow to the whole backlog without a pass, and the next pass would walk it
  all. So while there is much, each look collects what is new and then freezes all objects: the collector does
  not walk them again.
- When little is left, all objects are thawed and walked once. A shard with many objects and no message, ten
  thousand queues say, is not walked: cycles of old objects stay there, new ones are collected as everywhere.

How much there is, is the count of allocated blocks: that is no less than the objects that a pass can walk,
and takes 1.5 ms for six million; `gc.get_freeze_count()` walks every frozen object.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable
from typing import Final

from lightrail.model import limits

log = logging.getLogger("lightrail.shard.collecting")

_NEVER: Final = 2**31 - 1
"""The largest threshold of the collector."""


class Collecting:
    """The collector of this process, in the hands of the shard from `begin` to `close`."""

    def __init__(self, blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        """`blocks` returns how many blocks of memory this process has allocated for objects."""
        self._blocks = blocks
        self._has_frozen = False
        """Since the last full pass, objects were frozen."""
        self._looks = 0
        """Since the last full pass."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Passes are bounded from now on; the loop looks now and then."""
        if not self._blocks():
            log.warning(
                "Python does not count its blocks of memory, as with PYTHONMALLOC=malloc: the collector may "
                "walk the whole backlog in one turn; unset PYTHONMALLOC"
            )
        gc.set_threshold(limits.COLLECT_YOUNG, 1, _NEVER)
        self._arm(loop)

    def look(self) -> None:
        """Collects and freezes the objects of a deep backlog, or thaws and walks all objects if they are
        few."""
        self._looks += 1
        if self._blocks() > limits.COLLECT_ALL_BLOCKS:
            gc.collect(0)
            gc.freeze()
            self._has_frozen = True
        elif self._looks >= limits.COLLECT_ALL_LOOKS and (self._has_frozen or gc.get_count()[2]):
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
        self._timer = loop.call_later(limits.COLLECT_LOOK_MS / 1000, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look()
        self._arm(loop)
