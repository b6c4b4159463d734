"""Events to analyse: from a table of `capture`, or from journals by the data source."""

import argparse
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from lightrail.spark.command import UsageError, add_source, listed, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARK_LAST_HOURS_MAX: Final[int] = 24 * 366 * 100
"""Most hours of --last, so that the time stays within the calendar."""
_DAY: Final = re.compile(r"/date=(\d{4}-\d{2}-\d{2})/")
"""Partition of a captured table by day."""


def add_events(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select the events, see `events`."""
    parser.add_argument(
        "table",
        metavar="TABLE",
        nargs="?",
        help="a table of `lightrail-spark capture`; instead of --from and --gateway",
    )
    add_source(parser)
    group = parser.add_argument_group("when")
    for name, meaning in (("since", "not before"), ("until", "before")):
        group.add_argument(
            f"--{name}",
            metavar="TIME",
            type=_time,
            help=f"only events {meaning} TIME, such as 2026-11-21 or 2026-11-21T08:30Z; UTC without a zone",
        )
    group.add_argument("--last", metavar="HOURS", type=float, help="only events of the last HOURS hours")


def check_events(args: argparse.Namespace, *, gateway_is_asked: bool = False) -> None:
    """Checks the options of `add_events` before Spark starts.

    Args:
        gateway_is_asked: whether --gateway has another purpose as well, and is allowed with TABLE.

    Raises:
        UsageError: the options contradict each other.
    """
    if gateway_is_asked and not args.gateway:
        raise UsageError("expected --gateway URL, to read the placement of queues; found none")
    if args.table is None:
        source_options(args)
    elif args.archive or (args.gateway and not gateway_is_asked):
        raise UsageError(f"expected one of TABLE ({args.table!a}) and --from or --gateway, found both")
    if args.last is not None:
        if args.since or not 0 < args.last <= SPARK_LAST_HOURS_MAX:
            raise UsageError(f"--last: expected hours above 0, up to {SPARK_LAST_HOURS_MAX}, and no --since")
        args.since = datetime.now(UTC) - timedelta(hours=args.last)
    if args.since and args.until and args.since >= args.until:
        raise UsageError("--since is not before --until: nothing would be read")


def check_sources(args: argparse.Namespace) -> None:
    """Checks before Spark starts that the journals of the options of `add_events` exist.

    Raises:
        UnreachableError: an archive or gateway does not answer.
        UsageError: an option has a wrong value.
    """
    if args.table is None:
        listed(source_options(args))


def events(spark: "SparkSession", args: argparse.Namespace, columns: tuple[str, ...]) -> "DataFrame":
    """The rows that the options of `add_events` select.

    Raises:
        CommandError: there is no such table.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documents call it

    if args.table is not None:
        found = _of_table(spark, args, columns)
    else:
        options = source_options(args) | {"columns": ",".join(columns), "decode": "none"}
        if args.since:
            options["startingTimestamp"] = args.since.isoformat()
        found = spark.read.format("lightrail").options(**options).load()
    if args.since:
        found = found.where(F.col("event_time") >= F.lit(args.since))
    if args.until:
        found = found.where(F.col("event_time") < F.lit(args.until))
    return found


def _of_table(spark: "SparkSession", args: argparse.Namespace, columns: tuple[str, ...]) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documents call it

    from lightrail.spark.lake.opening import frame
    from lightrail.spark.lake.table import open_table

    found = frame(spark, open_table(args.table), args.table, columns, lambda path: _on_days(path, args))
    if args.queues:
        names = [each.strip() for each in args.queues.split(",") if each.strip()]
        found = found.where(F.col("queue").isin(names))
    if args.queue_pattern:
        found = found.where(F.regexp_like("queue", F.lit(f"^(?:{args.queue_pattern})$")))
    return found


def _on_days(uri: str, args: argparse.Namespace) -> bool:
    """Whether the day in a file's path is selected; files of other days need not be opened."""
    found = _DAY.search(uri)
    if found is None:
        return True
    first, last = (each and each.astimezone(UTC).date().isoformat() for each in (args.since, args.until))
    return (first is None or found[1] >= first) and (last is None or found[1] <= last)


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!a} is no time; expected a time such as 2026-11-21 or 2026-11-21T08:30Z"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
