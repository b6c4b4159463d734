"""Who a client is: the SASL mechanisms that are offered to it, and the check of what it shows.

Passwords are checked by what all log-ins of the process share (cluster/logins.py): slow by design, a few at a
time, and slower for whom many were wrong.
"""

import asyncio
import logging
import secrets
import ssl
from dataclasses import dataclass
from typing import Any

from lightrail.amqp import events, sasl
from lightrail.cluster.coordinator import Coordinator
from lightrail.cluster.logins import LOCAL, Logins, TooManyLoginsError, source_of
from lightrail.cluster.users import UserRecord
from lightrail.model.settings import Settings, is_loopback
from lightrail.namespace.directory import Directory
from lightrail.namespace.rights import Caller

log = logging.getLogger("lightrail.frontend.auth")

@dataclass(slots=True)
class Step:
    """What to answer: a challenge, or a user that is known now, or neither: refused, the log says why."""

    challenge: bytes | None = None
    user: str | None = None
    data: bytes | None = None
    """Goes out with the good outcome (additional-data, security 5.3.3.5): SCRAM's proof of the server."""
    reason: str = ""
    is_logged: bool = False
    """The log has it already, with others of its kind."""


class Authenticator:
    """What all connections share: users, settings, the secret behind the salts of unknown users."""

    def __init__(self, coordinator: Coordinator, settings: Settings) -> None:
        self.coordinator = coordinator
        self.settings = settings
        self.has_users = False
        self.logins = Logins(coordinator)

    @property
    def secret(self) -> bytes:
        """The coordinator's, from the first refresh on."""
        return self.logins.secret

    async def refresh(self) -> None:
        """Looks again whether any user is defined; connections that come after see it."""
        self.has_users = await self.logins.refresh()

    def begin(self, transport: asyncio.Transport) -> "Authentication":
        """The authentication of one connection: what it is offered depends on where it comes from."""
        peer = transport.get_extra_info("peername")
        loopback = is_loopback(peer[0]) if isinstance(peer, tuple) else True
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        certificate = _subject(tls)
        mechanisms = self.settings.offered_mechanisms(
            loopback=loopback, tls=tls is not None, has_users=self.has_users
        )
        if certificate is not None:
            mechanisms = ("EXTERNAL", *mechanisms)
        source = source_of(peer[0] if isinstance(peer, tuple) else None)
        return Authentication(self, mechanisms, certificate, tls=tls is not None, source=source)


class Authentication:
    """One connection's SASL exchange."""

    __slots__ = (
        "_certificate",
        "_exchange",
        "_owner",
        "_record",
        "_source",
        "_tls",
        "_users_defined",
        "chosen",
        "gone",
        "mechanisms",
    )

    def __init__(
        self,
        owner: Authenticator,
        mechanisms: tuple[str, ...],
        certificate: str | None,
        *,
        tls: bool = False,
        source: str = LOCAL,
    ) -> None:
        self._source = source
        self._owner = owner
        self._tls = tls
        self._users_defined = owner.has_users
        self._certificate = certificate
        self._exchange: sasl.ScramServer | None = None
        self._record: UserRecord | None = None
        self.mechanisms = mechanisms
        self.chosen = ""
        """The mechanism that the client chose."""
        self.gone = False
        """The client did not wait for its answer: no work is done for it any more."""

    @property
    def anonymous(self) -> bool:
        """True when a client may come in without SASL as well."""
        return "ANONYMOUS" in self.mechanisms

    def caller(self, user: str | None, directory: Directory) -> Caller:
        """Who asks for rights, once it is known who came; without SASL that is nobody in particular.

        Where no user is defined, whoever gets in may do everything; but a certificate whose name was given
        permissions has just those.
        """
        name = user or "anonymous"
        everything = not self._users_defined
        if everything and self.chosen == "EXTERNAL" and directory.permissions(name):
            everything = False
        return Caller(name, everything=everything, tls=self._tls)

    async def answer(self, event: events.SaslInit | events.SaslResponse) -> Step:
        """What to answer; where the users can't be read nobody is let in."""
        try:
            if isinstance(event, events.SaslInit):
                self.chosen = str(event.mechanism)
                return await self.start(self.chosen, event.response)
            return await self.respond(event.response)
        except TooManyLoginsError as error:
            return Step(reason=str(error))
        except Exception:
            log.exception("it can't be known who a client is")
            return Step(reason="the users could not be read")

    async def start(self, mechanism: str, response: bytes | None) -> Step:
        """The client chose a mechanism."""
        if mechanism not in self.mechanisms:
            return Step(reason=f"mechanism {mechanism!r} is not offered to this client")
        if mechanism == "ANONYMOUS":
            return Step(user="anonymous")
        if mechanism == "EXTERNAL":
            return Step(user=self._certificate)
        try:
            if mechanism == "PLAIN":
                return await self._plain(response or b"")
            return await self._scram_first(mechanism, response or b"")
        except sasl.SaslError as error:
            return Step(reason=str(error))

    async def respond(self, response: bytes | None) -> Step:
        """The client answered the challenge of SCRAM."""
        exchange = self._exchange
        if exchange is None:
            return Step(reason="a response came where no challenge was open")
        self._exchange = None
        try:
            signature = exchange.final(response or b"")
        except sasl.SaslError as error:
            return self._wrong(exchange.user, f"{error} (user {exchange.user!r})")
        if self._record is None:
            return self._wrong(exchange.user, f"unknown user {exchange.user!r}")
        self._owner.logins.good(self._source, exchange.user)
        return Step(user=exchange.user, data=signature)

    def _wrong(self, user: str, reason: str) -> Step:
        self._owner.logins.wrong(self._source, user)
        return Step(reason=reason, is_logged=True)

    async def _plain(self, response: bytes) -> Step:
        user, password = sasl.parse_plain(response)
        record = await self._owner.logins.verify(self._source, user, password, lambda: not self.gone)
        if record is None:
            if self.gone:
                return Step(reason=f"{user!r} did not wait for the check of the password")
            return Step(reason=f"unknown user or wrong password for {user!r}", is_logged=True)
        return Step(user=user)

    async def _scram_first(self, mechanism: str, response: bytes) -> Step:
        exchange = sasl.ScramServer(mechanism)
        user = exchange.first(response)
        await self._owner.logins.admit(self._source, user)
        self._record = record = await self._owner.coordinator.user(user)
        if record is None:
            keys = self._owner.logins.unknown(user, mechanism)
        else:
            keys = record.sha256 if mechanism == "SCRAM-SHA-256" else record.sha512
        challenge = exchange.challenge(keys, secrets.token_urlsafe(24))
        self._exchange = exchange
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
