"""Services: the objects of one gateway that handlers of requests use.

Counts: requests and messages of HTTP clients of this gateway; metrics.py shows them.
"""

from dataclasses import dataclass, field
from typing import Final

from lightrail.cluster.coordinator import Coordinator
from lightrail.cluster.map import Map
from lightrail.gateway.callers import Callers
from lightrail.gateway.forwarding.forwarding import Forwarding
from lightrail.gateway.hooks import GatewayHooks
from lightrail.gateway.journals.segments import Journals
from lightrail.gateway.messages.batches import BatchSender
from lightrail.gateway.messages.receiving import Receivers
from lightrail.gateway.messages.sending import NameSender
from lightrail.gateway.processes.connections import Connections
from lightrail.gateway.processes.health import Health
from lightrail.gateway.processes.members import Presence
from lightrail.gateway.websockets import WebSockets
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Directory
from lightrail.namespace.service import Service
from lightrail.shard_client.shard_connections import ShardConnections

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
"""Other methods share one label, so that clients can't create an unlimited number of series."""


@dataclass(slots=True, eq=False, repr=False)
class Counts:
    """Counts of requests and messages; others are read from the services that keep them."""

    requests: dict[tuple[str, str], int] = field(default_factory=dict)
    """Answers by method and status."""
    sent: int = 0
    """Messages of requests that are stored."""
    handed_out: dict[str, int] = field(default_factory=lambda: {"received": 0, "locked": 0, "released": 0})
    """Deliveries to clients: received, locked, or released since the client had closed its connection."""

    def answered(self, method: str, status: int) -> None:
        key = (method if method in METHODS else "other", str(status))
        self.requests[key] = self.requests.get(key, 0) + 1


@dataclass(frozen=True, slots=True)
class Services:
    """The services of a gateway; they live as long as the gateway."""

    settings: Settings
    coordinator: Coordinator
    map: Map
    """Map of queues and members; the same as that of `shards`."""
    directory: Directory
    namespace: Service
    shards: ShardConnections
    sender: NameSender
    batches: BatchSender
    receivers: Receivers
    journals: Journals
    forwarding: Forwarding
    health: Health
    presence: Presence
    connections: Connections
    websockets: WebSockets
    callers: Callers
    counts: Counts
    hooks: GatewayHooks

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.shards.now_ms()
