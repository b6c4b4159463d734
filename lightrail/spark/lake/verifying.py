"""The completeness check: the table covers every record of every journal, and has all of its rows.

It checks that the ranges of the ledger join, that no records are missing in them, that the table has the rows
of each range (by number and checksum), and that its files exist. On request it compares the ledger with the
journals.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from deltalake import DeltaTable

from lightrail.spark.journals.journal import Journal
from lightrail.spark.lake.files import Folder
from lightrail.spark.lake.ledger import RETIRED, UNWATCHED, Ledger
from lightrail.spark.lake.table import active_files, position
from lightrail.spark.lake.tally import Tally, by_journal, count, tallies

BEHIND: Final = "behind"
"""Kind of a finding that is no fault: records that were written after the last capture."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that the check found."""

    kind: str
    """hole, overlap, lost, position, file, rows, stray, not_captured, behind"""
    journal: str | None
    first_lsn: int | None
    next_lsn: int | None
    text: str


@dataclass(slots=True)
class Coverage:
    """The coverage of one journal."""

    journal: str
    shard: int
    first_lsn: int
    next_lsn: int
    ranges: int = 0
    records: int = 0
    unwatched: int = 0
    """Records that were never archived, because no queue was captured at the time."""
    rows: int = 0
    retired: int = 0
    """Rows that retention deleted."""


@dataclass(slots=True)
class Verdict:
    """Result of the check."""

    version: int
    journals: list[Coverage] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)
    behind: list[Finding] = field(default_factory=list)
    """Records after the end of the coverage of their journal: the next capture continues with them."""


def verify(table: DeltaTable, uri: str, journals: Mapping[str, Journal] | None = None) -> Verdict:
    """Checks the table at its opened version.

    Args:
        journals: of archives and shards, to be compared with the coverage.

    Raises:
        CommandError: the table's log has been cleaned of commits that its ledger does not have.
        SourceError: an archive or gateway does not answer.
    """
    verdict = Verdict(table.version())
    ledger = Ledger(table, uri).rows()
    ledger = ledger.filter(pc.less_equal(ledger["version"], table.version()))
    ranges = tallies(ledger)
    for journal, rows in by_journal(ledger.filter(pc.not_equal(ledger["kind"], RETIRED))).items():
        verdict.journals.append(covered := _joins(journal, rows, verdict.findings))
        _position(table, covered, verdict.findings)
    retired = ledger.filter(pc.equal(ledger["kind"], RETIRED)).to_pylist()
    coverage = {each.journal: each for each in verdict.journals}
    for each in retired:
        coverage[each["journal"]].retired += each["rows"]
    _tally(table, uri, ranges, verdict)
    for journal, found in ranges.items():
        _compare(journal, found, [each for each in retired if each["journal"] == journal], verdict.findings)
    if journals is not None:
        for there in journals.values():
            has = ranges.get(there.incarnation.disk)
            for each in _not_captured(there, has):
                (verdict.behind if each.kind == BEHIND else verdict.findings).append(each)
    return verdict


def _joins(journal: str, rows: list[dict[str, Any]], findings: list[Finding]) -> Coverage:
    shard = max(each["shard"] for each in rows)
    covered = Coverage(journal, shard, rows[0]["first_lsn"], rows[0]["first_lsn"])
    for each in rows:
        first, expected = each["first_lsn"], covered.next_lsn
        if first > expected:
            text = f"records {expected} to before {first} are in no range: they were never captured"
            findings.append(Finding("hole", journal, expected, first, text))
        elif first < expected:
            text = f"records {first} to before {min(expected, each['next_lsn'])} are in two ranges"
            findings.append(Finding("overlap", journal, first, min(expected, each["next_lsn"]), text))
        missing = each["next_lsn"] - first - each["records"]
        if each["kind"] == UNWATCHED:
            covered.unwatched += missing
        elif missing:
            text = (
                f"{missing} records between {first} and {each['next_lsn']} were lost or damaged when batch "
                f"{each['batch']} read them with --allow-loss"
            )
            findings.append(Finding("lost", journal, first, each["next_lsn"], text))
        covered.next_lsn = max(expected, each["next_lsn"])
        covered.ranges += 1
        covered.records += each["records"]
        covered.rows += each["rows"]
    return covered


def _position(table: DeltaTable, covered: Coverage, findings: list[Finding]) -> None:
    says, ends = position(table, covered.journal), covered.next_lsn
    if says != ends:
        text = f"the table covers records to before {says}, its ledger to before {ends}"
        findings.append(Finding("position", covered.journal, ends, says, text))


def _tally(table: DeltaTable, uri: str, ranges: dict[str, Tally], verdict: Verdict) -> None:
    folder = Folder(uri)
    files = active_files(table)
    verdict.files = len(files)
    strays: dict[str, int] = {}
    sizes = folder.sizes([each["path"] for each in files])
    for each, size in zip(files, sizes, strict=True):
        path = each["path"]
        if size != each["size_bytes"]:
            what = "does not exist" if size is None else f"has {size} bytes, expected {each['size_bytes']}"
            text = f"the file {path} of {each['num_records']} rows {what}"
            verdict.findings.append(Finding("file", None, each["min_lsn"], each["max_lsn"], text))
            continue
        for rows, outside in count(folder, path, ranges):
            verdict.rows += rows
            for journal, several in outside:
                strays[journal] = strays.get(journal, 0) + several
    for journal, several in strays.items():
        text = f"{several} rows are of records that no range covers"
        verdict.findings.append(Finding("stray", journal, None, None, text))


def _compare(journal: str, ranges: Tally, retired: list[dict[str, Any]], findings: list[Finding]) -> None:
    expected = np.array([each["rows"] for each in ranges.rows], np.int64)
    sums = np.array([each["checksum"] for each in ranges.rows], np.int64).view(np.uint64)
    if retired:
        at = ranges.ranges_of(np.array([each["first_lsn"] for each in retired], np.int64))
        np.subtract.at(expected, at, np.array([each["rows"] for each in retired], np.int64))
        np.subtract.at(sums, at, np.array([each["checksum"] for each in retired], np.int64).view(np.uint64))
    for at in np.flatnonzero((ranges.found != expected) | (ranges.sums != sums)).tolist():
        first, after = int(ranges.first[at]), int(ranges.next[at])
        what = f"has {ranges.found[at]} rows, expected {expected[at]}"
        if ranges.found[at] == expected[at]:
            what = f"has {ranges.found[at]} rows as expected, but other ones by their checksum"
        text = f"the table {what} of records {first} to before {after}"
        findings.append(Finding("rows", journal, first, after, text))


def _not_captured(journal: Journal, covered: Tally | None) -> Iterator[Finding]:
    """Findings of existing records in no range; those after all ranges are the next ones to be captured."""
    disk = journal.incarnation.disk
    if journal.earliest is None or journal.latest is None:
        return
    end = max((int(each) for each in covered.next), default=0) if covered is not None else 0
    for _, index in journal.covering(journal.earliest, journal.latest):
        expected = index.first_lsn
        for first, after in () if covered is None else zip(covered.first, covered.next, strict=True):
            if after <= expected or first >= index.next_lsn:
                continue
            if first > expected:
                yield _left(disk, expected, int(first), end)
            expected = max(expected, int(after))
        if expected < index.next_lsn:
            yield _left(disk, expected, index.next_lsn, end)


def _left(disk: str, first_lsn: int, next_lsn: int, end: int) -> Finding:
    text = f"records {first_lsn} to before {next_lsn} exist and are not captured"
    if first_lsn >= end:
        return Finding(BEHIND, disk, first_lsn, next_lsn, f"{text} yet")
    return Finding("not_captured", disk, first_lsn, next_lsn, text)
