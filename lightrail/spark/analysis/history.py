"""History: every event with what is known of its message: when it came, its size, the deliveries before.

A message is (queue, sequence). It may be seen at several journals, when its queue moved, and a name that was
deleted and made again gives the same sequences once more: one *life* is one message. Within a journal the
lsn is the order of what happened, whatever its clock did; journals stand in the order of their first event.
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
"""Columns of the data source that are looked at; of `message` only its length."""


_AT: Final = ("queue", "sequence")
"""Columns that name a message, within one life."""


def history(events: "DataFrame") -> "DataFrame":
    """Rows of the data source, each with what is known of its message from all of them.

    Args:
        events: has the columns READ; further ones are left out.

    Returns:
        queue, shard, sequence, event, reason, producer, consumer as they came;
        `minute`: timestamp, of the event;
        `size`: bytes of the message as it was enqueued, null where that was not read;
        `waited_ms`: for an end, milliseconds since the message came, at least 0; null where not known;
        `again`: a delivery of a message that was delivered before;
        `older`: true in one row of each message whose beginning was not read: it was in the queue before.
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
        # greatest() passes over null: an unknown time would be 0.
        F.when(F.col("ends") & came.isNotNull(), F.greatest(waited, F.lit(0))).alias("waited_ms"),
        (delivered & (F.sum(delivered.cast("long")).over(in_order) > 1)).alias("again"),
        (~F.max("begins").over(life) & (F.row_number().over(in_order) == 1)).alias("older"),
    )


def _marked(events: "DataFrame") -> "DataFrame":
    """The columns in use, with what a row shows by itself: `begins`, `ends`, the size and the time."""
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
    """When the message of a row came to its queue, where the row says so.

    A message that was moved came when it was enqueued at its first shard, not when it was moved.
    """
    return (
        F.when(F.col("event") == str(Event.ENQUEUED), F.coalesce("enqueued_at", "event_time"))
        .when(F.col("event") == str(Event.MOVED), F.col("enqueued_at"))
        .otherwise(F.lit(None))
    )
