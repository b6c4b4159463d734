"""Callers: who a request comes from, by HTTP Basic or a bearer token, against the users that AMQP knows.

A password's hash is slow by design, so checked credentials are remembered under a keyed digest of the header
they came in, and the user they belong to is looked at again every CALLER_FRESH_MS: who is removed or gets
another password is out after that time. Passwords are checked by what all log-ins share (cluster/logins.py).
"""

import asyncio
import base64
import binascii
import ipaddress
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from time import monotonic_ns
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from lightrail.amqp import sasl
from lightrail.cluster.coordinator import Coordinator
from lightrail.cluster.logins import Logins, TooManyLoginsError, source_of
from lightrail.cluster.users import UserRecord
from lightrail.gateway.errors import Problem
from lightrail.model import limits
from lightrail.model.clock import wall_ms
from lightrail.model.settings import Settings, is_loopback
from lightrail.namespace import tokens
from lightrail.namespace.rights import ANYBODY, Caller

SAFE: Final = ("GET", "HEAD")
"""Methods that change nothing; a page of another site can't read their answers."""
ASK: Final = {"WWW-Authenticate": 'Basic realm="LightRail", charset="UTF-8"'}
ANONYMOUS: Final = Caller("anonymous")
ANYBODY_TLS: Final = replace(ANYBODY, tls=True)


@lru_cache(maxsize=1_024)
def _is_local(host: str) -> bool:
    """Whether a Host header is an address, or localhost."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return True


_is_loopback = lru_cache(maxsize=4_096)(is_loopback)


def monotonic_ms() -> int:
    return monotonic_ns() // 1_000_000


class _Known:
    """Credentials that were checked."""

    __slots__ = ("caller", "expires_ms", "fresh_until_ms", "key_digest")

    def __init__(self, caller: Caller, key_digest: str, fresh_until_ms: int, expires_ms: int | None) -> None:
        self.caller = caller
        self.key_digest = key_digest
        self.fresh_until_ms = fresh_until_ms
        self.expires_ms = expires_ms
        """Of a token, by the wall clock."""


class _Check:
    """A check that is under way, and how many requests wait for it."""

    __slots__ = ("pending", "waiting")

    def __init__(self, pending: "asyncio.Future[_Known]") -> None:
        self.pending = pending
        self.waiting = 0


class Callers:
    """Finds out who asks. Times are injected: `monotonic` for what is remembered, `wall` for tokens' ends."""

    def __init__(
        self,
        coordinator: Coordinator,
        settings: Settings,
        *,
        monotonic: Callable[[], int] = monotonic_ms,
        wall: Callable[[], int] = wall_ms,
        logins: Logins | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._monotonic = monotonic
        self._wall = wall
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, _Known] = {}
        self._checking: dict[tuple[bytes, str], _Check] = {}
        self.logins = logins or Logins(coordinator)
        self.has_users = True
        """Until it is known better: then nobody is let in by mistake."""

    async def refresh(self) -> None:
        """Looks again whether any user is defined."""
        self.has_users = await self.logins.refresh()

    async def caller(self, request: web.Request) -> Caller:
        """Who asks. Raises Problem: 401 without (good) credentials, 403 where none would do."""
        origin = request.headers.get("Origin")
        if origin is not None and request.method not in SAFE and urlsplit(origin).netloc != request.host:
            # A browser sends along what lets its user in, also on behalf of another site's page.
            raise Problem(403, f"a page of {origin[:80]!a} may not change anything here")
        header = request.headers.get("Authorization")
        tls = request.transport is not None and request.transport.get_extra_info("sslcontext") is not None
        if not self.has_users:
            return self._anybody(request, tls)
        if header is None:
            if self._settings.allow_anonymous:
                return replace(ANONYMOUS, tls=True) if tls else ANONYMOUS
            raise Problem(401, "expected a user's name and password, or a token; none came", headers=ASK)
        if not tls and not self._settings.plain_without_tls and not _loopback(request):
            raise Problem(
                403,
                "passwords and tokens are taken beyond this machine over TLS only; use the https address, or "
                "set plain_without_tls where something else protects the line",
            )
        digest = blake2b(header.encode(errors="surrogateescape"), key=self._key, digest_size=32).digest()
        known = self._known.get(digest)
        if known is None or not await self._still_good(known):
            self._known.pop(digest, None)
            known = await self._checked(digest, header, _source(request))
        return replace(known.caller, tls=True) if tls else known.caller

    async def user_record(self, caller: Caller) -> UserRecord | None:
        """The record of who asks, where that is a user."""
        return None if caller.everything else await self._coordinator.user(caller.user)

    @property
    def secret(self) -> bytes:
        """The coordinator's, from the first refresh on."""
        return self.logins.secret

    @property
    def hashes(self) -> int:
        """Passwords that were hashed."""
        return self.logins.hashes

    def _anybody(self, request: web.Request, tls: bool) -> Caller:
        if not _loopback(request) and not self._settings.insecure_no_users:
            raise Problem(
                403,
                "no user is defined, so only this machine gets in; add one: lightrail-admin user add NAME",
            )
        host = request.headers.get("Host", "localhost")
        if not self._settings.insecure_no_users and not _is_local(host):
            # A page of another site may have its name lead to this machine (DNS rebinding).
            raise Problem(
                403,
                f"the request is for {host[:80]!a}; without users this machine is asked as localhost or by "
                "its address",
            )
        return ANYBODY_TLS if tls else ANYBODY

    async def _still_good(self, known: _Known) -> bool:
        if known.expires_ms is not None and known.expires_ms <= self._wall():
            return False
        now_ms = self._monotonic()
        if now_ms < known.fresh_until_ms:
            return True
        record = await self._coordinator.user(known.caller.user)
        if record is None or tokens.key_digest(record) != known.key_digest:
            return False
        known.fresh_until_ms = now_ms + limits.CALLER_FRESH_MS
        return True

    async def _checked(self, digest: bytes, header: str, source: str) -> _Known:
        """One check for all requests that come with the same credentials from the same source at a time."""
        each = digest, source
        check = self._checking.get(each)
        if check is None:
            check = self._checking[each] = _Check(asyncio.ensure_future(self._check(header, source)))
            check.pending.add_done_callback(lambda done: self._remember(each, done))
        check.waiting += 1
        try:
            return await asyncio.shield(check.pending)
        finally:
            check.waiting -= 1
            if not check.waiting:
                # No password is hashed for clients that have gone: a flood of them leaves the line again.
                check.pending.cancel()

    def _remember(self, each: tuple[bytes, str], done: "asyncio.Future[_Known]") -> None:
        self._checking.pop(each, None)
        digest = each[0]
        if done.cancelled() or done.exception() is not None:
            return
        while len(self._known) >= limits.CALLERS_MAX:
            del self._known[next(iter(self._known))]
        self._known[digest] = done.result()

    async def _check(self, header: str, source: str) -> _Known:
        scheme, _, value = header.partition(" ")
        match scheme.lower():
            case "basic":
                return await self._basic(value.strip(), source)
            case "bearer":
                return await self._bearer(value.strip())
        raise Problem(401, f"expected Basic or Bearer credentials, found {scheme[:40]!a}", headers=ASK)

    async def _basic(self, value: str, source: str) -> _Known:
        try:
            user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
            if not colon:
                raise ValueError("no colon between name and password")
            user, password = sasl.parse_plain(f"\0{user}\0{password}".encode())
        except (binascii.Error, ValueError) as error:
            raise Problem(401, f"the Basic credentials can't be read: {error}", headers=ASK) from None
        try:
            record = await self.logins.verify(source, user, password)
        except TooManyLoginsError as error:
            raise Problem(429, str(error), headers={"Retry-After": "10"}) from None
        if record is None:
            raise Problem(401, "unknown user or wrong password", headers=ASK)
        return self._made(Caller(user), tokens.key_digest(record), None)

    async def _bearer(self, value: str) -> _Known:
        try:
            claims = tokens.read(self.logins.secret, value, self._wall())
        except tokens.InvalidToken as error:
            raise Problem(401, str(error), headers=ASK) from None
        record = await self._coordinator.user(claims.user)
        if record is None or tokens.key_digest(record) != claims.key_digest:
            raise Problem(401, "the token's user is gone or has another password now", headers=ASK)
        caller = Caller(claims.user, scope=claims.scope)
        return self._made(caller, claims.key_digest, claims.expires_s * 1000)

    def _made(self, caller: Caller, digest: str, expires_ms: int | None) -> _Known:
        return _Known(caller, digest, self._monotonic() + limits.CALLER_FRESH_MS, expires_ms)


def _peer(request: web.Request) -> str | None:
    """The address that a request came from; None where it came by no network."""
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else None


def _source(request: web.Request) -> str:
    return source_of(_peer(request))


def _loopback(request: web.Request) -> bool:
    peer = _peer(request)
    return peer is None or _is_loopback(peer)
