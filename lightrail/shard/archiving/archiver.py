"""The archiver: adds sealed segments to the archive, and removes those that are no longer kept.

The loop calls `tick` and `begin`, which decide, and `end`. In between a thread performs one Round, at most
one at a time. The journal calls `holds` before it drops a segment, and `relieve` on a full disk.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lightrail.cluster.readers import Reader
from lightrail.shard.archiving.contents import RealFolders, ShardArchive, kept_of
from lightrail.shard.archiving.retention import Kept, Rule, SegmentVerdict, judge, unread_by_any
from lightrail.shard.journal.files import NO_SPACE
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.segment import Segment, name_of
from lightrail.telemetry.archive import ArchiveCounts

ARCHIVE_LOOK_MS: Final[int] = 10_000
"""How often a shard applies retention to its archive."""
ARCHIVE_RETRY_MS: Final[int] = 5_000
"""Pause before another attempt after the archive's disk failed."""
ARCHIVE_SEGMENTS_AT_ONCE: Final[int] = 16
"""Segments that one round of the archiver copies."""

log = logging.getLogger("lightrail.shard.archiving.archive")

Readers = Callable[[], Mapping[str, Reader]]
"""The readers that are registered now, by name."""


@dataclass(slots=True, eq=False, repr=False)
class Round:
    """One job of the archiver's thread."""

    _archiver: "Archiver"
    segments: list[Segment]
    """Segments to archive; they are pinned."""
    _readers: Mapping[str, Reader]
    _judging: bool
    _now_ms: int
    kept: list[int] = field(default_factory=list)
    """Numbers of those that are in the archive now, or are too old for it."""
    too_old: list[int] = field(default_factory=list)
    """Numbers of those that are too old for the archive."""
    verdict: SegmentVerdict | None = None
    error: OSError | None = None
    """The error that ended the job early."""

    def perform(self) -> None:
        """Performs the job; called once, in a thread. Sets `error` after an error of the disk."""
        contents = self._archiver.contents
        try:
            contents.require()
            for segment in self.segments:
                if self._is_over(segment):
                    self.too_old.append(segment.number)
                else:
                    self._keep(segment)
                self.kept.append(segment.number)
        except OSError as error:
            self.error = error
        if contents.loaded and (self._judging or self.kept):
            try:
                self._retain()
            except OSError as error:
                self.error = self.error or error

    def _is_over(self, segment: Segment) -> bool:
        """Whether a segment would be removed at once because it is older than the archive's limit."""
        archiver = self._archiver
        one = {archiver.journal.incarnation.disk: [kept_of(segment.index)]}
        return bool(judge(one, self._readers, Rule(archiver.rule.hours), self._now_ms).go)

    def _keep(self, segment: Segment) -> None:
        archiver = self._archiver
        journal, contents = archiver.journal, archiver.contents
        while True:
            try:
                contents.keep(
                    journal.files, name_of(segment.number), segment.file, segment.index, archiver.goes_on
                )
                return
            except OSError as error:
                if error.errno not in NO_SPACE or not archiver.make_room():
                    raise

    def _retain(self) -> None:
        archiver = self._archiver
        contents = archiver.contents
        verdict = judge(contents.listed(), self._readers, archiver.rule, self._now_ms)
        archiver.spare = deque(verdict.spare)
        for disk, number in verdict.go:
            contents.remove(disk, number)
        contents.tidy()
        self.verdict = verdict


class Archiver:
    """Keeps the archive of one journal, which has been recovered."""

    def __init__(
        self,
        journal: Journal,
        folders: RealFolders,
        *,
        rule: Rule,
        seal_ms: int,
        readers: Readers = dict,
        counts: ArchiveCounts | None = None,
    ) -> None:
        self.journal: Final = journal
        self.contents: Final = ShardArchive(folders, journal.incarnation)
        self.rule: Final = rule
        self.counts: Final = counts or ArchiveCounts()
        self.spare: deque[tuple[str, Kept]] = deque()
        """Segments that may be removed on a full disk, the oldest first."""
        self._seal_ms = seal_ms
        self._readers = readers
        self._done: set[int] = set()
        """Numbers of segments of the journal that need not be archived, or not again."""
        self._round: Round | None = None
        self._seen = (-1, False)
        """The current segment, and whether there were readers, when all sealed ones were last checked."""
        self._judged_ms: int | None = None
        self._again_ms = 0
        """Earliest time of the next attempt after a failure."""
        self._errno: int | None = None
        """The error number of the last failure; None after a success."""
        self._behind: set[str] = set()
        """Readers whose passing over was logged."""
        self._ending = threading.Event()
        self._relieved = threading.Lock()
        journal.holds = self.holds
        journal.relieve_by(self.relieve)

    # --- on the loop -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Seals an old segment, and requests a sync that readers wait for; a commit should follow."""
        journal = self.journal
        readers = self._readers()
        if not (journal.is_capturing or readers or journal.current.captured):
            return
        journal.want_sync()
        current = journal.current
        if current.capacity and now_ms - current.begun_ms >= self._seal_ms:
            if journal.has_captured or (readers and journal.has_records):
                journal.seal(now_ms)
            else:
                current.begun_ms = now_ms  # The next attempt is after the same time.

    def begin(self, now_ms: int, *, timed: bool = False) -> Round | None:
        """The next job of the thread; `timed` if called about every second, and not after a commit."""
        if self._round is not None or now_ms < self._again_ms or self._ending.is_set():
            return None
        journal = self.journal
        readers = self._readers()
        seen = (journal.committed.segment, bool(readers))
        judging = timed and (
            self._judged_ms is None or journal.full or not 0 <= now_ms - self._judged_ms < ARCHIVE_LOOK_MS
        )
        if seen == self._seen and not judging:
            return None
        waiting = self._waiting()
        if not (waiting or judging):
            self._seen = seen
            return None
        if judging:
            self._judged_ms = now_ms
        segments = [segment for segment in waiting[:ARCHIVE_SEGMENTS_AT_ONCE] if segment.pin()]
        if len(segments) == len(waiting):
            self._seen = seen
        self._round = Round(self, segments, dict(readers), judging, now_ms)
        return self._round

    def end(self, round: Round, now_ms: int) -> None:
        """Ends a round that was performed."""
        assert round is self._round, "the round that was begun"
        self._round = None
        for segment in round.segments:
            segment.unpin()
        self._done.update(round.kept)
        counts, contents = self.counts, self.contents
        if round.too_old and self.rule.hours:
            # With 0 hours the archive keeps only segments that readers hold back.
            counts.given_up += len(round.too_old)
            log.warning(
                "segments %s were not archived, as they are older than the %d hours that the archive keeps "
                "(--archive-hours)",
                ", ".join(map(str, round.too_old)),
                self.rule.hours,
            )
        if round.error is None:
            if self._errno is not None:
                log.info("segments are archived again")
            self._errno = None
        else:
            counts.failures += 1
            if self._errno != round.error.errno:
                log.error(
                    "the archive could not be written (%s): segments to archive stay in the journal, next "
                    "attempts every %d s",
                    round.error,
                    ARCHIVE_RETRY_MS // 1000,
                )
            self._errno = round.error.errno
            self._again_ms = now_ms + ARCHIVE_RETRY_MS
            self._seen = (-1, False)
        if round.verdict is not None:
            self._tell(round.verdict)
            numbers = {segment.number for segment in self.journal.segments()}
            self._done &= numbers
        counts.linked, counts.copied = contents.linked, contents.copied
        counts.removed = contents.removed - counts.removed_full
        counts.segments, counts.bytes = contents.segments, contents.total_bytes
        listed = contents.listed().values()
        counts.oldest_ms = min((each[0].last_ms for each in listed if each), default=0)
        counts.waiting = len(self._waiting())

    def _waiting(self) -> list[Segment]:
        """Sealed segments that have to be archived, the oldest first."""
        journal = self.journal
        until = journal.committed.segment
        readers = bool(self._readers())
        return [
            segment
            for segment in journal.segments()
            if segment.number < until and segment.number not in self._done and (readers or segment.captured)
        ]

    def _tell(self, verdict: SegmentVerdict) -> None:
        counts = self.counts
        counts.readers = verdict.standings
        for name, standing in verdict.standings.items():
            if standing.passed:
                counts.passed_over[name] = counts.passed_over.get(name, 0) + len(standing.passed)
                if name not in self._behind:
                    log.warning(
                        "reader %s was passed over: %d segments that it had not read were removed: they "
                        "exceeded its limit of age or bytes; it will find that records are missing",
                        name,
                        len(standing.passed),
                    )
                self._behind.add(name)
            elif not standing.held_bytes:
                self._behind.discard(name)
        for name in [name for name in counts.passed_over if name not in verdict.standings]:
            del counts.passed_over[name]

    def holds(self, segment: Segment) -> bool:
        """Whether the journal must keep a segment because it has to be archived first."""
        if self._round is not None and segment in self._round.segments:
            return True
        if segment.number in self._done:
            return False
        readers = self._readers()
        if not (readers or segment.captured):
            return False
        if not (self._errno in NO_SPACE and self.journal.full):
            return True
        if unread_by_any(self.journal.incarnation.disk, segment.index.next_lsn, readers):
            return True
        # The archive would remove it among the first, so the broker must not stop because of it.
        self._done.add(segment.number)
        self.counts.given_up += 1
        log.error("segment %d was dropped without being archived because the disk is full", segment.number)
        return False

    # --- in any thread ---------------------------------------------------------------------------------

    def relieve(self, size: int) -> bool:
        """Removes segments that no reader holds back, oldest first, until `size` bytes are free."""
        if not self.contents.folders.shares(self.journal.files):
            return False
        there = {segment.number for segment in self.journal.segments()}
        own = self.journal.incarnation.disk
        # Segments that the journal also has use no extra space.
        return self._free(size, lambda disk, number: disk != own or number not in there)

    def make_room(self) -> bool:
        """Removes the oldest segment that no reader holds back, if the archive's disk is full."""
        return self._free(1, lambda _disk, _number: True)

    def _free(self, size: int, frees: Callable[[str, int], bool]) -> bool:
        freed = 0
        with self._relieved:
            passed: list[tuple[str, Kept]] = []
            while freed < size and self.spare:
                disk, kept = self.spare.popleft()
                if not frees(disk, kept.segment):
                    passed.append((disk, kept))
                    continue
                try:
                    found = self.contents.remove(disk, kept.segment)
                except OSError as error:
                    log.error("segment %d could not be removed from the archive: %s", kept.segment, error)
                    continue
                freed += found
                self.counts.removed_full += found > 0
            self.spare.extendleft(reversed(passed))
        return freed > 0

    def goes_on(self) -> bool:
        """Whether a long copy should continue."""
        return not self._ending.is_set()

    def close(self) -> None:
        """Begins no more jobs, and cancels a copy."""
        self._ending.set()
