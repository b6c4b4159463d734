"""Tokens over HTTP: a user exchanges its password for something that says less and ends by itself."""

from aiohttp import web

from lightrail.gateway.errors import Problem
from lightrail.gateway.instants import rfc3339
from lightrail.gateway.request import Asked
from lightrail.model import limits
from lightrail.namespace import tokens

TTL_DEFAULT_S = 3_600


async def make(asked: Asked) -> web.Response:
    """POST /!tokens: 201 with the token; it is not kept anywhere."""
    if not asked.request.headers.get("Authorization", "").lower().startswith("basic "):
        raise Problem(403, "a token is made for a user who shows its password (Basic); found none")
    record = await asked.gateway.callers.user_record(asked.caller)
    if record is None:
        raise Problem(409, "no user is defined, so nobody needs a token; see `lightrail-admin user add NAME`")
    value = await asked.json_object("scope", "ttl")
    ttl = value.get("ttl", TTL_DEFAULT_S)
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 1 <= ttl <= limits.TOKEN_SECONDS_MAX:
        allowed = f"seconds from 1 to {limits.TOKEN_SECONDS_MAX}"
        raise Problem(
            422, f"ttl is {str(ttl)[:40]!a}; expected {allowed}", field="ttl", found=ttl, allowed=allowed
        )
    try:
        scope = tokens.scope_of(value.get("scope"))
    except tokens.InvalidToken as error:
        raise Problem(422, str(error), field="scope") from None
    expires_s = asked.gateway.now_ms() // 1000 + int(ttl)
    claims = tokens.Claims(record.name, tokens.key_digest(record), expires_s, scope)
    token = tokens.make(asked.gateway.callers.secret, claims)
    if len(token) > tokens.TOKEN_BYTES_MAX:
        raise Problem(
            422, "the scope makes the token too long for a header; name fewer prefixes", field="scope"
        )
    body = {"token": token, "type": "Bearer", "expires_at": rfc3339(expires_s * 1000)}
    return web.json_response(body, status=201, headers={"Cache-Control": "no-store"})
