"""Tokens over HTTP: a user exchanges its password for a token with fewer rights that expires."""

from aiohttp import web

from lightrail.gateway.errors import ProblemError, invalid
from lightrail.gateway.instants import rfc3339
from lightrail.gateway.request import Request
from lightrail.model import limits
from lightrail.namespace import tokens

TTL_DEFAULT_S = 3_600


async def make(request: Request) -> web.Response:
    """POST /!tokens: 201 with the token, which is stored nowhere."""
    if not request.http.headers.get("Authorization", "").lower().startswith("basic "):
        raise ProblemError(403, "expected a user name and a password (Basic) to make a token; found none")
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
