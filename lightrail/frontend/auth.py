"""Authentication of clients: the offered SASL mechanisms, and the check of credentials.

An `Authenticator` of the process begins the `Authentication` of each connection, whose `SaslExchange` answers
the client's frames one by one. The log-ins of the process (cluster/logins.py) check passwords in tasks beside
the loop: slow by design, a few at a time, and slower after many wrong ones from one address or user.
"""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import events, sasl
from lightrail.cluster.coordinator import Coordinator, CoordinatorError
from lightrail.cluster.logins import Keys, Logins, TooManyLoginsError
from lightrail.cluster.users import UserRecord
from lightrail.model.endpoint import is_loopback, source_of
from lightrail.model.protocols import Address
from lightrail.model.setting_values import ANONYMOUS
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import Caller, RuleKey, ShownKey

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

log = logging.getLogger("lightrail.frontend.auth")

FIRST_USER: Final = "a user is defined by now, and all clients have to log in: connect again"


def offered_mechanisms(settings: Settings, *, loopback: bool, tls: bool, has_users: bool) -> tuple[str, ...]:
    """SASL mechanisms of users for one connection, the preferred first; empty: nobody may log in.

    With no user defined, ANONYMOUS is for loopback only, unless insecure_no_users is set; PLAIN is offered,
    too, for clients that are configured with a user, and accepts every password. PLAIN shows the password to
    everybody on the network path, so beyond loopback it needs TLS or plain_without_tls.

    Args:
        loopback: whether the peer's address is of this machine.
    """
    plain = loopback or tls or settings.plain_without_tls
    if not has_users:
        if not loopback and not settings.insecure_no_users:
            return ()
        return (ANONYMOUS, "PLAIN") if plain else (ANONYMOUS,)
    offered = tuple(name for name in settings.sasl_mechanisms if plain or name != "PLAIN")
    return (*offered, ANONYMOUS) if settings.allow_anonymous else offered


@dataclass(slots=True)
class Step:
    """The answer to a SASL frame: a challenge, or the authenticated user, or a refusal with its reason."""

    challenge: bytes | None = None
    user: str | None = None
    data: bytes | None = None
    """Sent with the outcome ok (additional-data, security 5.3.3.5): SCRAM's proof of the server."""
    reason: str = ""
    is_logged: bool = False
    """Whether the reason is logged already, with others of its kind."""


class Authenticator:
    """Shared state of all connections: users, settings, and the secret for the salts of unknown users.

    Args:
        aliases: further names of the mechanism ANONYMOUS.
        keys: what users may give in the place of their passwords.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        settings: Settings,
        aliases: tuple[str, ...] = (),
        keys: Keys = lambda *_: (),
    ) -> None:
        self.coordinator = coordinator
        self.without_user = ANONYMOUS, *aliases
        """Mechanisms of a client that does not say who it is."""
        self.settings = settings
        self.has_users = False
        self.first_user: Callable[[], None] = lambda: None
        """Called when a user is defined where there was none: nobody has all rights any more."""
        self.logins = Logins(coordinator, keys=keys)
        self.shown_key: ShownKey = lambda *_: None
        """Finds the caller of a key of an authorization rule; the frontend sets it."""

    @property
    def secret(self) -> bytes:
        """The coordinator's secret, from the first refresh on."""
        return self.logins.secret

    async def refresh(self) -> None:
        """Reads whether any user is defined, for connections that are accepted afterwards."""
        had_users, self.has_users = self.has_users, await self.logins.refresh()
        if self.has_users and not had_users:
            self.first_user()

    def begin(self, transport: asyncio.Transport, source: Address | None) -> "Authentication":
        """The authentication of one connection, whose mechanisms depend on TLS and the client's address."""
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        host = None if source is None else source[0]
        return self.begin_for(host, _subject(tls), tls=tls is not None)

    def begin_for(self, host: str | None, certificate: str | None = None, *, tls: bool) -> "Authentication":
        """The same for a client at `host`; None: for a socket without an address.

        Args:
            certificate: subject of the client's certificate.
        """
        loopback = is_loopback(host) if host is not None else True
        mechanisms = offered_mechanisms(self.settings, loopback=loopback, tls=tls, has_users=self.has_users)
        anonymous = ANONYMOUS in mechanisms
        if anonymous:
            at = mechanisms.index(ANONYMOUS)
            mechanisms = (*mechanisms[:at], *self.without_user, *mechanisms[at + 1 :])
        elif mechanisms and self.settings.token_wait:
            mechanisms = (*mechanisms, *self.without_user)
        if certificate is not None:
            mechanisms = ("EXTERNAL", *mechanisms)
        return Authentication(self, mechanisms, anonymous, certificate, tls, source_of(host))


@dataclass(slots=True, eq=False, repr=False)
class Authentication:
    """One connection's SASL exchange."""

    _owner: Authenticator
    mechanisms: tuple[str, ...]
    anonymous: bool
    """Whether a client without a user has the rights of everybody, and may connect without SASL as well.

    Otherwise it has none before a token (frontend/unproven.py).
    """
    _certificate: str | None
    _tls: bool
    source: str
    """The address that log-ins and connections of the client count for."""
    _users_defined: bool = field(init=False)
    _exchange: sasl.ScramServer | None = None
    _record: UserRecord | None = None
    _by_rule: RuleKey | None = None
    _offered: sasl.ScramKeys | None = None
    """The keys, with salt and rounds, of SCRAM's challenge."""
    chosen: str = ""
    """The mechanism that the client chose."""
    is_abandoned: bool = False
    """Whether the connection has closed, so that no more work is done for it."""

    def __post_init__(self) -> None:
        self._users_defined = self._owner.has_users

    @property
    def is_outdated(self) -> bool:
        """Whether the first user was defined after the client was accepted without a check."""
        return self._owner.has_users and not self._users_defined

    @property
    def awaits_token(self) -> bool:
        """Whether the client has sent no name and no password, and has to put a token first."""
        return not self.anonymous and self.chosen in self._owner.without_user

    def caller(self, user: str | None, directory: Directory) -> Caller:
        """The caller with the rights of an authenticated user; `anonymous` without SASL.

        If no user is defined, every client has all rights; but a certificate whose name has permissions has
        only these.
        """
        if self._by_rule is not None:
            return Caller(self._by_rule.user, tls=self._tls, by_rule=self._by_rule)
        name = user or "anonymous"
        everything = not (self._users_defined or self._owner.has_users)
        if everything and self.chosen == "EXTERNAL" and directory.permissions(name):
            everything = False
        return Caller(name, everything=everything, tls=self._tls, unproven=self.awaits_token)

    async def answer(self, event: events.SaslInit | events.SaslResponse) -> Step:
        """The answer to a frame; a refusal if users can't be read."""
        try:
            if isinstance(event, events.SaslInit):
                self.chosen = str(event.mechanism)
                return await self.start(self.chosen, event.response)
            return await self.respond(event.response)
        except TooManyLoginsError as error:
            return Step(reason=str(error))
        except CoordinatorError as error:
            log.warning("a client could not be authenticated: %s", error)
            return Step(reason=f"the users could not be read: {error}", is_logged=True)
        except Exception:
            log.exception("a client could not be authenticated")
            return Step(reason="the users could not be read")

    async def start(self, mechanism: str, response: bytes | None) -> Step:
        """The client chose a mechanism."""
        if mechanism not in self.mechanisms:
            return Step(reason=f"mechanism {mechanism!r} is not offered to this client")
        if not self._users_defined:
            await self._look_for_users()
        if mechanism in self._owner.without_user:
            if not self.anonymous and not self._owner.settings.token_wait:
                return Step(reason="a user is defined by now; expected a user name and a password")
            return Step(user="anonymous")
        if mechanism == "EXTERNAL":
            return Step(user=self._certificate)
        try:
            if mechanism == "PLAIN":
                return await self._plain(response or b"")
            return await self._scram_first(mechanism, response or b"")
        except sasl.SaslError as error:
            return Step(reason=str(error))

    async def _look_for_users(self) -> None:
        """A user may have been defined a moment ago: then credentials open no more than they say."""
        await self._owner.refresh()
        if self._owner.has_users:
            self._users_defined = True
            self.anonymous = self._owner.settings.allow_anonymous

    async def respond(self, response: bytes | None) -> Step:
        """The client answered the challenge of SCRAM."""
        exchange = self._exchange
        if exchange is None:
            return Step(reason="expected a response to an open challenge, found none open")
        self._exchange = None
        try:
            signature = exchange.final(response or b"")
        except sasl.WrongProofError as error:
            by_key = await self._by_key(exchange)
            if by_key is None:
                return self._wrong(exchange.user, f"{error} (user {exchange.user!r})")
            signature = by_key
        except sasl.SaslError as error:
            return self._wrong(exchange.user, f"{error} (user {exchange.user!r})")
        if self._record is None:
            return self._wrong(exchange.user, f"unknown user {exchange.user!r}")
        self._owner.logins.good(self.source, exchange.user)
        return Step(user=exchange.user, data=signature)

    async def _by_key(self, exchange: sasl.ScramServer) -> bytes | None:
        """The last message of the exchange if the client has proved a key of the user, otherwise None."""
        offered = self._offered
        assert offered is not None
        proofs = await self._owner.logins.scram_keys(
            self.source, self._record, offered, lambda: not self.is_abandoned
        )
        return next((found for keys in proofs if (found := exchange.prove(keys)) is not None), None)

    def _wrong(self, user: str, reason: str) -> Step:
        self._owner.logins.wrong(self.source, user)
        return Step(reason=reason, is_logged=True)

    async def _plain(self, response: bytes) -> Step:
        user, password = sasl.parse_plain(response)
        if not self._users_defined:
            # Clients are configured with users of other brokers, as guest:guest: the name is shown, and all
            # clients have all rights.
            return Step(user=user)
        # Rules first, as in signatures; like keys of users they are neither hashed nor delayed.
        found = self._owner.shown_key(self._owner.secret, user, password)
        if found is not None:
            self._by_rule = found.by_rule
            return Step(user=found.user)
        record = await self._owner.logins.verify(self.source, user, password, lambda: not self.is_abandoned)
        if record is None:
            if self.is_abandoned:
                return Step(reason=f"{user!r} did not wait for the check of the password")
            return Step(reason=f"unknown user or wrong password for {user!r}", is_logged=True)
        return Step(user=user)

    async def _scram_first(self, mechanism: str, response: bytes) -> Step:
        exchange = sasl.ScramServer(mechanism)
        user = exchange.first(response)
        await self._owner.logins.admit(self.source, user)
        self._record = record = await self._owner.coordinator.user(user)
        if record is None:
            keys = self._owner.logins.unknown(user, mechanism)
        else:
            keys = record.sha256 if mechanism == "SCRAM-SHA-256" else record.sha512
        challenge = exchange.challenge(keys, secrets.token_urlsafe(24))
        self._exchange, self._offered = exchange, keys
        return Step(challenge=challenge)


def _subject(tls: ssl.SSLObject | None) -> str | None:
    """The common name of a client certificate that the TLS layer has verified, or None."""
    if tls is None:
        return None
    certificate: Any = tls.getpeercert() or {}
    for entry in certificate.get("subject", ()):
        for key, value in entry:
            if key == "commonName":
                return str(value)
    return None


@dataclass(slots=True, eq=False, repr=False)
class SaslExchange:
    """One client's exchange."""

    _connection: "ClientConnection"
    _authentication: Authentication
    is_checking: bool = False
    """Whether the client waits for the broker to check its password."""

    def begin(self, event: events.SaslInit | events.SaslResponse) -> None:
        """Answers a frame of the client, as soon as its credentials are checked."""
        self._connection.frontend.spawn(self._answer(event))

    async def _answer(self, event: events.SaslInit | events.SaslResponse) -> None:
        connection = self._connection
        frontend = connection.frontend
        authentication = self._authentication
        self.is_checking = True
        step = await authentication.answer(event)
        self.is_checking = False
        amqp = connection.amqp
        if amqp is None or amqp.closed:
            return
        # The time of the check does not count as the client's silence.
        amqp.excuse(frontend.now_ms())
        if step.challenge is not None:
            amqp.sasl_challenge(step.challenge)
        elif step.user is not None:
            connection.client.user = step.user
            amqp.sasl_outcome(True, step.user, step.data)
        else:
            frontend.counts.authentications_failed += 1
            if not step.is_logged:
                chosen, peer = authentication.chosen, connection.client.peer
                log.warning("authentication by %s from %s failed: %s", chosen, peer, step.reason)
            amqp.sasl_outcome(False, None)
        # The client may have sent its open along with the last response.
        connection.data_received(b"")

    @property
    def source(self) -> str:
        """See Authentication."""
        return self._authentication.source

    @property
    def awaits_token(self) -> bool:
        """See Authentication."""
        return self._authentication.awaits_token

    @property
    def is_outdated(self) -> bool:
        """See Authentication."""
        return self._authentication.is_outdated

    def authenticated(self) -> None:
        """The connection is open: the client has the rights of its user."""
        client = self._connection.client
        client.caller = self._authentication.caller(client.user, self._connection.frontend.directory)

    def abandon(self) -> None:
        """The connection has closed: cancels the check."""
        self._authentication.is_abandoned = True
