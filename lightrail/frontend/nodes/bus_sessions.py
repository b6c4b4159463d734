"""Sessions of one queue: clients of Azure Service Bus read and change locks and states over $management.

A request is for the session of a link of the same connection, so that no client changes the session of
another client.
"""

from lightrail.amqp.values import Timestamp
from lightrail.frontend.links.bus_sessions import SessionLink
from lightrail.frontend.nodes.bus_fields import Fields, queue_of
from lightrail.frontend.nodes.links import NodeContext
from lightrail.frontend.nodes.requests import RequestError
from lightrail.model import conditions
from lightrail.namespace.records import Name


async def renew(connection: NodeContext, record: Name, body: Fields) -> Fields:
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


def link_of(connection: NodeContext, record: Name, session: str) -> SessionLink:
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
