"""Permissions over HTTP: what users may do at and below a prefix.

Tokens over HTTP: a user exchanges its password for a token with fewer rights that expires.
"""

from typing import TYPE_CHECKING, Any

from aiohttp import web

from lightrail.cluster.users import InvalidUserError, user_name
from lightrail.gateway.bodies import rfc3339
from lightrail.gateway.errors import ProblemError, invalid
from lightrail.model import limits
from lightrail.namespace import tokens
from lightrail.namespace.records import Permission, Right
from lightrail.namespace.rights import may_grant

if TYPE_CHECKING:
    from lightrail.gateway.request import Request


async def list_all(request: "Request") -> web.Response:
    """GET /!permissions?user=: permissions at prefixes that the caller may manage."""
    request.directory.refresh()
    user = request.http.query.get("user")
    found = sorted(
        (
            each
            for each in request.directory.every_permission()
            if (user is None or each.user == user)
            and may_grant(request.directory, request.caller, each.prefix)
        ),
        key=lambda each: (each.user, each.prefix),
    )
    return web.json_response({"permissions": [shown(each) for each in found]})


async def put(request: "Request") -> web.Response:
    """PUT /!permissions/USER?prefix= with {"rights": [...]}; an empty list clears them."""
    value = await request.json_object("rights")
    wanted = value.get("rights")
    allowed = "a list out of " + ", ".join(Right)
    if not isinstance(wanted, list) or any(each not in tuple(Right) for each in wanted):
        raise invalid("rights", wanted, allowed)
    return web.json_response(shown(await _permit(request, frozenset(map(Right, wanted)))))


async def clear(request: "Request") -> web.Response:
    """DELETE /!permissions/USER?prefix=."""
    await _permit(request, frozenset())
    return web.Response(status=204)


def shown(permission: Permission) -> dict[str, Any]:
    return {"user": permission.user, "prefix": permission.prefix, "rights": sorted(permission.rights)}


async def _permit(request: "Request", rights: frozenset[Right]) -> Permission:
    user = request.rest[0]
    request.directory.refresh()
    prefix = request.http.query.get("prefix", "")
    # The answer to callers that may not grant rights must not show which users exist.
    request.services.namespace.check_permit(request.caller, prefix)
    if not request.directory.permissions(user):
        try:
            user = user_name(user)  # as it is stored: rights of another spelling would apply to no user
        except InvalidUserError as error:
            raise ProblemError(422, str(error), field="user") from None
    if rights and await request.services.coordinator.user(user) is None:
        raise ProblemError(404, f"there is no user {user[:80]!a}; add it with `lightrail-admin user add`")
    return await request.services.namespace.permit(request.caller, user, prefix, rights)


TTL_DEFAULT_S = 3_600


async def make(request: "Request") -> web.Response:
    """POST /!tokens: 201 with the token, which is stored nowhere."""
    if not request.http.headers.get("Authorization", "").lower().startswith("basic "):
        raise ProblemError(403, "expected a user name and a password (Basic) to make a token; found none")
    if request.caller.by_rule is not None:
        raise ProblemError(403, "a key of an authorization rule makes no tokens; log in as a user")
    record = await request.services.callers.user_record(request.caller)
    if record is None:
        raise ProblemError(
            409, "no user is defined, so no token is needed; see `lightrail-admin user add NAME`"
        )
    value = await request.json_object("scope", "ttl")
    ttl = value.get("ttl", TTL_DEFAULT_S)
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 1 <= ttl <= limits.TOKEN_SECONDS_MAX:
        raise invalid("ttl", ttl, f"seconds from 1 to {limits.TOKEN_SECONDS_MAX}")
    try:
        scope = tokens.scope_of(value.get("scope"))
    except tokens.InvalidTokenError as error:
        raise ProblemError(422, str(error), field="scope") from None
    expires_s = request.services.now_ms() // 1000 + int(ttl)
    claims = tokens.Claims(record.name, tokens.key_digest(record), expires_s, scope)
    token = tokens.make(request.services.callers.secret, claims)
    if len(token) > tokens.TOKEN_BYTES_MAX:
        raise ProblemError(
            422, "the scope makes the token too long for a header; name fewer prefixes", field="scope"
        )
    body = {"token": token, "type": "Bearer", "expires_at": rfc3339(expires_s * 1000)}
    return web.json_response(body, status=201, headers={"Cache-Control": "no-store"})
