"""Tables: events by queue and minute, dead letters by reason, shards by minute, whole queues.

Spark computes them from the history of messages (history.py), without rows in the driver. Percentiles are
exact, by nearest rank, from counts of whole milliseconds: the same rows give the same tables, and Spark
spills to its disks.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documents call it

from lightrail.spark.analysis.history import ENDS
from lightrail.spark.columns import Event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_S: Final = 60
COUNTED: Final = (Event.ENQUEUED, *ENDS, Event.RELEASED, Event.MODIFIED, Event.DELIVERED, Event.MOVED)
"""Events with a separate column that counts their messages."""
SUMMED: Final = (*(str(each) for each in COUNTED), "ended", "redelivered", "bytes_in", "bytes_out")
"""Columns that can be summed over minutes and queues."""


class AnalysisTables(NamedTuple):
    """The tables of `analyse`. docs/operate/analyse.md has their names and columns."""

    minutes: "DataFrame"
    dead_letters: "DataFrame"
    shards: "DataFrame"
    queues: "DataFrame"


ORDER: Final = {
    "minutes": ("queue", "minute"),
    "dead_letters": ("queue", "minute", "reason"),
    "shards": ("shard", "minute"),
    "queues": ("queue",),
}
"""The key columns of each table, by which the rows of its files are sorted."""


def tables(rows: "DataFrame") -> AnalysisTables:
    """All tables of a history, which should be persisted because each table reads it.

    `minutes` is persisted on Spark's disks for `queues`, until the caller calls unpersist().
    """
    of_minutes = minutes(rows).persist(StorageLevel.DISK_ONLY)
    others = (dead_letters(rows), shards(rows), queues(rows, of_minutes))
    return AnalysisTables(of_minutes, *(each.persist(StorageLevel.DISK_ONLY) for each in others))


def minutes(rows: "DataFrame") -> "DataFrame":
    """One row per queue and minute with events."""
    at = ("queue", "minute")
    # The number of messages before the first row, and whether there may be more without any event:
    # sequences begin at 0, so where message 0 was enqueued, there were none before.
    found = rows.groupBy(*at).agg(
        *_counts(),
        *_people(),
        F.count_if("older").alias("older"),
        F.min(F.when(_is(Event.ENQUEUED), F.col("sequence"))).alias("first_sequence"),
    )
    queue = Window.partitionBy("queue")
    running = queue.orderBy("minute").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    older = F.sum("older").over(queue)
    from_first = F.coalesce(F.min("first_sequence").over(queue) == 0, F.lit(False))
    found = found.select(
        *at,
        *SUMMED,
        (F.col("enqueued") / MINUTE_S).alias("in_per_s"),
        (F.col("ended") / MINUTE_S).alias("out_per_s"),
        (older + F.sum(F.col("enqueued") - F.col("ended")).over(running)).alias("depth"),
        (from_first & (older == 0)).alias("depth_known"),
        "producers",
        "consumers",
    )
    return found.join(percentiles(rows, at), list(at), "left")


def dead_letters(rows: "DataFrame") -> "DataFrame":
    """One row per queue, minute and reason for which messages became dead letters."""
    dead = rows.where(F.col("event") == str(Event.DEAD_LETTERED))
    return dead.groupBy("queue", "minute", F.coalesce("reason", F.lit("")).alias("reason")).agg(
        F.count("*").alias("messages"), F.sum("size").alias("bytes")
    )


def shards(rows: "DataFrame") -> "DataFrame":
    """One row per shard and minute in which messages arrived or left; moves do not count."""
    came, moved = _is(Event.ENQUEUED), _is(Event.MOVED)
    found = rows.groupBy("shard", "minute").agg(
        F.count_if(came).alias("messages_in"),
        F.sum(F.when(came, F.col("size"))).alias("bytes_in"),
        F.count_if(_ended()).alias("messages_out"),
        F.sum(F.when(_ended(), F.col("size"))).alias("bytes_out"),
        F.count_if(_is(Event.DELIVERED)).alias("delivered"),
        F.count_if(moved).alias("messages_moved_in"),
        F.sum(F.when(moved, F.col("size"))).alias("bytes_moved_in"),
        F.count_distinct("queue").alias("queues"),
    )
    return found


def queues(rows: "DataFrame", minutes: "DataFrame") -> "DataFrame":
    """One row per queue over all rows.

    Args:
        minutes: of the same rows, see `minutes`.
    """
    at = ("queue",)
    first = F.min_by(F.col("depth") - F.col("enqueued") + F.col("ended"), "minute")
    found = minutes.groupBy(*at).agg(
        F.min("minute").alias("first_minute"),
        F.max("minute").alias("last_minute"),
        *(F.sum(each).alias(each) for each in SUMMED),
        first.alias("depth_first"),
        F.greatest(first, F.max("depth")).alias("depth_max"),
        F.max_by("depth", "minute").alias("depth_last"),
        F.bool_and("depth_known").alias("depth_known"),
    )
    people = rows.groupBy(*at).agg(*_people())
    return found.join(people, list(at)).join(percentiles(rows, at), list(at), "left")


def percentiles(
    rows: "DataFrame", at: Sequence[str], more: Mapping[str, "Column"] = MappingProxyType({})
) -> "DataFrame":
    """Times in queue of messages that ended, by `at`: number of known times, p50 and p99 by nearest rank.

    The p-th percentile is the smallest time for which p % of all times are not larger.

    Args:
        rows: a history.
        at: names of columns.
        more: columns of `at` that are computed from those of the history, by name.
    """
    keys = [more.get(each, F.col(each)).alias(each) for each in at]
    known = rows.where(F.col("waited_ms").isNotNull())
    counts = known.groupBy(*keys, "waited_ms").agg(F.count("*").alias("n"))
    group = Window.partitionBy(*at)
    rising = group.orderBy("waited_ms").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = counts.select(
        *at, "waited_ms", "n", F.sum("n").over(rising).alias("rank"), F.sum("n").over(group).alias("total")
    )
    return ranked.groupBy(*at).agg(F.sum("n").alias("waits"), _ranked(50), _ranked(99))


def _ranked(percent: int) -> "Column":
    reached = F.col("rank") * 100 >= F.col("total") * percent
    return F.min(F.when(reached, F.col("waited_ms"))).alias(f"p{percent}_ms")


def _is(event: Event) -> "Column":
    return F.col("event") == str(event)


def _ended() -> "Column":
    return F.col("event").isin([str(each) for each in ENDS])


def _counts() -> list["Column"]:
    return [
        *(F.count_if(_is(each)).alias(str(each)) for each in COUNTED),
        F.count_if(_ended()).alias("ended"),
        F.count_if(F.col("again")).alias("redelivered"),
        F.sum(F.when(_is(Event.ENQUEUED), F.col("size"))).alias("bytes_in"),
        F.sum(F.when(_ended(), F.col("size"))).alias("bytes_out"),
    ]


def _people() -> list["Column"]:
    """Number of links that sent, and number of links that received."""
    return [F.count_distinct(each).alias(f"{each}s") for each in ("producer", "consumer")]
