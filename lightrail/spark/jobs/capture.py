"""The job `capture`: events of messages from the journals into a Delta table, each row once."""

import argparse
import contextlib
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from lightrail.console.terminal import Progress, say, show_json
from lightrail.spark.command import (
    DONE,
    Subparsers,
    UsageError,
    add_allow_loss,
    add_command,
    add_source,
    add_spark,
    listed,
    session,
    source_options,
)
from lightrail.spark.failures import is_slow_start, named
from lightrail.spark.lake.files import CHECKPOINT

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from lightrail.spark.lake.stream import Capture, MicroBatch

SPARK_LAKE_BATCH_BYTES: Final[int] = 1024 * 1024 * 1024
"""Bytes of journals in one commit of `capture`, by default."""
EVERY_S: Final = 60.0
_WAIT_S: Final = 1
_STARTS_MAX: Final = 3
"""Starts of a query whose Python process starts too slowly: the files that it reads are cached by then."""
_EXAMPLES: Final = """
  lightrail-spark capture --from /var/lib/lightrail/archive --to /lake/messages --available-now
  lightrail-spark capture --gateway https://broker:8080 --user audit --password-file /run/secrets/audit \\
      --from s3://bucket/archive --to s3://bucket/lake --reader audit
  lightrail-spark capture --from /var/lib/lightrail/archive --to /lake/orders --queues myapp/orders
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the parser of the command."""
    parser = add_command(
        subparsers,
        "capture",
        "write the events of messages to a Delta table, exactly once",
        "Writes a row for each message and event of captured queues to a Delta table, by queue, day, hour. "
        "If it is killed at any moment and started again, it writes no row twice and omits none: the table "
        "has the position in each journal. `lightrail-spark verify` checks this.",
        _EXAMPLES,
    )
    add_source(parser)
    group = parser.add_argument_group("destination")
    group.add_argument(
        "--to", metavar="TABLE", required=True, help="folder or URI of the table; created if missing"
    )
    group.add_argument(
        "--checkpoint",
        metavar="DIR",
        help=f"where Spark stores its progress: a folder of the driver, or a URI that Spark's Hadoop knows "
        f"(default TABLE/{CHECKPOINT}, or a temporary folder if TABLE is in an object store); if it is "
        "lost, capture continues at the end of the table",
    )
    when = group.add_mutually_exclusive_group()
    when.add_argument("--available-now", action="store_true", help="capture the present records, then end")
    when.add_argument(
        "--every", metavar="SECONDS", type=float, default=EVERY_S, help=f"run on (default {EVERY_S:.0f})"
    )
    group.add_argument(
        "--decode",
        choices=("none", "properties", "all"),
        default="properties",
        help="which parts of a message become columns (default properties); `message` always has its bytes",
    )
    group.add_argument(
        "--batch-bytes",
        metavar="SIZE",
        default=str(SPARK_LAKE_BATCH_BYTES),
        help="bytes of journals in one commit, such as 256m (default 1g)",
    )
    group.add_argument(
        "--reader",
        metavar="NAME",
        help="keep archived records until this reader has captured them (--gateway)",
    )
    add_allow_loss(group, "verify lists them")
    add_spark(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Exit status: 0 done or stopped by a signal.

    Raises:
        CommandError: the table or the journals are damaged, or of another kind.
        UnreachableError: an archive or gateway does not answer.
        UsageError: the options do not go together.
    """
    from lightrail.spark.lake.stream import Capture
    from lightrail.spark.lake.table import open_or_make

    options = source_options(args)
    options |= {"decode": args.decode, "maxBytesPerTrigger": args.batch_bytes}
    if args.reader:
        options["reader"] = args.reader
    if args.every <= 0:
        raise UsageError(f"--every {args.every:g}: expected seconds above 0")
    listed(options, streaming=True)
    table = open_or_make(args.to, selection(args.queues, args.queue_pattern))
    spark = session(args, "capture")
    progress = Progress()
    report = _Report(progress, args.json)
    with _checkpoint(args) as checkpoint:
        capture = Capture(spark, table, args.to, options, checkpoint, report.batch)
        try:
            _wait(capture, lambda: capture.start(args.available_now, args.every))
        finally:
            progress.finish()
    report.end(table.version())
    return DONE


@contextlib.contextmanager
def _checkpoint(args: argparse.Namespace) -> Iterator[str]:
    """Folder of Spark's checkpoint. If the table is in an object store, which Spark may not support, this is
    a temporary folder, and the next run continues at the end of the table."""
    from lightrail.spark.stores import scheme_of

    if args.checkpoint or scheme_of(args.to) is None:
        yield args.checkpoint or f"{args.to.rstrip('/')}/{CHECKPOINT}"
        return
    with tempfile.TemporaryDirectory(prefix="lightrail-capture-") as folder:
        yield folder


def selection(queues: str | None, pattern: str | None) -> dict[str, Any]:
    """The selection of a table's rows in a canonical form."""
    names = None if queues is None else sorted({each.strip() for each in queues.split(",") if each.strip()})
    return {"queues": names, "pattern": pattern}


def _wait(capture: "Capture", start: Callable[[], "StreamingQuery"]) -> None:
    """Starts the query, and waits until it ends or a signal arrives; an interrupted micro-batch is repeated
    later."""
    stop = threading.Event()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda *_: stop.set())
    try:
        for begun in range(1, _STARTS_MAX + 1):
            try:
                query = start()
                while not stop.is_set():
                    if query.awaitTermination(_WAIT_S):
                        return
                capture.stop(query)
                return
            except Exception as error:
                found = capture.problem or error
                if begun == _STARTS_MAX or stop.is_set() or not is_slow_start(found):
                    raise named(found) from error
                say("a Python process of Spark took more than 10 s to start: starting the capture again")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Report:
    """Progress of a capture, and its sums at the end."""

    def __init__(self, progress: Progress, as_json: bool) -> None:
        self._progress = progress
        self._json = as_json
        self._began_s = time.monotonic()
        self._totals = {"batches": 0, "records": 0, "rows": 0, "files": 0, "bytes": 0, "losses": 0}

    def batch(self, batch: "MicroBatch") -> None:
        """Counts a committed batch."""
        totals = self._totals
        totals["batches"] += 1
        for name in ("records", "rows", "files", "bytes"):
            totals[name] += getattr(batch, name)
        totals["losses"] += len(batch.losses)
        for loss in batch.losses:
            say(f"lost: {loss}")
        self._progress.update(
            f"batch {batch.number}: {batch.rows:,} rows in {batch.files:,} files; {totals['rows']:,} so far"
        )

    def end(self, version: int) -> None:
        """Reports the sums of the capture."""
        seconds = round(time.monotonic() - self._began_s, 3)
        if self._json:
            show_json({**self._totals, "seconds": seconds, "version": version})
        else:
            totals = self._totals
            print(
                f"{totals['rows']:,} rows of {totals['records']:,} records in {totals['batches']:,} batches "
                f"in {seconds:,.1f} s; the table is at version {version}"
            )
