"""Connections: what was opened is open again after any loss, until the application closes it.

A connection is desired state: addresses, credentials, senders and receivers. One task keeps it true: it
connects to one of the addresses, attaches what is wanted, waits for the loss, and begins anew, with growing
and jittered pauses. A single link that the broker ended is attached again the same way.
"""

import asyncio
import os
import secrets
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from lightrail.amqp.performatives import AmqpError, Source
from lightrail.amqp.values import Symbol
from lightrail.client.affinity import check_loop
from lightrail.client.errors import (
    AuthenticationError,
    ClientError,
    ClosedError,
    ConnectError,
    NotAllowedError,
)
from lightrail.client.events import Event
from lightrail.client.link import Link
from lightrail.client.links import Links, LinkType
from lightrail.client.locks import Locks
from lightrail.client.management import NODE, Management
from lightrail.client.opening import Opening
from lightrail.client.options import Address, Credentials, ReconnectPolicy, pause_s
from lightrail.client.receiver import CREDIT, Receiver
from lightrail.client.requests import Requester
from lightrail.client.sender import CLOSE_S, WINDOW, Sender
from lightrail.client.sessions import Sessions
from lightrail.client.sources import check_options, source_of
from lightrail.client.tokens import Tokens, TokenSource
from lightrail.client.wire import Wire

STABLE_S: Final = 1.0
"""A connection that was lost sooner counts as an attempt without success: the next pause is a longer one."""
HEARTBEAT_S: Final = 30.0
PRODUCT: Final = Symbol("product")
"""Property of open with the name of the broker's software."""


class Connection:
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
        self._credentials = credentials
        self._tokens = None if token is None else Tokens(self, token, self._abort)
        self._tls = tls
        self._is_named = name is not None
        self._name = name or f"lightrail-client-{os.getpid()}-{secrets.token_hex(4)}"
        self._policy = reconnect or ReconnectPolicy()
        self._heartbeat_ms = int(heartbeat * 1000)
        self._on_event = on_event
        self.loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._links = Links(self, self._policy)
        self._wire: Wire | None = None
        self._address = self._addresses[0]
        self._gone: asyncio.Future[str] | None = None
        """Of the connection that is there: why it was lost."""
        self._first: asyncio.Future[None] = self.loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._numbers = 0
        self.locks = Locks(self)
        self._closing = False

    # --- for the application -----------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects. Raises ConnectError where no address lets us in at the first round."""
        self.check_loop()
        self._task = self.loop.create_task(self._run(), name=f"lightrail.client {self._address}")
        try:
            await asyncio.shield(self._first)
        except asyncio.CancelledError:
            # Nobody has the connection that would come of it.
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
        """Whether it is connected, and everything that was opened is attached."""
        return self._links.healthy

    @property
    def product(self) -> str:
        """What the broker calls itself; empty where it does not say, or none is connected."""
        peer = None if self._wire is None else self._wire.engine.peer_open
        return str((peer.properties or {}).get(PRODUCT, "")) if peer is not None else ""

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a broker now."""
        return self._links.connected

    def offers(self, capability: str) -> bool:
        """Whether the broker that is connected has a capability for all links (2.7.1)."""
        peer = None if self._wire is None else self._wire.engine.peer_open
        return peer is not None and capability in (peer.offered_capabilities or ())

    @property
    def closed(self) -> bool:
        """Whether it was closed, or given up."""
        return self._error is not None

    def fileno(self) -> int:
        """The number of its socket in this process; -1 while it has none."""
        return -1 if self._wire is None else self._wire.fileno()

    def sender(
        self,
        address: str | None = None,
        *,
        window: int = WINDOW,
        name: str | None = None,
        presettled: bool = False,
    ) -> Sender:
        """A sender to an address; `await` its `opened`, or use it in `async with`.

        Args:
            address: None where each message has its own in `to`.
            window: messages without an outcome, before `send` waits.
            name: of the link; the broker knows it again by that.
            presettled: at most once: nothing is confirmed.
        """
        return self._add(
            Sender(self, address, window=window, name=name or self._number(), presettled=presettled)
        )

    def receiver(
        self,
        address: str | None = None,
        *,
        credit: int = CREDIT,
        browse: bool = False,
        presettled: bool = False,
        name: str | None = None,
        selector: str | None = None,
        sql: str | None = None,
        subject: str | None = None,
        group: str | None = None,
        properties: Mapping[str, Any] | None = None,
        filters: Mapping[str, Any] | None = None,
        subscription: str | None = None,
        shared: bool = False,
        dynamic: bool = False,
        renew_for: float = 0.0,
    ) -> Receiver:
        """A receiver of an address; `await` its `opened`, or use it in `async with`.

        With several filters it gets what passes all of them. A broker that does not apply one of them is an
        error of the receiver, never a receiver of everything.

        Args:
            credit: messages that the broker sends ahead; 0: those that `Receiver.grant` asks for.
            browse: copies of what is in the queue, which stays there.
            presettled: at most once: what is on its way when the connection is lost is lost.
            name: of the link; the broker knows it again by that.
            selector: of JMS, as "colour = 'red' AND size > 3".
            sql: an expression of AMQP Filter Expressions 1.0.
            subject: a pattern of words, as orders.*.created or orders.#.
            group: messages of this group-id.
            properties: application-properties that are equal.
            filters: others, by name; described values as AMQP has them (messaging 3.5.8).
            subscription: at a router: the name of a durable subscription, which collects messages while
                nobody receives, until `Receiver.unsubscribe`. It belongs to the `name` of the connection.
            shared: several receivers, of any connection, share the subscription of that name.
            dynamic: the broker makes a node that lives as long as the link; `address` is its name once that
                is open.
            renew_for: seconds for which the lock of a message is renewed after its arrival, while it has no
                outcome: for handlers that may take longer than the queue's lock_duration. 0: not at all.
        """
        check_options(credit, presettled, renew_for, subscription, shared, self._is_named)
        if subscription is not None:
            # The broker cuts the name of a link to a shared subscription here: one connection has several.
            name = f"{subscription}|{self._number()}" if shared else subscription
        source = source_of(
            address, browse=browse, dynamic=dynamic, selector=selector, sql=sql, subject=subject, group=group,
            properties=properties, filters=filters, durable=subscription is not None, shared=shared,
        )
        return self._add(
            Receiver(
                self,
                address,
                credit=credit,
                name=name or self._number(),
                source=source,
                presettled=presettled,
                renew_for=renew_for,
            )
        )

    def requester(self, address: str) -> Requester:
        """Asks whoever receives from an address; `await` its `opened`, or use it in `async with`."""
        return Requester(self.loop, self.sender(address), self.receiver(dynamic=True, presettled=True))

    def node(self, address: str) -> Requester:
        """As `requester`, for a node of the broker that answers to a receiver from it, without a queue."""
        name = self._number()
        receiver = Receiver(
            self,
            address,
            credit=CREDIT,
            name=name,
            source=Source(address=address),
            target=name,
            presettled=True,
        )
        return Requester(self.loop, self.sender(address), self._add(receiver), reply_to=name)

    def management(self) -> Management:
        """Reads and changes a LightRail broker; use it in `async with`."""
        return Management(self.requester(NODE))

    async def close(self) -> None:
        """Closes everything in order. What was sent and has no outcome yet gets it, within CLOSE_S."""
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

    # --- what keeps it true --------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._keep_true()
        except asyncio.CancelledError:
            # By the end of the loop, unless it was given up before.
            self._give_up(ClosedError("the event loop of the connection ended before it was closed"))
            raise
        except Exception as error:
            failure = ClientError(f"internal error: {error!r}")
            failure.__cause__ = error
            self._give_up(failure)

    async def _keep_true(self) -> None:
        attempt = 0
        short = 0
        """Connections in a row that were lost at once."""
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
        """Raises ConnectError."""
        self._address = address
        self._gone = self.loop.create_future()
        opening = Opening(
            self.loop,
            address,
            credentials=self._credentials,
            tls=self._tls,
            tokens=self._tokens,
            name=self._name,
            idle_time_out_ms=2 * self._heartbeat_ms,
            lost=self._lost,
        )
        wire, session = await opening.run(self._policy.connect)
        self._wire = wire
        self._links.connect(wire, Sessions(wire.engine, session))
        if not self._first.done():
            self._first.set_result(None)
        self.report("connected", str(address))

    def _lost(self, wire: Wire, why: str) -> None:
        """The socket is closed."""
        if self._tokens is not None:
            self._tokens.stop()
        if wire is not self._wire:
            return
        self._wire = None
        self._links.lost()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(why)

    def _abort(self, why: str) -> None:
        """This connection is of no use; the next one is tried."""
        if self._wire is not None:
            self._wire.abort(why)

    def _give_up(self, error: Exception) -> None:
        """Nothing is tried any more."""
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

    def _number(self) -> str:
        self._numbers += 1
        return f"{self._name}-{self._numbers}"

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
        """Whether the broker refused a link because a token ran out; aborts the connection if so."""
        if self._tokens is None or not self._tokens.is_due or not isinstance(error, NotAllowedError):
            return False
        self._abort(f"the token ran out: {error}")
        return True

    def report(self, kind: str, where: str, reason: str = "") -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(Event(kind, where, reason))
        except Exception as error:
            self.loop.call_exception_handler(
                {"message": f"on_event of a connection failed for {kind}", "exception": error}
            )
