"""Callers: authenticates requests by HTTP Basic, a bearer token or the scheme of a hook, as users of AMQP.

Hashing a password is slow by design, so verified credentials are cached under a keyed digest of their header,
and their user is read again every CALLER_FRESH_MS: a removed user, or one with another password, is refused
after that time. All log-ins check passwords alike (cluster/logins.py).
"""

import asyncio
import base64
import binascii
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from time import monotonic_ns
from typing import Final
from urllib.parse import unquote, urlsplit

from aiohttp import web

from lightrail.amqp import sasl
from lightrail.cluster.coordinator import Coordinator
from lightrail.cluster.logins import Keys, Logins, TooManyLoginsError
from lightrail.cluster.users import UserRecord
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.forwarded import client_of, is_encrypted
from lightrail.model import limits
from lightrail.model.clock import wall_ms
from lightrail.model.endpoint import is_loopback, source_of
from lightrail.model.settings import Settings
from lightrail.namespace import tokens
from lightrail.namespace.rights import ANYBODY, EVERYTHING, Caller, Resource, ShownKey

Verify = Callable[[Coordinator, bytes, str, int], Awaitable["VerifiedCredentials"]]
"""As that of hooks, for a directory."""
CALLER_FRESH_MS: Final[int] = 1_000
"""How long checked credentials are valid without reading their user again."""
SAFE: Final = ("GET", "HEAD")
"""Methods that change nothing; browsers don't let a page of another site read the answers."""
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


@dataclass(frozen=True, slots=True)
class VerifiedCredentials:
    """Verified credentials."""

    caller: Caller
    is_current: Callable[[UserRecord | None], bool]
    """Whether they are still good, by the present record of the user, if there is one."""
    expires_ms: int | None
    """Expiry of a token or a signature, by the wall clock."""
    resource: Resource = EVERYTHING
    """What a signature is for; everything for other credentials."""


@dataclass(slots=True)
class _Known:
    """Verified credentials, and until when their user is not read again."""

    credentials: VerifiedCredentials
    fresh_until_ms: int


@dataclass(slots=True)
class _Check:
    """A check under way, and the number of requests that wait for it."""

    pending: "asyncio.Future[_Known]"
    waiting: int = 0


class Callers:
    """Finds the caller of a request. Clocks are injected: `monotonic` for the cache, `wall` for tokens."""

    def __init__(
        self,
        coordinator: Coordinator,
        settings: Settings,
        *,
        monotonic: Callable[[], int] = monotonic_ms,
        wall: Callable[[], int] = wall_ms,
        logins: Logins | None = None,
        schemes: Mapping[str, Verify] | None = None,
        opens: Callable[[Resource, str], bool] = Resource.opens,
        keys: Keys = lambda *_: (),
        shown_key: ShownKey = lambda *_: None,
    ) -> None:
        self._shown_key = shown_key
        self._coordinator = coordinator
        self._schemes = dict(schemes or {})
        self._opens = opens
        self._settings = settings
        self._monotonic = monotonic
        self._wall = wall
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, _Known] = {}
        self._checking: dict[tuple[bytes, str], _Check] = {}
        self.logins = logins or Logins(coordinator, keys=keys)
        self.has_users = True
        """Whether any user is defined; assumed before the first refresh, so that every caller is checked."""

    async def refresh(self) -> None:
        """Reads whether any user is defined."""
        self.has_users = await self.logins.refresh()

    async def caller(self, request: web.Request) -> Caller:
        """The caller. Raises ProblemError: 401 without valid credentials, 403 where none are accepted."""
        origin = request.headers.get("Origin")
        if origin is not None and request.method not in SAFE and urlsplit(origin).netloc != request.host:
            # A browser sends its user's credentials for pages of other sites, too.
            raise ProblemError(403, f"a page of {origin[:80]!a} may not change anything here")
        header = request.headers.get("Authorization")
        tls = is_encrypted(request)
        if not self.has_users and header is not None:
            # A user may have been defined a moment ago: then credentials open no more than they say.
            await self.refresh()
        if not self.has_users:
            return self._anybody(request, tls)
        if header is None:
            if self._settings.allow_anonymous:
                return replace(ANONYMOUS, tls=True) if tls else ANONYMOUS
            raise ProblemError(401, "expected a name and password, or a token; found none", headers=ASK)
        if not tls and not self._settings.plain_without_tls and not _loopback(request):
            raise ProblemError(
                403,
                "passwords and tokens are accepted from other machines over TLS only; use the https address, "
                "or set plain_without_tls if something else protects the connection",
            )
        known = await self.verified(header, request)
        if not self._opens(known.resource, unquote(request.rel_url.raw_path).strip("/")):
            raise ProblemError(
                401,
                f"the signature is for {known.resource.path!a:.200} and paths below, and not for this path; "
                "one for a host begins with a scheme: sb://HOST/",
                headers=ASK,
            )
        return replace(known.caller, tls=True) if tls else known.caller

    async def user_record(self, caller: Caller) -> UserRecord | None:
        """The user record of a caller; None where no user is defined."""
        return None if caller.everything else await self._coordinator.user(caller.user)

    @property
    def secret(self) -> bytes:
        """The secret of the coordinator that signs tokens; known from the first refresh on."""
        return self.logins.secret

    @property
    def hashes(self) -> int:
        """Number of passwords hashed."""
        return self.logins.hashes

    def _anybody(self, request: web.Request, tls: bool) -> Caller:
        if not _loopback(request) and not self._settings.insecure_no_users:
            raise ProblemError(
                403,
                "no user is defined, so only callers on this machine are accepted; add one: "
                "lightrail-admin user add NAME",
            )
        host = request.headers.get("Host", "localhost")
        if not self._settings.insecure_no_users and not _is_local(host):
            # The name of another site may resolve to this machine (DNS rebinding).
            raise ProblemError(
                403,
                f"the request is for {host[:80]!a}; without users this machine is addressed as localhost or "
                "by its address",
            )
        return ANYBODY_TLS if tls else ANYBODY

    async def verified(self, header: str, request: web.Request) -> VerifiedCredentials:
        """The credentials of a header, verified now or before. Raises ProblemError: 401, 429."""
        digest = blake2b(header.encode(errors="surrogateescape"), key=self._key, digest_size=32).digest()
        known = self._known.get(digest)
        if known is None or not await self._still_good(known):
            self._known.pop(digest, None)
            known = await self._checked(digest, header, _source(request))
        return known.credentials

    async def _still_good(self, known: _Known) -> bool:
        credentials = known.credentials
        if credentials.expires_ms is not None and credentials.expires_ms <= self._wall():
            return False
        now_ms = self._monotonic()
        if now_ms < known.fresh_until_ms:
            return True
        record = await self._coordinator.user(credentials.caller.user)
        if not credentials.is_current(record):
            return False
        known.fresh_until_ms = now_ms + CALLER_FRESH_MS
        return True

    async def _checked(self, digest: bytes, header: str, source: str) -> _Known:
        """One check for all requests with the same credentials from the same source at a time."""
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
                # All these clients closed their connections: a flood of them must not cost hashing.
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
                found = await self._basic(value.strip(), source)
            case "bearer":
                found = await self._bearer(value.strip())
            case other:
                verify = next((each for name, each in self._schemes.items() if name.lower() == other), None)
                if verify is None:
                    *others, last = ("Basic", "Bearer", *self._schemes)
                    expected = f"{', '.join(others)} or {last} credentials"
                    raise ProblemError(401, f"expected {expected}, found {scheme[:40]!a}", headers=ASK)
                try:
                    found = await verify(self._coordinator, self.secret, value.strip(), self._wall())
                except tokens.InvalidTokenError as error:
                    raise ProblemError(401, str(error), headers=ASK) from None
        return _Known(found, self._monotonic() + CALLER_FRESH_MS)

    async def _basic(self, value: str, source: str) -> VerifiedCredentials:
        try:
            user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
            if not colon:
                raise ValueError("no colon between name and password")
            user, password = sasl.parse_plain(f"\0{user}\0{password}".encode())
        except (binascii.Error, ValueError) as error:
            raise ProblemError(401, f"the Basic credentials can't be read: {error}", headers=ASK) from None
        if (shown := self._shown_key(self.secret, user, password)) is not None:
            return VerifiedCredentials(
                shown, lambda _: self._shown_key(self.secret, user, password) is not None, None
            )
        try:
            record = await self.logins.verify(source, user, password)
        except TooManyLoginsError as error:
            raise ProblemError(429, str(error), headers={"Retry-After": "10"}) from None
        if record is None:
            raise ProblemError(401, "unknown user or wrong password", headers=ASK)
        if self.logins.is_key(record, password):
            return VerifiedCredentials(
                Caller(user), lambda now: now is not None and self.logins.is_key(now, password), None
            )
        return VerifiedCredentials(Caller(user), _of_password(tokens.key_digest(record)), None)

    async def _bearer(self, value: str) -> VerifiedCredentials:
        try:
            claims = tokens.read(self.logins.secret, value, self._wall())
        except tokens.InvalidTokenError as error:
            raise ProblemError(401, str(error), headers=ASK) from None
        record = await self._coordinator.user(claims.user)
        if record is None or tokens.key_digest(record) != claims.key_digest:
            raise ProblemError(401, "the token's user was removed or has another password now", headers=ASK)
        caller = Caller(claims.user, scope=claims.scope)
        return VerifiedCredentials(caller, _of_password(claims.key_digest), claims.expires_s * 1000)


def _of_password(digest: str) -> Callable[[UserRecord | None], bool]:
    """Whether a user has the password still that a password or a token was verified with."""
    return lambda user: user is not None and tokens.key_digest(user) == digest


def _peer(request: web.Request) -> str | None:
    """The address of the client; None for a connection without a network."""
    if (client := client_of(request)) is not None:
        return client.host
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(peer[0]) if isinstance(peer, tuple) else None


def _source(request: web.Request) -> str:
    return source_of(_peer(request))


def _loopback(request: web.Request) -> bool:
    peer = _peer(request)
    return peer is None or _is_loopback(peer)
