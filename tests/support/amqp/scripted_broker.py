"""A broker in the loop of the test that does nothing by itself: the test answers each event of the engine."""

import asyncio
import ssl
from collections import defaultdict
from typing import Any, Self, TypeVar, cast

from lightrail.amqp import events
from lightrail.amqp.connection import Connection as Engine
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.settings import ConnectionSettings

Kind = TypeVar("Kind", bound=events.Event)


class ScriptedBroker:
    """One server; its events wait for the test by their kind.

    Args:
        tls: for a server of TLS.
        keeps_sockets: leave the sockets of connections open that have ended.
    """

    def __init__(
        self, *, tls: ssl.SSLContext | None = None, keeps_sockets: bool = False, **settings: Any
    ) -> None:
        self._tls = tls
        self.keeps_sockets = keeps_sockets
        self.settings = ConnectionSettings(sasl_mechanisms=("ANONYMOUS",), idle_time_out_ms=0, **settings)
        self.connections: list[_Served] = []
        self._events: dict[type, asyncio.Queue[Any]] = defaultdict(asyncio.Queue)
        self.port = 0

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Served(self), "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes everything; the port stays that of the next `__aenter__`."""
        self._server.close()
        self.lose()
        await self._server.wait_closed()

    def lose(self) -> None:
        """Cuts all connections."""
        for each in self.connections:
            each.transport.abort()

    def put(self, event: events.Event) -> None:
        self._events[type(event)].put_nowait(event)

    async def next(self, kind: type[Kind]) -> Kind:
        """The next event of this kind."""
        found = await self._events[kind].get()
        assert isinstance(found, kind)
        return found

    def has(self, kind: type[events.Event]) -> bool:
        """Whether there are more events of this kind."""
        return not self._events[kind].empty()

    async def attach(
        self, kept_s: int = 60, *, mode: int = 1, credit: int = 100, **answer: Any
    ) -> tuple[Link, dict[bytes, Any] | None]:
        """Accepts the next attach; returns the link, and the map of the client.

        Args:
            kept_s: timeout that the broker's terminus is answered with.
            mode: rcv-settle-mode of the answer.
            credit: of a link on which the client sends.
            answer: more fields of the answer.
        """
        link = (await self.next(events.Attached)).link
        assert link.attach is not None
        theirs = link.attach.unsettled
        if link.is_sender:
            answer["source"] = Source(address="q", timeout=kept_s)
        else:
            answer["target"] = Target(address="q", timeout=kept_s)
            link.keep_tags()
        link.accept(rcv_settle_mode=mode, **answer)
        if not link.is_sender and credit:
            link.grant(credit)
        self.write()
        return link, theirs

    def write(self) -> None:
        """Sends what was written to links."""
        for each in self.connections:
            each.write()


class _Served(asyncio.Protocol):
    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.engine = Engine(broker.settings, 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.broker.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.broker.connections.remove(self)

    def data_received(self, data: bytes) -> None:
        self.pass_on(self.engine.feed(data, 0))
        while self.engine.has_more:
            self.pass_on(self.engine.feed(b"", 0))
        self.write()

    def pass_on(self, found: list[events.Event]) -> None:
        for event in found:
            if isinstance(event, events.SaslInit):
                self.engine.sasl_outcome(True, "anonymous", code=0)
                self.pass_on(self.engine.feed(b"", 0))
            else:
                self.broker.put(event)

    def write(self) -> None:
        output = self.engine.output
        self.transport.write(b"".join(output))
        output.clear()
        if self.engine.closed and not self.broker.keeps_sockets:
            self.transport.close()
