"""Listing: the journals in the archives and gateways of an option, each with all of its segments."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightrail.journal.archive import Incarnation
from lightrail.journal.index import SegmentIndex
from lightrail.model import limits
from lightrail.spark.http import Access
from lightrail.spark.journals import archives, gateways
from lightrail.spark.journals.journal import Held, IndexKey, Journal, NoArchiveError, Source, SourceError

log = logging.getLogger("lightrail.spark.journals")


class Listing:
    """Archive folders and a gateway; segments of both are read from the archive."""

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
        self._kept: dict[str, _Kept] = {}
        """Segments of the last listing; most of the tens of thousands are the same in the next one."""

    def journals(self) -> dict[str, Journal]:
        """The present journals, by disk.

        Shards are listed before archives, because a segment that a shard no longer has is in the archive by
        then.

        Raises:
            SourceError: an archive or gateway does not answer.
        """
        found: dict[str, _Found] = {}
        for incarnation, listed, away in gateways.find(self._access) if self._access else ():
            live = {each.number: each for each in listed}
            found[incarnation.disk] = _Found(incarnation, away, live)
        for path in self._paths:
            for incarnation, folder, numbers in self._archived(path):
                there = found.setdefault(incarnation.disk, _Found(incarnation, False, {}))
                there.archived.insert(0, (folder, frozenset(numbers)))
        self._kept = {disk: self._all(there) for disk, there in found.items()}
        self._forget()
        return {
            disk: Journal(
                found[disk].incarnation,
                [held for _, held in self._kept[disk].values()],
                self._indexes,
                found[disk].away,
            )
            for disk in sorted(found)
        }

    def _all(self, there: "_Found") -> "_Kept":
        """All segments of a journal, the oldest first; reuses unchanged ones of the last listing."""
        disk = there.incarnation.disk
        before = self._kept.get(disk, {})
        kept: _Kept = {}
        for number in sorted(
            there.live.keys() | frozenset[int]().union(*(each for _, each in there.archived))
        ):
            listed = there.live.get(number)
            where = (listed, *(folder for folder, numbers in there.archived if number in numbers))
            known = before.get(number)
            if known is None or known[0] != where:
                known = where, self._held(disk, number, listed, where[1:])
            kept[number] = known
        return kept

    def _held(self, disk: str, number: int, listed: gateways.Listed | None, folders: tuple[Any, ...]) -> Held:
        sources: list[Source] = [archives.ArchiveSource(folder, number) for folder in folders]
        if listed is None:
            return Held(number, sources)
        assert self._access is not None
        sources.append(gateways.GatewaySource(self._access, disk, number))
        return Held(number, sources, listed.next_lsn, listed.first_lsn)

    def _archived(self, path: str) -> list[archives.Found]:
        try:
            return list(archives.find(path))
        except NoArchiveError as error:
            if not self._access:
                raise
            # The gateway has all segments; a shard without archived segments has no folder.
            log.warning("%s; all segments are read from the gateway", error)
            return []

    def journals_with(self, needed: Mapping[str, int]) -> dict[str, Journal]:
        """Like `journals`, but waits until the records before `needed` of each journal are listed.

        Waits for unreachable shards, at most limits.SPARK_RETRY_MS.

        Raises:
            SourceError: an archive or gateway does not answer, or a shard is away for longer.
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
                raise SourceError(
                    f"shard {where.shard}, which has journal {where.disk}, does not answer its gateway, and "
                    "the archives that were named do not have its records: wait for the shard, or name its "
                    "archive by path"
                )
            self._sleep(pause_s)

    def _forget(self) -> None:
        for key in [
            (disk, number) for disk, number in self._indexes if number not in self._kept.get(disk, ())
        ]:
            del self._indexes[key]


_Kept = dict[int, tuple[tuple[Any, ...], Held]]
"""By number: the listing of a segment with its folders, and the result made of it."""


@dataclass(slots=True)
class _Found:
    """The listings of one journal in archives and by a gateway."""

    incarnation: Incarnation
    away: bool
    live: dict[int, gateways.Listed]
    archived: list[tuple[str, frozenset[int]]] = field(default_factory=list)
    """Folders and the numbers in them, in the order of preference."""
