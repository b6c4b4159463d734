"""Members: the other processes, from the supervisor of this machine and from the cluster's map."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from lightrail.cluster.map import Map, MapChanges
from lightrail.cluster.map import Member as Registered
from lightrail.model.endpoint import endpoint
from lightrail.telemetry.metrics import AnyFamily, Family, Labels, counter


@dataclass(frozen=True, slots=True)
class Member:
    """One process: its role and number, whether it serves, and the address of its metrics."""

    role: str
    id: int
    ready: bool
    restarts: int
    metrics: str | None
    """``HOST:PORT``"""
    control: str | None = None
    """ZeroMQ address of a frontend's control socket."""
    supervised: bool = True
    """Whether the supervisor of this machine runs it; for other processes only the registration is known."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.id}"


class Members:
    """The supervisor's last list and other registered processes, without the gateway itself."""

    __slots__ = ("_list", "_registered", "_supervised", "families", "known", "scrapes_failed")

    def __init__(self) -> None:
        self._list: list[Member] = []
        self._supervised: list[Member] = []
        self._registered: list[Member] = []
        self.families = FAMILIES
        self.known = False
        """Whether the supervisor has sent a list."""
        self.scrapes_failed = 0

    def list(self) -> list[Member]:
        return self._list

    def update(self, message: dict[str, Any]) -> None:
        """Updates the members from a line of the supervisor."""
        if "processes" in message:
            self.known = True
            self._supervised = [
                Member(
                    one["role"],
                    one["id"],
                    one["ready"],
                    one["restarts"],
                    one.get("metrics"),
                    one.get("control"),
                )
                for one in message["processes"]
                if one["role"] != "gateway"
            ]
            self._unite()

    def follow(self, map: Map, boot: int, host: str) -> None:
        """Follows the registered processes, now and whenever they change.

        Args:
            boot: of this gateway.
            host: this machine; a loopback address of another machine can't be used.
        """

        def changed(_: MapChanges) -> None:
            tables = (("shard", map.shards), ("frontend", map.frontends), ("gateway", map.gateways))
            self._registered = [
                Member(
                    role,
                    each.id,
                    True,
                    0,
                    each.metrics if each.metrics and _can_be_reached(each, host) else None,
                    each.address if role == "frontend" and each.address else None,
                    False,
                )
                for role, table in tables
                for each in table.values()
                if each.boot != boot
            ]
            self._unite()

        map.listen(changed)
        changed(MapChanges())

    def _unite(self) -> None:
        supervised = {(each.role, each.id) for each in self._supervised}
        others = [each for each in self._registered if (each.role, each.id) not in supervised]
        self._list = self._supervised + sorted(others, key=lambda each: (each.role, each.id))


def _can_be_reached(member: Registered, host: str) -> bool:
    return member.host == host or not endpoint(member.metrics).loopback


def _each(name: str) -> Any:
    def read(members: Members) -> Iterable[tuple[Labels, float]]:
        return [((one.role, str(one.id)), float(getattr(one, name))) for one in members.list()]

    return read


FAMILIES: Final[tuple[AnyFamily[Any], ...]] = (
    Family(
        "gauge",
        "lightrail_process_ready",
        "1 for a process that serves, else 0.",
        ("of", "number"),
        _each("ready"),
    ),
    Family(
        "counter",
        "lightrail_process_restarts",
        "Times the supervisor of this machine has restarted a process.",
        ("of", "number"),
        lambda members: [
            ((one.role, str(one.id)), float(one.restarts)) for one in members.list() if one.supervised
        ],
    ),
    counter(
        "lightrail_scrapes_failed",
        "Processes that did not answer a scrape in time.",
        "scrapes_failed",
    ),
)
