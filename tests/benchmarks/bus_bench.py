"""One work of the bus, in a process of its own: `bus_bench.py WORK URL FOLDER`. It prints JSON.

- dispatch: typed JSON events from publish to the end of their handler, beside the same messages through the
  client alone; CPU of this process per message.
- handlers: a bus of 1,000 handlers, started with nothing at the broker, and again.
- stored: durable sends by 50 tasks into an outbox whose broker is away, then the drain of the backlog.
- outbox-sqlite, outbox-postgresql: messages committed with rows by fifty at a time, and their forwarding.
- sagas: steps of sagas in SQLite, 100 at a time.
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lightrail.bus import Bus, Saga, SagaContext, SqliteStore, Store, command, message
from lightrail.bus.messages import Sending
from lightrail.bus.store import Step
from lightrail.client import Message, connect
from lightrail.transport import Envelope, MemoryBroker, StoreForwardTransport, TransportError

TASKS = 50
EVENTS = 20_000
HANDLERS = 1_000
STORED = 30_000
COMMITTED = 20_000
STEPS = 5_000


@message("bench.order-placed", key="order")
@dataclass
class OrderPlaced:
    order: int
    customer: str
    total: float


@command("bench.bill")
@dataclass
class Bill:
    order: int


class Clock:
    """Seconds and CPU seconds since it was made."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.cpu = time.process_time()

    def rate(self, count: int) -> float:
        return count / (time.perf_counter() - self.began)

    def cpu_us(self, count: int) -> float:
        return (time.process_time() - self.cpu) / count * 1e6


async def by_tasks(count: int, work: Callable[[int], Coroutine[Any, Any, Any]], tasks: int = TASKS) -> None:
    """Calls a function for all numbers, so many at a time."""
    numbers = iter(range(count))

    async def run() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(run() for _ in range(tasks)))


async def client_alone(url: str) -> float:
    body = json.dumps({"order": 1, "customer": "customer", "total": 1.5}).encode()
    async with connect(url) as connection:
        queue = "bus-bench"
        async with connection.sender(queue) as sender, connection.receiver(queue, credit=100) as receiver:

            async def receive() -> None:
                for _ in range(EVENTS):
                    delivery = await anext(receiver)
                    assert delivery.body
                    await delivery.accept()

            properties = {"lightrail-type": "bench.order-placed"}
            clock = Clock()
            receiving = asyncio.create_task(receive())
            await by_tasks(
                EVENTS, lambda number: sender.send(Message(body, id=str(number), properties=properties))
            )
            await receiving
            return clock.cpu_us(EVENTS)


async def dispatch(url: str, folder: Path) -> dict[str, float]:
    alone = await client_alone(url)
    bus = Bus(url, name="bench")
    handled = 0
    done = asyncio.Event()

    @bus.handler(concurrency=TASKS)
    async def handle(event: OrderPlaced) -> None:
        nonlocal handled
        handled += 1
        if handled == EVENTS:
            done.set()

    async with bus:
        clock = Clock()
        await by_tasks(EVENTS, lambda number: bus.publish(OrderPlaced(number, "customer", 1.5)))
        await done.wait()
        through = clock.cpu_us(EVENTS)
        rate = clock.rate(EVENTS)
    return {"on_top_us": through - alone, "client_us": alone, "bus_us": through, "per_s": rate}


async def handlers(url: str, folder: Path) -> dict[str, float]:
    made = [make_dataclass(f"Event{number}", [("id", int)]) for number in range(HANDLERS)]
    classes = [message(f"bench.event-{number}")(cls) for number, cls in enumerate(made)]
    seconds = []
    for _ in range(2):
        bus = Bus(url, name="many")
        for cls in classes:

            async def handle(event: Any) -> None: ...

            handle.__annotations__["event"] = cls
            bus.handler(handle)
        clock = time.perf_counter()
        await bus.start()
        seconds.append(time.perf_counter() - clock)
        await bus.stop()
    return {"first_s": seconds[0], "again_s": seconds[1]}


class Away:
    """A transport whose broker is away until it is not."""

    def __init__(self) -> None:
        self.offers = MemoryBroker().offers
        self.address = "away"
        self.is_away = True
        self.sent = 0

    async def open(self) -> None: ...

    async def listen(self) -> None: ...

    async def send(self, envelope: Envelope) -> None:
        if self.is_away:
            raise TransportError("the broker is away")
        self.sent += 1

    async def receive(self, select: Any, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        return False

    async def close(self) -> None: ...


async def stored(url: str, folder: Path) -> dict[str, float]:
    behind = Away()
    outbox = StoreForwardTransport(behind, folder / "outbox.db")
    body = b"x" * 200
    clock = Clock()
    await by_tasks(STORED, lambda number: outbox.send(Envelope(body=body, subject="bench")))
    per_s = clock.rate(STORED)
    behind.is_away = False
    clock = Clock()
    await outbox.drained()
    drained = clock.rate(STORED)
    await outbox.close()
    assert behind.sent == STORED
    return {
        "per_s": per_s,
        "drained_per_s": drained,
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


async def forwarded(url: str, store: Store) -> dict[str, float]:
    """Rate of the forwarder, with a backlog that was committed before."""
    bus = Bus(url, name="bench", store=store)
    await store.open()
    for first in range(0, COMMITTED, TASKS):
        events = [OrderPlaced(number % 100, "customer", 1.5) for number in range(first, first + TASKS)]
        sendings: list[Sending] = [bus.outgoing.event(event) for event in events]
        await store.commit(Step(None, None, sendings))
    done = asyncio.Event()
    handled = 0

    @bus.handler(ordered=True, concurrency=TASKS)
    async def handle(event: OrderPlaced) -> None:
        nonlocal handled
        handled += 1
        if handled == COMMITTED:
            done.set()

    async with bus:
        clock = Clock()
        while await store.next(1):  # noqa: ASYNC110 - the forwarder empties it
            await asyncio.sleep(0.005)
        per_s = clock.rate(COMMITTED)
        await done.wait()
    return {"per_s": per_s}


async def outbox_sqlite(url: str, folder: Path) -> dict[str, float]:
    return await forwarded(url, SqliteStore(folder / "store.db"))


async def outbox_postgresql(url: str, folder: Path) -> dict[str, float]:
    from sqlalchemy import create_engine

    from lightrail.bus.postgresql import PostgresqlStore
    from tests.support.deploy.postgresql import PostgreSQL

    with PostgreSQL(fsync=True) as server:
        engine = create_engine(server.url, pool_size=20)
        try:
            return await forwarded(url, PostgresqlStore(engine))
        finally:
            engine.dispose()


@dataclass
class State:
    steps: int = 0


async def sagas(url: str, folder: Path) -> dict[str, float]:
    store = SqliteStore(folder / "sagas.db")
    bus = Bus(url, name="bench", store=store)
    saga = Saga("bench", State, store)
    handled = 0
    done = asyncio.Event()

    @saga.starts(key="order", concurrency=100)
    async def placed(event: OrderPlaced, state: State, context: SagaContext) -> None:
        state.steps += 1
        await context.send(Bill(event.order))

    def count(each: Any) -> None:
        nonlocal handled
        handled += 1
        if handled == STEPS:
            done.set()

    bus.include(saga)
    bus.on_handled(count)
    async with bus:
        clock = Clock()
        await by_tasks(STEPS, lambda number: bus.publish(OrderPlaced(number, "customer", 1.5)))
        await done.wait()
        return {"per_s": clock.rate(STEPS)}


WORKS = {
    "dispatch": dispatch,
    "handlers": handlers,
    "stored": stored,
    "outbox-sqlite": outbox_sqlite,
    "outbox-postgresql": outbox_postgresql,
    "sagas": sagas,
}

if __name__ == "__main__":
    work, url, folder = sys.argv[1:]
    print(json.dumps(asyncio.run(WORKS[work](url, Path(folder)))))
