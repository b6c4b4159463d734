"""Handlers with a transaction of the broker: the message's end and all that its handler sends, or nothing."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from lightrail.bus import Bus, ConfigurationError, Context, Depends, Retry, SqliteStore
from lightrail.client import connect
from lightrail.transport import Envelope, QueueRules, Topology
from lightrail.transport.amqp import AmqpBroker
from tests.bus.conftest import Buses, Run, Seen, numbers, play
from tests.bus.shop import Bill, Invoice, OrderPlaced
from tests.support.broker import ROOT, Broker

DRIVER = [sys.executable, "-m", "tests.bus.transaction_driver"]
STEPS = ("begin", "begun", "send", "sent", "accept", "accepted", "commit", "committed")
PASSINGS = (1, 4, 9)
ORDERS = 8


def test_what_a_handler_sends_takes_effect_with_the_end_of_its_message(run: Run) -> None:
    async def law(buses: Buses) -> None:
        seen, handled = Seen(), Seen()
        bus = buses.bus()

        @bus.handler(transaction=True)
        async def placed(order: OrderPlaced, context: Context) -> None:
            await context.publish(Invoice(order.order))
            await context.send(Bill(order.order))
            await context.schedule(Bill(-order.order), delay=0.1)

        @bus.handler
        async def billed(bill: Bill, context: Context) -> None:
            seen.add(("bill", bill.order))

        @bus.handler
        async def invoiced(invoice: Invoice, context: Context) -> None:
            seen.add(("invoice", invoice.order))

        sent = Seen()
        bus.on_sent(lambda sending: sent.add(sending.address))
        bus.on_handled(handled.add)
        async with bus:
            await bus.publish(OrderPlaced(7))
            found = await seen.count(3)
            assert sorted(found) == [("bill", -7), ("bill", 7), ("invoice", 7)]
            assert {each.outcome.value for each in await handled.count(4)} == {"handled"}
            assert len(sent.items) == 4

    run(law)


def test_nothing_of_it_is_done_where_one_queue_is_full(run: Run) -> None:
    async def law(buses: Buses) -> None:
        bills, failed = Seen(), Seen()
        bus = buses.bus()
        full = f"{buses.prefix}full"

        @bus.handler(transaction=True, retry=Retry(delayed=[0.05] * 100))
        async def placed(order: OrderPlaced, context: Context) -> None:
            await context.send(Bill(order.order))
            await context.send(Bill(order.order), to=full)

        @bus.handler
        async def billed(bill: Bill) -> None:
            bills.add(bill.order)

        bus.on_handled(lambda handled: failed.add(handled) if handled.error is not None else None)
        async with bus:
            await bus.broker.declare(Topology(queues={full: QueueRules(max_length=1)}))
            transport = bus.broker.transport(full)
            await transport.send(Envelope(body=b"{}", id="first"))
            await bus.publish(OrderPlaced(7))
            await failed.count(2)
            assert bills.items == []
            # Room for one: the next attempt is the one that takes effect.
            assert await transport.receive(lambda envelope: lambda received: None, timeout=10)
            assert await bills.count(1) == [7]
            assert await transport.receive(lambda envelope: lambda received: None, timeout=10)
            assert not await transport.receive(lambda envelope: lambda received: None, timeout=0.2)
        assert bills.items == [7]

    run(law)


def test_a_transaction_is_the_broker_s_or_the_store_s_and_not_both(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    bus = Bus("memory://", name="service", store=store)
    with pytest.raises(ConfigurationError, match="found both"):

        @bus.handler(transaction=True)
        def both(bill: Bill, database: sqlite3.Connection = Depends(store.transaction)) -> None: ...


@pytest.mark.parametrize("step", STEPS)
def test_each_message_is_sent_once_over_kills_at_a_step(shared_broker: Broker, step: str) -> None:
    url, prefix = f"amqp://{shared_broker.amqp}", f"transaction-{step}-{next(numbers)}/"
    names = [f"{prefix}commands/crash.{name}" for name in ("place", "bill", "ship")]

    async def place() -> None:
        broker = AmqpBroker(url)
        await broker.open()
        await broker.declare(Topology(queues={name: QueueRules() for name in names}))
        transport = broker.transport(names[0])
        await asyncio.gather(
            *(
                transport.send(Envelope(body=b'{"order":%d}' % order, id=f"order-{order}"))
                for order in range(ORDERS)
            )
        )
        await broker.close()

    async def found(name: str) -> list[bytes]:
        async with connect(url) as connection, connection.management() as management:
            return sorted(message.body for _, _, message in await management.peek(name, count=100))

    play(place())
    driver = [*DRIVER, url, prefix]
    for passing in PASSINGS:
        done = subprocess.run([*driver, step, str(passing)], cwd=ROOT, timeout=60)
        # A later passing may not come: what was left to be done was less.
        assert done.returncode in ((-signal.SIGKILL,) if passing == 1 else (-signal.SIGKILL, 0)), step
    subprocess.run([*driver, "none", "0"], cwd=ROOT, timeout=60, check=True)
    bodies = sorted(b'{"order":%d}' % order for order in range(ORDERS))
    for name in names[1:]:
        assert asyncio.run(found(name)) == bodies, name
