"""A service with transactions of the broker that kills itself at a step: URL PREFIX STEP PASSING.

It ends when its queue of orders is empty. With the step `none` it is not killed.
"""

import asyncio
import sys
from dataclasses import dataclass

from lightrail.bus import Bus, Context, Conventions, command
from lightrail.client import Transaction
from lightrail.transport.amqp import AmqpBroker, AmqpTransport
from tests.support.killed_at import KilledAt

URL, PREFIX, STEP, PASSING = sys.argv[1:]
killed = KilledAt(STEP, int(PASSING))


@command("crash.place")
@dataclass
class Place:
    order: int


@command("crash.bill")
@dataclass
class Bill:
    order: int


@command("crash.ship")
@dataclass
class Ship:
    order: int


bus = Bus(URL, name="crash", conventions=Conventions(PREFIX))


@bus.handler(transaction=True, concurrency=3)
async def place(place: Place, context: Context) -> None:
    await context.send(Bill(place.order))
    await context.send(Ship(place.order))


async def main() -> None:
    Transaction.begin = killed.around_async("begin", Transaction.begin, "begun")  # type: ignore[method-assign]
    AmqpTransport.send_in = killed.around_async(  # type: ignore[method-assign]
        "send", AmqpTransport.send_in, "sent"
    )
    Transaction.accept = killed.around_async(  # type: ignore[method-assign]
        "accept", Transaction.accept, "accepted"
    )
    Transaction.commit = killed.around_async(  # type: ignore[method-assign]
        "commit", Transaction.commit, "committed"
    )
    broker = bus.broker
    assert isinstance(broker, AmqpBroker)
    async with bus, broker.connection.management() as management:
        while await management.peek(f"{PREFIX}commands/crash.place"):  # noqa: ASYNC110 - the queue says it
            await asyncio.sleep(0.02)


asyncio.run(main())
