"""Locks of one queue by their tokens, which clients of Azure Service Bus renew and settle over $management.

A token is 8 bytes of the key of a lock and 8 of a number, which identify the lock at the shard: the number is
that of a delivery of a link, or the sequence of a deferred message, which no link received. So a client that
may listen settles and renews over any connection, whatever became of its receiver (ADR 68).

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
from lightrail.service_bus.links.deliveries import KEY_BYTES, STAYS_DEAD, BusConsumerLink
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
        why = f"{record.name} has role {record.role}; expected a queue or a subscription"
        raise RequestError(400, why, conditions.NOT_ALLOWED)
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


async def renew(connection: "ClientConnection", record: Name, body: Fields) -> Fields:
    """com.microsoft:renew-lock: renews locks for their full duration. Raises RequestError."""
    now_ms = connection.frontend.now_ms()
    tokens = tokens_of(body)
    found = await _ask(connection, record, "renew_locks", tokens, {}, "locked_ms")
    lost = [token for token, locked_ms in zip(tokens, found, strict=True) if locked_ms == 0]
    if lost:
        raise _lost(lost)
    ends = [Timestamp(now_ms + (locked_ms or limits.BUS_LOCK_SHOWN_MS)) for locked_ms in found]
    return {"expirations": Array(ends, 0x83)}


async def settle(connection: "ClientConnection", record: Name, body: Fields) -> Fields:
    """com.microsoft:update-disposition: settles messages; the outcomes are on disk before the answer.

    Raises RequestError if a lock has ended; the messages of the other locks are settled all the same.
    """
    state = _state(body, record)
    tokens = list(dict.fromkeys(tokens_of(body)))
    lost = await settle_all(connection, record, tokens, state)
    if lost:
        raise _lost(lost)
    return {}


async def settle_in(
    transaction: "Transaction", connection: "ClientConnection", record: Name, body: Fields
) -> None:
    """com.microsoft:update-disposition in a transaction: messages get their outcomes with its commit.

    Raises RequestError if a lock has ended, or the transaction accepts no work; then nothing is added to it.
    """
    state = _state(body, record)
    tokens = list(dict.fromkeys(tokens_of(body)))
    found = await _ask(connection, record, "are_locked", tokens, {}, "found")
    lost = [
        token
        for token, is_locked in zip(tokens, found, strict=True)
        if not is_locked or transaction.has_lock(*key_of(token))
    ]
    if lost:
        raise _lost(lost)
    if transaction.refusal:
        raise RequestError(400, transaction.refusal, conditions.TRANSACTION_ROLLBACK)
    _forget(connection, tokens)
    for token in tokens:
        transaction.retire_lock(record.name, *key_of(token), state)


async def settle_all(
    connection: "ClientConnection", record: Name, tokens: list[UUID], state: object
) -> list[UUID]:
    """Settles messages by their locks; returns the tokens without a lock (any more)."""
    code, detail = encode_outcome(state, ConsumerOpen(record.name))
    fields = {"outcome": code.name.lower(), **(json.loads(detail) if detail else {})}
    found = await _ask(connection, record, "settle_locks", tokens, fields, "found")
    settled = [token for token, is_settled in zip(tokens, found, strict=True) if is_settled]
    connection.frontend.counts.outcomes[code] += len(settled)
    _forget(connection, settled)
    return [token for token, is_settled in zip(tokens, found, strict=True) if not is_settled]


async def _ask(
    connection: "ClientConnection",
    record: Name,
    operation: str,
    tokens: list[UUID],
    fields: Fields,
    answer: str,
) -> list[Any]:
    """What the shard answers about locks, token by token."""
    demand(connection.frontend.directory, connection.client.caller_for(record.name), Right.LISTEN, record)
    locks = ["{}-{}".format(*key_of(token)) for token in tokens]
    found = await connection.frontend.ask_shard(queue_of(record), operation, {"locks": locks, **fields})
    return list(found.fields[answer])


def _forget(connection: "ClientConnection", tokens: list[UUID]) -> None:
    """The links of this connection that received these messages, as far as there are any, count them no
    longer."""
    numbers: dict[str, list[int]] = {}
    for token in tokens:
        key, number = key_of(token)
        numbers.setdefault(key, []).append(number)
    for each in connection.links:
        if isinstance(each, BusConsumerLink):
            for number in numbers.get(each.lock_key, ()):
                each.settlements.retire_one(number)


# --- tokens ----------------------------------------------------------------------------------------------


def token_of(key: bytes, number: int) -> UUID:
    """A lock token, by the bytes of the lock's key and its number."""
    return UUID(bytes_le=key + number.to_bytes(8, "big"))


def key_of(token: UUID) -> tuple[str, int]:
    """The key of a lock, and its number: of the delivery, or the sequence of a deferred message."""
    return token.bytes_le[:KEY_BYTES].hex(), int.from_bytes(token.bytes_le[KEY_BYTES:], "big")


def _lost(tokens: list[UUID]) -> RequestError:
    shown = ", ".join(str(token) for token in tokens[:3]) + (", ..." if len(tokens) > 3 else "")
    return RequestError(
        410,
        f"expected tokens of locks of this queue, found {len(tokens)} of locks that have ended, or whose "
        f"messages are settled: {shown}",
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
