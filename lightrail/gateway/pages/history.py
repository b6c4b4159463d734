"""History: the last minutes of a few figures, kept while somebody looks, for charts that begin with a past.

Counters become rates when they are read. Nothing is sampled for pages that nobody has open.
"""

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

SAMPLE_S: Final = 2.0
SAMPLES_MAX: Final = 300
"""Ten minutes."""
WATCHED_S: Final = 60.0
"""A page that has not asked for so long is closed: its series is forgotten."""
SERIES_MAX: Final = 200
"""Series at a time; the one that was longest not asked for goes."""


class Series:
    """Samples of named figures under their times."""

    __slots__ = ("asked_s", "samples")

    def __init__(self, now_s: float) -> None:
        self.asked_s = now_s
        self.samples: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=SAMPLES_MAX)


class History:
    """Series by what they are of: "" for the whole broker, else the name of a queue."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}

    def watch(self, of: str, now_s: float) -> bool:
        """Somebody looks. Returns whether the series is new."""
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
        """What to sample now; forgets what nobody looks at any more."""
        for of in [of for of, series in self._series.items() if now_s - series.asked_s > WATCHED_S]:
            del self._series[of]
        return list(self._series)

    def add(self, of: str, now_s: float, figures: Mapping[str, float]) -> None:
        """One sample; times rise."""
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
                # A process that was started again counts from 0.
                max(0.0, after.get(name, 0) - before.get(name, 0)) / max(later - earlier, 0.001)
                for (earlier, before), (later, after) in pairwise(samples)
            ]
        return result
