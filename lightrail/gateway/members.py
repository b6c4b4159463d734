"""Members: the other processes of this machine, as the supervisor tells the gateway."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from lightrail.telemetry.metrics import AnyFamily, Family, Labels, counter


@dataclass(frozen=True, slots=True)
class Member:
    """One process: its role and number, whether it serves, and where its own metrics are."""

    role: str
    id: int
    ready: bool
    restarts: int
    metrics: str | None
    """``HOST:PORT``"""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.id}"


class Members:
    """The list that came last; empty for a gateway that runs alone."""

    __slots__ = ("_list", "families", "known", "scrapes_failed")

    def __init__(self) -> None:
        self._list: list[Member] = []
        self.families = FAMILIES
        self.known = False
        """Whether a list has come."""
        self.scrapes_failed = 0

    def list(self) -> list[Member]:
        return self._list

    def update(self, message: dict[str, Any]) -> None:
        """Take a line of the supervisor; the gateway itself is left out."""
        if "processes" in message:
            self.known = True
            self._list = [
                Member(one["role"], one["id"], one["ready"], one["restarts"], one.get("metrics"))
                for one in message["processes"]
                if one["role"] != "gateway"
            ]


def _each(name: str) -> Any:
    def read(members: Members) -> Iterable[tuple[Labels, float]]:
        return [((one.role, str(one.id)), float(getattr(one, name))) for one in members.list()]

    return read


FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    Family(
        "gauge",
        "lightrail_process_ready",
        "1 for a process that serves.",
        ("of", "number"),
        _each("ready"),
    ),
    Family(
        "counter",
        "lightrail_process_restarts",
        "Times the supervisor has started a process again.",
        ("of", "number"),
        _each("restarts"),
    ),
    counter(
        "lightrail_scrapes_failed",
        "Processes that did not answer a /metrics in time.",
        "scrapes_failed",
    ),
)
