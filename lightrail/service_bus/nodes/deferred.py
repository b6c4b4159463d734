"""Deferred messages of one queue, which clients of Azure Service Bus receive by their sequence numbers."""

import secrets
from typing import TYPE_CHECKING, Final
from uuid import UUID

from lightrail.amqp.events import ACCEPTED, RELEASED
from lightrail.amqp.sections import with_delivery_annotations
from lightrail.amqp.values import DecodeError, Symbol, Timestamp
from lightrail.frontend.links.headers import with_new_header
from lightrail.frontend.nodes.requests import RequestError
from lightrail.model.names import is_dead_letter
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import demand
from lightrail.service_bus.links.deliveries import DEFERRED, FIRST_SEQUENCE, annotated, annotations_of
from lightrail.service_bus.nodes import sessions
from lightrail.service_bus.nodes.locks import (
    KEY_BYTES,
    Fields,
    queue_of,
    sequences_of,
    settle_deferred,
    token_of,
    whole,
)
from lightrail.wire.bodies import Answer

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

NOT_FOUND: Final = "com.microsoft:message-not-found"
LOCK_TOKEN: Final = Symbol("x-opt-lock-token")
AT_ONCE, LOCKED = 0, 1
"""receiver-settle-mode of a request: whether the messages leave the queue with the answer."""


async def receive(connection: "ClientConnection", record: Name, body: Fields) -> Fields:
    """com.microsoft:receive-by-sequence-number: locks deferred messages, or removes them at once.

    Raises RequestError if not all of them are deferred and unlocked; then none is locked.
    """
    demand(connection.frontend.directory, connection.client.caller_for(record.name), Right.LISTEN, record)
    session = None if body.get("session-id") is None else sessions.session_of(body)
    if session is not None:
        sessions.link_of(connection, record, session)
    mode = LOCKED
    if body.get("receiver-settle-mode") is not None:
        mode = whole(body, "receiver-settle-mode", AT_ONCE, LOCKED)
    sequences = list(dict.fromkeys(sequences_of(body)))
    key = secrets.token_bytes(KEY_BYTES)
    fields = {"sequences": sequences, "key": key.hex()}
    answer = await connection.frontend.ask_shard(queue_of(record), "receive_deferred", fields)
    rows = answer.fields["messages"]
    if len(rows) < len(sequences):
        there = {int(row["sequence"]) for row in rows}
        missing = [str(each + FIRST_SEQUENCE) for each in sequences if each not in there] if rows else []
        raise RequestError(
            404,
            f"expected {len(sequences)} messages that are deferred in {record.name} and not locked, found "
            + (f"that {', '.join(missing)} can't be read" if missing else "fewer"),
            NOT_FOUND,
        )
    if session is not None:
        await _demand_session(connection, record, session, answer, key)
    found: list[Fields] = []
    at = 0
    now_ms = connection.frontend.now_ms()
    for row in rows:
        end = at + int(row["size"])
        message = bytes(answer.blob[at:end])
        at = end
        sequence = int(row["sequence"])
        token = token_of(key, sequence)
        if not row["message_format"]:
            attempts, expires = int(row["attempts"]), int(row["expires_at_ms"] or 0)
            message = with_new_header(message, attempts, expires, now_ms)
            notes = annotations_of(sequence, int(row["enqueued_at_ms"]), DEFERRED)
            if mode == LOCKED:
                notes[Symbol("x-opt-locked-until")] = Timestamp(int(answer.fields["locked_until_ms"]))
            message = annotated(message, notes, is_dead=is_dead_letter(record.name))
            if mode == LOCKED:
                message = with_token(message, token)
        if mode == AT_ONCE and not await settle_deferred(connection, record, token, ACCEPTED):
            raise RequestError(404, f"message {sequence + FIRST_SEQUENCE} was not removed in time", NOT_FOUND)
        found.append({"message": message, "lock-token": token})
    return {"messages": found}


def with_token(message: bytes, token: UUID) -> bytes:
    """The message with its lock token, which the client for Go reads there instead of beside the message."""
    try:
        return with_delivery_annotations(message, {LOCK_TOKEN: token})
    except DecodeError:
        return message


async def _demand_session(
    connection: "ClientConnection", record: Name, session: str, answer: Answer, key: bytes
) -> None:
    """Raises RequestError if a locked message is not of the session; then none stays locked."""
    rows = answer.fields["messages"]
    at = 0
    wrong: list[str] = []
    for row in rows:
        end = at + int(row["size"])
        if sessions.session_in(bytes(answer.blob[at:end]), int(row["message_format"])) != session:
            wrong.append(str(int(row["sequence"]) + FIRST_SEQUENCE))
        at = end
    if wrong:
        for row in rows:
            await settle_deferred(connection, record, token_of(key, int(row["sequence"])), RELEASED)
        raise RequestError(
            404,
            f"expected messages of the session {session!a:.80}, found others: {', '.join(wrong[:5])}",
            NOT_FOUND,
        )
