"""Connections: after any loss, connects again and opens all senders and receivers, until it is closed.

One task connects to one of the addresses, attaches the open links (links.py), waits for the loss of the
connection, and repeats that, with growing and jittered pauses.

Affinity: a connection belongs to the process and the event loop that opened it.

connect: opens a connection for an application, with options.
"""

import asyncio
import os
import secrets
import ssl
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, TypedDict, Unpack

from lightrail.amqp.performatives import AmqpError
from lightrail.amqp.values import Symbol
from lightrail.client.errors import AuthenticationError, ClientError, ClosedError, ConnectError
from lightrail.client.link import Link
from lightrail.client.link_factory import LinkFactory
from lightrail.client.links import Links, LinkType, Sessions
from lightrail.client.management import Locks
from lightrail.client.opening import Opening
from lightrail.client.options import Address, Credentials, Event, ReconnectPolicy, Reporter, pause_s
from lightrail.client.sender import CLOSE_S
from lightrail.client.tokens import Tokens, TokenSource
from lightrail.client.wire import Wire


def other_process(pid: int) -> str:
    """The error text for an object of the process `pid` in this one."""
    return (
        f"expected to be used by process {pid}, which opened it, and is used by {os.getpid()}: "
        "open a connection after the fork"
    )


def check_loop(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    """Raises ClientError outside of the loop, and in another process than `pid`."""
    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        return
    if os.getpid() != pid:
        raise ClientError(other_process(pid))
    raise ClientError(
        "expected to be used on the event loop that opened it, and is used "
        + ("outside of a loop" if running is None else "on another one")
        + ": open a connection there, or use lightrail.client.sync, whose objects any thread may use"
    )


STABLE_S: Final = 1.0
"""A connection that is lost sooner counts as a failed attempt: the next pause is longer."""
HEARTBEAT_S: Final = 30.0
PRODUCT: Final = Symbol("product")
"""Property of open with the name of the broker's software."""


class Connection(LinkFactory):
    """A connection to a broker at one of several addresses. Made by `lightrail.client.connect`."""

    def __init__(
        self,
        *urls: str,
        credentials: Credentials | None = None,
        token: TokenSource | None = None,
        tls: ssl.SSLContext | None = None,
        name: str | None = None,
        reconnect: ReconnectPolicy | None = None,
        heartbeat: float = HEARTBEAT_S,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if not urls:
            raise ValueError("expected the address of a broker, as amqp://localhost")
        self._addresses = [Address.parse(url) for url in urls]
        self._tokens = None if token is None else Tokens(self, token, self._abort)
        super().__init__(
            name or f"lightrail-client-{os.getpid()}-{secrets.token_hex(4)}", is_named=name is not None
        )
        self._policy = reconnect or ReconnectPolicy()
        self.loop = asyncio.get_running_loop()
        self._reporter = Reporter(self.loop, on_event)
        self._pid = os.getpid()
        self._opening = partial(
            Opening,
            self.loop,
            credentials=credentials,
            tls=tls,
            tokens=self._tokens,
            name=self._name,
            idle_time_out_ms=2 * int(heartbeat * 1000),
            lost=self._lost,
        )
        """Makes an attempt at an address."""
        self._links = Links(self, self._policy)
        self._wire: Wire | None = None
        self._address = self._addresses[0]
        self._gone: asyncio.Future[str] | None = None
        """Why the current connection was lost."""
        self._first: asyncio.Future[None] = self.loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self.locks = Locks(self)
        self._closing = False

    # --- for the application -----------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects. Raises ConnectError where the first round of attempts fails at every address."""
        self.check_loop()
        self._task = self.loop.create_task(self._run(), name=f"lightrail.client {self._address}")
        try:
            await asyncio.shield(self._first)
        except asyncio.CancelledError:
            # The caller has no connection to close.
            self._give_up(ClosedError("the opening of the connection was cancelled"))
            raise

    async def __aenter__(self) -> "Connection":
        if self._task is None:
            await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def healthy(self) -> bool:
        """Whether it is connected, and every open link is attached."""
        return self._links.healthy

    @property
    def product(self) -> str:
        """The name of the broker's software; empty where the broker sends none, or none is connected."""
        peer = None if self._wire is None else self._wire.engine.peer_open
        return str((peer.properties or {}).get(PRODUCT, "")) if peer is not None else ""

    @property
    def connected(self) -> bool:
        """Whether a broker is connected now."""
        return self._links.connected

    def offers(self, capability: str) -> bool:
        """Whether the connected broker offers a capability for all links (2.7.1)."""
        peer = None if self._wire is None else self._wire.engine.peer_open
        return peer is not None and capability in (peer.offered_capabilities or ())

    @property
    def closed(self) -> bool:
        """Whether it was closed, or failed for good."""
        return self._error is not None

    def fileno(self) -> int:
        """The number of its socket in this process; -1 while it has none."""
        return -1 if self._wire is None else self._wire.fileno()

    async def close(self) -> None:
        """Closes all links, then the connection; waits for outcomes of sent messages for CLOSE_S at most."""
        if self._error is not None:
            return
        self.check_loop()
        self._closing = True
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(link.close() for link in self._links.all))
                if self._wire is not None and self._gone is not None:
                    self._wire.close("it was closed by the application")
                    await asyncio.shield(self._gone)
        except TimeoutError:
            pass
        finally:
            self._give_up(ClosedError("the connection is closed"))

    # --- connecting ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._keep_true()
        except asyncio.CancelledError:
            # The loop ended, or the connection did before.
            self._give_up(ClosedError("the event loop of the connection ended before it was closed"))
            raise
        except Exception as error:
            failure = ClientError(f"internal error: {error!r}")
            failure.__cause__ = error
            self._give_up(failure)

    async def _keep_true(self) -> None:
        attempt = 0
        short = 0
        """Connections in a row that lasted less than STABLE_S."""
        while self._error is None:
            reasons: list[str] = []
            for address in self._addresses:
                try:
                    await self._connect(address)
                    break
                except AuthenticationError as error:
                    self._give_up(error)
                    return
                except ConnectError as error:
                    reasons.append(f"{address}: {error}")
                    self.report("failed", str(address), str(error))
            else:
                attempt += 1
                failure = ConnectError("no broker could be reached: " + "; ".join(reasons))
                if not self._first.done() or attempt == self._policy.attempts:
                    self._give_up(failure)
                    return
                await asyncio.sleep(pause_s(self._policy, attempt - 1))
                continue
            attempt = 0
            assert self._gone is not None
            began = self.loop.time()
            why = await self._gone
            if self._closing:
                return
            self.report("lost", str(self._address), why)
            if self.loop.time() - began >= STABLE_S:
                short = 0
            await asyncio.sleep(pause_s(self._policy, short))
            short += 1

    async def _connect(self, address: Address) -> None:
        """One attempt. Raises ConnectError."""
        self._address = address
        self._gone = self.loop.create_future()
        wire, session = await self._opening(address).run(self._policy.connect)
        self._wire = wire
        self._links.connect(wire, Sessions(wire.engine, session))
        if not self._first.done():
            self._first.set_result(None)
        self.report("connected", str(address))

    def _lost(self, wire: Wire, why: str) -> None:
        """The socket was closed."""
        if self._tokens is not None:
            self._tokens.stop()
        if wire is not self._wire:
            return
        self._wire = None
        self._links.lost()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(why)

    def _abort(self, why: str) -> None:
        """Closes the socket, so that the next attempt follows."""
        if self._wire is not None:
            self._wire.abort(why)

    def _give_up(self, error: Exception) -> None:
        """Ends the connection for good, with all links."""
        if self._error is not None:
            return
        self._error = error
        if self._wire is not None:
            self._wire.abort("the connection is closed")
        self._links.end(error)
        if not self._first.done():
            self._first.set_exception(error)
            self._first.exception()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self.report("closed", str(self._address), str(error))

    # --- links ---------------------------------------------------------------------------------------------

    @property
    def _owner(self) -> "Connection":
        return self

    def _add(self, link: LinkType) -> LinkType:
        if self._error is not None:
            raise ClosedError(f"the connection is closed: {self._error}")
        self.check_loop()
        return self._links.add(link)

    def check_loop(self) -> None:
        """Raises ClientError outside of the loop that the connection belongs to, as after a fork."""
        check_loop(self.loop, self._pid)

    def forget(self, link: Link) -> None:
        """See Links."""
        self._links.forget(link)

    def link_lost(self, link: Link, what: str, error: AmqpError | None) -> None:
        """See Links."""
        self._links.link_lost(link, what, error)

    def link_attached(self, link: Link) -> None:
        """See Links."""
        self._links.link_attached(link)

    def is_token_missing(self, error: ClientError) -> bool:
        """Whether the broker refused a link because a token has expired; aborts the connection if so."""
        return self._tokens is not None and self._tokens.explains(error)

    def report(self, kind: str, where: str, reason: str = "") -> None:
        """Calls on_event."""
        self._reporter.report(kind, where, reason)


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
