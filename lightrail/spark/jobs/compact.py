"""The job `compact`: keeps a table of `capture` small and fast to read, also during a capture."""

import argparse
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from lightrail.console.terminal import show_json
from lightrail.spark.command import DONE, Subparsers, UsageError, add_command

if TYPE_CHECKING:
    from lightrail.spark.lake.compaction import Done

SPARK_LAKE_FILE_BYTES: Final[int] = 256 * 1024 * 1024
"""Target size of files of `compact`."""
SPARK_LAKE_VACUUM_HOURS_MIN: Final[int] = 24
"""Age below which files without a commit may belong to a batch under way."""
VACUUM_HOURS: Final = 168
_EXAMPLES: Final = """
  lightrail-spark compact /lake/messages
  lightrail-spark compact /lake/messages --retention 90              deletes days before the last 90
  lightrail-spark compact /lake/messages --retention 90 --dry-run    only shows the changes
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the parser of the command."""
    parser = add_command(
        subparsers,
        "compact",
        "merge small files of a table, delete old days, remove unused files",
        "Merges the small files of each queue and hour, deletes days that are older than --retention (the "
        "ledger of the table still lists them), and removes files that no version of the last --vacuum-hours "
        "names. Safe while a capture runs. Does not start Spark.",
        _EXAMPLES,
    )
    parser.add_argument("table", metavar="TABLE", help="folder or URI of the table")
    parser.add_argument("--retention", metavar="DAYS", type=int, help="delete older days (default: keep all)")
    parser.add_argument(
        "--target-bytes",
        metavar="BYTES",
        type=int,
        default=SPARK_LAKE_FILE_BYTES,
        help=f"approximate size of merged files (default {SPARK_LAKE_FILE_BYTES})",
    )
    parser.add_argument(
        "--vacuum-hours",
        metavar="HOURS",
        type=int,
        default=VACUUM_HOURS,
        help=f"how long files are kept that no commit names any more (default {VACUUM_HOURS}, at least "
        f"{SPARK_LAKE_VACUUM_HOURS_MIN}): readers of older versions and batches in progress need them",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show the changes")
    return parser


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 done.

    Raises:
        CommandError: there is no such table, or other commits conflicted every time.
        UsageError: a number is out of its range.
    """
    from lightrail.spark.lake import compaction
    from lightrail.spark.lake.ledger import Ledger
    from lightrail.spark.lake.table import open_table

    if args.retention is not None and args.retention < 1:
        raise UsageError(f"--retention {args.retention}: expected days, at least 1")
    if args.vacuum_hours < SPARK_LAKE_VACUUM_HOURS_MIN:
        raise UsageError(
            f"--vacuum-hours {args.vacuum_hours}: expected at least {SPARK_LAKE_VACUUM_HOURS_MIN}, because "
            "a batch of a capture may still commit younger files"
        )
    if args.target_bytes < 1:
        raise UsageError(f"--target-bytes {args.target_bytes}: expected bytes, at least 1")
    table = open_table(args.table)
    today = datetime.now(UTC).date()
    done = compaction.Done()
    if args.dry_run:
        if args.retention is not None:
            old = compaction.expired(table, today, args.retention)
            done.days = sorted({each["date"].isoformat() for each in old})
            done.retired_files = len(old)
            done.retired_rows = sum(each["num_records"] for each in old)
        for files in compaction.crowded(table, args.target_bytes):
            done.partitions += 1
            done.small_files += len(files)
    else:
        if args.retention is not None:
            compaction.retire(table, args.table, today, args.retention, done)
        compaction.compact(table, args.target_bytes, done)
        Ledger(table, args.table).tidy(args.vacuum_hours)
    compaction.vacuum(table, args.vacuum_hours, args.dry_run, done)
    if args.json:
        show_json(asdict(done) | {"dry_run": args.dry_run})
    else:
        _show(done, "would be " if args.dry_run else "")
    return DONE


def _show(done: "Done", would: str) -> None:
    days = f" ({done.days[0]} to {done.days[-1]})" if done.days else ""
    print(
        f"retention: {len(done.days)} days{days}, {done.retired_files:,} files, "
        f"{done.retired_rows:,} rows {would}deleted"
    )
    into = f" into {done.large_files:,}" if done.large_files else ""
    print(f"compaction: {done.small_files:,} files of {done.partitions:,} partitions {would}merged{into}")
    print(f"vacuum: {done.removed_files:,} files {would}removed")
