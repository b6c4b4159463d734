"""All couriers of one gateway."""

from lightrail.gateway.forwarding.counts import CourierCounts
from lightrail.gateway.forwarding.dead_letters import Forwarders
from lightrail.gateway.forwarding.endpoint import HttpEndpoints
from lightrail.gateway.forwarding.pushes import Pushers
from lightrail.gateway.forwarding.sender_sink import Post
from lightrail.gateway.forwarding.source import Links
from lightrail.gateway.forwarding.transfers import Transfers
from lightrail.gateway.links.sending import Sender
from lightrail.model.destinations import Destinations
from lightrail.namespace.directory import Changes
from lightrail.namespace.service import Service


class Couriers:
    """They live as long as the gateway, in its loop."""

    def __init__(self, service: Service, links: Links, sender: Sender, destinations: Destinations) -> None:
        self.counts = CourierCounts()
        post = Post(service, sender)
        self.transfers = Transfers(service.directory, links, post, self.counts)
        self.forwarders = Forwarders(service.directory, links, post, self.counts)
        self._endpoints = HttpEndpoints(destinations)
        self.pushers = Pushers(service, links, self._endpoints, self.counts)

    def start(self) -> None:
        """Takes up what the namespace asks for now; `changed` tells of what it asks for later."""
        self.forwarders.start()
        self.pushers.start()

    def changed(self, changes: Changes) -> None:
        """Names, policies or subscriptions are others now."""
        self.forwarders.changed(changes.names)
        self.pushers.changed(changes.routers | changes.names.keys())

    async def close(self) -> None:
        """Everything stops; what was not settled goes back to its queue."""
        self.transfers.close()
        self.forwarders.close()
        self.pushers.close()
        await self._endpoints.close()
