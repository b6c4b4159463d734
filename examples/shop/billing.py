"""Billing: writes an invoice for each order; its bank is away now and then."""

import random
import sqlite3
from decimal import Decimal

from contracts import DATA, URL, BillOrder, GetInvoice, Invoice, NoInvoice, OrderBilled

from lightrail.bus import Bus, Context, Depends, Retry, SqliteStore

AWAY = 0.1
"""Share of the calls at which the bank does not answer."""

store = SqliteStore(DATA / "billing.db")
bus = Bus(URL, name="billing", store=store)


class BankError(Exception):
    """The bank does not answer."""


@bus.handler(retry=Retry(immediate=1, delayed=[0.5, 1, 2, 5, 10]))
def bill(
    command: BillOrder, context: Context, database: sqlite3.Connection = Depends(store.transaction)
) -> None:
    database.execute("create table if not exists invoices (number integer, total text)")
    database.execute("insert into invoices values (?, ?)", (command.order, str(command.total)))
    if random.random() < AWAY:
        raise BankError(f"no answer for order {command.order}")
    context.publish(OrderBilled(command.order))


@bus.responder
def invoice(
    request: GetInvoice, database: sqlite3.Connection = Depends(store.transaction)
) -> Invoice | NoInvoice:
    rows = database.execute("select total from invoices where number = ?", (request.order,)).fetchall()
    return Invoice(request.order, Decimal(rows[0][0])) if rows else NoInvoice(request.order)
