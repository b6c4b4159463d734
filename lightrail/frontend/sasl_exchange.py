"""The SASL exchange of one connection, step by step; a password is checked in a task beside the loop."""

import logging
from typing import TYPE_CHECKING

from lightrail.amqp import events
from lightrail.frontend.auth import Authentication

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

log = logging.getLogger("lightrail.frontend.sasl_exchange")


class SaslExchange:
    """One client's exchange."""

    __slots__ = ("_authentication", "_connection", "is_checking")

    def __init__(self, connection: "ClientConnection", authentication: Authentication) -> None:
        self._connection = connection
        self._authentication = authentication
        self.is_checking = False
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

    def authenticated(self) -> None:
        """The connection is open: the client has the rights of its user."""
        client = self._connection.client
        client.caller = self._authentication.caller(client.user, self._connection.frontend.directory)

    def abandon(self) -> None:
        """The connection has closed: cancels the check."""
        self._authentication.is_abandoned = True
