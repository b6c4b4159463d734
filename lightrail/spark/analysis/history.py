"""History: every event with facts about its message: time of arrival, size, earlier deliveries.

A message is (queue, sequence). It has events in several journals when its queue moved. A name that was
deleted and created again repeats the same sequences, so a message is one *life* of (queue,
sequence). Events of a journal are ordered by lsn, also when a clock was set back; journals are ordered by
their first event.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documents call it

from lightrail.spark.columns import Event

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ENDS: Final = (
    Event.ACCEPTED,
    Event.REJECTED,
    Event.EXPIRED,
    Event.DEAD_LETTERED,
    Event.PURGED,
    Event.DISCARDED,
)
"""Events after which a message is no longer in its queue."""
READ: Final = (
    "queue",
    "shard",
    "journal",
    "sequence",
    "lsn",
    "event",
    "event_time",
    "enqueued_at",
    "reason",
    "producer",
    "consumer",
    "message",
)
"""Columns of the data source that are read; of `message` only the length is used."""


_AT: Final = ("queue", "sequence")
"""Columns that name a message, within one life."""


def history(events: "DataFrame") -> "DataFrame":
    """Rows of the data source, each with facts about its message from all rows.

    Args:
        events: has the columns READ; other columns are dropped.

    Returns:
        queue, shard, sequence, event, reason, producer, consumer: unchanged;
        `minute`: timestamp, of the event;
        `size`: bytes of the enqueued message, null where that event was not read;
        `waited_ms`: for an end, milliseconds since the message arrived, at least 0; null where unknown;
        `again`: a delivery of a message that was delivered before;
        `older`: true in one row of each message that was enqueued before the rows that were read.
    """
    rows = _with_life(_marked(events))
    life = Window.partitionBy(*_AT, "life")
    in_order = life.orderBy("journal_began", "journal", "lsn", "event")
    delivered = F.col("event") == str(Event.DELIVERED)
    came = F.min("own_came").over(life)
    waited = F.floor((F.unix_micros("event_time") - F.unix_micros(came)) / 1000)
    return rows.select(
        "queue",
        "shard",
        "sequence",
        "event",
        "reason",
        "producer",
        "consumer",
        F.date_trunc("minute", "event_time").alias("minute"),
        F.max("own_size").over(life).alias("size"),
        # greatest() ignores null, so an unknown time would become 0.
        F.when(F.col("ends") & came.isNotNull(), F.greatest(waited, F.lit(0))).alias("waited_ms"),
        (delivered & (F.sum(delivered.cast("long")).over(in_order) > 1)).alias("again"),
        (~F.max("begins").over(life) & (F.row_number().over(in_order) == 1)).alias("older"),
    )


def _marked(events: "DataFrame") -> "DataFrame":
    """The used columns, and those that follow from a single row: `begins`, `ends`, the size and the time."""
    return events.select(
        "queue",
        "shard",
        "journal",
        "sequence",
        "lsn",
        "event",
        "event_time",
        "reason",
        "producer",
        "consumer",
        F.length("message").cast("long").alias("own_size"),
        _came().alias("own_came"),
        (F.col("event") == str(Event.ENQUEUED)).alias("begins"),
        F.col("event").isin([str(each) for each in ENDS]).alias("ends"),
    )


def _with_life(rows: "DataFrame") -> "DataFrame":
    """Numbers the lives of each (queue, sequence): one begins with an ENQUEUED after an earlier event."""
    message = Window.partitionBy(*_AT)
    rows = rows.withColumn("journal_began", F.min("event_time").over(message.partitionBy(*_AT, "journal")))
    order = message.orderBy("journal_began", "journal", "lsn", "event")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    rows = rows.withColumn(
        "anew",
        F.col("begins") & F.coalesce(F.max(F.col("begins") | F.col("ends")).over(before), F.lit(False)),
    )
    until = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return rows.withColumn("life", F.sum(F.col("anew").cast("long")).over(until))


def _came() -> "Column":
    """Time of arrival of a row's message in its queue, if the row has it.

    A moved message arrived when it was enqueued at its first shard.
    """
    return (
        F.when(F.col("event") == str(Event.ENQUEUED), F.coalesce("enqueued_at", "event_time"))
        .when(F.col("event") == str(Event.MOVED), F.col("enqueued_at"))
        .otherwise(F.lit(None))
    )
