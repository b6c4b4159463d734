"""connect: opens a connection for an application, with options."""

import ssl
from collections.abc import Callable, Generator
from typing import Any, TypedDict, Unpack

from lightrail.client.connection import Connection
from lightrail.client.options import Credentials, Event, ReconnectPolicy
from lightrail.client.tokens import TokenSource


class ConnectOptions(TypedDict, total=False):
    """Keywords of `connect`, which describes them."""

    credentials: Credentials | None
    token: TokenSource | None
    tls: ssl.SSLContext | None
    name: str | None
    reconnect: ReconnectPolicy | None
    heartbeat: float
    on_event: Callable[[Event], None] | None


class connect:  # noqa: N801 - it is called like a function
    """A connection to a broker: `async with connect("amqp://localhost") as connection`, or `await`.

    Args:
        urls: amqp://[USER[:PASSWORD]@]HOST[:PORT] or amqps://…, or ws://HOST[:PORT]/PATH or wss://… for AMQP
            over WebSocket, with the extra `websocket`; of several the first that can be opened.
        credentials: for all addresses, in place of those in the URLs.
        token: returns a Token for the node `$cbs`, in addition to the credentials or instead of them.
        tls: for amqps:// and wss://, with certificates of authorities and the client; None for the system's.
        name: the container-id.
        reconnect: how to connect again after a loss.
        heartbeat: seconds; a connection without frames from the broker for twice as long is lost.
        on_event: called with each Event, on the loop.

    Raises:
        ConnectError: no address could be reached; AuthenticationError: the broker refused the credentials.
    """

    def __init__(self, *urls: str, **options: Unpack[ConnectOptions]) -> None:
        self._urls = urls
        self._options = options
        self._connection: Connection | None = None

    async def _open(self) -> Connection:
        connection = self._connection = Connection(*self._urls, **self._options)
        await connection.open()
        return connection

    def __await__(self) -> Generator[Any, None, Connection]:
        return self._open().__await__()

    async def __aenter__(self) -> Connection:
        return await self._open()

    async def __aexit__(self, *exc: object) -> None:
        if self._connection is not None:
            await self._connection.close()
