"""Metrics: a count is a plain attribute that hot code adds to; a family defines how a scrape reads it.

Families are defined beside their counts, as in ``shard.py``; this file has the classes of families.

Merging: metrics of several processes, in Prometheus text format, as one text.

Text of format 0.0.4 is merged line by line, because parsing and printing every sample would cost a gateway
more than the scrape costs the processes. A family must stand in one piece, so samples are gathered by family.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, Literal, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Counts = TypeVar("Counts")
Labels = tuple[str, ...]

PAUSE_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SYNC_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
CALL_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
WAIT_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0, 3_600.0, 86_400.0)
BATCH_MESSAGES: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0, 100_000.0)


class Histogram:
    """Observations in fixed buckets; ``bounds`` rise, and each is the largest value of its bucket."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds of a histogram rise"
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it) as Prometheus has them, ``+Inf`` last."""
        total = 0
        buckets = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


@dataclass(frozen=True, slots=True)
class Family(Generic[Counts]):
    """One metric family: its name without ``_total``, and how its samples are read from the counts."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    labels: Labels
    read: Callable[[Counts], Iterable[tuple[Labels, float]]]

    def collect(self, counts: Counts) -> Metric:
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        metric: CounterMetricFamily | GaugeMetricFamily = make(self.name, self.help, labels=self.labels)
        for labels, value in self.read(counts):
            metric.add_metric(labels, value)
        return metric


@dataclass(frozen=True, slots=True)
class HistogramFamily(Generic[Counts]):
    """A histogram without labels."""

    name: str
    help: str
    read: Callable[[Counts], Histogram]

    def collect(self, counts: Counts) -> Metric:
        histogram = self.read(counts)
        metric = HistogramMetricFamily(self.name, self.help)
        metric.add_metric([], histogram.cumulative(), histogram.sum)
        return metric


AnyFamily = Family[Counts] | HistogramFamily[Counts]


Read = str | Callable[[Any], float]
"""An attribute of the counts (`a.b` that of an attribute), or a function of them."""
ReadEach = str | Mapping[str, str] | Callable[[Any], Mapping[str, float]]
"""Samples by the value of their label: an attribute that has all, an attribute for each, or a function."""


def counter(name: str, help: str, read: Read = "") -> Family[Any]:
    """A counter without labels; by default the attribute that is the name behind ``lightrail_``."""
    return Family("counter", name, help, (), _single(name, read))


def gauge(name: str, help: str, read: Read = "") -> Family[Any]:
    """A gauge without labels; by default the attribute that is the name behind ``lightrail_``."""
    return Family("gauge", name, help, (), _single(name, read))


def counters(name: str, help: str, label: str, read: ReadEach) -> Family[Any]:
    """A counter with one label."""
    return Family("counter", name, help, (label,), _labelled(read))


def gauges(name: str, help: str, label: str, read: ReadEach) -> Family[Any]:
    """A gauge with one label."""
    return Family("gauge", name, help, (label,), _labelled(read))


def _single(name: str, read: Read) -> Callable[[Any], Iterable[tuple[Labels, float]]]:
    function = attrgetter(read or name.removeprefix("lightrail_")) if isinstance(read, str) else read
    return lambda counts: [((), function(counts))]


def _labelled(read: ReadEach) -> Callable[[Any], Iterable[tuple[Labels, float]]]:
    if isinstance(read, Mapping):
        return lambda counts: [((value,), getattr(counts, name)) for value, name in read.items()]
    function = attrgetter(read) if isinstance(read, str) else read
    return lambda counts: [((value,), found) for value, found in function(counts).items()]


class FamilyCollector(Collector, Generic[Counts]):
    """Reads families from one process's counts when a scrape asks."""

    def __init__(self, families: Iterable[AnyFamily[Counts]], counts: Counts) -> None:
        self._families = tuple(families)
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield family.collect(self._counts)

    def describe(self) -> Iterator[Metric]:
        return iter(())  # names are checked by a test; at registration there is nothing to collect yet


def registry(families: Iterable[AnyFamily[Counts]], counts: Counts) -> CollectorRegistry:
    """A registry with the families."""
    made = CollectorRegistry()
    made.register(FamilyCollector(families, counts))
    return made


_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?( [-+.0-9A-Za-z]+(?: -?[0-9]+)?)")


def merge(sources: Iterable[tuple[Mapping[str, str], str]]) -> str:
    """One text of all ``sources``: (labels that each of its samples gets, its text).

    A family of several sources has the HELP and TYPE of the first source. Lines that are not samples are left
    out.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for labels, text in sources:
        added = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                kept = heads.setdefault(family, [])
                if not any(head.startswith(line[:7]) for head in kept):
                    kept.append(line)
                samples.setdefault(family, [])
                continue
            match = _SAMPLE.fullmatch(line)
            if match is None:
                continue
            name, own, value = match.groups()
            if not family or not name.startswith(family):
                family = name
            both = f"{own.rstrip(',')},{added}" if own and added else own or added
            samples.setdefault(family, []).append(f"{name}{{{both}}}{value}" if both else f"{name}{value}")
    lines = [line for family, rows in samples.items() if rows for line in (*heads.get(family, ()), *rows)]
    return "\n".join(lines) + "\n" if lines else ""


def escape(value: str) -> str:
    """A label value, escaped as the text format requires."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
