"""History: the last minutes of the figures on open pages, for their charts.

Counters become rates when they are read. Figures of pages that are not open are not sampled.
"""

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

SAMPLE_S: Final = 2.0
SAMPLES_MAX: Final = 300
"""Ten minutes."""
WATCHED_S: Final = 60.0
"""A page without a request for this time counts as closed, and its series is dropped."""
SERIES_MAX: Final = 200
"""Series at a time; the one with the oldest request is dropped."""


class Series:
    """Samples of named figures with their times."""

    __slots__ = ("asked_s", "samples")

    def __init__(self, now_s: float) -> None:
        self.asked_s = now_s
        self.samples: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=SAMPLES_MAX)


class History:
    """Series by subject: "" for the whole broker, or the name of a queue."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}

    def watch(self, of: str, now_s: float) -> bool:
        """Records that a page requests a series; returns whether the series is new."""
        series = self._series.pop(of, None)
        fresh = series is None
        if series is None:
            series = Series(now_s)
            if len(self._series) >= SERIES_MAX:
                del self._series[next(iter(self._series))]
        series.asked_s = now_s
        self._series[of] = series
        return fresh

    def watched(self, now_s: float) -> list[str]:
        """Subjects to sample now; drops the series of closed pages."""
        for of in [of for of, series in self._series.items() if now_s - series.asked_s > WATCHED_S]:
            del self._series[of]
        return list(self._series)

    def add(self, of: str, now_s: float, figures: Mapping[str, float]) -> None:
        """Adds a sample; times rise."""
        series = self._series.get(of)
        if series is not None:
            series.samples.append((now_s, figures))

    def forget(self, of: str) -> None:
        self._series.pop(of, None)

    def columns(self, of: str, gauges: tuple[str, ...], counters: tuple[str, ...]) -> dict[str, list[float]]:
        """Columns for a chart: `t` in seconds since 1970, gauges as they were, counters per second."""
        series = self._series.get(of)
        samples = list(series.samples) if series is not None else []
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
