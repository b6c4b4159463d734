"""All couriers of one gateway."""

from lightrail.gateway.couriers.counts import CourierCounts
from lightrail.gateway.couriers.endpoint import HttpEndpoints
from lightrail.gateway.couriers.forwarders import Forwarders
from lightrail.gateway.couriers.post import Post
from lightrail.gateway.couriers.pushers import Pushers
from lightrail.gateway.couriers.sources import Links
from lightrail.gateway.couriers.transfers import Transfers
from lightrail.gateway.sending import Sender
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
