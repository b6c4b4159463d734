"""Tally: number of rows in files for each captured range, and the sums of their marks.

Sums of rows: equal for equal sets of rows, in any order and files.

They are computed from lsn, sequence, queue and event, which together with the journal identify a row.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightrail.spark.lake.files import Folder
from lightrail.spark.lake.ledger import COVERED

COLUMNS: Final = ("lsn", "sequence", "queue", "event")
"""Columns that `marks` needs."""
_FACTORS: Final = tuple(
    np.uint64(each)
    for each in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xFF51AFD7ED558CCD)
)
_SHIFT: Final = np.uint64(29)


def marks(table: pa.Table | pa.RecordBatch) -> Any:
    """A number of 64 bits for each row, as an array of numpy; sums are modulo 2^64."""
    mixed = (
        _numbers(table["lsn"]) * _FACTORS[0]
        ^ _numbers(table["sequence"]) * _FACTORS[1]
        ^ _texts(table["queue"]) * _FACTORS[2]
        ^ _texts(table["event"])
    )
    mixed ^= mixed >> _SHIFT
    mixed *= _FACTORS[3]
    return mixed ^ (mixed >> _SHIFT)


def signed(total: int) -> int:
    """A sum as a signed integer of 64 bits, for columns of tables."""
    total &= 2**64 - 1
    return total - 2**64 if total >= 2**63 else total


def _numbers(column: Any) -> Any:
    return _flat(column).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)


def _texts(column: Any) -> Any:
    flat = _flat(column)
    encoded = flat if pa.types.is_dictionary(flat.type) else flat.dictionary_encode()
    codes = np.array([crc32(str(each).encode()) for each in encoded.dictionary.to_pylist()] or [0], np.uint64)
    return codes[encoded.indices.to_numpy(zero_copy_only=False)]


def _flat(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return (
        column.combine_chunks()
        if not pa.types.is_dictionary(column.type)
        else column.unify_dictionaries().combine_chunks()
    )


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
