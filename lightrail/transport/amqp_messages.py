"""Envelopes as AMQP messages, AMQP messages of any sender as envelopes, and the outcomes of received ones."""

import json
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lightrail.amqp.values import Described, Timestamp
from lightrail.client import Data, Delivery, LostError, Message
from lightrail.client.delivery import DELIVERY_TIME
from lightrail.client.sources import PASSED_OVER
from lightrail.transport.envelope import NO_HEADERS, Envelope, Header


def message_of(envelope: Envelope) -> Message:
    """The AMQP message of an envelope: the body a data section, headers the application-properties."""
    annotations = None
    if envelope.deliver_at is not None:
        annotations = {DELIVERY_TIME: Timestamp(round(envelope.deliver_at * 1000))}
    return Message(
        envelope.body,
        id=envelope.id,
        subject=envelope.subject,
        content_type=envelope.content_type,
        correlation_id=envelope.correlation_id,
        reply_to=envelope.reply_to,
        group=envelope.group,
        ttl=envelope.ttl,
        priority=envelope.priority,
        properties=envelope.headers,
        annotations=annotations,
    )


def envelope_of(message: Message) -> Envelope:
    """The envelope of an AMQP message of any sender.

    A body of text is encoded in UTF-8, other AMQP values in JSON if possible. Raises DecodeError for a
    malformed message, and ValueError for a body that can't be encoded.
    """
    body = message.body
    content_type = message.content_type
    if isinstance(body, Data):
        body = b"".join(body)
    elif isinstance(body, str):
        body = body.encode()
        content_type = content_type or "text/plain"
    elif not isinstance(body, bytes):
        try:
            body = json.dumps(body).encode()
        except (TypeError, ValueError) as error:
            raise ValueError(f"expected a body of bytes, text or a JSON value, found {body!r:.80}") from error
        content_type = content_type or "application/json"
    id, correlation_id = message.id, message.correlation_id
    return Envelope(
        body=body,
        id=id if id is None or type(id) is str else _text(id),
        subject=message.subject,
        content_type=content_type,
        correlation_id=(
            correlation_id if correlation_id is None or type(correlation_id) is str else _text(correlation_id)
        ),
        reply_to=message.reply_to,
        group=message.group,
        ttl=message.ttl,
        priority=message.priority,
        headers=_headers(message.properties),
        delivery_count=message.delivery_count,
        annotations=message.annotations,
    )


def _headers(properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without descriptors: .NET's client of Service Bus describes the values of a Uri or a TimeSpan."""
    if Described not in map(type, properties.values()):
        return properties
    return {name: value.value if type(value) is Described else value for name, value in properties.items()}


def _text(id: Any) -> str:
    return id.hex() if isinstance(id, bytes) else str(id)


@dataclass(slots=True, eq=False, repr=False)
class AmqpReceived:
    """A message that was received over AMQP."""

    envelope: Envelope
    delivery: Delivery

    @property
    def settled(self) -> bool:
        """Whether the message has an outcome, or its lock is known to have run out."""
        return self.delivery.settled or self.delivery.lost

    async def accept(self) -> None:
        """The broker deletes the message; where the link was lost meanwhile, it is delivered again."""
        await unless_lost(self.delivery.accept())

    async def release(self) -> None:
        """The message is delivered again, uncounted."""
        await unless_lost(self.delivery.release())

    async def fail(self, delay: float = 0.0) -> None:
        """The message is delivered again after so many seconds, counted."""
        if delay > 0:
            await unless_lost(self.delivery.defer(delay, delivery_failed=True))
        else:
            await unless_lost(self.delivery.fail())

    async def dead_letter(
        self, reason: str, description: str = "", notes: Mapping[str, Header] = NO_HEADERS
    ) -> None:
        """The message goes to the dead letters of its queue; other brokers than LightRail drop the notes."""
        await unless_lost(self.delivery.dead_letter(reason, description, notes))


def pass_over(delivery: Delivery) -> None:
    """Leaves a message in its queue, for other receivers."""
    with suppress(LostError):
        delivery.settle(PASSED_OVER)


async def unless_lost(settlement: Awaitable[None]) -> None:
    """Settles; a message whose link or lock was lost is delivered again, and has no outcome here."""
    with suppress(LostError):
        await settlement
