"""The job `analyse`: events of queues and shards, as tables and as a report."""

import argparse
import os
import uuid
from typing import TYPE_CHECKING, Final

from lightrail.console.terminal import say, show_json
from lightrail.console.terminal import table as show_table
from lightrail.spark.analysis.events import add_events, check_events, check_sources, events
from lightrail.spark.command import (
    DONE,
    CommandError,
    Subparsers,
    UsageError,
    add_allow_loss,
    add_command,
    add_spark,
    session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lightrail.spark.analysis.figures import Figures
    from lightrail.spark.analysis.tables import AnalysisTables

SPARK_REPORT_TOP_MAX: Final[int] = 50
"""Queues and shards that a report names; the others are summed."""
TOP: Final = 10
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
SHUFFLE_PARTITIONS_MAX: Final = 200
"""Spark's default."""
_COLUMNS: Final = (
    "queue",
    "enqueued",
    "ended",
    "p50_ms",
    "p99_ms",
    "redelivered",
    "dead_lettered",
    "depth_last",
)
_EXAMPLES: Final = """
  lightrail-spark analyse /lake/messages --to /lake/analysis --report report.html
  lightrail-spark analyse /lake/messages --since 2026-11-21 --until 2026-11-22 --report day.html
  lightrail-spark analyse --from /var/lib/lightrail/archive --json
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the parser of the command."""
    parser = add_command(
        subparsers,
        "analyse",
        "rates, times in queue, redeliveries, dead letters, depth; a report",
        "Computes tables by queue and minute and by shard and minute from the events of messages, and a "
        "self-contained report in one HTML file. docs/operate/analyse.md has every column.",
        _EXAMPLES,
    )
    add_events(parser)
    add_allow_loss(parser, "the log lists them")
    group = parser.add_argument_group("results")
    group.add_argument(
        "--to",
        metavar="DIR",
        help="folder or URI of the tables DIR/minutes, DIR/dead_letters, DIR/shards, DIR/queues; those of an "
        "earlier run are replaced",
    )
    group.add_argument(
        "--format",
        choices=("delta", "parquet"),
        default="delta",
        help="format of these tables: Delta tables, each replaced in one commit, or folders of Parquet "
        "(default delta)",
    )
    group.add_argument("--report", metavar="FILE.html", help="write a page with charts, atomically")
    group.add_argument(
        "--top",
        metavar="N",
        type=int,
        default=TOP,
        help=f"number of named queues and shards; all others are summed (default {TOP}, at most "
        f"{SPARK_REPORT_TOP_MAX})",
    )
    group.add_argument("--title", metavar="TEXT", default="Messages", help="title of the report")
    add_spark(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 done.

    Raises:
        CommandError: the source can't be read, or the report can't be written.
        UnreachableError: an archive or gateway does not answer.
        UsageError: the options do not go together.
    """
    from pyspark import StorageLevel

    from lightrail.spark.analysis import report
    from lightrail.spark.analysis.figures import figures
    from lightrail.spark.analysis.history import READ, history
    from lightrail.spark.analysis.tables import tables

    _check(args)
    check_sources(args)
    spark = session(args, "analyse")
    # Each of these is read several times; kept on Spark's disks, because it may be larger than memory.
    read = events(spark, args, READ)
    fit_shuffles(spark, read)
    rows = history(read).persist(StorageLevel.DISK_ONLY)
    found = tables(rows)
    try:
        if args.to:
            _write(found, args.to, args.format)
        shown = figures(found, rows, args.top)
    finally:
        for frame in (*found, rows):
            frame.unpersist()
    if args.report:
        try:
            report.write(report.page(shown, args.title), args.report)
        except OSError as error:
            raise CommandError(f"the report can't be written: {error}") from None
    if args.json:
        show_json(report.summary(shown))
    else:
        _say(shown, args)
    return DONE


def fit_shuffles(spark: "SparkSession", read: "DataFrame") -> None:
    """Sets the number of Spark's shuffle partitions to that of the source, SPARK_TASK_BYTES each.

    Spark's default of 200 is for large data: with a thousand messages each partition has five, and shuffles
    of 200 tasks take most of the time. A spark.sql.shuffle.partitions in --conf or in Spark's configuration
    files takes precedence.
    """
    context = spark.sparkContext
    if context.getConf().contains(SHUFFLE_PARTITIONS):
        return
    fitting = max(read.rdd.getNumPartitions(), context.defaultParallelism)
    spark.conf.set(SHUFFLE_PARTITIONS, min(fitting, SHUFFLE_PARTITIONS_MAX))


def _check(args: argparse.Namespace) -> None:
    check_events(args)
    if not 1 <= args.top <= SPARK_REPORT_TOP_MAX:
        raise UsageError(f"--top {args.top}: expected 1 to {SPARK_REPORT_TOP_MAX}")
    if args.to:
        _check_to(args.to, args.format)
    if args.report and not os.path.isdir(os.path.dirname(os.path.abspath(args.report))):
        raise UsageError(f"--report {args.report!a}: its folder does not exist; create it first")


def _check_to(to: str, kind: str) -> None:
    from lightrail.spark.analysis.tables import ORDER
    from lightrail.spark.lake.replacing import is_table
    from lightrail.spark.stores import StoreError, scheme_of

    try:
        local = scheme_of(to) is None
        if kind == "parquet" and scheme_of(to) == "s3":
            raise UsageError(
                f"--to {to!a}: Spark writes no Parquet to object stores; expected --format delta"
            )
        if is_table(to):
            raise UsageError(f"--to {to!a} is a Delta table: name another folder for the results")
    except StoreError as error:
        raise UsageError(f"--to: {error}") from None
    for folder in (os.path.join(to, name) for name in ORDER) if local else ():
        there = os.listdir(folder) if os.path.isdir(folder) else []
        if there and ("_delta_log" in there) != (kind == "delta"):
            other = "parquet" if kind == "delta" else "delta"
            raise UsageError(f"--to {to!a} has tables of --format {other}: use that, or name another folder")


def _write(found: "AnalysisTables", to: str, kind: str) -> None:
    from lightrail.spark.analysis.tables import ORDER
    from lightrail.spark.lake.replacing import replace

    run = str(uuid.uuid4())
    for name, frame in found._asdict().items():
        rows, where = frame.sortWithinPartitions(*ORDER[name]), f"{to.rstrip('/')}/{name}"
        if kind == "delta":
            replace(rows, where, run)
        else:
            rows.write.mode("overwrite").parquet(where)


def _say(shown: "Figures", args: argparse.Namespace) -> None:
    if shown.first is None:
        say("nothing was read: the source has no event of a captured queue")
        return
    rows = [{name: row[name] for name in _COLUMNS} for row in shown.queues]
    show_table(rows, _COLUMNS)
    if shown.other_queues is not None:
        say(f"and {shown.other_queues['queues']:,} other queues")
    for what, where in (("tables", args.to), ("report", args.report)):
        if where:
            say(f"{what}: {where}")
