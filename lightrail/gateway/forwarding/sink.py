"""Sink: where forwarding sends messages, by name."""

from collections.abc import Sequence
from typing import Protocol

from lightrail.gateway.links.outgoing import Outgoing


class NotSentError(Exception):
    """A message is not stored, or it is unknown whether it is: an AMQP error condition and a description."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.condition = condition
        self.description = description


class Sink(Protocol):
    """Stores messages at queues and behind routers."""

    async def send(self, name: str, messages: Sequence[Outgoing]) -> list[NotSentError | None]:
        """Sends messages in this order. Returns once every message is stored as the policy of its queue

        requires, or was refused: for each message None, or why it is not stored. Raises no NotSentError.
        """
        ...
