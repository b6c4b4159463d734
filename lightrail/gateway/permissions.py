"""Permissions over HTTP: what users may do at and below a prefix."""

from typing import Any

from aiohttp import web

from lightrail.cluster.users import InvalidUserError, user_name
from lightrail.gateway.asked import Asked
from lightrail.gateway.errors import Problem
from lightrail.namespace.records import Permission, Right
from lightrail.namespace.rights import rights_of


async def list_all(asked: Asked) -> web.Response:
    """GET /!permissions?user=: those whose prefix the caller may manage."""
    asked.directory.refresh()
    user = asked.request.query.get("user")
    found = sorted(
        (
            each
            for each in asked.directory.every_permission()
            if (user is None or each.user == user)
            and Right.MANAGE in rights_of(asked.directory, asked.caller, each.prefix)
        ),
        key=lambda each: (each.user, each.prefix),
    )
    return web.json_response({"permissions": [shown(each) for each in found]})


async def put(asked: Asked) -> web.Response:
    """PUT /!permissions/USER?prefix= with {"rights": [...]}; no rights at all clear it."""
    value = await asked.json_object("rights")
    wanted = value.get("rights")
    allowed = "a list out of " + ", ".join(Right)
    if not isinstance(wanted, list) or any(each not in tuple(Right) for each in wanted):
        raise Problem(
            422,
            f"rights is {str(wanted)[:80]!a}; expected {allowed}",
            field="rights",
            found=wanted,
            allowed=allowed,
        )
    return web.json_response(shown(await _permit(asked, frozenset(map(Right, wanted)))))


async def clear(asked: Asked) -> web.Response:
    """DELETE /!permissions/USER?prefix=."""
    await _permit(asked, frozenset())
    return web.Response(status=204)


def shown(permission: Permission) -> dict[str, Any]:
    return {"user": permission.user, "prefix": permission.prefix, "rights": sorted(permission.rights)}


async def _permit(asked: Asked, rights: frozenset[Right]) -> Permission:
    user = asked.rest[0]
    asked.directory.refresh()
    prefix = asked.request.query.get("prefix", "")
    # Who may not give rights is not told either which users there are.
    asked.gateway.service.check_permit(asked.caller, prefix)
    if not asked.directory.permissions(user):
        try:
            user = user_name(user)  # as it is kept; rights of another spelling would be nobody's
        except InvalidUserError as error:
            raise Problem(422, str(error), field="user") from None
    if rights and await asked.gateway.coordinator.user(user) is None:
        raise Problem(404, f"there is no user {user[:80]!a}; add it with `lightrail-admin user add`")
    return await asked.gateway.service.permit(asked.caller, user, prefix, rights)
