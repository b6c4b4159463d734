"""Running: metrics of a process of any role: its version, whether it serves, the delay of its event loop.

Every series of a process carries its role and number, at its own /metrics as well as at a gateway's, so that
one dashboard fits both.
"""

import asyncio
import logging
import os
import platform
import ssl
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

from lightrail import native
from lightrail.model.clock import off_ms, wall_ms
from lightrail.model.setting_values import SettingsError
from lightrail.model.settings import Settings
from lightrail.model.tls import not_after, tls_context
from lightrail.telemetry.interpreter import OPTIMISED
from lightrail.telemetry.metrics import (
    LAG_SECONDS,
    AnyFamily,
    Family,
    FamilyCollector,
    Histogram,
    HistogramFamily,
    Labels,
    gauge,
    merge,
)

log = logging.getLogger("lightrail.telemetry.certificate")

LOOK_S: Final = 10.0
"""Pause between two looks at the files."""
LAG_PERIOD_S: Final = 0.5
"""Pause between two measurements of the loop's delay."""


class ServedCertificate:
    """The TLS context of a process's listeners, which follows the files of the settings.

    New connections get the certificate that was loaded last. Files that do not belong together, such as a new
    certificate whose key is not written yet, are not loaded until one of them changes again. Authorities of
    clients are added; one that is removed from its file is trusted until the process starts again.

    Args:
        settings: with a certificate.

    Raises SettingsError for files that can't be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._files = [
            each for each in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca) if each
        ]
        self._seen = self._states()
        self.context: Final = tls_context(settings)
        self.ends_s = not_after(settings.tls_certificate or "")
        """Expiry time of the certificate, in seconds since 1970."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks at the files from now on."""
        loop.call_later(LOOK_S, self._watch, loop)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self.load_changed()
        self.watch(loop)

    def load_changed(self) -> None:
        """Loads the certificate anew if a file has changed."""
        states = self._states()
        if states == self._seen:
            return
        self._seen = states
        settings = self._settings
        certificate = settings.tls_certificate or ""
        try:
            # In a context of its own first: one that fails in between has a certificate without its key.
            tls_context(settings)
            self.ends_s = not_after(certificate)
            self.context.load_cert_chain(certificate, settings.tls_key)
            if settings.tls_client_ca is not None:
                self.context.load_verify_locations(settings.tls_client_ca)
        except (SettingsError, OSError, ValueError) as error:
            log.warning("the former certificate is served until its files can be used: %s", error)
            return
        log.info("the certificate %s has changed, and is served to new connections", certificate)

    def _states(self) -> list[tuple[int, int, int] | None]:
        """What changes with the contents of each file; None for a file that can't be read now."""
        found: list[tuple[int, int, int] | None] = []
        for each in self._files:
            try:
                state = os.stat(each)
                found.append((state.st_ino, state.st_size, state.st_mtime_ns))
            except OSError:
                found.append(None)
        return found


class Running:
    """One per process. `watch` and `unwatch` begin and end the measurement of its loop.

    Args:
        id: called at each scrape, because a process may get its number after it has started.
        optimised: whether its interpreter was built with optimisations.
    """

    def __init__(self, role: str, id: Callable[[], int], *, optimised: bool = OPTIMISED) -> None:
        self.role = role
        self._id = id
        self.optimised = optimised
        self.follows = ""
        """Host of a member of a shard with replicas that follows the owner; empty for every other process."""
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
        if self.follows:
            # The series of the shard are those of the owner.
            return {"role": "follower", "id": f"{self._id()}/{self.follows}"}
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
        self._timer = loop.call_at(self._due, self._observe_lag, loop)

    def unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _observe_lag(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lag_seconds.observe(max(0.0, loop.time() - self._due))
        self.watch(loop)


def _build(_: Running) -> Iterable[tuple[Labels, float]]:
    return [((version("lightrail"), platform.python_version()), 1)]


def _compiled(running: Running) -> Iterable[tuple[Labels, float]]:
    return [((), float(native.is_used()))] if running.role in native.ROLES else []


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
    gauge(
        "lightrail_python_optimised",
        "1 when the Python of this process was built with optimisations; without, it needs more CPU.",
        "optimised",
    ),
    Family(
        "gauge",
        "lightrail_modules_compiled",
        "1 when this frontend or shard passes messages by machine code; 0: its modules are interpreted, for "
        "up to twice the CPU.",
        (),
        _compiled,
    ),
    gauge(
        "lightrail_ready",
        "1 when this process serves, as /readyz reports it.",
        lambda running: running.ready() is None,
    ),
    gauge(
        "lightrail_clock_seconds",
        "The clock of this process, in seconds since 1970.",
        lambda _: wall_ms() / 1000,
    ),
    gauge(
        "lightrail_clock_off_seconds",
        "Machine's wall clock minus the clock of this process, which follows it slowly.",
        lambda _: off_ms() / 1000,
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
