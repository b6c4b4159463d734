"""A service that kills itself at a step: driver.py URL PREFIX FOLDER ORDERS STEP PASSING.

It ends when each order has its row in the table of orders and in that of bills, and no saga is left.
With the step `none` it is not killed.
"""

import asyncio
import os
import sqlite3
import sys
from dataclasses import dataclass

from lightrail.bus import (
    Bus,
    Context,
    Conventions,
    Depends,
    Retry,
    Saga,
    SagaContext,
    SqliteStore,
    command,
    message,
    sqlite,
)
from lightrail.bus.forwarder import Forwarder
from lightrail.transport.amqp_messages import AmqpReceived
from tests.support.killed_at import KilledAt

URL, PREFIX, FOLDER, ORDERS, STEP, PASSING = sys.argv[1:]
killed = KilledAt(STEP, int(PASSING))


@command("crash.place")
@dataclass
class Place:
    order: int


@message("crash.placed", key="order")
@dataclass
class Placed:
    order: int


@command("crash.bill")
@dataclass
class Bill:
    order: int


@message("crash.billed", key="order")
@dataclass
class Billed:
    order: int


@dataclass
class State:
    billed: bool = False


store = SqliteStore(os.path.join(FOLDER, "crash.db"))
bus = Bus(URL, name="crash", store=store, conventions=Conventions(PREFIX))
RETRY = Retry(immediate=2, delayed=[0.1] * 20)


def write(database: sqlite3.Connection, table: str, order: int) -> None:
    database.execute(f"create table if not exists {table} (number integer)")
    database.execute(f"insert into {table} values (?)", (order,))


@bus.handler(retry=RETRY, concurrency=3)
def place(place: Place, context: Context, database: sqlite3.Connection = Depends(store.transaction)) -> None:
    write(database, "orders", place.order)
    context.publish(Placed(place.order))


@bus.handler(retry=RETRY, concurrency=3)
def bill(bill: Bill, context: Context, database: sqlite3.Connection = Depends(store.transaction)) -> None:
    write(database, "bills", bill.order)
    context.publish(Billed(bill.order))


saga = Saga("crash.order", State, store)


@saga.starts(key="order", retry=RETRY, concurrency=3)
async def placed(event: Placed, state: State, context: SagaContext) -> None:
    await context.send(Bill(event.order))


@saga.handles(key="order", retry=RETRY, concurrency=3)
async def billed(event: Billed, state: State, context: SagaContext) -> None:
    context.complete()


bus.include(saga)


def is_done() -> bool:
    database = sqlite3.connect(os.path.join(FOLDER, "crash.db"))
    try:
        bills = database.execute("select count(distinct number) from bills").fetchone()[0]
        left = database.execute("select count(*) from lightrail_sagas").fetchone()[0]
        waiting = database.execute("select count(*) from lightrail_outbox").fetchone()[0]
        return bool(bills == int(ORDERS) and not left and not waiting)
    except sqlite3.OperationalError:
        return False
    finally:
        database.close()


async def main() -> None:
    SqliteStore._commit_steps = killed.around(  # type: ignore[method-assign]
        "commit", SqliteStore._commit_steps, "committed"
    )
    SqliteStore.remove = killed.around_async("remove", SqliteStore.remove, "removed")  # type: ignore[method-assign]
    sqlite._write = killed.around("write", sqlite._write, "written")
    Forwarder._send = killed.around_async("send", Forwarder._send, "sent")  # type: ignore[method-assign]
    AmqpReceived.accept = killed.around_async(  # type: ignore[method-assign]
        "accept", AmqpReceived.accept, "accepted"
    )
    async with bus:
        while not is_done():  # noqa: ASYNC110 - the tables say it
            await asyncio.sleep(0.02)


asyncio.run(main())
