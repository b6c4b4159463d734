"""Sessions of one queue: clients of Azure Service Bus read and change locks and states over $management.

A request is for the session of a link of the same connection, so that no client changes the session of
another client.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from lightrail.amqp.sections import decode_properties
from lightrail.amqp.values import Array, DecodeError, Int, Timestamp
from lightrail.frontend.nodes.requests import RequestError
from lightrail.model import conditions, limits
from lightrail.namespace.records import Name
from lightrail.namespace.rights import demand_look
from lightrail.service_bus.links.sessions import SessionLink
from lightrail.service_bus.nodes.locks import Fields, queue_of, whole
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
            400,
            f"session-state has {len(state)} bytes; expected at most {limits.SESSION_STATE_BYTES_MAX}",
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
