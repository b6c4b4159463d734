"""Shipping: sends each order on its way."""

import sqlite3

from contracts import DATA, URL, OrderShipped, ShipOrder

from lightrail.bus import Bus, Context, Depends, Retry, SqliteStore

store = SqliteStore(DATA / "shipping.db")
bus = Bus(URL, name="shipping", store=store)


@bus.handler(retry=Retry(immediate=2, delayed=[1, 5]))
def ship(
    command: ShipOrder, context: Context, database: sqlite3.Connection = Depends(store.transaction)
) -> None:
    database.execute("create table if not exists shipments (number integer)")
    database.execute("insert into shipments values (?)", (command.order,))
    context.publish(OrderShipped(command.order))
