"""The head of a queue: DELETE receives a message, POST locks one.

DELETE delivers at most once: the answer is written when the removal of the message is on disk. A message
whose client closed the connection before the removal is released to the queue. POST delivers at least once:
the message is locked for the client until the lock expires, and leaves the queue only when the client
completes it.
"""

import json

from aiohttp import web

from lightrail.gateway.bodies import AMQP, rfc3339
from lightrail.gateway.errors import AGAIN, ProblemError
from lightrail.gateway.messages import incoming
from lightrail.gateway.messages.receiving import LockedMessage
from lightrail.gateway.paths import path_of
from lightrail.gateway.request import Request, nothing_at
from lightrail.gateway.resources.names import refer
from lightrail.model import limits
from lightrail.model.policy import Role
from lightrail.namespace.records import Right, refused_by_forwarding
from lightrail.namespace.rights import demand

NOT_REMOVED = (
    "expected the shard to remove the message before it is sent, found that its lock has ended, or that "
    "nobody can tell whether it is removed; receive again: it comes if it is still in the queue"
)
"""The answer to DELETE whose message might come to another receiver as well."""


async def receive(request: Request) -> web.StreamResponse:
    """DELETE /name/!head: the next message; it leaves the queue before it is written to the socket."""
    return await _next(request, locked=False)


async def lock(request: Request) -> web.StreamResponse:
    """POST /name/!head: the next message, locked until it is settled or its lock expires."""
    return await _next(request, locked=True)


async def _next(request: Request, *, locked: bool) -> web.StreamResponse:
    message = await _receive(request)
    return web.Response(status=204) if message is None else await _hand_out(request, message, locked=locked)


async def _receive(request: Request) -> LockedMessage | None:
    directory = request.directory
    directory.refresh()
    revision, record = directory.revision, directory.get(request.name)
    demand(directory, request.caller, Right.LISTEN, record)
    if record.role is Role.NONE:
        # Otherwise a mistyped name would become a queue, and the client would wait there for ever.
        raise nothing_at(request.name)
    if record.role is Role.METADATA:
        raise refer(record)
    if record.role is not Role.QUEUE:
        raise ProblemError(409, f"{record.name} is a {record.role}; messages are received from queues")
    if why := refused_by_forwarding(record.policy, Right.LISTEN):
        raise ProblemError(409, f"nobody receives from {record.name}: {why}")
    wait_s = request.seconds("timeout", 0.0, limits.RECEIVE_WAIT_MS_MAX / 1000)
    found = await request.services.receivers.receive(record, round(wait_s * 1000), request.caller.user)
    if found is not None and wait_s:
        try:
            # Another request or process may have taken the right away while this one waited.
            directory.refresh()
            if (present := directory.get(request.name)) is not record or directory.revision != revision:
                demand(directory, request.caller, Right.LISTEN, present)
        except BaseException:
            found.release()
            raise
    return found


async def _hand_out(request: Request, message: LockedMessage, *, locked: bool) -> web.StreamResponse:
    transport = request.http.transport
    handed_out = request.services.counts.handed_out
    is_removed = False
    try:
        response = _shown(request, message, locked=locked)
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client did not wait")
        if not locked:
            is_removed = True
            if not await message.remove():
                raise ProblemError(503, NOT_REMOVED, headers=AGAIN)
        await response.prepare(request.http)
        await response.write_eof()
    except BaseException:
        if not is_removed:
            handed_out["released"] += 1
            message.release()
        raise
    if locked:
        handed_out["locked"] += 1
        message.keep()
    else:
        handed_out["received"] += 1
    return response


def _shown(request: Request, message: LockedMessage, *, locked: bool) -> web.Response:
    delivery = message.delivery
    properties, headers, content_type, body = incoming.answer(
        delivery.message, delivery.message_format, delivery.attempts, whole=request.wants(AMQP)
    )
    properties["SequenceNumber"] = delivery.sequence
    properties["EnqueuedTimeUtc"] = rfc3339(delivery.enqueued_at_ms)
    if delivery.expires_at_ms:
        properties["ExpiresAtUtc"] = rfc3339(delivery.expires_at_ms)
    if locked:
        properties["LockToken"] = message.lock
        properties["LockedUntilUtc"] = rfc3339(message.locked_until_ms)
        path = path_of(request.name, "!messages", str(delivery.sequence), message.lock)
        headers.append(("Location", path))
    headers.append(("BrokerProperties", json.dumps(properties)))
    headers.append(("Content-Type", content_type))
    return web.Response(status=201 if locked else 200, headers=headers, body=body)
