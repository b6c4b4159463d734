"""Charts: lines over time and bars as SVG, laid out here and drawn by the template of the report.

Colours are classes of the page's style, so that a chart is readable in its dark and light form; lines differ
in their dashes as well, for readers who can't distinguish the colours.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from math import floor, log10
from typing import Final, NamedTuple

WIDTH: Final = 640
HEIGHT: Final = 220
LEFT: Final = 62
RIGHT: Final = 12
TOP: Final = 10
BOTTOM: Final = 26
_LABELS_ACROSS: Final = 5
_BAR: Final = 30
NONE: Final = "\N{EN DASH}"
"""Stands for an unknown number."""


class Tick(NamedTuple):
    """A label of an axis; `at` in pixels."""

    at: float
    text: str


class Line(NamedTuple):
    """`number` chooses colour and dashes; `path` is that of SVG."""

    label: str
    number: int
    path: str


class Chart(NamedTuple):
    """Lines over time. `rows` has the same data as a table: a time, and a text for each line."""

    id: str
    title: str
    about: str
    """A description of the chart, for screen readers."""
    unit: str
    lines: list[Line]
    across: list[Tick]
    up: list[Tick]
    rows: list[tuple[str, list[str]]]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM


class Bar(NamedTuple):
    """`y` and `width` in pixels."""

    label: str
    text: str
    y: int
    width: float


class Bars(NamedTuple):
    """Bars: numbers with names, the largest first."""

    id: str
    title: str
    about: str
    unit: str
    bars: list[Bar]
    height: int
    width: int = WIDTH


def chart(
    id: str,
    title: str,
    unit: str,
    times: Sequence[datetime],
    step: timedelta,
    series: Mapping[str, Sequence[float | None]],
    first_number: int = 0,
) -> Chart:
    """Lines over time; each series has a value, or none, for each time.

    Args:
        first_number: chooses the colour of the first line; the others follow.
    """
    most = max((value for values in series.values() for value in values if value is not None), default=0.0)
    ticks = scale(most)
    high = ticks[-1]
    bottom = HEIGHT - BOTTOM

    def x(index: int) -> float:
        # The value of a step is drawn at its middle.
        return LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / max(len(times), 1)

    def y(value: float) -> float:
        return bottom - (bottom - TOP) * value / high

    lines = [
        Line(
            label,
            first_number + number,
            _path([(x(i), None if v is None else y(v)) for i, v in enumerate(values)]),
        )
        for number, (label, values) in enumerate(series.items())
    ]
    whole_days = step >= timedelta(days=1)
    across = [Tick(x(i), time_text(times[i], times, whole_days)) for i in _spread(len(times))]
    rows = [
        (f"{when:%Y-%m-%d %H:%M}", [number(values[index]) for values in series.values()])
        for index, when in enumerate(times)
    ]
    names = ", ".join(series)
    about = f"Lines over time of {names}; the largest value is {number(most)} {unit}. The table has them all."
    return Chart(id, title, about, unit, lines, across, [Tick(y(each), number(each)) for each in ticks], rows)


def bars(id: str, title: str, unit: str, values: Sequence[tuple[str, float]]) -> Bars:
    """A bar for each name."""
    most = max((value for _, value in values), default=0) or 1
    drawn = [
        Bar(label, number(value), index * _BAR, round(max((WIDTH - 100) * value / most, 1.0), 1))
        for index, (label, value) in enumerate(values)
    ]
    about = "; ".join(f"{label}: {number(value)}" for label, value in values)
    return Bars(id, title, about, unit, drawn, max(len(values), 1) * _BAR)


def scale(most: float) -> list[float]:
    """Four to six round numbers, from 0 to one that is at least `most`."""
    if most < 1e-12:
        return [0.0, 1.0]
    rough = most / 5
    power = 10.0 ** floor(log10(rough))
    unit = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * 0.999)
    count = 1
    while count * unit < most * 0.999:
        count += 1
    return [float(f"{index * unit:.12g}") for index in range(count + 1)]


def number(value: float | None) -> str:
    """A number for readers: 12,345 or 0.25; NONE if it is unknown."""
    if value is None:
        return NONE
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def time_text(when: datetime, times: Sequence[datetime], whole_days: bool) -> str:
    """A time label, as short as the range of times allows."""
    if whole_days:
        return f"{when:%Y-%m-%d}"
    if times[-1] - times[0] >= timedelta(hours=20):
        return f"{when:%m-%d %H:%M}"
    return f"{when:%H:%M}"


def _spread(count: int) -> list[int]:
    """Evenly spread indices below `count`."""
    if count <= _LABELS_ACROSS:
        return list(range(count))
    return [index * (count - 1) // (_LABELS_ACROSS - 1) for index in range(_LABELS_ACROSS)]


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    """A line with gaps where there is no value; an isolated value is a dot."""
    parts = []
    drawing = False
    for index, (x, y) in enumerate(points):
        if y is None:
            drawing = False
            continue
        parts.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        if not drawing and (index + 1 == len(points) or points[index + 1][1] is None):
            parts.append("h0.1")
        drawing = True
    return "".join(parts)
