"""One attempt to connect: TCP, TLS, WebSocket, SASL and open at one address."""

import asyncio
import secrets
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from lightrail.amqp import events
from lightrail.amqp.sasl import SaslError
from lightrail.amqp.sasl_client import Mechanism, mechanism_for
from lightrail.amqp.session import Session
from lightrail.amqp.settings import ConnectionSettings
from lightrail.client.errors import AuthenticationError, ConnectError
from lightrail.client.options import Address, Credentials
from lightrail.client.wire import Wire

if TYPE_CHECKING:
    from lightrail.client.tokens import Tokens

BEYOND_CREDIT_MAX: Final = 10_000
"""Transfers beyond credit that are accepted: RabbitMQ's plugin recounts credit while transfers are sent."""
_TEMPORARY: Final = frozenset((2, 4))
"""The sasl-codes sys and sys-temp: the broker can't check credentials now (security 5.3.3.6)."""


class Opening:
    """Opens a wire, with a session on which links can be attached.

    Args:
        credentials: None for those of the address.
        tls: for amqps:// and wss://, with certificates of authorities and the client; None for the system's.
        tokens: sends a token to the node `$cbs` once the connection is open.
        name: the container-id.
        idle_time_out_ms: how long the broker may be silent.
        lost: called once, when the socket is closed, during the attempt or after it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        *,
        credentials: Credentials | None,
        tls: ssl.SSLContext | None,
        tokens: "Tokens | None",
        name: str,
        idle_time_out_ms: int,
        lost: Callable[[Wire, str], None],
    ) -> None:
        self._loop = loop
        self._address = address
        self._credentials = credentials or address.credentials
        self._tls = tls
        self._tokens = tokens
        self._lost = lost
        self._mechanism: Mechanism | None = None
        self._session: Session | None = None
        """Begun together with the open, which saves a round trip."""
        self._ready: asyncio.Future[None] = loop.create_future()
        # After a failure of TCP or TLS nothing awaits this.
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        settings = ConnectionSettings(
            container_id=name,
            hostname=address.host,
            is_server=False,
            uses_sasl=True,
            transactions=True,
            beyond_credit_max=BEYOND_CREDIT_MAX,
            idle_time_out_ms=idle_time_out_ms,
        )
        self._wire = Wire(loop, settings, self._negotiate, self._closed)
        self._websocket: asyncio.WriteTransport | None = None
        """Gets the socket before the wire does."""

    async def run(self, timeout: float) -> tuple[Wire, Session]:  # noqa: ASYNC109 - exceeding it is an error
        """Returns the wire, and a session that the broker has answered, when the connection is open.

        Raises:
            AuthenticationError: the broker refused the credentials, or the token.
            ConnectError: the broker was not reached, or did not answer within `timeout` seconds.
        """
        wire, address = self._wire, self._address
        secure = None
        if address.is_tls:
            secure = self._tls or ssl.create_default_context()
        try:
            async with asyncio.timeout(timeout):
                protocol = self._protocol()
                await self._loop.create_connection(lambda: protocol, address.host, address.port, ssl=secure)
                await self._ready
        except TimeoutError:
            self._abort("the attempt took too long")
            raise ConnectError(f"the broker did not open the connection within {timeout:g} s") from None
        except OSError as error:
            raise ConnectError(str(error)) from error
        except BaseException:
            self._abort("the attempt was cancelled")
            raise
        if not wire.usable:
            # The broker closed the connection after its open, before this step.
            wire.abort("the broker closed the connection at once")
            raise ConnectError(wire.why)
        assert self._session is not None
        await self._show_token(self._session)
        return wire, self._session

    def _protocol(self) -> asyncio.Protocol:
        """The protocol of the socket. Raises ConnectError if a package for it is missing."""
        if not self._address.is_websocket:
            return self._wire
        # Imported here, since it needs a package that the rest of the client does not need.
        from lightrail.client.websocket import RequestedWebSocket

        made = self._websocket = RequestedWebSocket(self._wire, self._address)
        return made

    def _abort(self, why: str) -> None:
        """Closes the socket at once, in whatever state the attempt is."""
        self._wire.abort(why)
        if self._websocket is not None:
            self._websocket.abort()

    async def _show_token(self, session: Session) -> None:
        if self._tokens is None:
            return
        try:
            await self._tokens.show(self._wire, session)
        except BaseException:
            self._wire.abort("no token was accepted")
            raise
        if not self._wire.usable:
            raise ConnectError(self._wire.why)

    def _closed(self, wire: Wire, why: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(ConnectError(why))
        self._lost(wire, why)

    # --- SASL and open -----------------------------------------------------------------------------------

    def _negotiate(self, wire: Wire, event: events.Event) -> None:
        """Answers the engine's events of SASL and open."""
        engine = wire.engine
        try:
            if isinstance(event, events.SaslOffered):
                self._mechanism = self._choose(event.mechanisms)
                engine.sasl_init(self._mechanism.name, self._mechanism.initial(), self._address.host)
                self._loop.call_soon(wire.continue_engine)
            elif isinstance(event, events.SaslChallenged):
                # PBKDF2 takes a tenth of a second, so it runs in a thread.
                assert self._mechanism is not None
                answer = self._loop.run_in_executor(None, self._mechanism.respond, event.challenge)
                answer.add_done_callback(self._respond)
            elif isinstance(event, events.SaslSucceeded):
                assert self._mechanism is not None
                self._mechanism.verify(event.additional_data)
                engine.open()
                self._session = engine.begin()
                wire.touch()
            elif isinstance(event, events.SaslFailed):
                if event.code in _TEMPORARY:
                    wire.abort(f"the broker can't check the credentials now (sasl-code {event.code})")
                else:
                    raise SaslError("the broker refused the user or the password")
            elif isinstance(event, events.Begun) and not self._ready.done():
                self._ready.set_result(None)
        except SaslError as error:
            self._refused(error)

    def _respond(self, answer: "asyncio.Future[bytes]") -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            self._refused(error)
        elif not self._wire.engine.closed:
            self._wire.engine.sasl_respond(answer.result())
            self._wire.continue_engine()

    def _refused(self, error: BaseException) -> None:
        if not self._ready.done():
            self._ready.set_exception(AuthenticationError(f"{self._address}: {error}"))
        self._wire.abort(str(error))

    def _choose(self, offered: Sequence[str]) -> Mechanism:
        is_secure = self._address.is_tls or self._address.is_local
        return mechanism_for(
            offered,
            self._credentials.user,
            self._credentials.password,
            secrets.token_urlsafe(18),
            is_secure=is_secure,
            has_certificate=self._tls is not None,
        )
