"""Sink: where forwarding sends messages, by name."""

from collections.abc import Sequence
from typing import Protocol

from lightrail.gateway.links.outgoing import Outgoing
from lightrail.gateway.links.routing import Carried


class NotSentError(Exception):
    """A message is not stored, or it is unknown whether it is: an AMQP error condition and a description.

    `is_final`: another attempt would have the same result, for as long as policies and subscriptions stay.
    """

    def __init__(self, condition: str, description: str, *, is_final: bool = False) -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.is_final = is_final
        self.condition = condition
        self.description = description


class Sink(Protocol):
    """Stores messages at queues and behind routers."""

    async def send(self, name: str, messages: Sequence[Outgoing]) -> list[NotSentError | None]:
        """Sends messages in this order. Returns once every message is stored as the policy of its queue

        requires, or was refused: for each message None, or why it is not stored. Raises no NotSentError.
        """
        ...

    async def route(self, router: str, message: Outgoing, carried: Carried) -> NotSentError | None:
        """Sends a message to a router, to those of its queues that are not in `carried`, and adds them."""
        ...
