"""The job `verify`: proves that a table has every record of the journals and every row of them."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from lightrail.console.terminal import show_json, table
from lightrail.spark.command import (
    BEHIND,
    DONE,
    FAILED,
    Subparsers,
    add_command,
    add_source,
    listed,
    source_options,
)

if TYPE_CHECKING:
    from lightrail.spark.lake.verifying import Verdict

FINDINGS_SHOWN_MAX: Final = 100
_EXAMPLES: Final = """
  lightrail-spark verify /lake/messages
  lightrail-spark verify /lake/messages --from /var/lib/lightrail/archive     is all of the archive in it?
  lightrail-spark verify s3://bucket/lake --json
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the parser of the command."""
    parser = add_command(
        subparsers,
        "verify",
        "prove that a table of `capture` has every record and every row",
        "For each journal the captured ranges must join, from the first record to the last, without a hole "
        "or an overlap, and the table must have the rows of each range, by number and checksum. With --from "
        "or --gateway it must also have all existing records. Lists what is missing, with exit status 1; if "
        "only records after the last capture are not there, the exit status is 4. "
        "Reads the table's files itself and does not start Spark.",
        _EXAMPLES,
    )
    parser.add_argument("table", metavar="TABLE", help="folder or URI of the table")
    add_source(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 everything is there, 1 something is missing, 4 only what was written since is.

    Raises:
        CommandError: there is no such table.
        UnreachableError: an archive or gateway does not answer.
        UsageError: the options do not go together.
    """
    from lightrail.spark.lake.table import open_table
    from lightrail.spark.lake.verifying import verify

    # List the journals first: records that are added while the table is opened would seem to be missing.
    journals = listed(source_options(args)) if args.archive or args.gateway else None
    verdict = verify(open_table(args.table), args.table, journals)
    if args.json:
        show_json(asdict(verdict) | {"complete": not verdict.findings and not verdict.behind})
    else:
        _show(verdict)
    if verdict.findings:
        return FAILED
    return BEHIND if verdict.behind else DONE


def _show(verdict: "Verdict") -> None:
    columns = (
        "journal",
        "shard",
        "first_lsn",
        "next_lsn",
        "ranges",
        "records",
        "unwatched",
        "rows",
        "retired",
    )
    table([asdict(each) for each in verdict.journals], columns)
    print(f"version {verdict.version}: {verdict.rows:,} rows in {verdict.files:,} files")
    found = [*verdict.findings, *verdict.behind]
    for each in found[:FINDINGS_SHOWN_MAX]:
        where = f"journal {each.journal}: " if each.journal else ""
        print(f"{each.kind}: {where}{each.text}")
    more = len(found) - FINDINGS_SHOWN_MAX
    if more > 0:
        print(f"and {more:,} more: --json has all of them")
    if verdict.findings:
        print("INCOMPLETE")
        return
    complete = "every record is covered once, every row is there"
    if verdict.behind:
        print(f"BEHIND: up to the last capture {complete}; capture again for what was written since")
    else:
        print(f"complete: {complete}")
