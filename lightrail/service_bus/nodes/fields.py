"""Fields of requests to NAME/$management, whose bodies are maps of AMQP."""

from typing import Any, Final
from uuid import UUID

from lightrail.frontend.nodes.requests import RequestError
from lightrail.model import limits
from lightrail.model.policy import Role
from lightrail.namespace.records import Name
from lightrail.service_bus.links.deliveries import FIRST_SEQUENCE

Fields = dict[str, Any]

SEQUENCE_END: Final = 1 << 62
"""Sequences of clients are below this number."""


def queue_of(record: Name) -> str:
    """The name of a queue. Raises RequestError."""
    if record.role is not Role.QUEUE:
        raise RequestError(501, f"{record.name} has role {record.role}; expected a queue")
    return record.name


def whole(body: Fields, key: str, low: int, high: int) -> int:
    """A whole number. Raises RequestError."""
    value = body.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(400, f"{key} is {value!r:.80}; expected a whole number from {low} to {high}")
    return int(value)


def sequences_of(body: Fields) -> list[int]:
    """The queue's sequences for the sequences in a client's request. Raises RequestError."""
    numbers = body.get("sequence-numbers")
    if (
        not isinstance(numbers, list)
        or not 0 < len(numbers) <= limits.MANAGEMENT_PAGE_MAX
        or not all(isinstance(number, int) and FIRST_SEQUENCE <= number < SEQUENCE_END for number in numbers)
    ):
        raise RequestError(
            400,
            f"expected sequence-numbers, an array of 1 to {limits.MANAGEMENT_PAGE_MAX} longs from 1 on",
        )
    return [int(number) - FIRST_SEQUENCE for number in numbers]


def tokens_of(body: Fields) -> list[UUID]:
    """Lock tokens. Raises RequestError."""
    tokens = body.get("lock-tokens")
    if (
        not isinstance(tokens, list)
        or not 0 < len(tokens) <= limits.LOCKS_RENEWED_MAX
        or not all(isinstance(token, UUID) for token in tokens)
    ):
        raise RequestError(400, f"expected lock-tokens, an array of 1 to {limits.LOCKS_RENEWED_MAX} UUIDs")
    return tokens
