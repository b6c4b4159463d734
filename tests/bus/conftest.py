"""Buses through a real broker, and through memory."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from lightrail.bus import Bus, Conventions
from lightrail.transport import Broker, MemoryBroker
from lightrail.transport.amqp import AmqpBroker
from tests.support.broker import Broker as RealBroker
from tests.support.deploy.postgresql import PostgreSQL

DEADLINE_S = 30.0
numbers = itertools.count(1)

Law = Callable[["Buses"], Coroutine[Any, Any, None]]
Run = Callable[[Law], None]


def play(test: Coroutine[Any, Any, None], deadline_s: float = DEADLINE_S) -> None:
    """Runs a test's coroutine in a loop of its own."""
    asyncio.run(asyncio.wait_for(test, deadline_s))


class Buses:
    """Makes buses that share names, which no other test uses."""

    def __init__(self, kind: str, amqp: str) -> None:
        self.kind = kind
        self.amqp = amqp
        self.prefix = f"test-{next(numbers)}/"
        self._memory = MemoryBroker()

    def broker(self) -> Broker:
        """A connection of its own."""
        return self._memory if self.kind == "memory" else AmqpBroker(self.amqp)

    def bus(self, name: str = "service", **options: Any) -> Bus:
        return Bus(name=name, broker=self.broker(), conventions=Conventions(self.prefix), **options)


@pytest.fixture(params=["amqp", "memory"])
def run(request: pytest.FixtureRequest, shared_broker: RealBroker) -> Run:
    """Runs a law with buses."""

    def run(law: Law) -> None:
        play(law(Buses(request.param, f"amqp://{shared_broker.amqp}")))

    return run


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    with PostgreSQL() as server:
        yield server


@pytest.fixture
def engine(postgresql: PostgreSQL) -> Iterator[Engine]:
    """Of a database that no other test uses."""
    name = f"test_{next(numbers)}"
    server = create_engine(postgresql.url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"create database {name}"))
    server.dispose()
    made = create_engine(postgresql.url.replace("/postgres?", f"/{name}?"), pool_size=20)
    yield made
    made.dispose()


class Seen:
    """What handlers saw, to be waited for."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._changed = asyncio.Event()

    def add(self, item: Any) -> None:
        self.items.append(item)
        self._changed.set()

    async def count(self, count: int) -> list[Any]:
        """So many items, in the order of their arrival."""
        while len(self.items) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.items
