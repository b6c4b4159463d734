"""The tail of a name: POST /name sends a message or a batch of messages, or gives the name a policy."""

import json
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Final

from aiohttp import web

from lightrail.gateway.bodies import AMQP, BATCH, JSON, rfc3339
from lightrail.gateway.errors import ProblemError, problem_of
from lightrail.gateway.messages import outgoing
from lightrail.gateway.paths import path_of
from lightrail.gateway.request import Request
from lightrail.gateway.resources import names
from lightrail.model import limits
from lightrail.model.policy import Role, fields_of
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import may

UNTYPED: Final = ("", "application/x-www-form-urlencoded")
"""Content types of a body for which the client gave none; the second one is that of `curl --data`."""
FIELDS: Final = frozenset({"role", *(field.name for role in Role for field in fields_of(role))})
"""Members of policies."""
BATCH_MAX: Final = 1_000
"""Messages of one batch request."""


async def post(request: Request) -> web.Response:
    """POST /name: a policy if the name has no role or the content type says so, otherwise a message.

    JSON may be either. At a queue or router JSON is a message, except an object that is meant as a policy: a
    setup script that runs twice, or misspells a role, gets an error and leaves no message. So does a
    body without a type of its own, as curl sends it.
    """
    if "BrokerProperties" in request.http.headers:
        return await send(request)
    request.directory.refresh()
    record = request.directory.get(request.name)
    has_role = record.role is not Role.NONE
    if request.content_type in UNTYPED:
        return await send(request, unless=_is_policy if has_role else _is_object)
    if request.content_type not in names.POLICY_TYPES:
        return await send(request)
    if (
        request.content_type == JSON
        and record.role in (Role.QUEUE, Role.ROUTER)
        and may(request.directory, request.caller, Right.SEND, record)
    ):
        return await send(request, unless=_is_policy)
    return await names.give(request)


async def send(request: Request, unless: Callable[[bytes], bool] = lambda _: False) -> web.Response:
    """Sends one message, or a batch.

    A body for which `unless` returns true is refused: 409, or 400 at a name without a role, which gets none.
    """
    services = request.services
    record = names.demanded(request, Right.SEND)
    if record.role is not Role.NONE:
        record = await names.used(request, Right.SEND)
    with services.sender.room() as room:
        body = await request.body_in(room, services.settings.max_message_bytes)
        if unless(body):
            raise _meant_as_policy(record)
        if record.role is Role.NONE:
            record = await names.used(request, Right.SEND)
        if request.content_type == BATCH:
            return await _send_batch(request, record, body)
        sequence = await services.sender.send(record, _message(request, body))
        services.counts.sent += 1
    now = rfc3339(services.now_ms())
    properties: dict[str, Any] = {"EnqueuedTimeUtc": now}
    # Of the empty body: a client that follows the description would expect JSON.
    headers = {"Content-Type": "text/plain"}
    if sequence is not None:
        properties["SequenceNumber"] = sequence
        headers["Location"] = path_of(record.name, "!messages", str(sequence))
    headers["BrokerProperties"] = json.dumps(properties)
    return web.Response(status=201, headers=headers)


def _is_object(body: bytes) -> bool:
    return _object(body) is not None


def _is_policy(body: bytes) -> bool:
    """Whether a body is meant as a policy: its role is one or nearly so, or all its members are fields."""
    value = _object(body) if b'"role"' in body else None
    role = value.get("role") if value is not None else None
    if value is None or not isinstance(role, str):
        return False
    is_role = bool(get_close_matches(role.lower(), tuple(Role), cutoff=0.8))
    return is_role or (len(value) > 1 and value.keys() <= FIELDS)


def _object(body: bytes) -> dict[str, Any] | None:
    """The JSON object in a body; None if it is anything else."""
    if len(body) > limits.HTTP_JSON_BYTES or not body.lstrip().startswith(b"{"):
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _meant_as_policy(record: Name) -> ProblemError:
    message = "To send this JSON as a message, add the header BrokerProperties: {}"
    if record.role is Role.NONE:
        return ProblemError(
            400,
            f"{record.name} has no role, and this JSON has no Content-Type. If it is the policy of the name, "
            f"add the header Content-Type: application/json. {message}",
        )
    return ProblemError(
        409,
        f"{record.name} has role {record.role} already; change its policy at {record.name}/!policy, or "
        f"delete it. {message}",
    )


def _message(request: Request, body: bytes) -> outgoing.Outgoing:
    now_ms = request.services.now_ms()
    headers = request.http.headers
    if request.content_type == AMQP:
        return outgoing.as_it_is(body, now_ms)
    kind = request.http.query.get("body", "data")
    if kind not in ("data", "text"):
        raise ProblemError(
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


async def _send_batch(request: Request, record: Name, body: bytes) -> web.Response:
    """Stores each message separately; the answer has a result for each."""
    values = request.decoded(body)
    if not isinstance(values, list) or not 1 <= len(values) <= BATCH_MAX:
        raise ProblemError(422, f"expected a JSON array of 1 to {BATCH_MAX} messages")
    now_ms = request.services.now_ms()
    messages = [outgoing.from_json(value, now_ms) for value in values]
    results = await request.services.sender.send_many(record, messages)
    shown: list[dict[str, Any]] = []
    for result in results:
        problem = problem_of(result) if isinstance(result, Exception) else None
        if problem is not None:
            shown.append({"status": problem.status, "detail": problem.detail})
        elif isinstance(result, BaseException):
            raise result
        else:
            shown.append({"status": 201, "sequence": result})
            request.services.counts.sent += 1
    good = all(each["status"] == 201 for each in shown)
    return web.json_response({"messages": shown}, status=201 if good else 207)
