"""Subscriptions over HTTP: which queues, routers and URLs the messages of a router go to."""

from typing import Any

from aiohttp import web

from lightrail.gateway.errors import Problem
from lightrail.gateway.paths import path_of
from lightrail.gateway.request import Asked
from lightrail.model.policy import Role
from lightrail.namespace.records import Right, Subscription
from lightrail.namespace.service import Missing

MEMBERS = ("target", "filter", "action", "expires_at")


async def list_all(asked: Asked) -> web.Response:
    """GET /router/!subscriptions."""
    _router(asked)
    found = asked.directory.subscriptions(asked.name)
    return web.json_response({"router": asked.name, "subscriptions": [each.shown() for each in found]})


async def subscribe(asked: Asked) -> web.Response:
    """POST /router/!subscriptions: 201, with the secret of a push, which is not shown again."""
    made = await asked.gateway.service.subscribe(asked.caller, asked.name, **await _wanted(asked))
    headers = _tag(made) | {"Location": path_of(made.router, "!subscriptions", made.id)}
    shown = made.shown() | ({"secret": made.secret} if made.secret else {})
    return web.json_response(shown, status=201, headers=headers)


async def read(asked: Asked) -> web.Response:
    """GET /router/!subscriptions/ID."""
    _router(asked)
    found = _found(asked)
    return web.json_response(found.shown(), headers=_tag(found))


async def replace(asked: Asked) -> web.Response:
    """PUT /router/!subscriptions/ID: another filter, action, target or end; it must be there."""
    _router(asked)
    expected = asked.revision()
    found = _found(asked)
    if expected is not None and expected != found.revision:
        raise Problem(412, f"{found.id} is at revision {found.revision}, and {expected} was expected")
    wanted = await _wanted(asked)
    made = await asked.gateway.service.subscribe(
        asked.caller, asked.name, **wanted, id=found.id, owner=found.owner, replace_it=True
    )
    return web.json_response(made.shown(), headers=_tag(made))


async def unsubscribe(asked: Asked) -> web.Response:
    """DELETE /router/!subscriptions/ID."""
    await asked.gateway.service.unsubscribe(asked.caller, asked.name, asked.rest[0])
    return web.Response(status=204)


async def _wanted(asked: Asked) -> dict[str, Any]:
    value = await asked.json_object(*MEMBERS)
    target = value.get("target")
    if not isinstance(target, str) or not target:
        raise Problem(
            422,
            f"target is {str(target)[:80]!a}; expected the name of a queue or router, or a URL",
            field="target",
            found=target,
            allowed="the name of a queue or router, or a URL that begins with http:// or https://",
        )
    for key in ("filter", "action"):
        if value.get(key) is not None and not isinstance(value[key], dict):
            raise Problem(
                422,
                f"{key} is {str(value[key])[:80]!a}; expected a JSON object",
                field=key,
                found=value[key],
                allowed="a JSON object, or null",
            )
    if value.get("expires_at") is not None and not isinstance(value["expires_at"], str):
        raise Problem(
            422, "expires_at is no text; expected a time such as 2030-01-31T12:00:00Z", field="expires_at"
        )
    return {key: value.get(key) for key in MEMBERS}


def _router(asked: Asked) -> None:
    record = asked.record(Right.MANAGE)
    if record.role is not Role.ROUTER:
        raise Missing(f"{asked.name} has role {record.role}; expected a router")


def _found(asked: Asked) -> Subscription:
    found = asked.directory.subscription(asked.name, asked.rest[0])
    if found is None:
        raise Missing(f"{asked.name} has no subscription {asked.rest[0][:80]!a}")
    return found


def _tag(subscription: Subscription) -> dict[str, str]:
    return {"ETag": f'"{subscription.revision}"'}
