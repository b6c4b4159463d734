"""Sessions of one queue: clients of Azure Service Bus read and change locks and states over $management.

A request is for the session of a link of the same connection, so that no client changes the session of
another client.

Deferred messages of one queue, which clients of Azure Service Bus receive by their sequence numbers.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from lightrail.amqp.events import ACCEPTED, RELEASED
from lightrail.amqp.sections import decode_properties, with_delivery_annotations
from lightrail.amqp.values import Array, DecodeError, Int, Symbol, Timestamp
from lightrail.frontend.nodes.requests import RequestError
from lightrail.model import conditions, limits
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import demand, demand_look
from lightrail.service_bus.links.deliveries import KEY_BYTES
from lightrail.service_bus.links.sessions import SessionLink
from lightrail.service_bus.messages import (
    DEFERRED,
    FIRST_SEQUENCE,
    LOCKED_UNTIL,
    annotated,
    annotations_of,
    life_of,
)
from lightrail.service_bus.nodes.locks import (
    MESSAGE_NOT_FOUND,
    Fields,
    demand_open,
    queue_of,
    sequences_of,
    settle_all,
    token_of,
    whole,
)
from lightrail.service_bus.paths import is_of_subscription
from lightrail.shard_client.deadlines import within
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.bodies import Answer

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

SESSION_LOADING_AGAIN_MS: Final[int] = 50
"""After what time a frontend repeats a request about a queue whose groups are being read."""
ALL_SESSIONS_MS: Final = 253_402_300_799_999
"""The largest time of .NET, in milliseconds since the epoch: instead of a last-updated-time, all sessions."""


async def renew(connection: "ClientConnection", record: Name, body: Fields) -> Fields:
    """com.microsoft:renew-session-lock: renews the lock for its full duration. Raises RequestError."""
    link = link_of(connection, record, session_of(body))
    answer = await connection.frontend.ask_shard(queue_of(record), "renew_session", {"link": link.number})
    if answer.fields["locked_ms"] is None:
        raise _lost(str(link.session))
    # SESSION, with the same time, precedes the answer.
    return {"expiration": Timestamp(link.locked_until_ms)}


def session_of(body: Fields) -> str:
    """The session-id of a request. Raises RequestError."""
    session = body.get("session-id")
    if not isinstance(session, str):
        raise RequestError(400, f"session-id is {session!r:.80}; expected a string")
    return str(session)


def session_in(message: bytes, message_format: int = 0) -> str | None:
    """The session of a message: its group-id."""
    if message_format:
        return None
    try:
        return decode_properties(message).group_id
    except DecodeError:
        return None


def link_of(connection: "ClientConnection", record: Name, session: str) -> SessionLink:
    """The link of this connection that receives the messages of a session. Raises RequestError."""
    for each in connection.links:
        if isinstance(each, SessionLink) and each.queue == record.name and each.session == session:
            return each
    raise _lost(session)


def _lost(session: str) -> RequestError:
    return RequestError(
        410,
        f"expected a session that this connection has accepted, found {session!a:.80}: its lock has ended, "
        "or its receiver is closed",
        conditions.SESSION_LOCK_LOST,
    )


# --- states and lists ---------------------------------------------------------------------------------------


async def get_state(connection: "ClientConnection", record: Name, body: Fields) -> Fields:
    """com.microsoft:get-session-state. Raises RequestError."""
    link = link_of(connection, record, session_of(body))
    answer = await _ask(connection, record, "session_state", {"link": link.number})
    return {"session-state": bytes(answer.blob) if answer.fields["found"] else None}


async def set_state(connection: "ClientConnection", record: Name, body: Fields) -> Fields:
    """com.microsoft:set-session-state: the state is on disk before the answer. Raises RequestError."""
    link = link_of(connection, record, session_of(body))
    state = body.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise RequestError(400, f"session-state is {type(state).__name__}; expected a binary or null")
    if state is not None and len(state) > limits.SESSION_STATE_BYTES_MAX:
        raise RequestError(
            400, f"session-state has {len(state)} bytes; expected at most {limits.SESSION_STATE_BYTES_MAX}"
        )
    # The client for Go sends nothing as an empty binary.
    fields = {"link": link.number, "state": state.hex() if state else None}
    await _ask(connection, record, "set_session_state", fields)
    return {}


async def list_sessions(connection: "ClientConnection", record: Name, body: Fields) -> Fields | None:
    """com.microsoft:get-message-sessions: ids of sessions; None if there are none. Raises RequestError.

    With a last-updated-time, those whose state was set after it; otherwise those with messages or a state.
    """
    demand_look(connection.frontend.directory, connection.client.caller_for(record.name), record)
    skip = whole(body, "skip", 0, 1 << 31)
    top = min(whole(body, "top", 1, 1 << 31), limits.SESSIONS_SHOWN_MAX)
    since = body.get("last-updated-time")
    if not isinstance(since, int) or isinstance(since, bool):
        raise RequestError(400, f"last-updated-time is {since!r:.80}; expected a timestamp")
    fields = {"skip": skip, "top": top, "since_ms": None if since >= ALL_SESSIONS_MS else int(since)}
    answer = await _ask(connection, record, "sessions", fields)
    found = answer.fields["sessions"]
    if not found:
        return None
    return {"skip": Int(skip + len(found)), "sessions-ids": Array(found, 0xB1)}


async def _ask(connection: "ClientConnection", record: Name, operation: str, fields: Fields) -> Answer:
    """The answer of the shard, which is repeated until the groups of the queue are read after a restart."""
    for _ in range(limits.REQUEST_MS // SESSION_LOADING_AGAIN_MS):
        answer = await connection.frontend.ask_shard(queue_of(record), operation, fields)
        if not answer.fields.get("loading"):
            return answer
        await asyncio.sleep(SESSION_LOADING_AGAIN_MS / 1000)
    raise RequestError(503, f"the messages of {record.name} are being read after a restart; try again")


LOCKED_TOGETHER_MAX: Final[int] = 500
"""Deferred messages that one request to a shard locks."""
DEFERRED_BYTES_MAX: Final[int] = limits.MAX_MESSAGE_BYTES
"""Bytes of deferred messages in one answer."""
LOCK_TOKEN: Final = Symbol("x-opt-lock-token")
AT_ONCE, LOCKED = 0, 1
"""receiver-settle-mode of a request: whether the messages leave the queue with the answer."""


async def receive(connection: "ClientConnection", record: Name, body: Fields) -> Fields:
    """com.microsoft:receive-by-sequence-number: locks deferred messages, or removes them at once.

    Raises RequestError if not all of them are deferred and unlocked, ShardDownError or ShardRefusedError if
    the shard does not answer; then none is locked.
    """
    demand(connection.frontend.directory, connection.client.caller_for(record.name), Right.LISTEN, record)
    demand_open(record, Right.LISTEN)
    session = None if body.get("session-id") is None else session_of(body)
    link = None if session is None else link_of(connection, record, session)
    mode = LOCKED
    if body.get("receiver-settle-mode") is not None:
        mode = whole(body, "receiver-settle-mode", AT_ONCE, LOCKED)
    sequences = list(dict.fromkeys(sequences_of(body)))
    pages: list[tuple[bytes, Answer]] = []
    tokens: list[UUID] = []
    """Of all messages that may be locked: the shard may lock some whose answer is lost."""
    try:
        size = 0
        for at in range(0, len(sequences), LOCKED_TOGETHER_MAX):
            key = secrets.token_bytes(KEY_BYTES)
            part = sequences[at : at + LOCKED_TOGETHER_MAX]
            tokens += (token_of(key, sequence) for sequence in part)
            answer = await _lock(connection, record, part, key, link)
            if not answer.fields["messages"]:
                del tokens[at:]
            _demand_all(record, part, answer)
            pages.append((key, answer))
            size += len(answer.blob)
            if size > DEFERRED_BYTES_MAX:
                raise RequestError(
                    413,
                    f"the first {at + LOCKED_TOGETHER_MAX} messages have {size} bytes; expected at most "
                    f"{DEFERRED_BYTES_MAX} in one answer: receive fewer messages at a time",
                    conditions.MESSAGE_SIZE_EXCEEDED,
                )
            if session is not None:
                _demand_session(session, answer)
        found = [
            message
            for key, answer in pages
            for message in _received(connection, record, key, answer, mode, of_session=link is not None)
        ]
        if mode == AT_ONCE:
            found = await _removed(connection, record, found)
    except RequestError:
        await _release(connection, record, tokens)
        raise
    except (ShardDownError, ShardRefusedError):
        # The client does not wait until the shard answers again.
        connection.frontend.spawn(_release(connection, record, tokens))
        raise
    return {"messages": found}


async def _lock(
    connection: "ClientConnection",
    record: Name,
    sequences: list[int],
    key: bytes,
    link: SessionLink | None,
) -> Answer:
    """Locks deferred messages, all or none."""
    fields: Fields = {"sequences": sequences, "key": key.hex()}
    if link is not None:
        # The session's lock is that of its deferred messages.
        fields["link"] = link.number
    return await connection.frontend.ask_shard(queue_of(record), "receive_deferred", fields)


def _demand_all(record: Name, sequences: list[int], answer: Answer) -> None:
    """Raises RequestError if one of the messages is not deferred, is locked, or can't be read."""
    rows = answer.fields["messages"]
    if len(rows) < len(sequences):
        there = {int(row["sequence"]) for row in rows}
        missing = [str(each + FIRST_SEQUENCE) for each in sequences if each not in there] if rows else []
        raise RequestError(
            404,
            f"expected {len(sequences)} messages that are deferred in {record.name} and not locked, found "
            + (f"that {', '.join(missing)} can't be read" if missing else "fewer"),
            MESSAGE_NOT_FOUND,
        )


async def _release(connection: "ClientConnection", record: Name, tokens: list[UUID]) -> None:
    """Releases messages that were locked for a request which fails, also after the time of its client.

    If the shard does not answer they are locked until their locks end.
    """
    with within(None), suppress(ShardDownError, ShardRefusedError):
        for at in range(0, len(tokens), LOCKED_TOGETHER_MAX):
            await settle_all(connection, record, tokens[at : at + LOCKED_TOGETHER_MAX], RELEASED)


async def _removed(connection: "ClientConnection", record: Name, messages: Sequence[Fields]) -> list[Fields]:
    """Removes locked messages from their queue; returns those that it has removed, which only the client has.

    Raises RequestError, ShardDownError, ShardRefusedError: none was removed, as far as is known.
    """
    removed: list[Fields] = []
    for at in range(0, len(messages), LOCKED_TOGETHER_MAX):
        part = {each["lock-token"]: each for each in messages[at : at + LOCKED_TOGETHER_MAX]}
        try:
            lost = await settle_all(connection, record, [*part], ACCEPTED)
        except (ShardDownError, ShardRefusedError):
            if not removed:
                raise
            break
        removed += [each for token, each in part.items() if token not in lost]
    if not removed:
        raise RequestError(404, f"the messages of {record.name} were not removed in time", MESSAGE_NOT_FOUND)
    return removed


def _received(
    connection: "ClientConnection", record: Name, key: bytes, answer: Answer, mode: int, *, of_session: bool
) -> list[Fields]:
    """Locked messages as clients read them, with their tokens."""
    until_ms = int(answer.fields["locked_until_ms"])
    if of_session:
        # The session's lock is renewed. The client for .NET forgets the token at this time.
        until_ms = connection.frontend.now_ms() + limits.BUS_LOCK_SHOWN_MS
    found: list[Fields] = []
    at = 0
    for row in answer.fields["messages"]:
        end = at + int(row["size"])
        message = bytes(answer.blob[at:end])
        at = end
        sequence = int(row["sequence"])
        token = token_of(key, sequence)
        if not row["message_format"]:
            enqueued = int(row["enqueued_at_ms"])
            notes = annotations_of(
                sequence, enqueued, DEFERRED, is_subscription=is_of_subscription(record.name)
            )
            if mode == LOCKED:
                notes[LOCKED_UNTIL] = Timestamp(until_ms)
            life_ms = life_of(enqueued, row["expires_at_ms"])
            message = annotated(message, notes, life_ms=life_ms, attempts=int(row["attempts"]))
            if mode == LOCKED:
                message = with_token(message, token)
        found.append({"message": message, "lock-token": token})
    return found


def with_token(message: bytes, token: UUID) -> bytes:
    """The message with its lock token, which the client for Go reads there instead of beside the message."""
    try:
        return with_delivery_annotations(message, {LOCK_TOKEN: token})
    except DecodeError:
        return message


def _demand_session(session: str, answer: Answer) -> None:
    """Raises RequestError if a locked message is not of the session."""
    at = 0
    wrong: list[str] = []
    for row in answer.fields["messages"]:
        end = at + int(row["size"])
        if session_in(bytes(answer.blob[at:end]), int(row["message_format"])) != session:
            wrong.append(str(int(row["sequence"]) + FIRST_SEQUENCE))
        at = end
    if wrong:
        raise RequestError(
            404,
            f"expected messages of the session {session!a:.80}, found others: {', '.join(wrong[:5])}",
            MESSAGE_NOT_FOUND,
        )
