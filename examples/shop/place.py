"""A customer: places orders, again where it is not known whether an order arrived, and asks for invoices."""

import asyncio
import sqlite3
import sys
from decimal import Decimal

from contracts import DATA, URL, GetInvoice, Invoice, NoInvoice, PlaceOrder

from lightrail.bus import Bus, RequestError
from lightrail.transport import SendRefusedError

TASKS = 10


async def place(bus: Bus, order: int) -> None:
    """Places an order; with the same id at each attempt, so that it is placed once."""
    while True:
        try:
            await bus.send(PlaceOrder(order, Decimal(order) / 100), id=f"order-{order}")
            return
        except SendRefusedError as error:
            if error.is_certain:
                raise


def shipped() -> int:
    """Orders that are on their way."""
    try:
        database = sqlite3.connect(f"file:{DATA / 'shipping.db'}?mode=ro", uri=True)
        count = database.execute("select count(distinct number) from shipments").fetchone()[0]
        database.close()
    except sqlite3.OperationalError:
        return 0
    return int(count)


async def main(count: int) -> None:
    async with Bus(URL, name="customer") as bus:
        orders = iter(range(1, count + 1))

        async def work() -> None:
            for order in orders:
                await place(bus, order)

        await asyncio.gather(*(work() for _ in range(TASKS)))
        print(f"{count} orders are placed", flush=True)
        while (done := shipped()) < count:
            print(f"{done} of {count} are shipped", flush=True)
            await asyncio.sleep(0.5)
        print(f"{count} of {count} are shipped", flush=True)
        try:
            print(await bus.request(GetInvoice(1), Invoice, NoInvoice, timeout=10))
        except RequestError as error:
            print(f"no answer: {error}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
