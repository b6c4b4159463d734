"""Running: metrics of a process of any role: its version, whether it serves, the delay of its event loop.

Every series of a process carries its role and number, at its own /metrics as well as at a gateway's, so that
one dashboard fits both.
"""

import asyncio
import platform
import ssl
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

from lightrail.model.clock import off_ms, wall_ms
from lightrail.model.settings import Settings
from lightrail.telemetry.interpreter import OPTIMISED
from lightrail.telemetry.merge import merge
from lightrail.telemetry.metrics import (
    LAG_SECONDS,
    AnyFamily,
    Family,
    FamilyCollector,
    Histogram,
    HistogramFamily,
    Labels,
)
from lightrail.telemetry.served_certificate import ServedCertificate

LAG_PERIOD_S: Final = 0.5
"""Pause between two measurements of the loop's delay."""


class Running:
    """One per process. `watch` and `unwatch` begin and end the measurement of its loop.

    Args:
        id: called at each scrape, because a process may get its number after it has started.
        optimised: whether its interpreter was built with optimisations.
    """

    __slots__ = (
        "_certificate",
        "_collectors",
        "_due",
        "_id",
        "_timer",
        "lag_seconds",
        "optimised",
        "ready",
        "role",
    )

    def __init__(self, role: str, id: Callable[[], int], *, optimised: bool = OPTIMISED) -> None:
        self.role = role
        self._id = id
        self.optimised = optimised
        self.ready: Callable[[], str | None] = lambda: "starting"
        """Why the process doesn't serve, or None."""
        self.lag_seconds = Histogram(LAG_SECONDS)
        self._certificate: ServedCertificate | None = None
        self._collectors: list[FamilyCollector[Any]] = [FamilyCollector(RUNNING_FAMILIES, self)]
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @property
    def name(self) -> str:
        """Its role and number, as in `shard-0`."""
        return f"{self.role}-{self._id()}"

    @property
    def labels(self) -> dict[str, str]:
        """Labels of each series of this process."""
        return {"role": self.role, "id": str(self._id())}

    @property
    def certificate_ends_s(self) -> float | None:
        """Expiry time of the served certificate, in seconds since 1970; None without TLS."""
        return None if self._certificate is None else self._certificate.ends_s

    def serve_tls(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> ssl.SSLContext:
        """The TLS context of the process, whose certificate follows its files. Raises SettingsError."""
        self._certificate = ServedCertificate(settings)
        self._certificate.watch(loop)
        return self._certificate.context

    def show(self, families: Iterable[AnyFamily[Any]], counts: Any) -> None:
        """Adds families, read from `counts`, to /metrics."""
        self._collectors.append(FamilyCollector(families, counts))

    def text(self, metrics: CollectorRegistry | None = None) -> str:
        """All families in the text format of Prometheus, with those of `metrics`."""
        own = CollectorRegistry()
        for collector in self._collectors:
            own.register(collector)
        ProcessCollector(registry=own)
        GCCollector(registry=own)
        texts = [generate_latest(own).decode()]
        if metrics is not None:
            texts.append(generate_latest(metrics).decode())
        return merge((self.labels, text) for text in texts)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to measure the loop's delay, twice a second."""
        self._due = loop.time() + LAG_PERIOD_S
        self._timer = loop.call_at(self._due, self._look, loop)

    def unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lag_seconds.observe(max(0.0, loop.time() - self._due))
        self.watch(loop)


def _build(_: Running) -> Iterable[tuple[Labels, float]]:
    return [((version("lightrail"), platform.python_version()), 1)]


def _certificate(running: Running) -> Iterable[tuple[Labels, float]]:
    ends_s = running.certificate_ends_s
    return [] if ends_s is None else [((), ends_s)]


RUNNING_FAMILIES: Final[tuple[AnyFamily[Running], ...]] = (
    Family(
        "gauge",
        "lightrail_build_info",
        "1; its labels are the versions of LightRail and of Python of this process.",
        ("version", "python"),
        _build,
    ),
    Family(
        "gauge",
        "lightrail_python_optimised",
        "1 when the Python of this process was built with optimisations; without, it needs more CPU.",
        (),
        lambda running: [((), float(running.optimised))],
    ),
    Family(
        "gauge",
        "lightrail_ready",
        "1 when this process serves, as /readyz reports it.",
        (),
        lambda running: [((), float(running.ready() is None))],
    ),
    Family(
        "gauge",
        "lightrail_clock_seconds",
        "The clock of this process, in seconds since 1970.",
        (),
        lambda _: [((), wall_ms() / 1000)],
    ),
    Family(
        "gauge",
        "lightrail_clock_off_seconds",
        "Machine's wall clock minus the clock of this process, which follows it slowly.",
        (),
        lambda _: [((), off_ms() / 1000)],
    ),
    HistogramFamily(
        "lightrail_event_loop_lag_seconds",
        "Delay of a timer on the event loop, measured twice a second.",
        lambda running: running.lag_seconds,
    ),
    Family(
        "gauge",
        "lightrail_tls_certificate_expiry_seconds",
        "Expiry time of the served certificate, in seconds since 1970; only with TLS.",
        (),
        _certificate,
    ),
)
