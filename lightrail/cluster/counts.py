"""Counts: calls of this process to the coordinator and their results, for /metrics."""

import time
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.telemetry.metrics import CALL_SECONDS, AnyFamily, Histogram, HistogramFamily, counter, gauge


@dataclass(slots=True, eq=False, repr=False)
class CoordinatorCounts:
    """Results of calls to the coordinator, which are reported on the loop."""

    answers: bool = True
    """Whether the last call succeeded; true after the coordinator was opened."""
    followed: bool = True
    """Whether changes arrive; always true for a file, which is polled."""
    failures: int = 0
    heard_s: float = field(default_factory=time.monotonic)
    """Time of the last successful call or change, by the monotonic clock."""
    full: int = 0
    """1 from the first write that is refused for lack of space until a write succeeds."""
    set_back: int = 0
    """1 while the coordinator lacks revisions that this process knows, and is not used."""
    watch_restarts: int = 0
    write_seconds: Histogram = field(default_factory=lambda: Histogram(CALL_SECONDS))

    def heard(self) -> None:
        """A call was answered, or the watch reported a change or the absence of changes."""
        self.answers = True
        self.heard_s = time.monotonic()

    def failed(self) -> None:
        """A call, or the watch, reached no coordinator."""
        self.answers = False
        self.failures += 1

    def watch_ended(self) -> None:
        """No changes arrive until the watch is restarted."""
        self.followed = False

    def watch_restarted(self) -> None:
        """The watch had ended and was restarted."""
        self.followed = True
        self.watch_restarts += 1

    def wrote(self, seconds: float) -> None:
        """A transaction that writes was answered in this time."""
        self.write_seconds.observe(seconds)

    @property
    def up(self) -> int:
        return int(self.answers and self.followed)

    @property
    def age_s(self) -> float:
        return max(0.0, time.monotonic() - self.heard_s)


COORDINATOR_FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    gauge(
        "lightrail_coordinator_up",
        "1 when the last call to the coordinator succeeded and its changes are followed.",
        "up",
    ),
    gauge(
        "lightrail_coordinator_contact_age_seconds", "Time since the last answer of the coordinator.", "age_s"
    ),
    gauge(
        "lightrail_coordinator_full",
        "1 while the coordinator refuses writes of this process because it has no space left.",
        "full",
    ),
    gauge(
        "lightrail_coordinator_set_back",
        "1 while the coordinator is set back, as by a restored snapshot; the known state is used.",
        "set_back",
    ),
    counter(
        "lightrail_coordinator_failures",
        "Failed calls to the coordinator, and failed attempts to follow its changes.",
        "failures",
    ),
    counter(
        "lightrail_coordinator_watch_restarts",
        "Times the watch of changes ended and was restarted.",
        "watch_restarts",
    ),
    HistogramFamily(
        "lightrail_coordinator_write_seconds",
        "Duration of this process's transactions at the coordinator.",
        lambda counts: counts.write_seconds,
    ),
)
