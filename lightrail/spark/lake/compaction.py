"""Compaction: merges small files, deletes old days, and removes files that no commit names.

It may run during a capture: a capture only adds files, so its commits do not conflict with these; other
conflicts are resolved by trying again.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from deltalake.writer.properties import WriterProperties

from lightrail.model.limits import SPARK_LAKE_AGAIN
from lightrail.spark.command import CommandError
from lightrail.spark.lake.files import FORMAT, NOTE, PARTITIONS, Folder
from lightrail.spark.lake.ledger import RETIRED, Ledger
from lightrail.spark.lake.table import active_files, synced
from lightrail.spark.lake.tally import count, signed, tallies

Row = dict[str, Any]


@dataclass(slots=True)
class Done:
    """The changes that were made, or are planned."""

    days: list[str] = field(default_factory=list)
    """Days that retention removed."""
    retired_files: int = 0
    retired_rows: int = 0
    partitions: int = 0
    """Partitions whose files were merged."""
    small_files: int = 0
    """Small files that were merged."""
    large_files: int = 0
    """Files that they were merged into; 0 in a dry run."""
    removed_files: int = 0
    """Files removed by the vacuum."""


# --- retention -----------------------------------------------------------------------------------------


def expired(table: DeltaTable, today: date, days: int) -> list[Row]:
    """The files of partitions whose day is more than `days` before today."""
    last = today - timedelta(days=days)
    return [each for each in active_files(table) if each["date"] is not None and each["date"] < last]


def retire(table: DeltaTable, uri: str, today: date, days: int, done: Done) -> None:
    """Deletes old days; the ledger still has their ranges and numbers of rows.

    Raises:
        CommandError: other commits conflicted every time.
    """
    counts: dict[str, list[Row]] = {}
    for _ in range(SPARK_LAKE_AGAIN):
        table.update_incremental()
        files = expired(table, today, days)
        if not files:
            return
        ranges = Ledger(table, uri).rows()
        for each in files:
            if each["path"] not in counts:
                counts[each["path"]] = _rows_of(Folder(uri), each["path"], ranges)
        note = {"format": FORMAT, RETIRED: _together(counts[each["path"]] for each in files)}
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(each["path"], True, now_ms, each["size_bytes"], _partition(each)) for each in files
        ]
        try:
            # No automatic retry: a file that was merged meanwhile would be removed twice, and the merged one
            # would stay.
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                list(PARTITIONS),
                commit_properties=CommitProperties(
                    custom_metadata={NOTE: json.dumps(note)}, max_commit_retries=0
                ),
            )
        except CommitFailedError:
            continue
        table.update_incremental()
        synced(table)
        Ledger(table, uri).catch_up()
        done.days = sorted({each["date"].isoformat() for each in files})
        done.retired_files = len(files)
        done.retired_rows = sum(each["rows"] for each in note[RETIRED])  # type: ignore[attr-defined]
        return
    raise CommandError(f"{SPARK_LAKE_AGAIN} times another commit preceded that of the retention; try again")


def _partition(each: Row) -> dict[str, str | None]:
    return {name: None if each[name] is None else str(each[name]) for name in PARTITIONS}


def _rows_of(folder: Folder, path: str, ledger: pa.Table) -> list[Row]:
    """The number of rows of a file in each range."""
    into = tallies(ledger)
    for _ in count(folder, path, into):
        pass
    return [
        {
            **{name: tally.rows[at][name] for name in ("journal", "shard", "first_lsn", "next_lsn")},
            "records": 0,
            "rows": int(tally.found[at]),
            "checksum": int(tally.sums[at]),
        }
        for tally in into.values()
        for at in np.flatnonzero(tally.found).tolist()
    ]


def _together(files: Iterable[list[Row]]) -> list[Row]:
    """The number of rows of all files in each range."""
    sums: dict[tuple[str, int], Row] = {}
    for each in (row for rows in files for row in rows):
        total = sums.setdefault((each["journal"], each["first_lsn"]), {**each, "rows": 0, "checksum": 0})
        total["rows"] += each["rows"]
        total["checksum"] += each["checksum"]
    for total in sums.values():
        total["checksum"] = signed(total["checksum"])
    return list(sums.values())


# --- small files ---------------------------------------------------------------------------------------


def crowded(table: DeltaTable, target_bytes: int) -> Iterator[list[Row]]:
    """Partitions with files that can be merged."""
    partitions: dict[tuple[Any, ...], list[Row]] = {}
    for each in active_files(table):
        if each["size_bytes"] < target_bytes:
            partitions.setdefault(tuple(each[name] for name in PARTITIONS), []).append(each)
    for files in partitions.values():
        sizes = sorted(each["size_bytes"] for each in files)
        if len(sizes) > 1 and sizes[0] + sizes[1] <= target_bytes:
            yield files


def compact(table: DeltaTable, target_bytes: int, done: Done) -> None:
    """Merges small files, partition by partition.

    Raises:
        CommandError: other commits changed the same files every time.
    """
    for _ in range(SPARK_LAKE_AGAIN):
        table.update_incremental()
        if not any(True for _ in crowded(table, target_bytes)):
            return
        try:
            metrics = table.optimize.compact(
                target_size=target_bytes, writer_properties=WriterProperties(compression="ZSTD")
            )
        except CommitFailedError:
            continue
        done.partitions += metrics["partitionsOptimized"]
        done.small_files += metrics["numFilesRemoved"]
        done.large_files += metrics["numFilesAdded"]
        synced(table)
        return
    raise CommandError(f"{SPARK_LAKE_AGAIN} times another commit changed the same files; try again")


# --- vacuum --------------------------------------------------------------------------------------------


def vacuum(table: DeltaTable, hours: int, dry_run: bool, done: Done) -> None:
    """Removes files older than `hours` that no commit names.

    A batch writes its files before it commits them, so a batch must take less than `hours`.
    """
    table.update_incremental()
    removed = table.vacuum(
        retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=True
    )
    done.removed_files += len(removed)
