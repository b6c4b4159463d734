"""Loads: the load that each queue caused at its shard over a time, from the events of its messages."""

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documents call it

from lightrail.model.names import DEAD_LETTER_SEGMENT
from lightrail.spark.analysis.history import ENDS
from lightrail.spark.columns import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

READ: Final = ("queue", "event", "event_time", "message")
"""Columns of the data source that are read; of `message` only the length is used."""


class Load(NamedTuple):
    """One queue with its dead letters: messages and bytes per second that arrived, and that were delivered or
    ended."""

    messages: float
    bytes: float


class Loads(NamedTuple):
    """Loads of all queues with events."""

    queues: dict[str, Load]
    seconds: float
    """Seconds from the first to the last event of all queues; at least 1."""


def loads(events: "DataFrame", most: int) -> Loads | None:
    """Loads of all queues; None if there are more than `most` queues.

    Outgoing messages count with the mean size of incoming ones, because only enqueued events have bytes.

    Args:
        events: rows of the data source with the columns READ.
    """
    queue = F.regexp_replace("queue", f"/{DEAD_LETTER_SEGMENT.replace('$', '[$]')}$", "").alias("queue")
    came = F.col("event") == str(Event.ENQUEUED)
    ended = F.count_if(F.col("event").isin([str(each) for each in ENDS]))
    # Deliveries and ends of a message count once; old journals have no deliveries.
    out = F.greatest(F.count_if(F.col("event") == str(Event.DELIVERED)), ended)
    found = events.groupBy(queue).agg(
        F.count_if(came).alias("came"),
        F.coalesce(F.sum(F.when(came, F.length("message"))), F.lit(0)).alias("bytes"),
        out.alias("out"),
        F.min("event_time").alias("first"),
        F.max("event_time").alias("last"),
    )
    rows = found.limit(most + 1).toArrow().to_pylist()
    if len(rows) > most:
        return None
    if not rows:
        return Loads({}, 1.0)
    length = max(row["last"] for row in rows) - min(row["first"] for row in rows)
    seconds = max(length.total_seconds(), 1.0)
    return Loads(
        {
            row["queue"]: Load(
                (row["came"] + row["out"]) / seconds,
                row["bytes"] * (1 + row["out"] / row["came"]) / seconds if row["came"] else 0.0,
            )
            for row in rows
        },
        seconds,
    )
