"""A lake without Spark: an archive is planned, read and committed as a capture does it, in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from lightrail.spark.columns import Decode
from lightrail.spark.decoding.wanted import Wanted
from lightrail.spark.journals.journal import Journal
from lightrail.spark.journals.listing import Listing
from lightrail.spark.lake.files import Bounds, Covered, File, Range
from lightrail.spark.lake.ledger import Ledger
from lightrail.spark.lake.stream import CaptureTask
from lightrail.spark.lake.table import commit_batch, open_or_make, position
from lightrail.spark.lake.verifying import Verdict, verify
from lightrail.spark.reading.planning import pieces, tasks
from tests.support.spark.archives import JournalOf

BODY = b"\x00Su\xa0\x05"
SELECTION = {"queues": None, "pattern": None}
DAY_MS = 86_400_000


def body(number: int) -> bytes:
    """An encoded message."""
    return BODY + f"{number:05}".encode()


def never(loss: object) -> None:
    """For plans that lose nothing."""
    raise AssertionError(loss)


def covered(ranges: list[Range]) -> Covered:
    """As if there were nothing else between the first and the last of each journal."""
    bounds: Bounds = {}
    for each in ranges:
        first, _ = bounds.get(each.journal, (each.first_lsn, 0))
        bounds[each.journal] = first, each.next_lsn
    return Covered(bounds, ranges)


class Lake:
    """One journal, its archive, and a table."""

    def __init__(self, root: Path, queues: tuple[str, ...] = ("orders", "a/b")) -> None:
        self.archive = root / "archive"
        self.uri = str(root / "lake")
        self.queues = queues
        self.journal = JournalOf(root / "journal", segment_bytes=1 << 16)
        for queue in queues:
            self.journal.declare(queue)
        self.sent = 0
        self.batches = 0

    def send(self, count: int, settle: bool = True) -> None:
        """Messages for each queue in turn, 20 in a record; they are accepted at once."""
        for _ in range(0, count, 20):
            for queue in self.queues:
                first = self.journal.send(queue, [body(self.sent + n) for n in range(20)])
                if settle:
                    self.journal.settle(queue, first, first + 20)
            self.sent += 20
            self.journal.now_ms += 100

    @property
    def rows(self) -> int:
        """Of all that was sent and settled."""
        return self.sent * 2 * len(self.queues)

    def archived(self) -> None:
        """All that was sent is in the archive."""
        self.journal.archive(self.archive)

    def journals(self) -> dict[str, Journal]:
        """What the archive has."""
        return Listing((str(self.archive),), None).journals()

    def table(self) -> DeltaTable:
        """The table of rows, made if need be."""
        return open_or_make(self.uri, SELECTION)

    def written(self, table: DeltaTable, wanted: Wanted | None = None) -> tuple[list[File], list[Range]]:
        """Files with all that is there and not covered, and their ranges."""
        work = CaptureTask(wanted or Wanted(decode=Decode.NONE), self.uri, True)
        files: list[File] = []
        ranges: list[Range] = []
        for disk, journal in self.journals().items():
            covered = position(table, disk)
            first = journal.earliest if covered is None else covered
            assert first is not None
            assert journal.latest is not None
            for task in tasks(pieces(journal, first, journal.latest, never), 4):
                done = work.run(task)
                files += done.files
                ranges += done.ranges
        return files, ranges

    def capture(self, query: str = "q", then: Callable[[], Any] | None = None) -> bool:
        """One batch with all that is there; `then` happens between the table's commit and the ledger."""
        table = self.table()
        files, ranges = self.written(table)
        done = commit_batch(table, query, self.batches, files, covered(ranges))
        self.batches += 1
        if then is not None:
            then()
        Ledger(table, self.uri).catch_up()
        return done

    def verify(self, archive: bool = True) -> Verdict:
        """The completeness check."""
        return verify(DeltaTable(self.uri), self.uri, self.journals() if archive else None)

    def kinds(self) -> list[str]:
        """Of what the completeness check finds."""
        return sorted({each.kind for each in self.verify().findings})

    def content(self) -> list[tuple[Any, ...]]:
        """What rows are told apart by, and their messages."""
        table = DeltaTable(self.uri).to_pyarrow_table(
            columns=["journal", "lsn", "queue", "sequence", "event", "message"]
        )
        return sorted(tuple(row.values()) for row in table.to_pylist())
