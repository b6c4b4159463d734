"""Standing by: a member that follows reads its own journal ahead, and so reads little when it takes over.

Reading costs CPU for each record, so it lags: what is dropped before it is read costs nothing, and the rest
is read within a second when the member takes over. An owner that is to end requests that all of it is read
(`prepare`).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lightrail.shard.journal.commit import Worker
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.mirror import Mirror
from lightrail.shard.journal.standby import Standby
from lightrail.shard.journal.store import StoreError
from lightrail.shard.replication.following import Following

if TYPE_CHECKING:
    from lightrail.shard.startup.data_directory import DataDirectory

LAG_RECORDS: Final[int] = 50_000
"""Records that are left to the take-over: a fifth of a second of reading."""
LOOK_S: Final = 1.0
"""How often the lag is looked at."""
PAUSE_S: Final = 0.002
"""Between two slices of a millisecond that nobody waits for."""
AT_ONCE: Final[int] = 10_000
"""Records that are read whenever the lag is exceeded."""

log = logging.getLogger("lightrail.shard.replication.standing_by")


class StandingBy:
    """The standby of one member, from its start until it owns, or ends."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, data_directory: "DataDirectory", following: Following
    ) -> None:
        self.standby: Standby | None = None
        """What was read; None before this directory has a journal."""
        self._directory = data_directory
        self._following = following
        self._worker = Worker(loop, "standby")
        self._wanted = asyncio.Event()
        self._loop = loop
        self._task = loop.create_task(self._run())

    def prepare(self) -> None:
        """Reads everything that is accepted, and makes all queues of it; then the owner hears of it.

        The rest is read when this member takes over: what the owner still writes until it ends.
        """
        self._wanted.set()

    async def close(self) -> None:
        """Ends; the standby is as far as it is."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._worker.close()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), LOOK_S)
            mirror = self._following.mirror
            if self.standby is None and mirror is not None:
                _, salt = self._directory.journal
                self.standby = Standby(RealFiles(self._directory.directory), salt)
            if mirror is None or self.standby is None:
                continue
            try:
                await self._read(self.standby, mirror)
            except (StoreError, OSError) as error:
                # The take-over reads everything, and finds what is wrong.
                log.warning("the journal can't be read ahead of a take-over: %s", error)
                return

    async def _read(self, standby: Standby, mirror: Mirror) -> None:
        """Reads all that is accepted if that is wanted, or what exceeds the lag."""
        if self._wanted.is_set():
            await self._read_to(standby, mirror.accepted_lsn)
            while await self._in_thread(standby.make):
                pass
            # A moment later there is a little more, and most queues are as they were.
            await self._read_to(standby, mirror.accepted_lsn)
            self._wanted.clear()
            self._following.prepared()
        elif mirror.accepted_lsn - standby.lsn > LAG_RECORDS + AT_ONCE:
            await self._read_to(standby, mirror.accepted_lsn - LAG_RECORDS)

    async def _read_to(self, standby: Standby, lsn: int) -> None:
        while await self._in_thread(lambda: standby.replay(lsn)):
            if not self._wanted.is_set():
                # It is not urgent: what the owner sends goes first.
                await asyncio.sleep(PAUSE_S)

    async def _in_thread(self, work: Callable[[], bool]) -> bool:
        """One slice of work. It is not cancelled in the middle."""
        ended: asyncio.Future[bool] = self._loop.create_future()
        found: list[bool] = []

        def done(error: BaseException | None) -> None:
            if ended.cancelled():
                return
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(found[0])

        self._worker.submit(lambda: found.append(work()), done)
        return await ended
