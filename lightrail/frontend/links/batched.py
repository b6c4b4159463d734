"""Batched messages: transfers of format 0x80013700, whose data sections are messages.

Clients of Azure Service Bus send lists of messages in this format. Every data section is one encoded message
of format 0; other sections of the transfer describe the batch and are dropped. The messages are stored as if
each had been sent separately, and the transfer has one outcome: accepted when all of its messages are stored.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from lightrail.amqp.decoder import skip
from lightrail.amqp.events import Transfers
from lightrail.amqp.sections import attributes
from lightrail.amqp.survey import descriptor, survey
from lightrail.amqp.values import DecodeError
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.outcomes import rejected
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.amqp.link import Link
    from lightrail.frontend.connection import ClientConnection

BATCHED_MESSAGES_MAX: Final[int] = 16_384
"""Messages in one transfer of format 0x80013700; a longer batch is refused whole."""
BATCHED_EXPIRY_SPAN_MS: Final[int] = 1_000
"""Messages of such a transfer that expire within this time of each other are stored together, and expire with
the last of them: its sender made them one after the other, with the same ttl."""
BATCHED: Final = 0x80013700
"""Message-format of a transfer with many messages."""
_HEADER: Final = 0x70
_DATA: Final = 0x75
_FOOTER: Final = 0x78


class Storable(NamedTuple):
    """Consecutive messages of a batch that can be stored together."""

    event: Transfers
    is_last: bool
    """Whether the outcome of the transfer is sent with that of this run."""


def one_by_one(event: Transfers) -> Iterator[tuple[int, bytes]]:
    """The delivery-id and the bytes of each transfer of an event."""
    if event.pieces is not None:
        yield event.first_delivery_id, b"".join(event.pieces)
        return
    yield from enumerate(event.payloads, event.first_delivery_id)


def runs(event: Transfers, id: int, payload: bytes, now_ms: int, *, by_priority: bool) -> list[Storable]:
    """The messages of one transfer, in runs with the same common fields of a stored batch.

    These fields are durability, expiry (within BATCHED_EXPIRY_SPAN_MS), and `by_priority` the priority. Most
    batches are one run. Raises ConditionError, for the whole transfer.
    """
    found: list[Storable] = []
    key: tuple[bool, int, bool] | None = None
    current: Transfers | None = None
    latest = earliest = 0
    longest = 0
    for number, message in enumerate(messages(payload)):
        try:
            opening = survey(message)
            if opening.next_hop:
                # As in messages of their own, delivery-annotations are not for receivers (messaging 3.2.2).
                message = message[: opening.next_hop[0]] + message[opening.next_hop[1] :]
            head = message[: opening.head_end]
            durable, priority, ttl, expiry = attributes(message)
        except DecodeError as error:
            raise ConditionError(
                conditions.DECODE_ERROR, f"message {number} of the batch can't be read: {error}"
            ) from None
        ends = [end for end in (None if ttl is None else now_ms + ttl, expiry) if end is not None]
        end = min(ends, default=0)
        mine = durable, priority if by_priority else 0, bool(ends)
        near = max(latest, end) - min(earliest, end) <= BATCHED_EXPIRY_SPAN_MS
        if current is None or mine != key or (ends and not near):
            current = Transfers(event.link, id, [], event.settled)
            found.append(Storable(current, False))
            key, latest, earliest, longest = mine, end, end, -1
        current.payloads.append(message)
        if end > longest or not ends:
            # The run has the header and the expiry of the message that expires last.
            current.head, current.absolute_expiry_ms, longest = head, expiry, end
        latest, earliest = max(latest, end), min(earliest, end)
    if current is None:
        raise ConditionError(
            conditions.DECODE_ERROR,
            "expected at least one message in the data sections of a batch, found none",
        )
    found[-1] = Storable(current, True)
    return found


def unpacked(event: Transfers, now_ms: int) -> Iterator[tuple[ConditionError | None, Transfers]]:
    """The runs of all transfers of an event; a transfer that can't be read has an error."""
    for id, payload in one_by_one(event):
        try:
            for run in runs(event, id, payload, now_ms, by_priority=True):
                yield None, run.event
        except ConditionError as error:
            yield error, event


def messages(payload: bytes) -> Iterator[bytes]:
    """The messages of a batch in their order. Raises ConditionError."""
    position = count = 0
    try:
        while position < len(payload):
            code, value_at = descriptor(payload, position) if payload[position] == 0 else (0, 0)
            if not _HEADER <= code <= _FOOTER:
                raise ConditionError(
                    conditions.DECODE_ERROR,
                    f"expected a section of a batch at offset {position}, found "
                    f"{bytes(payload[position : position + 12]).hex(' ')}",
                )
            end = skip(payload, value_at, len(payload))
            if code == _DATA:
                count += 1
                if count > BATCHED_MESSAGES_MAX:
                    raise ConditionError(
                        conditions.RESOURCE_LIMIT_EXCEEDED,
                        f"expected a batch of at most {BATCHED_MESSAGES_MAX} messages, found more; "
                        "send it as several",
                    )
                yield _binary(payload, value_at, end)
            position = end
    except (DecodeError, IndexError) as error:
        raise ConditionError(conditions.DECODE_ERROR, f"the batch can't be read: {error}") from None


def _binary(payload: bytes, position: int, end: int) -> bytes:
    """The content of a data section, whose constructor is at `position`."""
    form = payload[position]
    if form == 0xA0:
        return payload[position + 2 : end]
    if form == 0xB0:
        return payload[position + 5 : end]
    raise ConditionError(
        conditions.DECODE_ERROR,
        f"expected a binary in a data section at offset {position}, found {form:#04x}",
    )


def reject(
    connection: "ClientConnection", link: "Link", event: Transfers, id: int, error: ConditionError
) -> None:
    """Rejects a whole transfer. A transfer that was sent settled has no outcome: its link ends instead."""
    if event.settled:
        connection.links.detach(link, error.condition, error.description)
        return
    link.answer(id, id, rejected(error.condition, error.description))
    connection.touch()
