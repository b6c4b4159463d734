"""Views of this gateway: the data of its pages, from the functions behind the requests of the same names."""

from dataclasses import dataclass
from typing import Any

from lightrail.gateway.forwarding.transfers import TooManyTransfersError
from lightrail.gateway.resources import messages, queues, replicas, status
from lightrail.gateway.rights import demand_all
from lightrail.gateway.services import Services
from lightrail.namespace.rights import Caller
from lightrail.namespace.statuses import ServiceError


@dataclass(eq=False, repr=False)
class BrokerViews:
    """Data and actions of pages; every answer has the shape of the JSON request of the same name.

    Each method raises ForbiddenError, MissingError, ShardRefusedError, and ShardDownError without an answer.
    """

    _services: Services

    async def status(self, caller: Caller) -> dict[str, Any]:
        """As GET /!status."""
        return await status.overview(self._services, caller)

    async def queues(self, caller: Caller, prefix: str, after: str, limit: int) -> dict[str, Any]:
        """As GET /!queues."""
        return await queues.page(self._services, caller, prefix, after, limit)

    async def queue(self, caller: Caller, name: str) -> dict[str, Any]:
        """As GET /NAME/!figures: with `consumers_list`, each with label, credit, held and since."""
        return await queues.figures_of(self._services, caller, name)

    async def messages(self, caller: Caller, name: str, first: int, count: int) -> list[dict[str, Any]]:
        """As GET /NAME/!messages."""
        return await messages.peek(self._services, caller, name, first, count)

    async def purge(self, caller: Caller, name: str) -> int:
        """As DELETE /NAME/!messages; the number of messages removed."""
        return await messages.remove_all(self._services, caller, name)

    async def redrive(self, caller: Caller, name: str) -> dict[str, Any]:
        """As POST /!transfers with mode redrive; the transfer."""
        transfers = self._services.forwarding.transfers
        try:
            transfer = transfers.start(caller, {"from": name, "mode": "redrive"})
        except TooManyTransfersError as error:
            raise ServiceError(str(error)) from None
        return transfer.shown()

    async def connections(self, caller: Caller) -> list[dict[str, Any]]:
        """As GET /!connections."""
        demand_all(self._services.directory, caller)
        return await self._services.connections.first()

    async def connection(self, caller: Caller, id: str) -> dict[str, Any]:
        """As GET /!connections/ID."""
        demand_all(self._services.directory, caller)
        return await self._services.connections.find(id)

    async def close_connection(self, caller: Caller, id: str) -> None:
        """As DELETE /!connections/ID."""
        demand_all(self._services.directory, caller)
        await self._services.connections.end(id)

    async def remove_member(self, caller: Caller, shard: str, member: str) -> None:
        """As DELETE /!shards/ID/replicas/MEMBER. Raises ProblemError."""
        demand_all(self._services.directory, caller)
        await replicas.remove(self._services, shard, member)
