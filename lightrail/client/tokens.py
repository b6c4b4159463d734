"""Tokens: sent to the node `$cbs` of a broker after each connect, the next one before the last expires.

AMQP Claims-based Security 1.0, as its working drafts have it (`put-token`).
"""

import asyncio
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.performatives import Source
from lightrail.amqp.session import Session
from lightrail.client.errors import AuthenticationError, ClientError, ConnectError, NotAllowedError
from lightrail.client.message import Message
from lightrail.client.receiver import Receiver
from lightrail.client.sender import Sender

if TYPE_CHECKING:
    from lightrail.client.connection import Connection
    from lightrail.client.wire import Wire

NODE: Final = "$cbs"
ANSWER_S: Final = 10.0
RENEW_AT: Final = 0.75
"""Fraction of the remaining life of a token after which the next one is sent."""
AGAIN_S: Final = 1.0
"""Pause after a failed renewal, while the last token is valid."""


@dataclass(frozen=True, slots=True)
class Token:
    """The identity of a client, signed by an authority that the broker trusts.

    Attributes:
        text: the token itself.
        expires_at: seconds since the Unix epoch; None: never.
        type: `jwt` for LightRail.
        audience: the name that it is valid for, or amqp://HOST/NAME; amqp://HOST/ for all names.
    """

    text: str
    expires_at: float | None = None
    type: str = "jwt"
    audience: str = "amqp://lightrail/"

    def __repr__(self) -> str:
        return f"Token('***', expires_at={self.expires_at}, type={self.type!r}, audience={self.audience!r})"


TokenSource = Callable[[], "Token | Awaitable[Token]"]
"""Returns a valid token; called for each connection and before the last token expires."""


@dataclass(eq=False, repr=False)
class Tokens:
    """Sends tokens for one connection.

    Args:
        failed: called if a token expired and no other was accepted: the connection is unusable then.
    """

    _connection: "Connection"
    _source: TokenSource
    _failed: Callable[[str], None]
    _clock: Callable[[], float] = time.time
    _task: asyncio.Task[None] | None = None
    _sender: Sender | None = None
    _receiver: Receiver | None = None
    _reply_to: str = ""
    _number: int = 0
    is_due: bool = False
    """Whether the next token is due: the broker may refuse links because the last one expired."""

    async def show(self, wire: "Wire", session: Session) -> None:
        """Sends the first token on a new connection.

        Raises ConnectError; AuthenticationError where the broker refuses the token.
        """
        name = f"$cbs-{secrets.token_hex(4)}"
        self._reply_to = name
        self._sender = Sender(self._connection, NODE, window=1, name=f"{name}-to", presettled=False)
        self._receiver = Receiver(
            self._connection,
            NODE,
            credit=10,
            name=name,
            source=Source(address=NODE),
            target=name,
            presettled=True,
        )
        self._sender.attach(wire, session)
        self._receiver.attach(wire, session)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._sender.opened()
                await self._receiver.opened()
                expires_at = await self._put()
        except TimeoutError:
            raise ConnectError(f"{NODE} did not answer within {ANSWER_S:g} s") from None
        except AuthenticationError:
            raise
        except ClientError as error:
            raise ConnectError(f"{NODE}: {error}") from error
        if expires_at is not None:
            self._task = self._connection.loop.create_task(self._keep(expires_at), name="tokens for $cbs")

    def explains(self, error: ClientError) -> bool:
        """Whether a link was refused because a token has expired; the connection is of no use then."""
        if not self.is_due or not isinstance(error, NotAllowedError):
            return False
        self._failed(f"the token expired: {error}")
        return True

    def stop(self) -> None:
        """Stops sending tokens: the connection was lost or closed."""
        self.is_due = False
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for link in (self._sender, self._receiver):
            if link is not None:
                link.end(ConnectError("the connection was lost"))
        self._sender = self._receiver = None

    async def _keep(self, expires_at: float) -> None:
        """Sends each next token before the last one expires."""
        while True:
            left = expires_at - self._clock()
            await asyncio.sleep(max(AGAIN_S, left * RENEW_AT))
            self.is_due = True
            try:
                async with asyncio.timeout(ANSWER_S):
                    found = await self._put()
            except (ClientError, TimeoutError, OSError) as error:
                if self._clock() + AGAIN_S >= expires_at:
                    self._failed(f"the token expired, and no other was accepted: {error or 'no answer'}")
                    return
                continue
            self.is_due = False
            if found is None:
                return
            expires_at = found

    async def _put(self) -> float | None:
        """Sends a new token; returns the time of its expiry."""
        try:
            given: Any = self._source()
            token: Token = await given if inspect.isawaitable(given) else given
        except (ClientError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise ConnectError(f"the token source failed: {error}") from error
        assert self._sender is not None
        assert self._receiver is not None
        self._number += 1
        id = f"{self._reply_to}-{self._number}"
        await self._sender.send(
            Message(
                token.text,
                id=id,
                reply_to=self._reply_to,
                durable=False,
                properties={"operation": "put-token", "type": token.type, "name": token.audience},
            )
        )
        async for delivery in self._receiver:
            answer = delivery.message
            if str(answer.correlation_id) != id:
                continue
            status = int(answer.properties.get("status-code", 0))
            if 200 <= status < 300:
                return token.expires_at
            reason = answer.properties.get("status-description") or "it gave no reason"
            raise AuthenticationError(f"the broker refused the token: {reason} ({status})")
        raise ConnectError("the connection was lost before the answer came")
