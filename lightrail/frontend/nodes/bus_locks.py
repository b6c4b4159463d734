"""Locks of one queue by their tokens, as clients of Azure Service Bus renew and settle them over $management.

A token is the delivery-tag of a message that a link of the same connection received: no client renews or
settles the deliveries of another one.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from lightrail.amqp.events import ACCEPTED
from lightrail.amqp.performatives import AmqpError, Modified, Rejected
from lightrail.amqp.values import Array, Symbol, Timestamp
from lightrail.frontend.links.bus_deliveries import DESCRIPTION, REASON, BusConsumerLink, with_reason
from lightrail.frontend.nodes.bus_fields import Fields, tokens_of
from lightrail.frontend.nodes.links import NodeContext
from lightrail.frontend.nodes.requests import RequestError
from lightrail.model import limits
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import demand

DEAD_LETTERED: Final = Symbol("com.microsoft:dead-letter")
"""Condition of a rejection that dead-letters a message, as these clients write it on a link."""


async def renew(connection: NodeContext, record: Name, body: Fields) -> Fields:
    """com.microsoft:renew-lock: messages are locked for as long again. Raises RequestError."""
    now_ms = connection.frontend.now_ms()
    ends: list[Timestamp] = []
    for token in tokens_of(body):
        link = _link_of(connection, record, token)
        locked = [0] if link is None else await link.settlements.renew_locks([token.bytes_le])
        if locked[0] == 0:
            raise _lost([token])
        ends.append(Timestamp(now_ms + (locked[0] or limits.BUS_LOCK_SHOWN_MS)))
    return {"expirations": Array(ends, 0x83)}


async def settle(connection: NodeContext, record: Name, body: Fields) -> Fields:
    """com.microsoft:update-disposition: messages get their outcome, which is on disk with the answer.

    Raises RequestError: a lock has ended; the messages of the others are settled all the same.
    """
    demand(connection.frontend.directory, connection.client.caller_for(record.name), Right.LISTEN, record)
    state = _state(body)
    by_link: dict[BusConsumerLink, list[UUID]] = {}
    lost: list[UUID] = []
    for token in dict.fromkeys(tokens_of(body)):
        link = _link_of(connection, record, token)
        if link is None:
            lost.append(token)
        else:
            by_link.setdefault(link, []).append(token)
    for link, tokens in by_link.items():
        settled = await link.settlements.settle_by_tags([token.bytes_le for token in tokens], state)
        lost += [token for token, is_settled in zip(tokens, settled, strict=True) if not is_settled]
    if lost:
        raise _lost(lost)
    return {}


def _link_of(connection: NodeContext, record: Name, token: UUID) -> BusConsumerLink | None:
    """The link of this connection on which a message of the queue was received."""
    links = (each for each in connection.links if isinstance(each, BusConsumerLink))
    return next((each for each in links if each.has_tag(token.bytes_le) and each.queue == record.name), None)


def _lost(tokens: list[UUID]) -> RequestError:
    shown = ", ".join(str(token) for token in tokens[:3]) + (", ..." if len(tokens) > 3 else "")
    return RequestError(
        410,
        f"expected locks of messages that this connection has received and not settled, found {len(tokens)} "
        f"that have ended, or whose messages are settled: {shown}",
    )


# --- outcomes ------------------------------------------------------------------------------------------


def _state(body: Fields) -> Any:
    """The outcome that a request asks for. Raises RequestError."""
    status = body.get("disposition-status")
    if not isinstance(status, str) or status not in _STATES:
        raise RequestError(
            400, f"disposition-status is {status!r:.80}; expected one of {', '.join(sorted(_STATES))}"
        )
    changes = body.get("properties-to-modify")
    if changes is not None and not isinstance(changes, dict):
        raise RequestError(400, f"properties-to-modify is {changes!r:.80}; expected a map")
    return _STATES[status](body, changes or {})


def _abandoned(_body: Fields, changes: dict[Any, Any]) -> Modified:
    return Modified(delivery_failed=True, message_annotations=_annotations(changes))


def _dead_lettered(body: Fields, changes: dict[Any, Any]) -> Rejected:
    notes = _annotations(changes) or {}
    for field, key in (("deadletter-reason", REASON), ("deadletter-description", DESCRIPTION)):
        if isinstance(body.get(field), str):
            notes[Symbol(key)] = body[field]
    return with_reason(Rejected(error=AmqpError(condition=DEAD_LETTERED, info=notes)))


_STATES: Final[Mapping[str, Callable[[Fields, dict[Any, Any]], Any]]] = {
    "completed": lambda _body, _changes: ACCEPTED,
    "abandoned": _abandoned,
    "suspended": _dead_lettered,
}
"""By the disposition-status that these clients send."""


def _annotations(changes: dict[Any, Any]) -> dict[Symbol, Any] | None:
    return {Symbol(str(key)): value for key, value in changes.items()} or None
