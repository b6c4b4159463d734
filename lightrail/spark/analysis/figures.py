"""Figures: the contents of a report, bounded for any number of queues, shards and minutes.

The largest queues and shards are named and the others summed; minutes are merged into longer steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documents call it

from lightrail.spark.analysis.tables import SUMMED, AnalysisTables, percentiles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SPARK_REPORT_STEPS_MAX: Final[int] = 120
"""Points in time of a chart."""
SPARK_REPORT_REASONS_MAX: Final[int] = 12
"""Reasons of dead letters that a report names."""
STEPS_MINUTES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440)
"""Lengths that a step may have; longer ones are whole days."""
LINES: Final = 5
"""Maximum number of queues or shards with a separate line in a chart."""


@dataclass(slots=True)
class Figures:
    """Rows are as in the tables; every list by time has a value for each of `times`."""

    first: datetime | None = None
    last: datetime | None = None
    """The last minute."""
    step_minutes: int = 1
    times: list[datetime] = field(default_factory=list)
    """Begin of each step, in UTC."""
    totals: dict[str, Any] = field(default_factory=dict)
    """Sums over all queues, and `queues`, `p50_ms`, `p99_ms`, `depth_known`, `depth_last`."""
    queues: list[dict[str, Any]] = field(default_factory=list)
    """The queues with the most messages in and out."""
    other_queues: dict[str, Any] | None = None
    """The sum of all others; `queues` is their number."""
    shards: list[dict[str, Any]] = field(default_factory=list)
    other_shards: dict[str, Any] | None = None
    reasons: list[dict[str, Any]] = field(default_factory=list)
    """`reason` and `messages` of dead letters, the most frequent reason first."""
    other_reasons: dict[str, Any] | None = None
    enqueued: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    redelivered: list[int] = field(default_factory=list)
    p50_ms: list[int | None] = field(default_factory=list)
    p99_ms: list[int | None] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    enqueued_by_queue: dict[str | None, list[int]] = field(default_factory=dict)
    """Enqueued messages by queue; the key None has the sum of all others."""
    depth_by_queue: dict[str | None, list[int]] = field(default_factory=dict)
    messages_by_shard: dict[int | None, list[int]] = field(default_factory=dict)
    """Messages in and out by shard; the key None has the sum of all others."""


def figures(found: AnalysisTables, rows: "DataFrame", top: int) -> Figures:
    """Computes the figures.

    Args:
        found: the tables, which should be persisted because each is read several times.
        rows: their history.
        top: number of queues and shards that are named.
    """
    sums = [F.sum(each).alias(each) for each in (*SUMMED, "depth_first", "depth_last")]
    (totals,) = _rows(
        found.queues.agg(
            F.count("*").alias("queues"),
            F.min("first_minute").alias("first"),
            F.max("last_minute").alias("last"),
            F.bool_and("depth_known").alias("depth_known"),
            *sums,
        )
    )
    if not totals["queues"]:
        return Figures()
    first, last = _utc(totals.pop("first")), _utc(totals.pop("last"))
    shown = Figures(first, last)
    shown.step_minutes = step_of(int((last - first).total_seconds()) // 60 + 1)
    shown.times = steps(first, last, shown.step_minutes)
    _queues(shown, found, rows, totals, top)
    _by_time(shown, found, rows)
    _shards(shown, found, top)
    _reasons(shown, found)
    return shown


def step_of(minutes: int) -> int:
    """Minutes of a step, so that a window of so many minutes has at most SPARK_REPORT_STEPS_MAX steps."""
    # The first step may begin before the window, which makes one more.
    fit = SPARK_REPORT_STEPS_MAX - 1
    for each in STEPS_MINUTES:
        if minutes <= each * fit:
            return each
    day = STEPS_MINUTES[-1]
    return day * -(-minutes // (day * fit))


def steps(first: datetime, last: datetime, minutes: int) -> list[datetime]:
    """The beginnings of all steps from `first` to `last`; they are multiples of the step since 1970."""
    length_s = minutes * 60
    begin, end = (int(each.timestamp()) // length_s for each in (first, last))
    return [datetime.fromtimestamp(each * length_s, UTC) for each in range(begin, end + 1)]


def _queues(
    shown: Figures, found: AnalysisTables, rows: "DataFrame", totals: dict[str, Any], top: int
) -> None:
    busy = F.col("enqueued") + F.col("ended")
    shown.queues = _rows(found.queues.orderBy(busy.desc(), "queue").limit(top))
    (waits,) = _rows(percentiles(rows, ["all"], {"all": F.lit(1)})) or [{}]
    shown.totals = totals | {name: waits.get(name) for name in ("waits", "p50_ms", "p99_ms")}
    shown.other_queues = _others(totals, shown.queues, (*SUMMED, "depth_first", "depth_last"), "queues")


def _by_time(shown: Figures, found: AnalysisTables, rows: "DataFrame") -> None:
    named = [each["queue"] for each in shown.queues[:LINES]]
    who = F.when(F.col("queue").isin(named), F.col("queue")).alias("queue") if named else None
    at = _step(shown.step_minutes)
    sums = [F.sum(each).alias(each) for each in ("enqueued", "ended", "redelivered")]
    points = _rows(found.minutes.groupBy(at, *([who] if who is not None else [])).agg(*sums))
    everyone: list[str | None] = [*named, None] if shown.totals["queues"] > len(named) else [*named]
    index = {when: position for position, when in enumerate(shown.times)}
    zeros = [0] * len(shown.times)
    shown.enqueued, shown.ended, shown.redelivered = list(zeros), list(zeros), list(zeros)
    net: dict[str | None, list[int]] = {each: list(zeros) for each in everyone}
    shown.enqueued_by_queue = {each: list(zeros) for each in everyone}
    for point in points:
        position, queue = index[_utc(point["step"])], point["queue"]
        shown.enqueued[position] += point["enqueued"]
        shown.ended[position] += point["ended"]
        shown.redelivered[position] += point["redelivered"]
        shown.enqueued_by_queue[queue][position] += point["enqueued"]
        net[queue][position] += point["enqueued"] - point["ended"]
    begin: dict[str | None, int] = {each["queue"]: each["depth_first"] for each in shown.queues[:LINES]}
    begin[None] = shown.totals["depth_first"] - sum(begin.values())
    shown.depth_by_queue = {each: _running(begin[each], net[each]) for each in everyone}
    shown.depth = [sum(values) for values in zip(*shown.depth_by_queue.values(), strict=True)]
    shown.p50_ms, shown.p99_ms = [None] * len(shown.times), [None] * len(shown.times)
    for point in _rows(percentiles(rows, ["step"], {"step": at})):
        position = index[_utc(point["step"])]
        shown.p50_ms[position], shown.p99_ms[position] = point["p50_ms"], point["p99_ms"]


_OF_SHARD: Final = (
    *("messages_in", "bytes_in", "messages_out", "bytes_out", "delivered"),
    *("messages_moved_in", "bytes_moved_in"),
)


def _shards(shown: Figures, found: AnalysisTables, top: int) -> None:
    # There are few shards, since each is a process.
    by_shard = _rows(found.shards.groupBy("shard").agg(*(F.sum(each).alias(each) for each in _OF_SHARD)))
    by_shard.sort(key=lambda each: (-each["messages_in"] - each["messages_out"], each["shard"]))
    shown.shards = by_shard[:top]
    total = {each: sum(row[each] or 0 for row in by_shard) for each in _OF_SHARD}
    shown.other_shards = _others(total | {"shards": len(by_shard)}, shown.shards, _OF_SHARD, "shards")
    named = [each["shard"] for each in shown.shards[:LINES]]
    who = F.when(F.col("shard").isin(named), F.col("shard")).alias("shard")
    everyone: list[int | None] = [*named, None] if len(by_shard) > len(named) else [*named]
    index = {when: position for position, when in enumerate(shown.times)}
    shown.messages_by_shard = {each: [0] * len(shown.times) for each in everyone}
    busy = F.sum(F.col("messages_in") + F.col("messages_out")).alias("messages")
    for point in _rows(found.shards.groupBy(_step(shown.step_minutes), who).agg(busy)):
        shown.messages_by_shard[point["shard"]][index[_utc(point["step"])]] += point["messages"]


def _reasons(shown: Figures, found: AnalysisTables) -> None:
    messages = F.sum("messages").alias("messages")
    by_reason = found.dead_letters.groupBy("reason").agg(messages)
    shown.reasons = _rows(by_reason.orderBy(F.desc("messages"), "reason").limit(SPARK_REPORT_REASONS_MAX))
    left = shown.totals["dead_lettered"] - sum(each["messages"] for each in shown.reasons)
    shown.other_reasons = {"messages": left} if left else None


def _others(
    total: dict[str, Any], named: Sequence[dict[str, Any]], columns: Iterable[str], count: str
) -> dict[str, Any] | None:
    """The sums of all rows but the named ones; None if all rows are named."""
    left = total[count] - len(named)
    if not left:
        return None
    rest: dict[str, Any] = {
        each: (total[each] or 0) - sum(row[each] or 0 for row in named) for each in columns
    }
    return rest | {count: left}


def _step(minutes: int) -> "Column":
    length_s = minutes * 60
    return F.timestamp_seconds(F.floor(F.unix_timestamp("minute") / length_s) * length_s).alias("step")


def _running(begin: int, net: Sequence[int]) -> list[int]:
    values = []
    for each in net:
        begin += each
        values.append(begin)
    return values


def _rows(frame: "DataFrame") -> list[dict[str, Any]]:
    """The rows of a frame that is known to be small."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def _utc(when: datetime) -> datetime:
    """Spark returns times in the zone of its session."""
    return when.astimezone(UTC)


def until(shown: Figures) -> datetime | None:
    """End of the window."""
    return None if shown.last is None else shown.last + timedelta(minutes=1)
