"""What pages show beside views of the broker: filters of their templates, branches of the tree of names, the
picture of a router and everything behind it, and charts.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.listing import children
from lightrail.namespace.records import Subscription
from lightrail.namespace.rights import Caller, ForbiddenError
from lightrail.namespace.statuses import MissingError, ServiceError
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.control import ControlDownError

UNKNOWN: Final = "?"
"""A figure of a shard that does not answer."""


def number(value: float | None) -> str:
    """With separators: 12,345."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def size(value: float | None) -> str:
    """Bytes with a unit: 1.5 MB."""
    if value is None:
        return UNKNOWN
    for unit, step in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= step:
            return f"{value / step:.1f} {unit}"
    return f"{int(value)} B"


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def url(path: str, **query: Any) -> str:
    """A path with its query."""
    return f"{path}?{urlencode({key: value for key, value in query.items() if value != ''})}"


def time_of(value_ms: int | None) -> str:
    """Milliseconds since 1970 as a time in UTC."""
    if not value_ms:
        return "-"
    return datetime.fromtimestamp(value_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def shortened(text: str, length: int) -> str:
    """A long name without its beginning, since its end is more specific."""
    return text if len(text) <= length else "…" + text[-length + 1 :]


FILTERS: Final[Mapping[str, Callable[..., str]]] = {
    "number": number,
    "bytes": size,
    "json": as_json,
    "url": url,
    "time": time_of,
    "shortened": shortened,
}
"""Filters by their names in templates."""


class Branch(NamedTuple):
    """One segment below a name."""

    segment: str
    name: str
    role: str
    given: bool
    """Whether the name has a policy."""
    below: int
    """Number of names with a role below it."""


async def branches(
    directory: Directory, caller: Caller, prefix: str, after: str = ""
) -> AsyncIterator[Branch]:
    """The next segments below `prefix`, in order; those behind the segment `after`."""
    above = f"{prefix}/" if prefix else ""
    async for record, below in children(directory, caller, prefix, above + after if after else ""):
        given = directory.find(record.name) is record
        yield Branch(record.name[len(above) :], record.name, str(record.role), given, below)


COLUMN: Final = 260
ROW: Final = 64
BOX_WIDTH: Final = 200
BOX_HEIGHT: Final = 40
MARGIN: Final = 10
NODES_MAX: Final = 200
"""Boxes in one picture; a line below it has the number of the others."""


class Box(NamedTuple):
    """One name or URL of the picture; x and y are the upper left corner in pixels."""

    name: str
    role: str
    x: int
    y: int


class Line(NamedTuple):
    """A subscription: a line from one box to another."""

    x1: int
    y1: int
    x2: int
    y2: int
    label: str


class Picture(NamedTuple):
    width: int
    height: int
    boxes: list[Box]
    lines: list[Line]
    left_out: int


def draw(
    router: str, subscriptions: Callable[[str], Sequence[Subscription]], role: Callable[[str], Role]
) -> Picture:
    """The picture of one router, on the left; its targets are to the right of it, and so on."""
    column: dict[str, int] = {router: 0}
    edges: list[Subscription] = []
    waiting = [router]
    left_out = 0
    while waiting:
        name = waiting.pop(0)
        for each in subscriptions(name):
            if each.target not in column and len(column) >= NODES_MAX:
                left_out += 1
                continue
            edges.append(each)
            if column.get(each.target, -1) < column[name] + 1:
                # A box is right of all routers that feed it; there are no cycles.
                column[each.target] = column[name] + 1
                if not each.push and role(each.target) is Role.ROUTER:
                    waiting.append(each.target)
    rows: dict[int, int] = {}
    boxes: dict[str, Box] = {}
    for name, x in column.items():
        y = rows.get(x, 0)
        rows[x] = y + 1
        kind = "push" if name.startswith(("http://", "https://")) else str(role(name))
        boxes[name] = Box(name, kind, MARGIN + x * COLUMN, MARGIN + y * ROW)
    unique = {(each.router, each.id): each for each in edges}
    lines = [
        Line(
            boxes[each.router].x + BOX_WIDTH,
            boxes[each.router].y + BOX_HEIGHT // 2,
            boxes[each.target].x,
            boxes[each.target].y + BOX_HEIGHT // 2,
            "filter" if each.filter or each.rules is not None else "",
        )
        for each in unique.values()
    ]
    width = 2 * MARGIN + max(column.values()) * COLUMN + BOX_WIDTH
    height = 2 * MARGIN + (max(rows.values()) - 1) * ROW + BOX_HEIGHT
    return Picture(width, height, list(boxes.values()), lines, left_out)


SAMPLE_S: Final = 2.0
SAMPLES_MAX: Final = 300
"""Ten minutes."""
WATCHED_S: Final = 60.0
"""A page without a request for this time counts as closed, and its series is dropped."""
SERIES_MAX: Final = 200
"""Series at a time; the one with the oldest request is dropped."""


@dataclass(slots=True, eq=False, repr=False)
class Series:
    """Samples of named figures with their times."""

    caller: Caller
    """The last caller to request the series: it is sampled with the rights of this caller."""
    asked_s: float
    samples: deque[tuple[float, Mapping[str, float]]] = field(
        default_factory=lambda: deque(maxlen=SAMPLES_MAX)
    )


@dataclass(eq=False, repr=False)
class Charts:
    """The last minutes of the figures on open pages; the subject of a series is "" (the whole broker) or the
    name of a queue.

    Counters become rates when they are read. Figures of pages that are not open are not sampled.
    """

    _figures: Callable[[str, Caller], Awaitable[Mapping[str, float]]]
    """The present figures of a subject; raises ForbiddenError for a caller without a right to them."""
    _now_s: Callable[[], float]
    """Seconds since 1970."""
    _series: dict[str, Series] = field(default_factory=dict)
    _sampler: asyncio.Task[None] | None = None

    async def columns(
        self, of: str, caller: Caller, gauges: tuple[str, ...], counters: tuple[str, ...]
    ) -> dict[str, list[float]]:
        """Columns for a chart: `t` in seconds since 1970, gauges as they were, counters per second.

        The first request for a series starts its samples. Raises ForbiddenError.
        """
        figures = await self._figures(of, caller)
        samples = list(self._watch(of, caller, figures).samples)
        if self._sampler is None or self._sampler.done():
            self._sampler = asyncio.create_task(self._sample())
        result: dict[str, list[float]] = {"t": [time for time, _ in samples[1:]]}
        for name in gauges:
            result[name] = [figures.get(name, 0) for _, figures in samples[1:]]
        for name in counters:
            result[name] = [
                # A restarted process counts from 0.
                max(0.0, after.get(name, 0) - before.get(name, 0)) / max(later - earlier, 0.001)
                for (earlier, before), (later, after) in pairwise(samples)
            ]
        return result

    def _watch(self, of: str, caller: Caller, figures: Mapping[str, float]) -> Series:
        """The series that a page requests, moved to the end of all series."""
        now_s = self._now_s()
        series = self._series.pop(of, None)
        if series is None:
            series = Series(caller, now_s)
            series.samples.append((now_s, figures))
            if len(self._series) >= SERIES_MAX:
                del self._series[next(iter(self._series))]
        series.caller, series.asked_s = caller, now_s
        self._series[of] = series
        return series

    async def _sample(self) -> None:
        """Samples the series of open pages, until there are none."""
        while watched := self._watched():
            await asyncio.sleep(SAMPLE_S)
            # A series that began meanwhile has a first sample that is too young for a second one.
            for of in watched:
                series = self._series.get(of)
                if series is None:
                    continue
                try:
                    series.samples.append((self._now_s(), await self._figures(of, series.caller)))
                except (ShardDownError, ShardRefusedError, ControlDownError):
                    continue  # no figures now: the chart has a gap
                except (ForbiddenError, MissingError, ServiceError):
                    self._series.pop(of, None)

    def _watched(self) -> list[str]:
        """The subjects of series of open pages; drops the series of closed ones."""
        now_s = self._now_s()
        for of in [of for of, series in self._series.items() if now_s - series.asked_s > WATCHED_S]:
            del self._series[of]
        return list(self._series)

    async def stop(self, _: object = None) -> None:
        """Ends sampling."""
        if self._sampler is not None:
            self._sampler.cancel()
            await asyncio.gather(self._sampler, return_exceptions=True)
