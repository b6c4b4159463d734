"""Subscriptions over HTTP: the queues, routers and URLs to which a router sends its messages."""

from typing import Any

from aiohttp import web

from lightrail.gateway.errors import ProblemError, invalid
from lightrail.gateway.paths import path_of
from lightrail.gateway.request import Request
from lightrail.model.names import InvalidNameError, check
from lightrail.model.policy import Role
from lightrail.namespace.records import Right, Subscription
from lightrail.namespace.statuses import MissingError

MEMBERS = ("target", "filter", "action", "rules", "expires_at", "drop_failed")


async def list_all(request: Request) -> web.Response:
    """GET /router/!subscriptions."""
    _router(request)
    found = request.directory.subscriptions(request.name)
    return web.json_response({"router": request.name, "subscriptions": [each.shown() for each in found]})


async def subscribe(request: Request) -> web.Response:
    """POST /router/!subscriptions: 201, with the secret of a push, which is shown only here."""
    wanted = await _wanted(request, "id")
    id = _id(wanted.pop("id"))
    made = await request.services.namespace.subscribe(request.caller, request.name, **wanted, id=id)
    headers = _tag(made) | {"Location": path_of(made.router, "!subscriptions", made.id)}
    shown = made.shown() | ({"secret": made.secret} if made.secret else {})
    return web.json_response(shown, status=201, headers=headers)


async def read(request: Request) -> web.Response:
    """GET /router/!subscriptions/ID."""
    _router(request)
    found = _found(request)
    return web.json_response(found.shown(), headers=_tag(found))


async def replace(request: Request) -> web.Response:
    """PUT /router/!subscriptions/ID: changes filter, action, target or expiry of a subscription."""
    _router(request)
    expected = request.revision()
    found = _found(request)
    if expected is not None and expected != found.revision:
        raise ProblemError(412, f"{found.id} is at revision {found.revision}, and {expected} was expected")
    wanted = await _wanted(request)
    made = await request.services.namespace.subscribe(
        request.caller, request.name, **wanted, id=found.id, owner=found.owner, replace_it=True
    )
    return web.json_response(made.shown(), headers=_tag(made))


async def unsubscribe(request: Request) -> web.Response:
    """DELETE /router/!subscriptions/ID."""
    await request.services.namespace.unsubscribe(request.caller, request.name, request.rest[0])
    return web.Response(status=204)


async def _wanted(request: Request, *more: str) -> dict[str, Any]:
    value = await request.json_object(*MEMBERS, *more)
    target = value.get("target")
    if not isinstance(target, str) or not target:
        allowed = "the name of a queue or router, or a URL that begins with http:// or https://"
        raise invalid("target", target, allowed)
    for key in ("filter", "action", "rules"):
        if value.get(key) is not None and not isinstance(value[key], dict):
            raise invalid(key, value[key], "a JSON object, or null")
    if not isinstance(value.get("drop_failed"), bool | None):
        raise invalid("drop_failed", value["drop_failed"], "true, false or null")
    if value.get("expires_at") is not None and not isinstance(value["expires_at"], str):
        raise ProblemError(
            422, "expires_at is no text; expected a time such as 2030-01-31T12:00:00Z", field="expires_at"
        )
    return {key: value.get(key) for key in (*MEMBERS, *more)}


def _id(value: object) -> str:
    """The id for a new subscription; empty if the broker is to generate one."""
    if value is None:
        return ""
    try:
        if not isinstance(value, str) or "/" in value:
            raise InvalidNameError("it is no text of one segment")
        check(value)
    except InvalidNameError as error:
        raise invalid("id", value, f"one segment of a name, or null: {error}") from None
    return value


def _router(request: Request) -> None:
    record = request.record(Right.MANAGE)
    if record.role is not Role.ROUTER:
        raise MissingError(f"{request.name} has role {record.role}; expected a router")


def _found(request: Request) -> Subscription:
    found = request.directory.subscription(request.name, request.rest[0])
    if found is None:
        raise MissingError(f"{request.name} has no subscription {request.rest[0][:80]!a}")
    return found


def _tag(subscription: Subscription) -> dict[str, str]:
    return {"ETag": f'"{subscription.revision}"'}
