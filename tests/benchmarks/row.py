"""One row of the table of targets: what is measured, what it should be, and what came out."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.broker import Broker

Figures = dict[str, Any]


@dataclass(slots=True)
class Workplace:
    """What a measurement may use."""

    scratch: str
    """An empty directory; gone after the run."""
    say: Callable[[str], None]

    def broker(self, *flags: str) -> Broker:
        """A broker of one frontend and one shard with fresh data, not yet started being waited for."""
        return Broker(f"{self.scratch}/data", "--frontends", "1", "--shards", "1", *flags)


@dataclass(frozen=True, slots=True)
class Limit:
    """A target: the median of a figure must not be above (or below) a value."""

    figure: str
    value: float
    unit: str
    at_least: bool = False

    def met(self, values: list[float]) -> bool:
        """Whether the median keeps to it."""
        median = statistics.median(values)
        return median >= self.value if self.at_least else median <= self.value

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.value:g} {self.unit}".strip()


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement and its targets."""

    name: str
    title: str
    commands: tuple[str, ...]
    limits: tuple[Limit, ...]
    measure: Callable[[Workplace], Figures]
    """One run: figures by name, those of the limits among them."""
    missing: Callable[[], str | None] = lambda: None
    """What this machine lacks to measure it: the row is left out then."""


@dataclass(slots=True)
class Result:
    """All runs of a row."""

    row: Row
    runs: list[Figures] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def values(self, figure: str) -> list[float]:
        """The figure of every run."""
        return [float(run[figure]) for run in self.runs if figure in run]

    def as_value(self) -> dict[str, Any]:
        """For docs/benchmarks.json."""
        return {
            "title": self.row.title,
            "commands": list(self.row.commands),
            "figures": [self._figure(limit) for limit in self.row.limits],
            "met": self.met,
            "failures": self.failures,
            "runs": self.runs,
        }

    @property
    def met(self) -> bool:
        """Whether every target was met and no run failed."""
        return not self.failures and all(
            (values := self.values(limit.figure)) and limit.met(values) for limit in self.row.limits
        )

    def _figure(self, limit: Limit) -> dict[str, Any]:
        values = self.values(limit.figure)
        spread = (
            {"median": statistics.median(values), "min": min(values), "max": max(values)} if values else {}
        )
        return {
            "figure": limit.figure,
            "unit": limit.unit,
            "target": str(limit),
            "met": bool(values) and limit.met(values) and not self.failures,
            "values": values,
            **spread,
        }
