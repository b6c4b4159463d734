"""The error that is sent to a client with an AMQP condition."""

from typing import Any

from lightrail.amqp.values import Symbol


class ConditionError(Exception):
    """A link or request is refused: a condition of the specification, a sentence, and the error's info."""

    def __init__(self, condition: str, description: str, info: dict[Symbol, Any] | None = None) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description
        self.info = info
