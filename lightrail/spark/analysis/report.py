"""The report: figures as one self-contained HTML page."""

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lightrail.console.terminal import printable
from lightrail.spark.analysis.charts import NONE, Bars, Chart, bars, chart, number
from lightrail.spark.analysis.figures import Figures, until

SPARK_REPORT_TEXT_MAX: Final[int] = 120
"""Characters of a name or reason in a report; of a longer one the end is shown."""
_TEMPLATES: Final = Path(__file__).parent / "templates"
_UNITS: Final = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def page(shown: Figures, title: str) -> str:
    """The HTML of the page, a function of the figures.

    Args:
        title: title of the page.
    """
    templates = Environment(
        loader=FileSystemLoader(str(_TEMPLATES)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(number=number, bytes=size, shortened=shortened, time=duration)
    step_s = shown.step_minutes * 60
    return templates.get_template("report.html").render(
        title=title,
        shown=shown,
        until=until(shown),
        step=step_text(shown.step_minutes),
        seconds=len(shown.times) * step_s,
        charts=charts_of(shown) if shown.times else [],
        reasons=reasons_of(shown),
    )


def write(text: str, path: str) -> None:
    """Writes the page to `path` atomically. Raises OSError."""
    beside = f"{path}.new"
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(beside, path)


def charts_of(shown: Figures) -> list[Chart]:
    """All charts over time."""
    step = timedelta(minutes=shown.step_minutes)
    step_s = step.total_seconds()

    def rates(values: Sequence[int]) -> list[float | None]:
        return [value / step_s for value in values]

    def lines(id: str, title: str, unit: str, series: Mapping[str, Sequence[float | None]]) -> Chart:
        return chart(id, title, unit, shown.times, step, series)

    return [
        lines(
            "rates",
            "Messages per second, all queues",
            "per second",
            {"in": rates(shown.enqueued), "out": rates(shown.ended)},
        ),
        lines(
            "waits",
            "Time in queue of messages that left, all queues",
            "ms",
            {"p50": shown.p50_ms, "p99": shown.p99_ms},
        ),
        lines("depth", "Messages in all queues", "messages", {"messages": shown.depth}),
        lines(
            "redelivered",
            "Deliveries of messages that were delivered before, per second",
            "per second",
            {"delivered again": rates(shown.redelivered)},
        ),
        lines(
            "rates-by-queue",
            "Messages in per second, by queue",
            "per second",
            {_of_others(each): rates(values) for each, values in shown.enqueued_by_queue.items()},
        ),
        lines(
            "depth-by-queue",
            "Messages in queues, by queue",
            "messages",
            {_of_others(each): values for each, values in shown.depth_by_queue.items()},
        ),
        lines(
            "rates-by-shard",
            "Messages in and out per second, by shard",
            "per second",
            {
                "all others" if each is None else f"shard {each}": rates(values)
                for each, values in shown.messages_by_shard.items()
            },
        ),
    ]


def reasons_of(shown: Figures) -> Bars | None:
    """Dead letters by reason."""
    if not shown.reasons:
        return None
    values = [(shortened(each["reason"]) or "none given", each["messages"]) for each in shown.reasons]
    if shown.other_reasons is not None:
        values.append(("other reasons", shown.other_reasons["messages"]))
    return bars("reasons", "Dead letters by reason", "messages", values)


def _of_others(queue: str | None) -> str:
    return "all others" if queue is None else shortened(queue)


def step_text(minutes: int) -> str:
    """The length of a step as text, such as "5 minutes"."""
    for unit, length in (("day", 1440), ("hour", 60), ("minute", 1)):
        if minutes % length == 0:
            count = minutes // length
            return f"{count} {unit}s" if count > 1 else unit
    raise AssertionError(minutes)


def size(value: float | None) -> str:
    """Bytes with a unit: 1.5 MB."""
    if value is None:
        return NONE
    for unit, step in _UNITS:
        if value >= step:
            return f"{value / step:.1f} {unit}"
    return f"{int(value)} B"


def duration(value_ms: float | None) -> str:
    """Milliseconds with a unit: 35 ms, 1.5 s, 2 min, 3.1 h."""
    if value_ms is None:
        return NONE
    for unit, step in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if value_ms >= step:
            return f"{value_ms / step:.1f} {unit}"
    return f"{number(value_ms)} ms"


def shortened(text: str, length: int = SPARK_REPORT_TEXT_MAX) -> str:
    """Shortens a name to its end, because beginnings of names differ less; escapes unprintable characters."""
    text = printable(text[-length - 1 :])
    return text if len(text) <= length else "…" + text[-length + 1 :]


def summary(shown: Figures) -> dict[str, Any]:
    """The result for --json, with full names."""
    end = until(shown)
    return {
        "first": shown.first and shown.first.isoformat(),
        "until": end and end.isoformat(),
        "totals": shown.totals,
        "queues": shown.queues,
        "other_queues": shown.other_queues,
        "shards": shown.shards,
        "other_shards": shown.other_shards,
        "dead_letters": shown.reasons,
        "other_dead_letters": shown.other_reasons,
    }
