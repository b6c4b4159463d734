"""Replaying: sends archived messages again, in the order of each queue, marked as replayed.

Before anything is sent, the position of the source is stored: offsets of journals, or the version of a table.
So a run that was killed reads the same rows when it continues, its tasks make the same numbers, and the
broker stores nothing twice. This pin is a small file, which must outlive the driver.
"""

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lightrail.spark.command import CommandError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = 2
"""1: messages were sent with their own headers, in other batches."""
ORDER: Final = ("queue", "epoch", "sequence", "journal", "lsn")
"""Sequences of a queue rise across moves. They begin anew if a queue is deleted and created again."""
COLUMNS: Final = (*ORDER, "event", "event_time", "message", "durable")
"""Columns that are read if there is no --where."""


@dataclass
class ReplayRun:
    """The parameters of one replay, unchanged from its first start to its end.

    Attributes:
        asked: options of the command; a run continues only with the same ones.
        pin: position of the source: options of the data source, or the version of a table.
        tasks: number of concurrent tasks; rows are assigned to them by queue.
        began_ms: time of the first start, in milliseconds since 1970.
    """

    id: str
    asked: dict[str, Any]
    pin: dict[str, Any]
    tasks: int
    batch_messages: int
    began_ms: int
    nonce: str = ""
    done: bool = False
    format: int = FORMAT

    @property
    def producer(self) -> str:
        """The option `id` of the sink, which is unique to this run."""
        return f"replay-{self.id}-{self.nonce}"


def new_run(
    id: str, asked: dict[str, Any], pin: dict[str, Any], tasks: int, rate: float, began_ms: int
) -> ReplayRun:
    """Begins a run, with batches of at most a second's messages at its rate."""
    batch = max(1, min(1_000, int(rate / tasks)))
    return ReplayRun(id, asked, pin, tasks, batch, began_ms, nonce=uuid.uuid4().hex[:12])


def state_file(folder: str, id: str) -> Path:
    """Path of the file of a run. Raises UsageError for a name that is no file name."""
    if not (id and id.isascii() and id.replace("-", "").replace("_", "").replace(".", "").isalnum()):
        raise UsageError(f"--id {id!a}: expected letters, digits, and - _ . between them")
    if id.startswith(".") or len(id) > 100:
        raise UsageError(f"--id {id!a}: expected up to 100 characters, the first of them no dot")
    return Path(folder) / f"{id}.replay.json"


def load(path: Path, asked: Mapping[str, Any]) -> ReplayRun | None:
    """The run that began under this name, or None.

    Raises:
        UsageError: the run has other options. CommandError: the file can't be read.
    """
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{path} can't be read: {error}; without it a run can't continue. Use another --id"
        ) from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise CommandError(f"{path}: expected a replay of format {FORMAT}; it was written by another version")
    run = ReplayRun(**fields)
    for name, value in asked.items():
        if run.asked.get(name) != value:
            raise UsageError(
                f"--id {run.id} began with {name} {run.asked.get(name)!r}, now it is {value!r}: give the "
                "same options to continue, or another --id"
            )
    return run


def save(path: Path, run: ReplayRun) -> None:
    """Writes the file of the run atomically. Raises CommandError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(fresh, "w", encoding="utf-8") as file:
            json.dump(asdict(run), file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        raise CommandError(f"{path} can't be written: {error}; name a permanent folder by --state") from None


def pinned_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the data source, with the current offsets.

    Raises SourceError, DataLossError.
    """
    from lightrail.spark.journals.listing import Listing
    from lightrail.spark.reading.options import read_options
    from lightrail.spark.reading.planning import resolve

    read = read_options(options)
    start, end = resolve(read, Listing(read.paths, read.access).journals())
    rest = {name: value for name, value in options.items() if name != "startingTimestamp"}
    return rest | {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)}


def of_journals(spark: "SparkSession", options: Mapping[str, str], *, everything: bool) -> "DataFrame":
    """Rows of archives or gateways; with `everything` decoded, for conditions."""
    wanted = {"decode": "all"} if everything else {"decode": "none", "columns": ",".join(COLUMNS)}
    return spark.read.format("lightrail").options(**options, **wanted).load()


def of_table(spark: "SparkSession", uri: str, version: int) -> "DataFrame":
    """Rows of a table of `lightrail-spark capture`, as it was at a version. Raises CommandError."""
    from lightrail.spark.columns import SCHEMA
    from lightrail.spark.lake.opening import frame
    from lightrail.spark.lake.table import open_table

    table = open_table(uri)
    try:
        table.load_as_version(version)
    except Exception as error:  # the library raises various classes
        raise CommandError(
            f"version {version} of {uri} no longer exists: {error}. Sent messages stay; begin again with "
            "another --id and a --where that excludes them"
        ) from None
    return frame(spark, table, uri, SCHEMA.names)


def selected(
    rows: "DataFrame",
    *,
    where: str | None,
    since: Any = None,
    until: Any = None,
    queues: list[str] | None = None,
    pattern: str | None = None,
) -> "DataFrame":
    """The selected messages in their original form. Raises UsageError for an invalid condition."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documents call it

    found = rows.where((F.col("event") == "enqueued") & F.col("message").isNotNull())
    if since:
        found = found.where(F.col("event_time") >= F.lit(since))
    if until:
        found = found.where(F.col("event_time") < F.lit(until))
    if queues is not None:
        found = found.where(F.col("queue").isin(queues))
    if pattern is not None:
        found = found.where(F.regexp_like("queue", F.lit(f"^(?:{pattern})$")))
    if where:
        try:
            found = found.where(where)
            found.schema  # noqa: B018 - finds an invalid condition before the run begins
        except (AnalysisException, ParseException) as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(f"--where {where!a} is no condition on these columns: {reason}") from None
    return found


def counts(found: "DataFrame") -> list[dict[str, Any]]:
    """Number of messages, bytes, and times by queue, in the order of names."""
    from pyspark.sql import functions as F  # noqa: N812

    table = found.groupBy("queue").agg(
        F.count("*").alias("messages"),
        F.sum(F.octet_length("message")).alias("bytes"),
        F.min("event_time").alias("first"),
        F.max("event_time").alias("last"),
    )
    return [row.asDict() for row in table.orderBy("queue").collect()]


def send(found: "DataFrame", run: ReplayRun, options: Mapping[str, str], rate: float) -> None:
    """Sends the selected messages, those of each queue in order, with a common rate of all tasks.

    Args:
        options: options of the sink: gateway, credentials, and target unless messages return to their queues.
    """
    dealt = (
        found.select(*ORDER, "message", "durable")
        .repartition(run.tasks, "queue")
        .sortWithinPartitions(*ORDER)
    )
    writer = dealt.write.format("lightrail").options(**options)
    writer.option("id", run.producer).option("batchMessages", run.batch_messages).option(
        "messagesPerSecond", rate / run.tasks
    ).option("replayedAt", run.began_ms).mode("append").save()
