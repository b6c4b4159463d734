"""Tally: number of rows in files for each captured range, and the sums of their marks."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightrail.spark.lake.files import Folder
from lightrail.spark.lake.ledger import COVERED
from lightrail.spark.lake.sums import COLUMNS, marks


class Tally:
    """The ranges of one journal, in order, with the counts of each; arrays of equal length."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.first = np.array([each["first_lsn"] for each in rows], np.int64)
        self.next = np.array([each["next_lsn"] for each in rows], np.int64)
        self.found = np.zeros(len(rows), np.int64)
        self.sums = np.zeros(len(rows), np.uint64)

    def ranges_of(self, lsn: Any) -> Any:
        """The range of each record; -1 if there is none."""
        at = np.searchsorted(self.first, lsn, side="right") - 1
        at[(at >= 0) & (lsn >= self.next[at])] = -1
        return at

    def add(self, lsn: Any, mark: Any) -> int:
        """Counts rows; returns the number of rows in no range."""
        at = self.ranges_of(lsn)
        inside = at >= 0
        self.found += np.bincount(at[inside], minlength=len(self.found))
        np.add.at(self.sums, at[inside], mark[inside])
        return int((~inside).sum())


def tallies(ledger: pa.Table) -> dict[str, Tally]:
    """An empty tally of each journal in the ledger."""
    covered = ledger.filter(pc.equal(ledger["kind"], COVERED))
    return {journal: Tally(found) for journal, found in by_journal(covered).items()}


def by_journal(ledger: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Rows of the ledger by journal, in order."""
    ordered = [("journal", "ascending"), ("first_lsn", "ascending"), ("version", "ascending")]
    rows: dict[str, list[dict[str, Any]]] = {}
    for each in ledger.sort_by(ordered).to_pylist():
        rows.setdefault(each["journal"], []).append(each)
    return rows


def count(folder: Folder, path: str, into: dict[str, Tally]) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    """Counts a file; returns rows by batch, and rows in no range by journal."""
    with folder.open(path) as file:
        for batch in file.iter_batches(columns=["journal", *COLUMNS]):
            yield batch.num_rows, list(_strays(batch, into))


def _strays(batch: pa.RecordBatch, into: dict[str, Tally]) -> Iterable[tuple[str, int]]:
    column = batch["journal"]
    codes = column.indices.to_numpy(zero_copy_only=False)
    lsn, mark = batch["lsn"].to_numpy(), marks(batch)
    for code, journal in enumerate(column.dictionary.to_pylist()):
        chosen = np.flatnonzero(codes == code)
        if len(chosen):
            tally = into.get(journal)
            outside = len(chosen) if tally is None else tally.add(lsn[chosen], mark[chosen])
            if outside:
                yield journal, outside
