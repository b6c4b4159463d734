"""Orders: takes orders, and sees each of them through billing and shipping."""

import sqlite3
from dataclasses import dataclass

from contracts import (
    DATA,
    URL,
    BillOrder,
    OrderBilled,
    OrderCompleted,
    OrderPlaced,
    OrderShipped,
    PlaceOrder,
    RemindBilling,
    ShipOrder,
)

from lightrail.bus import Bus, Context, Depends, Retry, Saga, SagaContext, SqliteStore

REMINDER_S = 5.0

store = SqliteStore(DATA / "orders.db")
bus = Bus(URL, name="orders", store=store)


@bus.handler(retry=Retry(immediate=2, delayed=[1, 5]))
def place(
    command: PlaceOrder, context: Context, database: sqlite3.Connection = Depends(store.transaction)
) -> None:
    database.execute("create table if not exists orders (number integer, total text)")
    database.execute("insert into orders values (?, ?)", (command.order, str(command.total)))
    context.publish(OrderPlaced(command.order, command.total))


@dataclass
class Progress:
    billed: bool = False
    reminders: int = 0


process = Saga("shop.order", Progress, store)


@process.starts(key="order")
async def placed(event: OrderPlaced, state: Progress, context: SagaContext) -> None:
    await context.send(BillOrder(event.order, event.total))
    await context.timeout(RemindBilling(event.order), delay=REMINDER_S)


@process.handles(key="order")
async def billed(event: OrderBilled, state: Progress, context: SagaContext) -> None:
    state.billed = True
    await context.send(ShipOrder(event.order))


@process.handles(key="order")
async def shipped(event: OrderShipped, state: Progress, context: SagaContext) -> None:
    await context.publish(OrderCompleted(event.order, state.reminders))
    context.complete()


@process.handles(key="order")
async def remind(command: RemindBilling, state: Progress, context: SagaContext) -> None:
    if not state.billed:
        state.reminders += 1
        await context.timeout(command, delay=REMINDER_S)


bus.include(process)
