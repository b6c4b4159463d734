"""The job `replay`: sends messages of the archive, or of a captured table, to a queue or router again."""

import argparse
import time
from typing import TYPE_CHECKING, Any, Final

from lightrail.console.terminal import say, show_json
from lightrail.console.terminal import table as show_table
from lightrail.spark.analysis.events import add_events, check_events, check_sources
from lightrail.spark.command import (
    DONE,
    Subparsers,
    UsageError,
    access_options,
    add_command,
    add_spark,
    session,
    source_options,
)
from lightrail.spark.failures import named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lightrail.spark.writing.replaying import ReplayRun

RATE: Final = 1_000.0
RATE_MAX: Final = 1_000_000.0
_EXAMPLES: Final = """
  lightrail-spark replay --from /var/lib/lightrail/archive --queues myapp/orders --dry-run \\
      --since 2026-11-21T08:00Z --until 2026-11-21T09:00Z
  lightrail-spark replay /lake/messages --where "subject = 'order.created'" --to myapp/again \\
      --to-gateway http://127.0.0.1:8080 --rate 500 --id orders-of-friday
  lightrail-spark replay --gateway http://127.0.0.1:8080 --queues myapp/orders --to-origin
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the parser of the command."""
    parser = add_command(
        subparsers,
        "replay",
        "send archived messages to a queue again, at a rate, marked as replayed",
        "Sends messages again that were enqueued before, in the order of each queue. Each is unchanged but "
        "for the message annotations x-opt-lightrail-replayed (time), -queue and -sequence (origin). If a "
        "run with an --id is killed and started again, it stores nothing twice. docs/operate/spark-sink.md "
        "has the details.",
        _EXAMPLES,
    )
    add_events(parser)
    parser.add_argument(
        "--where", metavar="SQL", help="a condition of Spark's SQL on the columns of the data source"
    )
    group = parser.add_argument_group("destination")
    where = group.add_mutually_exclusive_group()
    where.add_argument("--to", metavar="NAME", help="a queue or router")
    where.add_argument("--to-origin", action="store_true", help="send each message to its original queue")
    group.add_argument(
        "--to-gateway",
        metavar="URL",
        help="URL of the broker (default --gateway, or LIGHTRAIL_URL); credentials and --ca are for both",
    )
    group.add_argument(
        "--rate", metavar="N", type=float, default=RATE, help=f"messages per second (default {RATE:g})"
    )
    group.add_argument(
        "--id",
        metavar="NAME",
        help="of the run: started again with it, the run continues and stores nothing twice",
    )
    group.add_argument(
        "--state", metavar="DIR", default=".", help="folder of NAME.replay.json, the state of the run"
    )
    group.add_argument("--dry-run", action="store_true", help="only count what would be sent")
    add_spark(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 all messages are stored.

    Raises:
        CommandError: the source can't be read, or the broker refuses messages; stored messages stay.
        UnreachableError: an archive or gateway does not answer.
        UsageError: the options do not go together.
    """
    from lightrail.spark.writing import replaying

    sink = _sink_options(args)
    asked = _asked(args)
    path = replaying.state_file(args.state, args.id) if args.id else None
    found = None if path is None else replaying.load(path, asked)
    if found is not None and found.done and not args.dry_run:
        say(f"--id {found.id} is done already: all of its messages are stored")
        return DONE
    check_sources(args)
    spark = session(args, "replay")
    try:
        if found is None:
            tasks = max(1, min(spark.sparkContext.defaultParallelism, int(args.rate) or 1))
            name = args.id or "once"
            pin = _pin(args)
            found = replaying.new_run(name, asked, pin, tasks, args.rate, time.time_ns() // 1_000_000)
        rows = _rows(spark, args, found)
        counts = replaying.counts(rows)
        total = sum(row["messages"] for row in counts)
        if not args.dry_run and total:
            if path is not None:
                replaying.save(path, found)
            say(f"{total:,} messages of {len(counts):,} queues at {args.rate:g} per second")
            replaying.send(rows, found, sink, args.rate)
        if not args.dry_run and path is not None:
            found.done = True
            replaying.save(path, found)
    except UsageError:
        raise
    except Exception as error:
        raise named(error) from error
    _report(args, counts, total)
    return DONE


def _sink_options(args: argparse.Namespace) -> dict[str, str]:
    """Options of the sink, checked before Spark starts. Raises UsageError."""
    check_events(args)
    if not 0 < args.rate <= RATE_MAX:
        raise UsageError(
            f"--rate {args.rate:g}: expected messages per second, above 0 and up to {RATE_MAX:g}"
        )
    if args.dry_run:
        return {}
    if not args.to and not args.to_origin:
        raise UsageError("expected --to NAME, or --to-origin; or --dry-run")
    from lightrail.spark.writing.sink import SinkError, SinkOptions

    options = access_options(args, args.to_gateway or args.gateway)
    if args.to:
        options["target"] = args.to
    try:
        SinkOptions.of(options)
    except SinkError as error:
        raise UsageError(f"{error} (--to-gateway)") from None
    return options


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """The options that a continued run has to repeat."""
    return {
        "table": args.table,
        "from": args.archive,
        "gateway": args.gateway,
        "queues": args.queues,
        "queue-pattern": args.queue_pattern,
        "since": args.since.isoformat() if args.since else None,
        "until": args.until.isoformat() if args.until else None,
        "where": args.where,
        "to": args.to,
        "to-origin": args.to_origin,
    }


def _pin(args: argparse.Namespace) -> dict[str, Any]:
    from lightrail.spark.lake.table import open_table
    from lightrail.spark.reading.options import OptionError
    from lightrail.spark.writing.replaying import pinned_options

    if args.table:
        return {"version": open_table(args.table).version()}
    options = source_options(args)
    if args.since:
        options["startingTimestamp"] = args.since.isoformat()
    try:
        return dict(pinned_options(options))
    except OptionError as error:
        raise UsageError(str(error)) from error


def _rows(spark: "SparkSession", args: argparse.Namespace, found: "ReplayRun") -> "DataFrame":
    from lightrail.spark.writing import replaying

    # A table is read by file; the data source selects queues of journals.
    queues, pattern = None, None
    if args.table:
        rows = replaying.of_table(spark, args.table, found.pin["version"])
        queues = [each.strip() for each in args.queues.split(",") if each.strip()] if args.queues else None
        pattern = args.queue_pattern
    else:
        rows = replaying.of_journals(spark, found.pin, everything=bool(args.where))
    return replaying.selected(
        rows, where=args.where, since=args.since, until=args.until, queues=queues, pattern=pattern
    )


def _report(args: argparse.Namespace, counts: list[dict[str, Any]], total: int) -> None:
    if args.json:
        show_json({"dry_run": args.dry_run, "messages": total, "queues": counts})
        return
    show_table(counts, ("queue", "messages", "bytes", "first", "last"))
    say(f"{total:,} messages {'would be sent' if args.dry_run else 'are stored'}")
