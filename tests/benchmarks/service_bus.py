"""Rows about one client of Azure's SDK for .NET that has much at once: entities, processors, sessions."""

from typing import Final

from lightrail.bench.kernel import resident_bytes
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from tests.benchmarks.holdings import Peak
from tests.benchmarks.load import LoadError
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.interop.azure_scene import connection_string, key_of
from tests.interop.programs import in_csharp, runs_csharp
from tests.support.broker import Broker
from tests.support.namespace import with_service

ENTITIES: Final = 1_000
LINKS_EACH: Final = 4
"""A sender, a receiver, and the pair of links for requests about it."""
PROCESSORS: Final = 200
SESSIONS: Final = 500
LOCK_S: Final = 20.0
SECONDS: Final = 600.0


def _missing() -> str | None:
    return None if runs_csharp() else "neither ../shared/dotnet/csrun nor dotnet was found"


def _queues(broker: Broker, count: int, lock_s: float) -> str:
    """Makes queues many/0 to many/COUNT-1, and many/sessions; gives the connection string."""

    async def make(service: Service) -> None:
        plain = Policy.parse({"role": "queue", "lock_duration": lock_s})
        for number in range(count):
            await service.give(ANYBODY, f"many/{number}", plain)
        await service.give(
            ANYBODY,
            "many/sessions",
            Policy.parse({"role": "queue", "lock_duration": lock_s, "groups": True}),
        )

    with_service(broker.data, make)
    return connection_string(broker, key_of(broker.data, "shop"))


def entities(workplace: Workplace) -> Figures:
    """Growth of the memory of all broker processes for each link; a message is locked at each entity."""
    with workplace.broker() as broker:
        connection = _queues(broker, ENTITIES, 60.0)
        in_csharp("ManyEntities", connection, "many", "1", seconds=SECONDS)
        peak = Peak(broker.process.pid)
        with peak.watching():
            found = in_csharp("ManyEntities", connection, "many", str(ENTITIES), seconds=SECONDS)
        after = resident_bytes((broker.process.pid,))
    if found.scenarios != {"own": ENTITIES, "renewed": ENTITIES, "left": 0}:
        raise LoadError(
            f"expected {ENTITIES} messages of their own, renewed, and none left, found {found.scenarios}"
        )
    return {
        "kb_each": (peak.bytes - peak.start) / (ENTITIES * LINKS_EACH) / 1e3,
        "before_mb": peak.start / 1e6,
        "peak_mb": peak.bytes / 1e6,
        "after_mb": after / 1e6,
    }


def handlers(workplace: Workplace) -> Figures:
    """Calls beyond one for each message, and errors: handlers all run at once and outlive their lock."""
    with workplace.broker() as broker:
        connection = _queues(broker, PROCESSORS, LOCK_S)
        peak = Peak(broker.process.pid)
        with peak.watching():
            found = in_csharp(
                "ManyProcessors", connection, "many", str(PROCESSORS), str(SESSIONS), seconds=SECONDS
            )
    processors, sessions = found["processors"], found["sessions"]
    for kind, count in ((processors, PROCESSORS), (sessions, SESSIONS)):
        if (kind["messages"], kind["at_once"]) != (count, count):
            raise LoadError(f"expected {count} handlers at once, found {kind}")
    return {
        "again": processors["calls"] - PROCESSORS + sessions["calls"] - SESSIONS,
        "errors": len(processors["errors"]) + len(sessions["errors"]),
        "delivery_count": max(processors["delivery_count"], sessions["delivery_count"]),
        "peak_mb": peak.bytes / 1e6,
    }


ROWS = (
    Row(
        "service-bus-entities",
        f"one client for .NET with {ENTITIES:,} entities, {LINKS_EACH} links each: memory of each link",
        (SERVE, f"tests/interop/dotnet: ManyEntities … many {ENTITIES}"),
        (Limit("kb_each", 64.0, "kB"),),
        entities,
        _missing,
    ),
    Row(
        "service-bus-handlers",
        f"{PROCESSORS} processors and {SESSIONS} sessions of one client for .NET at once, handlers that "
        "outlive their lock: messages that come again, errors",
        (SERVE, f"tests/interop/dotnet: ManyProcessors … many {PROCESSORS} {SESSIONS}"),
        (Limit("again", 0, "messages"), Limit("errors", 0, "errors")),
        handlers,
        _missing,
    ),
)
