"""Messages over HTTP: sent to a name's tail, received at its head, locked, settled, looked at, removed.

What a receiver may rely on: DELETE at the head is at most once from the moment the answer has been handed to
the socket; until then a message whose client has gone goes back to the queue. POST at the head is at least
once: the message is its receiver's until the lock runs out, and gone only when it was completed.
"""

import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from lightrail.amqp.types import Symbol, encode
from lightrail.gateway import incoming, names, outgoing
from lightrail.gateway.asked import AMQP, BATCH, JSON, Asked, nothing_at, whole_number
from lightrail.gateway.errors import Problem, problem_of
from lightrail.gateway.instants import rfc3339
from lightrail.gateway.place import path_of
from lightrail.gateway.receiving import Delivery
from lightrail.model import limits
from lightrail.model.policy import Role
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import demand, may
from lightrail.wire.bodies import Answer

OUTCOMES: Final = ("accepted", "released", "modified", "rejected")
SEQUENCE_MAX: Final = (1 << 63) - 1
COMPLETED: Final = b'{"outcome": "accepted"}'
BATCH_MAX: Final = 1_000
"""Messages of one batch request."""


async def post(asked: Asked) -> web.Response:
    """POST /name: a policy where the name has no role yet, and where the type says so; else a message.

    JSON may be both. Once a name is a queue or router, JSON is a message there, but for an object whose
    `role` is one of ours: setups that give a role twice shall hear of it, and leave no message.
    """
    if asked.content_type not in names.POLICY_TYPES or "BrokerProperties" in asked.request.headers:
        return await send(asked)
    asked.directory.refresh()
    record = asked.directory.get(asked.name)
    if (
        asked.content_type == JSON
        and record.role in (Role.QUEUE, Role.ROUTER)
        and may(asked.directory, asked.caller, Right.SEND, record)
    ):
        return await send(asked, unless=_is_policy)
    return await names.give(asked)


# --- sending ------------------------------------------------------------------------------------------


async def send(asked: Asked, unless: Callable[[bytes], bool] = lambda _: False) -> web.Response:
    """One message, or a batch of them; 409 for a body that is none."""
    record = await used(asked, Right.SEND)
    sender = asked.gateway.sender
    most = asked.gateway.settings.max_message_bytes
    # Without a length, room is taken as the parts come.
    reserved = min(asked.request.content_length or 0, most)
    sender.reserve(reserved)

    def taken(size: int) -> None:
        nonlocal reserved
        sender.reserve(size)
        reserved += size

    try:
        body = await asked.body(most, None if reserved else taken)
        if unless(body):
            raise Problem(
                409,
                f"{asked.name} has role {record.role} already; change its policy at {asked.name}/!policy, or "
                "delete it. To send this JSON as a message, add the header BrokerProperties: {}",
            )
        if asked.content_type == BATCH:
            return await _send_batch(asked, record, body)
        sequence = await sender.send(record, _message(asked, body))
        asked.gateway.counts.sent += 1
    finally:
        sender.release(reserved)
    now = rfc3339(asked.gateway.now_ms())
    properties: dict[str, Any] = {"EnqueuedTimeUtc": now}
    headers = {}
    if sequence is not None:
        properties["SequenceNumber"] = sequence
        headers["Location"] = path_of(record.name, "!messages", str(sequence))
    headers["BrokerProperties"] = _header_json(properties)
    return web.Response(status=201, headers=headers)


def _is_policy(body: bytes) -> bool:
    if len(body) > limits.HTTP_JSON_BYTES or b'"role"' not in body:
        return False
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("role") in tuple(Role)


def _message(asked: Asked, body: bytes) -> outgoing.Outgoing:
    now_ms = asked.gateway.now_ms()
    headers = asked.request.headers
    if asked.content_type == AMQP:
        return outgoing.as_it_is(body, now_ms)
    kind = asked.request.query.get("body", "data")
    if kind not in ("data", "text"):
        raise Problem(
            400, f"body is {kind[:40]!a}; expected data or text", field="body", allowed=["data", "text"]
        )
    return outgoing.from_request(
        body,
        headers.get("Content-Type", ""),
        headers.get("BrokerProperties"),
        outgoing.own_properties(headers),
        text=kind == "text",
        now_ms=now_ms,
    )


async def _send_batch(asked: Asked, record: Name, body: bytes) -> web.Response:
    """Each message is stored by itself; the answer says of each what became of it."""
    values = asked.decoded(body)
    if not isinstance(values, list) or not 1 <= len(values) <= BATCH_MAX:
        raise Problem(422, f"expected a JSON array of 1 to {BATCH_MAX} messages")
    now_ms = asked.gateway.now_ms()
    messages = [outgoing.from_json(value, now_ms) for value in values]
    results = await asked.gateway.sender.send_many(record, messages)
    shown: list[dict[str, Any]] = []
    for result in results:
        problem = problem_of(result) if isinstance(result, Exception) else None
        if problem is not None:
            shown.append({"status": problem.status, "detail": problem.detail})
        elif isinstance(result, BaseException):
            raise result
        else:
            shown.append({"status": 201, "sequence": result})
            asked.gateway.counts.sent += 1
    good = all(each["status"] == 201 for each in shown)
    return web.json_response({"messages": shown}, status=201 if good else 207)


# --- receiving ----------------------------------------------------------------------------------------


async def take(asked: Asked) -> web.StreamResponse:
    """DELETE /name/!head: the next message, which is gone once it was handed to the client's socket."""
    delivery = await _receive(asked)
    if delivery is None:
        return web.Response(status=204)
    return await _hand_out(asked, delivery, locked=False)


async def lock(asked: Asked) -> web.StreamResponse:
    """POST /name/!head: the next message, locked until it is completed, given back, or its time is over."""
    delivery = await _receive(asked)
    if delivery is None:
        return web.Response(status=204)
    return await _hand_out(asked, delivery, locked=True)


async def _receive(asked: Asked) -> Delivery | None:
    asked.directory.refresh()
    record = asked.directory.get(asked.name)
    demand(asked.directory, asked.caller, Right.LISTEN, record)
    if record.role is Role.NONE:
        # A mistyped name would become a queue, and its receiver wait there for ever.
        raise nothing_at(asked.name)
    if record.role is Role.METADATA:
        raise names.refer(record)
    if record.role is not Role.QUEUE:
        raise Problem(409, f"{record.name} is a {record.role}; messages are received from queues")
    wait_s = asked.seconds("timeout", 0.0, limits.RECEIVE_WAIT_MS_MAX / 1000)
    return await asked.gateway.receivers.receive(record, round(wait_s * 1000))


async def _hand_out(asked: Asked, delivery: Delivery, *, locked: bool) -> web.StreamResponse:
    request = asked.request
    handed_out = asked.gateway.counts.handed_out
    try:
        response = _shown(asked, delivery, locked=locked)
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the client did not wait")
        await response.prepare(request)
        await response.write_eof()
    except BaseException:
        handed_out["released"] += 1
        delivery.release()
        raise
    if locked:
        handed_out["locked"] += 1
        delivery.keep()
    else:
        handed_out["received"] += 1
        delivery.accept()
    return response


def _shown(asked: Asked, delivery: Delivery, *, locked: bool) -> web.Response:
    properties, headers, content_type, body = incoming.answer(
        delivery.message, delivery.message_format, delivery.attempts, whole=asked.wants(AMQP)
    )
    properties["SequenceNumber"] = delivery.sequence
    properties["EnqueuedTimeUtc"] = rfc3339(delivery.enqueued_at_ms)
    if delivery.expires_at_ms:
        properties["ExpiresAtUtc"] = rfc3339(delivery.expires_at_ms)
    if locked:
        properties["LockToken"] = delivery.lock
        properties["LockedUntilUtc"] = rfc3339(delivery.locked_until_ms)
        place = path_of(asked.name, "!messages", str(delivery.sequence), delivery.lock)
        headers.append(("Location", place))
    headers.append(("BrokerProperties", _header_json(properties)))
    headers.append(("Content-Type", _header_text(content_type)))
    return web.Response(status=201 if locked else 200, headers=headers, body=body)


# --- locks --------------------------------------------------------------------------------------------


async def complete(asked: Asked) -> web.Response:
    """DELETE /name/!messages/SEQ/LOCK: done, the message goes."""
    await _by_lock(asked, "settle", {"outcome": "accepted"})
    return web.Response(body=COMPLETED, content_type=JSON)


async def settle(asked: Asked) -> web.Response:
    """PUT /name/!messages/SEQ/LOCK: given back (released, modified), or a dead letter (rejected)."""
    value = (
        await asked.json_object(
            "outcome", "delivery_failed", "undeliverable_here", "condition", "description", "annotations"
        )
        if asked.request.can_read_body
        else {}
    )
    outcome = value.get("outcome", "released")
    if outcome not in OUTCOMES:
        raise _bad("outcome", outcome, "one of " + ", ".join(OUTCOMES))
    fields: dict[str, Any] = {"outcome": outcome}
    for key in ("delivery_failed", "undeliverable_here"):
        if not isinstance(value.get(key, False), bool):
            raise _bad(key, value[key], "true or false")
        fields[key] = value.get(key, key == "delivery_failed")
    for key, most in (("condition", 256), ("description", 1024)):
        text = value.get(key, "")
        if not isinstance(text, str) or len(text) > most:
            raise _bad(key, text, f"a text of at most {most} characters")
        fields[key] = text
    fields["annotations"] = _annotations(value.get("annotations"))
    await _by_lock(asked, "settle", fields)
    return web.json_response({"outcome": outcome})


async def renew(asked: Asked) -> web.Response:
    """POST /name/!messages/SEQ/LOCK: locked anew, for as long as at first."""
    answer = await _by_lock(asked, "renew", {})
    until = rfc3339(int(answer.fields["locked_until_ms"]))
    headers = {"BrokerProperties": _header_json({"LockToken": asked.rest[1], "LockedUntilUtc": until})}
    return web.json_response({"locked_until": until}, headers=headers)


async def _by_lock(asked: Asked, operation: str, fields: dict[str, Any]) -> Answer:
    record = asked.record(Right.LISTEN)
    sequence = whole_number("sequence", asked.rest[0], 0, SEQUENCE_MAX)
    fields |= {"sequence": sequence, "lock": asked.rest[1]}
    answer = await asked.gateway.shards.request(record.name, operation, fields)
    if not answer.fields.get("found", True):
        raise Problem(
            410,
            f"the lock of message {sequence} of {record.name} ran out, or the message was settled already",
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
        raise _bad("annotations", value, 'an object of simple values whose names begin with "x-opt-"')
    return encode({Symbol(key): each for key, each in value.items()}).hex() if value else ""


# --- looking and removing -----------------------------------------------------------------------------


async def browse(asked: Asked) -> web.Response:
    """GET /name/!messages: what is in the queue, without taking it."""
    first = asked.whole("from", 0, 0, SEQUENCE_MAX)
    count = asked.whole("count", 10, 1, limits.PAGE_MAX)
    asked.record(Right.LISTEN)
    found = await asked.gateway.views.messages(asked.caller, asked.name, first, count)
    following = found[-1]["sequence"] + 1 if found else None
    return web.json_response({"name": asked.name, "messages": found, "next": following})


async def look(asked: Asked) -> web.Response:
    """GET /name/!messages/SEQ: one message, without taking it."""
    sequence = whole_number("sequence", asked.rest[0], 0, SEQUENCE_MAX)
    asked.record(Right.LISTEN)
    found = await asked.gateway.views.messages(asked.caller, asked.name, sequence, 1)
    if not found or found[0]["sequence"] != sequence:
        raise Problem(404, f"{asked.name} has no message {sequence} (any more)")
    return web.json_response(found[0])


async def cancel(asked: Asked) -> web.Response:
    """DELETE /name/!messages/SEQ: a scheduled message does not come."""
    record = asked.record(Right.SEND)
    sequence = whole_number("sequence", asked.rest[0], 0, SEQUENCE_MAX)
    answer = await asked.gateway.shards.request(record.name, "cancel", {"sequences": [sequence]})
    if not answer.fields["cancelled"]:
        raise Problem(404, f"{record.name} has no scheduled message {sequence} (any more)")
    return web.Response(status=204)


async def purge(asked: Asked) -> web.Response:
    """DELETE /name/!messages: everything that no consumer holds goes."""
    return web.json_response({"purged": await asked.gateway.views.purge(asked.caller, asked.name)})


# --- inside -------------------------------------------------------------------------------------------


async def used(asked: Asked, right: Right) -> Name:
    """What the name is, once it is used: where names above allow it, it becomes a queue now."""
    directory = asked.directory
    directory.refresh()
    record = directory.get(asked.name)
    demand(directory, asked.caller, right, record)
    if record.role is Role.NONE:
        record = await asked.gateway.service.first_use(asked.name)
    if record.role is Role.NONE:
        raise Problem(404, f"{asked.name} has no role; POST a policy to it to give it one", role="none")
    if record.role is Role.METADATA:
        raise names.refer(record)
    return record


def _bad(field: str, found: Any, allowed: str) -> Problem:
    shown = str(found)[:80]
    return Problem(
        422, f"{field} is {shown!a}; expected {allowed}", field=field, found=found, allowed=allowed
    )


def _header_json(value: dict[str, Any]) -> str:
    return json.dumps(value)


def _header_text(text: str) -> str:
    """A text of a stranger in a header: what would break it is percent-encoded."""
    return text if text.isprintable() and text.isascii() else quote(text, safe="/;=+ ")
