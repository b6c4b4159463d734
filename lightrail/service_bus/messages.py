"""Messages in the form of Service Bus, as its clients receive and peek at them.

Each message has annotations with its sequence and the time at which it was enqueued. Sequences are one higher
than those of the queue, since these clients count from 1. A dead letter has its reason and its description as
application properties, in the dead-letter queue and wherever it was forwarded.

What a client changes with an outcome are application properties, too. The queue keeps them as annotations
whose names begin with `x-opt-property-`, as it keeps all that an outcome adds (messaging 3.4.5).
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from lightrail.amqp.composite import write_composite
from lightrail.amqp.dead_letters import REASON as BROKERS_REASON
from lightrail.amqp.performatives import AmqpError, Rejected
from lightrail.amqp.sections import (
    decode_annotations,
    decode_application_properties,
    decode_header,
    decode_properties,
    with_annotations,
    with_application_properties,
    with_properties,
    without_annotations,
)
from lightrail.amqp.survey import survey
from lightrail.amqp.values import DecodeError, Int, Long, Symbol, Timestamp
from lightrail.filters.dead_letters import NOTED_DESCRIPTION, NOTED_REASON, service_bus_reason
from lightrail.model import conditions

BUS_REASON_CHARACTERS: Final[int] = 1_024
"""Characters of a dead letter's reason, and of its description, from a client of Azure Service Bus; the rest
is cut."""
CLOCKS_APART_MS: Final = 1_000
"""How much earlier than it was enqueued a ttl may have begun: at a frontend, with others of a batch."""
UINT_MAX: Final = (1 << 32) - 1
"""Largest ttl and delivery-count of a header (messaging 3.2.1)."""
SEQUENCE: Final = Symbol("x-opt-sequence-number")
ENQUEUED: Final = Symbol("x-opt-enqueued-time")
ENQUEUED_SEQUENCE: Final = Symbol("x-opt-enqueue-sequence-number")
"""The sequence of a message in the topic; a router has none, so a subscription gives its own."""
LOCKED_UNTIL: Final = Symbol("x-opt-locked-until")
FIRST_SEQUENCE: Final = 1
"""The clients' sequence of a queue's first message, which is 0 here."""
ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2
"""x-opt-message-state of a message: deferred by a receiver, or before its time, or neither."""
REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"
PROPERTY_PREFIX: Final = "x-opt-property-"
"""Precedes the name of an application property that an outcome has set, in the annotations of its message."""
_MARK: Final = PROPERTY_PREFIX.encode()
"""No outcome has changed the properties of a message without these bytes: its annotations are not decoded."""
DEAD_LETTERED: Final = Symbol(conditions.DEAD_LETTERED)
_ANNOTATION: Final = b"x-opt-"
"""A message without these bytes has no annotation of a broker, and is no dead letter: it is not decoded."""
_FOREIGN: Final = frozenset(
    (
        "x-opt-enqueue-sequence-number",
        LOCKED_UNTIL,
        "x-opt-lock-token",
        "x-opt-partition-id",
        "x-opt-transfer-hops",
    )
)
_FOREIGN_PREFIXES: Final = ("x-opt-dead-letter-", "x-opt-deadletter-")
"""Annotations that the broker alone gives: in what a sender wrote, or copied from a dead letter, these
clients would take them for the broker's. They get what `notes` has in their place."""


def changed_properties(changes: Mapping[Any, Any] | None) -> dict[Symbol, Any] | None:
    """The annotations of an outcome by which a client sets application properties.

    None for none. A name of an annotation, with x-opt- (messaging 3.2.10), is no property and stays.
    """
    return {
        Symbol(str(name) if str(name).startswith("x-opt-") else f"{PROPERTY_PREFIX}{name}"): value
        for name, value in (changes or {}).items()
    } or None


def annotations_of(
    sequence: int, enqueued_at_ms: int, state: int = ACTIVE, *, is_subscription: bool = False
) -> dict[Symbol, Any]:
    """The annotations of a message in a queue for these clients; `sequence` is that of the queue.

    Args:
        is_subscription: whether the queue is that of a subscription; see `ENQUEUED_SEQUENCE`.
    """
    notes = {
        SEQUENCE: Long(sequence + FIRST_SEQUENCE),
        ENQUEUED: Timestamp(enqueued_at_ms),
        Symbol("x-opt-message-state"): Int(state),
    }
    if is_subscription:
        notes[ENQUEUED_SEQUENCE] = notes[SEQUENCE]
    return notes


def life_of(enqueued_at_ms: int, expires_at_ms: int | None) -> int | None:
    """How long a message may be in its queue, in milliseconds; None if it does not expire."""
    return max(0, expires_at_ms - enqueued_at_ms) if expires_at_ms else None


def annotated(
    message: bytes, notes: dict[Symbol, Any], *, life_ms: int | None = None, attempts: int = 0
) -> bytes:
    """The message with these annotations; unchanged if it has none of AMQP's sections.

    Args:
        life_ms: how long it may be in its queue, which bounds its ttl; None for no bound. The client for .NET
            takes it from the times of creation and of expiry, which have no bound of 49 days.
        attempts: failed deliveries from this queue; a delivery-count of the sender's is not kept.
    """
    try:
        if _MARK in message:
            message = _with_changes(message)
        if _ANNOTATION in message:
            message = _without_foreign(_with_reasons(message, notes), notes)
        properties = decode_properties(message)
        header = decode_header(message)
        # These clients read the delivery-count, so the header has to contain it.
        header.delivery_count = min(attempts, UINT_MAX)
        is_changed = properties.message_id is None or life_ms is not None
        if life_ms is not None:
            if header.ttl is not None and life_ms - header.ttl > -min(CLOCKS_APART_MS, header.ttl // 10):
                # It expires by its own ttl, which began on its way to the shard.
                life_ms = header.ttl if header.ttl < UINT_MAX else life_ms
            header.ttl = min(life_ms, UINT_MAX)
            properties.creation_time = int(notes[ENQUEUED])
            properties.absolute_expiry_time = properties.creation_time + life_ms
        if properties.message_id is None:
            # The client for JavaScript settles no message without an id.
            properties.message_id = message_id_of(message, notes)
        if is_changed:
            message = with_properties(message, properties)
        return with_annotations(write_composite(header) + message[survey(message).head_end :], notes)
    except (DecodeError, ValueError):
        return message


def _with_changes(message: bytes) -> bytes:
    """The message with what outcomes have set as application properties. Raises DecodeError, ValueError."""
    changes = {name: value for name, value in decode_annotations(message).items() if _is_change(name)}
    if not changes:
        return message
    properties = decode_application_properties(message)
    properties.update({str(name)[len(PROPERTY_PREFIX) :]: value for name, value in changes.items()})
    return with_application_properties(without_annotations(message, changes), properties)


def _is_change(name: object) -> bool:
    return isinstance(name, str) and name.startswith(PROPERTY_PREFIX)


def message_id_of(message: bytes, notes: dict[Symbol, Any]) -> str:
    """An id for a message without one: the same at each delivery of the message."""
    place = f"{notes[SEQUENCE]} {notes[ENQUEUED]}".encode()
    return blake2b(message[survey(message).head_end :], key=place, digest_size=16).hexdigest()


def _with_reasons(message: bytes, notes: dict[Symbol, Any]) -> bytes:
    """A dead letter with the reason in the form of these clients; adds its original queue to `notes`.

    The annotations that say so to other clients are left out: a client that sends a copy of what it received
    keeps them, and the copy would be a dead letter wherever it is received.

    A message that is none, such as one that was sent again from a dead-letter queue, is unchanged.
    """
    found = decode_annotations(message)
    if not isinstance(found.get(BROKERS_REASON), str):
        return message
    source = found.get("x-opt-dead-letter-source")
    if isinstance(source, str):
        notes[Symbol("x-opt-deadletter-source")] = source
    reason, description = service_bus_reason(found.get)
    given = {key: text for key, text in ((REASON, reason), (DESCRIPTION, description)) if text}
    if not given:
        return message
    return with_application_properties(message, {**decode_application_properties(message), **given})


def _without_foreign(message: bytes, notes: Mapping[Symbol, Any]) -> bytes:
    """The message without annotations that only the broker gives. Raises DecodeError."""
    foreign = [
        Symbol(name)
        for name in decode_annotations(message)
        if name not in notes
        and isinstance(name, str)
        and (name in _FOREIGN or name.startswith(_FOREIGN_PREFIXES))
    ]
    return without_annotations(message, foreign) if foreign else message


def with_reason(state: Rejected) -> Rejected:
    """A rejection whose info becomes annotations of the dead letter.

    These are the reason and the description, cut to their bound, and changed properties, as a reason that is
    no text is.
    """
    error = state.error
    if error is None or (not error.info and error.condition != DEAD_LETTERED):
        return state
    changes: dict[Any, Any] = dict(error.info or {})
    notes: dict[Symbol, Any] = {}
    for key, note in ((REASON, NOTED_REASON), (DESCRIPTION, NOTED_DESCRIPTION)):
        text = changes.get(key)
        if isinstance(text, str):
            del changes[key]
            notes[note] = str(text)[:BUS_REASON_CHARACTERS]
        elif error.condition == DEAD_LETTERED:
            # None of an earlier dead letter, or of a sender's, stays.
            notes[note] = ""
    notes.update(changed_properties(changes) or {})
    return Rejected(error=AmqpError(condition=error.condition, description=error.description, info=notes))
