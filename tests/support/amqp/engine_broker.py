"""A broker in the loop of the test: our engine in the server's role, which does what the test asks for.

`python -m tests.support.amqp.engine_broker` prints its port and serves until its stdin closes.
"""

import asyncio
import sys
from collections import deque
from typing import Any, Self, cast

from lightrail.amqp import events
from lightrail.amqp.connection import Connection as Engine
from lightrail.amqp.link import ATTACHED, Link
from lightrail.amqp.performatives import Accepted, Modified, Source, Target
from lightrail.amqp.settings import ConnectionSettings


class EngineBroker:
    """Queues in memory, by address; each message belongs to one receiver until that settles it or ends.

    Attributes:
        sasl_codes: the outcomes of the next negotiations, in order; 0, ok, once there are no more.
        credit: what each sender gets.
        closes_at_once: how many of the next connections are closed in the write that has the open.
        queues: messages that nobody has.
        missing: addresses of links for which the whole session is ended, as some brokers do.
        settings: of the connections that come.
        holds: while it is set, nothing is written behind the open of a connection.
    """

    def __init__(self, credit: int = 1_000, **settings: Any) -> None:
        self.settings = ConnectionSettings(sasl_mechanisms=("ANONYMOUS",), idle_time_out_ms=0, **settings)
        self.sasl_codes: deque[int] = deque()
        self.credit = credit
        self.closes_at_once = 0
        self.missing: set[str] = set()
        self.queues: dict[str, deque[bytes]] = {}
        self.connections: list[_Served] = []
        self.holds = False
        self.port = 0
        self.attempts = 0

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Served(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for each in list(self.connections):
            each.transport.abort()
        await self._server.wait_closed()

    def of(self, address: str) -> deque[bytes]:
        return self.queues.setdefault(address, deque())

    def push(self) -> None:
        """Gives what is in queues to receivers with credit."""
        for each in self.connections:
            each.push()

    def give_credit(self, credit: int) -> None:
        """To the senders that are attached, and those that will be."""
        self.credit = credit
        for each in self.connections:
            for link in each.incoming:
                link.grant(credit)
            each.write()


class _Served(asyncio.Protocol):
    def __init__(self, broker: EngineBroker) -> None:
        self.broker = broker
        self.engine = Engine(broker.settings, 0)
        self.incoming: list[Link] = []
        self.outgoing: list[Link] = []
        self.held: dict[Link, dict[int, bytes]] = {}
        self.is_held = False
        """Its open was written, and what is behind that waits."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.broker.connections.append(self)
        self.broker.attempts += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.broker.connections.remove(self)
        for link in list(self.held):
            self.give_back(link)
        self.broker.push()

    def data_received(self, data: bytes) -> None:
        self.take(self.engine.feed(data, 0))
        while self.engine.has_more:
            self.take(self.engine.feed(b"", 0))
        self.broker.push()
        self.write()

    def write(self) -> None:
        output = self.engine.output
        if self.broker.holds and self.engine.opened:
            if not self.is_held:
                self.is_held = True
                # The protocol header and the open; then come answers to what the client pipelined.
                self.transport.write(b"".join(output[:2]))
                del output[:2]
            return
        self.transport.write(b"".join(output))
        output.clear()
        if self.engine.closed:
            self.transport.close()

    def take(self, found: list[events.Event]) -> None:
        for event in found:
            match event:
                case events.SaslInit():
                    code = self.broker.sasl_codes.popleft() if self.broker.sasl_codes else 0
                    self.engine.sasl_outcome(code == 0, "anonymous", code=code)
                    self.take(self.engine.feed(b"", 0))
                case events.Opened():
                    if self.broker.closes_at_once:
                        self.broker.closes_at_once -= 1
                        self.engine.close("amqp:resource-limit-exceeded", "full")
                case events.Attached():
                    self.attached(event.link)
                case events.Detached():
                    self.detached(event.link)
                case events.Ended():
                    for link in event.session.links:
                        self.detached(link)
                case events.Transfers():
                    queue = self.broker.of(_address(event.link.target))
                    queue.extend(event.payloads)
                    last = event.first_delivery_id + len(event.payloads) - 1
                    if not event.settled:
                        event.link.settle(event.first_delivery_id, last)
                    event.link.grant(self.broker.credit)
                case events.Outcome():
                    self.settled(event)
                case events.Credit():
                    self.broker.push()
                    if event.drain:
                        event.link.drained()

    def attached(self, link: Link) -> None:
        address = _address(link.source if link.is_sender else link.target)
        if address in self.broker.missing:
            for each in link.session.links:
                self.detached(each)
            link.session.end("amqp:not-found", f"no queue '{address}'")
        elif link.is_sender:
            if isinstance(link.source, Source) and link.source.dynamic:
                link.source = Source(
                    address=f"dynamic-{self.broker.attempts}-{id(link)}",
                    dynamic=True,
                )
            link.accept()
            self.outgoing.append(link)
            self.held[link] = {}
        else:
            link.accept()
            self.incoming.append(link)
            link.grant(self.broker.credit)

    def detached(self, link: Link) -> None:
        if link in self.incoming:
            self.incoming.remove(link)
        if link in self.outgoing:
            self.outgoing.remove(link)
            self.give_back(link)

    def give_back(self, link: Link) -> None:
        held = self.held.pop(link)
        self.broker.of(_address(link.source)).extendleft(
            held[number] for number in sorted(held, reverse=True)
        )

    def settled(self, event: events.Outcome) -> None:
        held = self.held[event.link]
        back = event.state is not events.ACCEPTED and not isinstance(event.state, Accepted)
        for number in range(event.first, event.last + 1):
            payload = held.pop(number, None)
            if payload is not None and back:
                assert event.state is events.RELEASED or isinstance(event.state, Modified), event.state
                self.broker.of(_address(event.link.source)).append(payload)

    def push(self) -> None:
        for link in self.outgoing:
            queue = self.broker.of(_address(link.source))
            while queue and link.state == ATTACHED and link.sent < link.limit:  # type: ignore[attr-defined]
                payload = queue.popleft()
                self.held[link][link.sent] = payload  # type: ignore[attr-defined]
                link.send_one(payload)
        self.write()


def _address(terminus: Any) -> str:
    return str(terminus.address) if isinstance(terminus, Source | Target) else ""


async def _main() -> None:
    async with EngineBroker() as broker:
        print(broker.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main())
