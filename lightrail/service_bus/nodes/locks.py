"""Locks of one queue by their tokens, which clients of Azure Service Bus renew and settle over $management.

A token is the delivery-tag of a message that a link of the same connection received, so that no client renews
or settles the deliveries of another client. Or it is the token of a deferred message, which no link received:
8 bytes of the lock's key and 8 of the message's sequence, which identify the lock at the shard.

Fields of requests to NAME/$management, whose bodies are maps of AMQP.
"""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from lightrail.amqp.events import ACCEPTED
from lightrail.amqp.performatives import AmqpError, Modified, Rejected
from lightrail.amqp.values import Array, Symbol, Timestamp
from lightrail.frontend.links.outcomes import Deferral, encode_outcome
from lightrail.frontend.nodes.requests import RequestError
from lightrail.model import conditions, limits
from lightrail.model.names import is_dead_letter
from lightrail.model.policy import Role
from lightrail.namespace.records import Name, Right, refused_by_forwarding, refused_by_status
from lightrail.namespace.rights import demand
from lightrail.service_bus.links.deliveries import (
    STAYS_DEAD,
    BusConsumerLink,
)
from lightrail.service_bus.messages import (
    DEAD_LETTERED,
    DESCRIPTION,
    FIRST_SEQUENCE,
    REASON,
    changed_properties,
    with_reason,
)
from lightrail.wire.bodies import ConsumerOpen

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.transactions.transaction import Transaction

Fields = dict[str, Any]

MESSAGE_NOT_FOUND: Final = "com.microsoft:message-not-found"
SEQUENCE_END: Final = 1 << 62
"""Sequences of clients are below this number."""


def queue_of(record: Name) -> str:
    """The name of a queue. Raises RequestError."""
    if record.role is Role.NONE:
        raise RequestError(404, f"there is no queue {record.name}")
    if record.role is not Role.QUEUE:
        raise RequestError(501, f"{record.name} has role {record.role}; expected a queue")
    return record.name


def demand_open(record: Name, right: Right) -> None:
    """Raises RequestError where the policy of a name refuses those that send or receive."""
    if why := refused_by_status(record.policy, right):
        raise RequestError(403, f"{record.name} is disabled: {why}", conditions.ENTITY_DISABLED)
    if why := refused_by_forwarding(record.policy, right):
        raise RequestError(400, f"nobody receives from {record.name}: {why}", conditions.NOT_ALLOWED)


def whole(body: Fields, key: str, low: int, high: int) -> int:
    """A whole number. Raises RequestError."""
    value = body.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(400, f"{key} is {value!r:.80}; expected a whole number from {low} to {high}")
    return int(value)


def sequences_of(body: Fields, lowest: int = FIRST_SEQUENCE) -> list[int]:
    """The queue's sequences for the sequences in a client's request. Raises RequestError."""
    numbers = body.get("sequence-numbers")
    if (
        not isinstance(numbers, list)
        or not numbers
        or not all(isinstance(number, int) and lowest <= number < SEQUENCE_END for number in numbers)
    ):
        raise RequestError(400, f"expected sequence-numbers, an array of longs from {lowest} on")
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


KEY_BYTES: Final = 8
"""Length of the key of locks of deferred messages."""


async def renew(connection: "ClientConnection", record: Name, body: Fields) -> Fields:
    """com.microsoft:renew-lock: renews locks for their full duration. Raises RequestError."""
    now_ms = connection.frontend.now_ms()
    ends: list[Timestamp] = []
    for token in tokens_of(body):
        link = _link_of(connection, record, token)
        if link is None:
            until_ms = await _renew_deferred(connection, record, token)
        else:
            (locked_ms,) = await link.settlements.renew_locks([token.bytes_le])
            until_ms = 0 if locked_ms == 0 else now_ms + (locked_ms or limits.BUS_LOCK_SHOWN_MS)
        if not until_ms:
            raise _lost([token])
        ends.append(Timestamp(until_ms))
    return {"expirations": Array(ends, 0x83)}


async def settle(connection: "ClientConnection", record: Name, body: Fields) -> Fields:
    """com.microsoft:update-disposition: settles messages; the outcomes are on disk before the answer.

    Raises RequestError if a lock has ended; the messages of the other locks are settled all the same.
    """
    state = _state(body, record)
    by_link: dict[BusConsumerLink, list[UUID]] = {}
    lost: list[UUID] = []
    for token in dict.fromkeys(tokens_of(body)):
        link = _link_of(connection, record, token)
        if link is not None:
            by_link.setdefault(link, []).append(token)
        elif not await settle_deferred(connection, record, token, state):
            lost.append(token)
    for link, tokens in by_link.items():
        settled = await link.settlements.settle_by_tags([token.bytes_le for token in tokens], state)
        lost += [token for token, is_settled in zip(tokens, settled, strict=True) if not is_settled]
    if lost:
        raise _lost(lost)
    return {}


async def settle_in(
    transaction: "Transaction", connection: "ClientConnection", record: Name, body: Fields
) -> None:
    """com.microsoft:update-disposition in a transaction: messages get their outcomes with its commit.

    Raises RequestError if a lock has ended, or the transaction accepts no work; then nothing is added to it.
    The locks of deferred messages are renewed, so that the time of each begins with this request.
    """
    state = _state(body, record)
    deferred: list[UUID] = []
    by_link: list[tuple[BusConsumerLink, UUID]] = []
    lost: list[UUID] = []
    for token in dict.fromkeys(tokens_of(body)):
        link = _link_of(connection, record, token)
        if link is not None:
            by_link.append((link, token))
        elif not transaction.has_lock(*key_of(token)) and await _renew_deferred(connection, record, token):
            deferred.append(token)
        else:
            lost.append(token)
    found = [(link, link.settlements.unsettled(token.bytes_le), token) for link, token in by_link]
    lost += [token for _, number, token in found if number is None]
    if lost:
        raise _lost(lost)
    if transaction.refusal:
        raise RequestError(400, transaction.refusal, conditions.TRANSACTION_ROLLBACK)
    for link, number, _ in found:
        assert number is not None
        transaction.retire_delivery(link, number, state)
    for token in deferred:
        transaction.retire_lock(record.name, *key_of(token), state)


# --- deferred messages -----------------------------------------------------------------------------------


def token_of(key: bytes, sequence: int) -> UUID:
    """The lock token of a deferred message, by the 8 bytes of its lock's key."""
    return UUID(bytes_le=key + sequence.to_bytes(8, "big"))


def key_of(token: UUID) -> tuple[str, int]:
    """The key of the lock of a deferred message, and the sequence of the message."""
    return token.bytes_le[:KEY_BYTES].hex(), int.from_bytes(token.bytes_le[KEY_BYTES:], "big")


def lock_of(token: UUID) -> Fields:
    """The fields by which the shard finds the lock of a deferred message."""
    key, sequence = key_of(token)
    return {"lock": f"{key}-{sequence}", "sequence": sequence}


async def settle_deferred(connection: "ClientConnection", record: Name, token: UUID, state: object) -> bool:
    """Settles a deferred message by its lock; returns False if there is no such lock (any more)."""
    if not _may_be_deferred(token):
        return False
    demand(connection.frontend.directory, connection.client.caller_for(record.name), Right.LISTEN, record)
    code, detail = encode_outcome(state, ConsumerOpen(record.name))
    fields = {**lock_of(token), "outcome": code.name.lower(), **(json.loads(detail) if detail else {})}
    answer = await connection.frontend.ask_shard(queue_of(record), "settle", fields)
    return bool(answer.fields["found"])


async def _renew_deferred(connection: "ClientConnection", record: Name, token: UUID) -> int:
    """Renews the lock of a deferred message; returns its end, or 0 if there is no such lock (any more)."""
    if not _may_be_deferred(token):
        return 0
    demand(connection.frontend.directory, connection.client.caller_for(record.name), Right.LISTEN, record)
    answer = await connection.frontend.ask_shard(queue_of(record), "renew", lock_of(token))
    return int(answer.fields["locked_until_ms"])


def _may_be_deferred(token: UUID) -> bool:
    return int.from_bytes(token.bytes_le[KEY_BYTES:], "big") < SEQUENCE_END


# --- deliveries of links -----------------------------------------------------------------------------------


def _link_of(connection: "ClientConnection", record: Name, token: UUID) -> BusConsumerLink | None:
    """The link of this connection on which a message of the queue was received."""
    links = (each for each in connection.links if isinstance(each, BusConsumerLink))
    return next((each for each in links if each.has_tag(token.bytes_le) and each.queue == record.name), None)


def _lost(tokens: list[UUID]) -> RequestError:
    shown = ", ".join(str(token) for token in tokens[:3]) + (", ..." if len(tokens) > 3 else "")
    return RequestError(
        410,
        f"expected locks of messages that this connection has received, or that were deferred, found "
        f"{len(tokens)} that have ended, or whose messages are settled: {shown}",
    )


# --- outcomes ------------------------------------------------------------------------------------------


def _state(body: Fields, record: Name) -> Any:
    """The outcome in a request. Raises RequestError."""
    status = body.get("disposition-status")
    if not isinstance(status, str) or status not in _STATES:
        raise RequestError(
            400, f"disposition-status is {status!r:.80}; expected one of {', '.join(sorted(_STATES))}"
        )
    changes = body.get("properties-to-modify")
    if changes is not None and not isinstance(changes, dict):
        raise RequestError(400, f"properties-to-modify is {changes!r:.80}; expected a map")
    state = _STATES[status](body, changes or {})
    if isinstance(state, Rejected) and is_dead_letter(record.name):
        assert STAYS_DEAD.error is not None
        raise RequestError(400, STAYS_DEAD.error.description or "", str(STAYS_DEAD.error.condition))
    return state


def _abandoned(_body: Fields, changes: dict[Any, Any]) -> Modified:
    return Modified(delivery_failed=True, message_annotations=changed_properties(changes))


def _deferred(_body: Fields, changes: dict[Any, Any]) -> Deferral:
    return Deferral(Modified(undeliverable_here=True), changed_properties(changes))


def _dead_lettered(body: Fields, changes: dict[Any, Any]) -> Rejected:
    notes = {Symbol(str(name)): value for name, value in changes.items()}
    for field, key in (("deadletter-reason", REASON), ("deadletter-description", DESCRIPTION)):
        if body.get(field) is not None:
            notes[Symbol(key)] = body[field]
    return with_reason(Rejected(error=AmqpError(condition=DEAD_LETTERED, info=notes)))


_STATES: Final[Mapping[str, Callable[[Fields, dict[Any, Any]], Any]]] = {
    "completed": lambda _body, _changes: ACCEPTED,
    "abandoned": _abandoned,
    "defered": _deferred,
    "suspended": _dead_lettered,
}
"""Outcomes by the disposition-status of these clients."""
