"""Sink: where forwarding sends messages, by name."""

from collections.abc import Sequence
from typing import Final

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.messages.outgoing import Outgoing
from lightrail.gateway.messages.routing import Carried, UnroutableError
from lightrail.gateway.messages.sending import Sender
from lightrail.model import conditions
from lightrail.model.policy import Role
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import ServiceError
from lightrail.shard_client.peers.requests import ShardDownError

UNKNOWN: Final = "lightrail:unknown"
"""Condition of a message that was not answered in time: it may or may not be stored."""


class NotSentError(Exception):
    """A message is not stored, or it is unknown whether it is: an AMQP error condition and a description.

    `is_final`: another attempt would have the same result, for as long as policies and subscriptions stay.
    """

    def __init__(self, condition: str, description: str, *, is_final: bool = False) -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.is_final = is_final
        self.condition = condition
        self.description = description


class Sink:
    """Stores messages at queues and behind routers; first use creates a queue where policies allow it."""

    def __init__(self, service: Service, sender: Sender) -> None:
        self._service = service
        self._sender = sender

    async def send(self, name: str, messages: Sequence[Outgoing]) -> list[NotSentError | None]:
        """Sends messages in this order. Returns once the policy of their queue has stored or refused each.

        Returns:
            for each message None, or why it is not stored.
        """
        try:
            record = await self._service.first_use(name)
        except (ServiceError, CoordinatorError) as error:
            return [NotSentError(conditions.INTERNAL_ERROR, str(error))] * len(messages)
        if record.role not in (Role.QUEUE, Role.ROUTER):
            problem = NotSentError(
                conditions.NOT_FOUND, f"{name} has role {record.role}; expected a queue or router"
            )
            return [problem] * len(messages)
        results = await self._sender.send_many(record, messages)
        return [_problem(each) if isinstance(each, BaseException) else None for each in results]

    async def route(self, router: str, message: Outgoing, carried: Carried) -> NotSentError | None:
        """Sends a message to a router, to those of its queues that are not in `carried`, and adds them."""
        record = self._service.directory.get(router)
        if record.role is not Role.ROUTER:
            return NotSentError(conditions.NOT_FOUND, f"{router} has role {record.role}; expected a router")
        try:
            await self._sender.send(record, message, carried)
        except (ProblemError, ShardDownError, CoordinatorError) as error:
            return _problem(error)
        return None


def _problem(error: BaseException) -> NotSentError:
    match error:
        case UnroutableError():
            return NotSentError(conditions.NOT_FOUND, error.detail, is_final=True)
        case ProblemError():
            condition = str(error.members.get("condition", UNKNOWN))
            is_final = condition == conditions.MESSAGE_SIZE_EXCEEDED
            return NotSentError(condition, error.detail, is_final=is_final)
        case ShardDownError() | CoordinatorError():
            return NotSentError(UNKNOWN, str(error))
    raise error
