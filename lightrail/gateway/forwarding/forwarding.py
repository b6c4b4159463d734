"""All forwarding of one gateway: transfers, dead letters for other names, scheduled messages, pushes."""

import logging

from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.dead_letters import DeadLetterForwarders
from lightrail.gateway.forwarding.endpoint import Endpoints
from lightrail.gateway.forwarding.pushes import Pushers
from lightrail.gateway.forwarding.scheduled import ScheduledForwarders
from lightrail.gateway.forwarding.sink import Sink
from lightrail.gateway.forwarding.transfers import Transfers
from lightrail.gateway.messages.sending import Sender
from lightrail.model.endpoint import Destinations
from lightrail.namespace.directory import Changes
from lightrail.namespace.service import Service
from lightrail.shard_client.shard_connections import ShardConnections

log = logging.getLogger("lightrail.gateway.forwarding")


class Forwarding:
    """Lives as long as the gateway, in its loop."""

    def __init__(
        self, service: Service, shards: ShardConnections, sender: Sender, destinations: Destinations
    ) -> None:
        self.counts = ForwardingCounts()
        sink = Sink(service, sender)
        self._directory = service.directory
        self._destinations = destinations
        self._endpoints = Endpoints(destinations)
        self.transfers = Transfers(service.directory, shards, sink, self.counts)
        self._dead_letters = DeadLetterForwarders(service.directory, shards, sink, self.counts)
        self._scheduled = ScheduledForwarders(service.directory, shards, sink, self.counts)
        self._pushers = Pushers(service, shards, self._endpoints.post, self.counts)

    def start(self) -> None:
        """Starts the forwarders that the namespace requires now; `changed` follows its changes."""
        for each in self._directory.every_subscription():
            problem = self._destinations.problem(each.target) if each.push else None
            if problem is not None:
                log.error(
                    "subscription %s of %s is not pushed, and its messages become dead letters: %s",
                    each.id,
                    each.router,
                    problem,
                )
        self._dead_letters.start()
        self._scheduled.start()
        self._pushers.start()

    def changed(self, changes: Changes) -> None:
        """Follows names, policies and subscriptions that changed."""
        self._dead_letters.changed(changes.names)
        self._scheduled.changed(changes.names)
        self._pushers.changed(changes.routers | changes.names.keys())

    async def close(self) -> None:
        """Stops all forwarding; unsettled messages return to their queues."""
        self.transfers.close()
        self._dead_letters.close()
        self._scheduled.close()
        self._pushers.close()
        await self._endpoints.close()
