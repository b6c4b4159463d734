"""One of each transport, for the suite that all of them pass."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lightrail.transport import Envelope, Loopback, MemoryBroker, Received, StoreForwardTransport, Transport
from lightrail.transport.amqp import AmqpBroker
from lightrail.transport.udp import UdpTransport
from tests.support.broker import Broker
from tests.support.ports import free_ports

DEADLINE_S = 30.0
KINDS = ("amqp", "memory", "loopback", "udp", "store-forward+amqp", "store-forward+memory")

numbers = itertools.count(1)


def play(test: Coroutine[Any, Any, None]) -> None:
    """Runs a test's coroutine in a loop of its own."""
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


class Hub:
    """What makes transports of one kind; those of one address reach each other.

    Attributes:
        kind: one of KINDS.
        broker: of kinds that have one.
    """

    def __init__(
        self, kind: str, make: Callable[[str], Transport], broker: AmqpBroker | MemoryBroker | None
    ) -> None:
        self.kind = kind
        self.broker = broker
        self._make = make
        self._made: list[Transport] = []

    async def transport(self, address: str) -> Transport:
        """An open transport, which ends with the test."""
        made = self._make(address)
        await made.open()
        self._made.append(made)
        return made

    async def pair(self) -> tuple[Transport, Transport]:
        """Two transports of an address that nobody has used."""
        address = f"contract-{next(numbers)}"
        return await self.transport(address), await self.transport(address)

    async def close(self) -> None:
        for made in self._made:
            await made.close()


@asynccontextmanager
async def hub_of(kind: str, amqp: str, directory: Path) -> AsyncIterator[Hub]:
    """A hub of a kind, which is closed behind the block."""
    prefix, _, behind = kind.rpartition("+")
    broker: AmqpBroker | MemoryBroker | None = None
    make: Callable[[str], Transport]
    if behind == "amqp":
        broker = AmqpBroker(amqp)
        await broker.open()
        make = broker.transport
    elif behind == "memory":
        broker = MemoryBroker()
        make = broker.transport
    elif behind == "loopback":
        make = Loopback().transport
    else:
        (port,) = free_ports(1)

        def make(address: str) -> Transport:
            return UdpTransport("239.255.71.7", port)

    plain = make

    def stored(address: str) -> Transport:
        """Two of one file: both store, one forwards."""
        return StoreForwardTransport(plain(address), directory / f"{address.replace('/', '_')}.db")

    hub = Hub(kind, stored if prefix else make, broker)
    try:
        yield hub
    finally:
        await hub.close()
        if broker is not None:
            await broker.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(
    kind: str, shared_broker: Broker, tmp_path: Path
) -> Callable[[Callable[[Hub], Coroutine[Any, Any, None]]], None]:
    """Runs a law with a hub of the kind."""

    def run(law: Callable[[Hub], Coroutine[Any, Any, None]]) -> None:
        async def test() -> None:
            async with hub_of(kind, shared_broker.amqp, tmp_path) as hub:
                await law(hub)

        play(test())

    return run


def gathering(found: list[Envelope]) -> Callable[[Envelope], Callable[[Received], None]]:
    """A selector that has a handler for everything: it gathers the envelopes."""
    return lambda envelope: lambda received: found.append(received.envelope)
