"""Messages of a queue over HTTP: browsed, removed, and settled by the id of their lock."""

import json
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Symbol
from lightrail.gateway.bodies import JSON, rfc3339
from lightrail.gateway.errors import ProblemError, invalid
from lightrail.gateway.messages import incoming
from lightrail.gateway.request import Request, whole_number
from lightrail.gateway.resources.queues import demand_queue
from lightrail.model import limits
from lightrail.namespace.records import Right
from lightrail.namespace.rights import Caller
from lightrail.wire.bodies import Answer

if TYPE_CHECKING:
    from lightrail.gateway.services import Services

OUTCOMES: Final = ("accepted", "released", "modified", "rejected")
SEQUENCE_MAX: Final = (1 << 63) - 1
COMPLETED: Final = b'{"outcome": "accepted"}'


# --- browsing and removing ----------------------------------------------------------------------------


async def browse(request: Request) -> web.Response:
    """GET /name/!messages: a page of messages, which stay available."""
    first = request.whole("from", 0, 0, SEQUENCE_MAX)
    count = request.whole("count", 10, 1, limits.PAGE_MAX)
    request.record(Right.LISTEN)
    found = await peek(request.services, request.caller, request.name, first, count)
    following = found[-1]["sequence"] + 1 if found else None
    return web.json_response({"name": request.name, "messages": found, "next": following})


async def browse_one(request: Request) -> web.Response:
    """GET /name/!messages/SEQ: one message, which stays available."""
    sequence = whole_number("sequence", request.rest[0], 0, SEQUENCE_MAX)
    request.record(Right.LISTEN)
    found = await peek(request.services, request.caller, request.name, sequence, 1)
    if not found or found[0]["sequence"] != sequence:
        raise ProblemError(404, f"{request.name} has no message {sequence} (any more)")
    return web.json_response(found[0])


async def cancel(request: Request) -> web.Response:
    """DELETE /name/!messages/SEQ: cancels a scheduled message."""
    record = request.record(Right.SEND)
    sequence = whole_number("sequence", request.rest[0], 0, SEQUENCE_MAX)
    answer = await request.services.shards.request(record.name, "cancel", {"sequences": [sequence]})
    if not answer.fields["cancelled"]:
        raise ProblemError(404, f"{record.name} has no scheduled message {sequence} (any more)")
    return web.Response(status=204)


async def purge(request: Request) -> web.Response:
    """DELETE /name/!messages: removes all messages that are not in flight."""
    return web.json_response({"purged": await remove_all(request.services, request.caller, request.name)})


async def peek(
    services: "Services", caller: Caller, name: str, first: int, count: int
) -> list[dict[str, Any]]:
    """Rows of messages from a sequence on; the messages stay available."""
    demand_queue(services.directory, caller, name, Right.LISTEN)
    bounds = {"from": first, "count": count, "bytes": limits.PEEK_BYTES_MAX}
    answer = await services.shards.request(name, "peek", bounds)
    rows = []
    start = 0
    for row in answer.fields["messages"]:
        end = start + row["size"]
        rows.append(_message(row, bytes(answer.blob[start:end])))
        start = end
    return rows


async def remove_all(services: "Services", caller: Caller, name: str) -> int:
    """Removes all messages that are not in flight; returns their number."""
    demand_queue(services.directory, caller, name, Right.MANAGE)
    answer = await services.shards.request(name, "purge", {})
    return int(answer.fields["purged"])


def _message(row: dict[str, Any], message: bytes) -> dict[str, Any]:
    attempts = int(row.get("attempts", 0))
    times = {
        f"{key}_at": rfc3339(row[f"{field}_ms"]) if row.get(f"{field}_ms") else None
        for key, field in (("enqueued", "enqueued_at"), ("expires", "expires_at"), ("due", "due"))
    }
    shown = {
        "sequence": row["sequence"],
        "state": row["state"],
        "delivery_count": attempts,
        **times,
        "size": len(message),
        "priority": row.get("priority"),
        "durable": row.get("durable"),
    }
    return shown | incoming.as_json(message, int(row.get("message_format", 0)), attempts)


# --- locks --------------------------------------------------------------------------------------------


async def complete(request: Request) -> web.Response:
    """DELETE /name/!messages/SEQ/LOCK: accepts the message, which leaves its queue."""
    await _by_lock(request, "settle", {"outcome": "accepted"})
    return web.Response(body=COMPLETED, content_type=JSON)


async def settle(request: Request) -> web.Response:
    """PUT /name/!messages/SEQ/LOCK: settles the message with an outcome."""
    value = (
        await request.json_object(
            "outcome", "delivery_failed", "undeliverable_here", "condition", "description", "annotations"
        )
        if request.http.can_read_body
        else {}
    )
    outcome = value.get("outcome", "released")
    if outcome not in OUTCOMES:
        raise invalid("outcome", outcome, "one of " + ", ".join(OUTCOMES))
    fields: dict[str, Any] = {"outcome": outcome}
    for key in ("delivery_failed", "undeliverable_here"):
        if not isinstance(value.get(key, False), bool):
            raise invalid(key, value[key], "true or false")
        fields[key] = value.get(key, key == "delivery_failed")
    for key, most in (("condition", 256), ("description", 1024)):
        text = value.get(key, "")
        if not isinstance(text, str) or len(text) > most:
            raise invalid(key, text, f"a text of at most {most} characters")
        fields[key] = text
    fields["annotations"] = _annotations(value.get("annotations"))
    await _by_lock(request, "settle", fields)
    return web.json_response({"outcome": outcome})


async def renew(request: Request) -> web.Response:
    """POST /name/!messages/SEQ/LOCK: renews the lock for its full duration."""
    answer = await _by_lock(request, "renew", {})
    until = rfc3339(int(answer.fields["locked_until_ms"]))
    headers = {"BrokerProperties": json.dumps({"LockToken": request.rest[1], "LockedUntilUtc": until})}
    return web.json_response({"locked_until": until}, headers=headers)


async def _by_lock(request: Request, operation: str, fields: dict[str, Any]) -> Answer:
    record = request.record(Right.LISTEN)
    sequence = whole_number("sequence", request.rest[0], 0, SEQUENCE_MAX)
    fields |= {"sequence": sequence, "lock": request.rest[1]}
    answer = await request.services.shards.request(record.name, operation, fields)
    if not answer.fields.get("found", True):
        raise ProblemError(
            410,
            f"the lock of message {sequence} of {record.name} expired, or the message was settled already",
        )
    return answer


def _annotations(value: Any) -> str:
    """Message annotations as an encoded AMQP map in hexadecimal, empty for none."""
    if value is None:
        return ""
    good = isinstance(value, dict) and all(
        key.startswith("x-opt-") and key.isascii() and isinstance(each, str | int | float | bool | None)
        for key, each in value.items()
    )
    if not good:
        raise invalid("annotations", value, 'an object of simple values whose names begin with "x-opt-"')
    return encode({Symbol(key): each for key, each in value.items()}).hex() if value else ""
