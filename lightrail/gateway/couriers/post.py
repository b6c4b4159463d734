"""Post: the gateway's own sender as the sink of couriers."""

from collections.abc import Sequence
from typing import Final

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.gateway.couriers.letters import Letter
from lightrail.gateway.couriers.sinks import NotSent
from lightrail.gateway.errors import Problem
from lightrail.gateway.outgoing import Outgoing
from lightrail.gateway.sending import Sender
from lightrail.model import conditions
from lightrail.model.policy import Role
from lightrail.namespace.service import Refused, Service
from lightrail.wire.requests import ShardDownError

UNKNOWN: Final = "lightrail:unknown"
"""Nothing was heard of a letter in time: it may or may not be stored."""


class Post:
    """Sends letters where the namespace says; a name comes into being by first use where policies let it."""

    def __init__(self, service: Service, sender: Sender) -> None:
        self._service = service
        self._sender = sender

    async def send(self, name: str, letters: Sequence[Letter]) -> list[NotSent | None]:
        """See `Sink`."""
        try:
            record = await self._service.first_use(name)
        except (Refused, CoordinatorError) as error:
            return [NotSent(conditions.INTERNAL_ERROR, str(error))] * len(letters)
        if record.role not in (Role.QUEUE, Role.ROUTER):
            problem = NotSent(
                conditions.NOT_FOUND, f"{name} has role {record.role}; expected a queue or router"
            )
            return [problem] * len(letters)
        results = await self._sender.send_many(record, [Outgoing(*letter) for letter in letters])
        return [_problem(each) if isinstance(each, BaseException) else None for each in results]


def _problem(error: BaseException) -> NotSent:
    match error:
        case Problem():
            return NotSent(str(error.members.get("condition", UNKNOWN)), error.detail)
        case ShardDownError() | CoordinatorError():
            return NotSent(UNKNOWN, str(error))
    raise error
