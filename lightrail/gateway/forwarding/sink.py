"""Sink: where forwarding sends messages, by name.

The messages that forwarding sends for deliveries.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from lightrail.amqp.dead_letters import HOPS, REASON
from lightrail.amqp.lifetime import expiry_from
from lightrail.amqp.sections import (
    attributes,
    decode_annotations,
    decode_header,
    with_annotations,
    with_header,
    without_annotations,
)
from lightrail.amqp.values import DecodeError, Symbol
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.filters.dead_letters import NOTED_DESCRIPTION, NOTED_REASON
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.messages.outgoing import Outgoing
from lightrail.gateway.messages.sending import Carried, NameSender, UnroutableError
from lightrail.model import conditions
from lightrail.model.names import dead_letter_name
from lightrail.model.policy import InvalidPolicyError, Role
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import MissingError, ServiceError
from lightrail.namespace.transfer_queues import transfer_queue
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.shard_client.receiving.queue_consumer import Delivery

PRIORITY_DEFAULT: Final = 4
SOURCE: Final = Symbol("x-opt-dead-letter-source")
PRESENT: Final = (REASON, SOURCE, Symbol("x-opt-dead-letter-time"), HOPS)
"""Annotations that a message has while it is a dead letter; its history (first error, count) stays."""


def moved(delivery: Delivery) -> Outgoing:
    """The message unchanged: the same bytes, durability, priority and expiry."""
    durable, priority, _ttl_ms, _expiry_ms = _attributes(delivery)
    return Outgoing(
        delivery.message, durable, priority, max(delivery.expires_at_ms, 0), delivery.message_format
    )


def due(delivery: Delivery, now_ms: int) -> Outgoing:
    """A scheduled message as it is sent when it is due: its ttl starts now (`expiry_from`)."""
    durable, priority, *_ = _attributes(delivery)
    expires_at_ms = None
    if not delivery.message_format:
        with suppress(DecodeError, ValueError):
            expires_at_ms = expiry_from(delivery.message, now_ms)
    return Outgoing(delivery.message, durable, priority, expires_at_ms or 0, delivery.message_format)


def redriven(delivery: Delivery, now_ms: int) -> Outgoing:
    """A dead letter for another attempt at its queue.

    Its delivery-count starts at 0 and its ttl now. The annotations with the reason of the dead letter are
    removed; its count of dead-letterings and its first error stay. An absolute-expiry-time in the past is
    ignored: with it the message would be a dead letter again at once.
    """
    durable, priority, ttl_ms, expiry_ms = _attributes(delivery)
    expires_at_ms = now_ms + ttl_ms if ttl_ms is not None else 0
    if expiry_ms is not None and expiry_ms > now_ms:
        expires_at_ms = min(expires_at_ms, expiry_ms) if expires_at_ms else expiry_ms
    message = delivery.message
    if not delivery.message_format:
        try:
            message = without_annotations(message, PRESENT)
            header = decode_header(message)
            if header.delivery_count:
                header.delivery_count = 0
                message = with_header(message, header)
        except (DecodeError, ValueError):
            # The shard stored this message without decoding it, so it is forwarded unchanged.
            message = delivery.message
    return Outgoing(message, durable, priority, expires_at_ms, delivery.message_format)


def with_error(message: bytes, notes: Mapping[Symbol, Any]) -> bytes:
    """A dead letter with annotations of an error here, in place of the reason that a receiver gave earlier.

    Raises DecodeError, ValueError.
    """
    return with_annotations(without_annotations(message, (NOTED_REASON, NOTED_DESCRIPTION)), notes)


def dead_letter_source(delivery: Delivery) -> str | None:
    """The original queue of a dead letter, or None if its annotations do not name one."""
    if delivery.message_format:
        return None
    try:
        found: Any = decode_annotations(delivery.message).get(SOURCE)
    except (DecodeError, ValueError):
        return None
    return str(found) if isinstance(found, str) else None


def _attributes(delivery: Delivery) -> tuple[bool, int, int | None, int | None]:
    """Durability, priority, ttl and expiry. What its queue has on disk goes on as a durable message: some
    clients, such as Azure's, send no `durable`, and a queue may store all messages."""
    if not delivery.message_format:
        try:
            durable, priority, ttl_ms, expiry_ms = attributes(delivery.message)
        except (DecodeError, ValueError):
            pass
        else:
            return durable or delivery.is_stored, priority, ttl_ms, expiry_ms
    # A message that can't be decoded is stored durably, so that it is not lost.
    return True, PRIORITY_DEFAULT, None, None


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


@dataclass(eq=False, repr=False)
class Sink:
    """Stores messages at queues and behind routers; first use creates a queue where policies allow it."""

    _service: Service
    _sender: NameSender

    async def send(self, name: str, messages: Sequence[Outgoing]) -> list[NotSentError | None]:
        """Sends messages in this order. Returns once the policy of their queue has stored or refused each.

        Returns:
            for each message None, or why it is not stored.
        """
        try:
            record = await self._service.first_use(name)
        except (ServiceError, InvalidPolicyError, CoordinatorError) as error:
            return [NotSentError(conditions.INTERNAL_ERROR, str(error))] * len(messages)
        if record.role not in (Role.QUEUE, Role.ROUTER):
            problem = NotSentError(
                conditions.NOT_FOUND, f"{name} has role {record.role}; expected a queue or router"
            )
            return [problem] * len(messages)
        results = await self._sender.send_many(record, messages)
        return [_problem(each) if isinstance(each, BaseException) else None for each in results]

    async def set_aside(self, source: str, message: Outgoing) -> NotSentError | None:
        """Stores a dead letter that is not forwarded any more, among those of the transfers of its queue."""
        try:
            transfer = await transfer_queue(self._service, source)
        except MissingError:
            # With its queue the dead letter is deleted as well.
            return None
        except (ServiceError, CoordinatorError) as error:
            return NotSentError(conditions.INTERNAL_ERROR, str(error))
        (problem,) = await self.send(dead_letter_name(transfer.name), [message])
        return problem

    async def route(
        self, router: str, message: Outgoing, carried: Carried, came_ms: int
    ) -> NotSentError | None:
        """Sends a message to a router, to those of its queues that are not in `carried`, and adds them.

        Args:
            came_ms: when the router got it, in milliseconds since 1970.
        """
        record = self._service.directory.get(router)
        if record.role is not Role.ROUTER:
            return NotSentError(conditions.NOT_FOUND, f"{router} has role {record.role}; expected a router")
        try:
            await self._sender.send(record, message, carried, came_ms)
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
