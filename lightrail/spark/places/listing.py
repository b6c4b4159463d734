"""One listing of all places that an option names: each journal with all of its segments."""

import logging
import time
from collections.abc import Callable, Mapping

from lightrail.journal.index import SegmentIndex
from lightrail.model import limits
from lightrail.spark.http import Access
from lightrail.spark.places import archives, gateways
from lightrail.spark.places.journals import Held, IndexKey, Journal
from lightrail.spark.places.sources import NoArchive, PlaceError

log = logging.getLogger("lightrail.spark.places")


class Places:
    """Archive folders and a gateway; what both have is read from the archive."""

    def __init__(
        self,
        paths: tuple[str, ...],
        access: Access | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`monotonic`, in seconds, and `sleep` are injected by tests."""
        self._paths = paths
        self._monotonic = monotonic
        self._sleep = sleep
        self._access = access
        self._indexes: dict[IndexKey, SegmentIndex] = {}

    def journals(self) -> dict[str, Journal]:
        """By disk, what is there now.

        Shards are asked before archives: a segment that a shard has no more is in the archive by then.

        Raises:
            PlaceError: a place does not answer.
        """
        found: dict[str, tuple[Journal, dict[int, Held]]] = {}
        for incarnation, listed, away in gateways.find(self._access) if self._access else ():
            live = {
                each.number: Held(each.number, [each.source], each.next_lsn, each.first_lsn)
                for each in listed
            }
            found[incarnation.disk] = Journal(incarnation, [], self._indexes, away), live
        for path in self._paths:
            for incarnation, archived in self._archived(path):
                journal, held = found.setdefault(
                    incarnation.disk, (Journal(incarnation, [], self._indexes), {})
                )
                for number, source in archived:
                    held.setdefault(number, Held(number)).sources.insert(0, source)
        for journal, held in found.values():
            journal.segments = [held[number] for number in sorted(held)]
        self._forget({(disk, number) for disk, (_, held) in found.items() for number in held})
        return {disk: journal for disk, (journal, _) in sorted(found.items())}

    def _archived(self, path: str) -> list[archives.Found]:
        try:
            return list(archives.find(path))
        except NoArchive as error:
            if not self._access:
                raise
            # The gateway has all of it; a shard that has archived nothing has made no folder.
            log.warning("%s; all is read from the gateway", error)
            return []

    def journals_with(self, needed: Mapping[str, int]) -> dict[str, Journal]:
        """The same, when it has records up to before `needed` of each journal that a shard may have.

        A shard that is away is waited for, limits.SPARK_RETRY_MS at most.

        Raises:
            PlaceError: a place does not answer, or a shard is away for longer.
        """
        until = self._monotonic() + limits.SPARK_RETRY_MS / 1000
        while True:
            journals = self.journals()
            missing = [
                journal
                for disk, next_lsn in needed.items()
                if (journal := journals.get(disk)) is not None
                and journal.away
                and next_lsn > (journal.latest or 0)
            ]
            if not missing:
                return journals
            pause_s = limits.SPARK_RETRY_PAUSE_MS_MAX / 1000
            if self._monotonic() + pause_s > until:
                where = missing[0].incarnation
                raise PlaceError(
                    f"shard {where.shard}, which has journal {where.disk}, does not answer its gateway, and "
                    "the archives that were named do not have its records: wait for the shard, or name its "
                    "archive by path"
                )
            self._sleep(pause_s)

    def _forget(self, there: set[IndexKey]) -> None:
        for key in self._indexes.keys() - there:
            del self._indexes[key]
