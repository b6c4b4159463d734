"""Handlers that are cancelled when their bus stops: none of their calls goes on, and nothing is committed."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from lightrail.bus import Batch, Bus, Depends, SqliteStore
from lightrail.bus.postgresql import PostgresqlStore
from lightrail.bus.testing import TestBus
from lightrail.transport import MemoryBroker
from lightrail.transport.threads import call_in_thread
from tests.bus.conftest import play
from tests.bus.shop import OrderPlaced


class Cancelled(logging.Handler):
    """Whether a consumer has cancelled a handler, by its warning."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "is cancelled" in record.getMessage():
            self.event.set()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Engine]]:
    """A store, and the engine of the application's tables in its database."""
    if request.param == "postgresql":
        engine = request.getfixturevalue("engine")
        yield PostgresqlStore(engine), engine
    else:
        engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
        yield SqliteStore(tmp_path / "shop.db"), engine
        engine.dispose()


def insert(database: Any, number: int) -> None:
    statement = f"insert into lines values ({number})"
    database.execute(text(statement) if hasattr(database, "dialect") else statement)


async def turns(store: Any) -> None:
    """Lets the cancelled tasks do all they can without waiting for the handler, a rollback included."""
    for _ in range(20):
        await asyncio.sleep(0)
        await store._threads.call(lambda: None)


def lines(engine: Engine) -> list[int]:
    with engine.begin() as connection:
        return [row[0] for row in connection.execute(text("select number from lines"))]


@pytest.mark.parametrize("own_thread", [False, True], ids=["plain function", "thread of an async function"])
def test_what_a_cancelled_handler_executes_is_never_committed(
    database: tuple[Any, Engine], own_thread: bool
) -> None:
    store, engine = database

    async def test() -> None:
        with engine.begin() as connection:
            connection.execute(text("create table lines (number integer)"))
        began, go_on, ended = threading.Event(), threading.Event(), threading.Event()
        bus = Bus("amqp://nobody", name="imports", store=store, stop_timeout=0.0)

        def load(connection: Any) -> None:
            insert(connection, 1)
            began.set()
            go_on.wait()
            try:
                insert(connection, 2)
            finally:
                ended.set()

        def plain(event: OrderPlaced, connection: Any = Depends(store.transaction)) -> None:
            load(connection)

        async def asynchronous(event: OrderPlaced, connection: Any = Depends(store.transaction)) -> None:
            await asyncio.to_thread(load, connection)

        close = store.close

        async def close_later() -> None:
            await asyncio.to_thread(ended.wait)
            await close()

        store.close = close_later
        bus.handler(asynchronous if own_thread else plain)
        cancelled = Cancelled()
        logging.getLogger("lightrail.bus").addHandler(cancelled)
        try:
            test_bus = TestBus(bus)
            await test_bus.__aenter__()
            await test_bus.publish(OrderPlaced(1), id="a")
            await asyncio.to_thread(began.wait)
            stopping = asyncio.create_task(test_bus.__aexit__())
            await cancelled.event.wait()
            await turns(store)
            go_on.set()
            await stopping
        finally:
            go_on.set()
            logging.getLogger("lightrail.bus").removeHandler(cancelled)
        assert lines(engine) == []
        assert test_bus.handled == []

    play(test())


@pytest.mark.parametrize("steps", range(8))
def test_a_stop_that_is_cancelled_stops_all_the_same(steps: int) -> None:
    """Its handlers are cancelled; no task of the bus goes on, and its broker is closed."""

    async def test() -> None:
        closed: list[str] = []
        broker = MemoryBroker()
        close = broker.close

        async def close_and_note() -> None:
            closed.append("broker")
            await close()

        broker.close = close_and_note  # type: ignore[method-assign]
        bus = Bus(name="imports", broker=broker)
        began = asyncio.Event()
        ends: list[str] = []

        @bus.handler
        async def wait(event: OrderPlaced) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("cancelled")

        others = asyncio.all_tasks()
        await bus.start()
        await bus.publish(OrderPlaced(1))
        await began.wait()
        stopping = asyncio.create_task(bus.stop())
        for _ in range(steps + 1):
            await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        assert ends == ["cancelled"]
        assert closed == ["broker"]
        assert bus.queues == []
        assert asyncio.all_tasks() == others

    play(test())


def test_a_cancelled_batch_does_not_go_on() -> None:
    async def test() -> None:
        bus = Bus("amqp://nobody", name="imports", stop_timeout=0.0)
        began = asyncio.Event()
        ends: list[str] = []

        @bus.handler(batch=Batch(size=1, wait=1.0))
        async def load(events: list[OrderPlaced]) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("cancelled")

        async with TestBus(bus) as test_bus:
            await test_bus.publish(OrderPlaced(1))
            await began.wait()
        assert ends == ["cancelled"]

    play(test())


def test_a_call_in_a_thread_outlives_no_number_of_cancellations() -> None:
    async def test() -> None:
        began, go_on = threading.Event(), threading.Event()
        ended: list[int] = []

        def work() -> None:
            began.set()
            go_on.wait()
            ended.append(1)

        task = asyncio.create_task(call_in_thread(work))
        await asyncio.to_thread(began.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [1]

    play(test())
