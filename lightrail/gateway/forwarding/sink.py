"""Sink: where couriers send letters to, by name."""

from collections.abc import Sequence
from typing import Protocol

from lightrail.gateway.forwarding.delivery import Letter


class NotSent(Exception):
    """A letter was not taken, or nobody knows whether it was: an AMQP error condition and a sentence."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.condition = condition
        self.description = description


class Sink(Protocol):
    """Stores letters at queues and behind routers."""

    async def send(self, name: str, letters: Sequence[Letter]) -> list[NotSent | None]:
        """Sends letters in this order; for each None, or why it is not stored. It never raises NotSent.

        The answer comes when every letter is where the policy of its queue wants it, or was refused.
        """
        ...
