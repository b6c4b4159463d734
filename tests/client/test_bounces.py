"""A hundred subscriptions under load while the broker is bounced by kill -9.

All are back, nothing accepted is lost, each link keeps its order. The long form bounces the broker 20 times,
and all have to be back within 2 s of its port being open.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from lightrail.client import Event, connect
from tests.support.amqp.client_ledger import Ledger
from tests.support.amqp.returning_broker import ReturningBroker

SUBSCRIPTIONS = 100
CONNECTIONS = 4
CREDIT = 20
BACK_S = 2.0
"""From the port being open to the last subscription being attached."""
PAUSE_S = 0.05
"""Between two messages of a sender: the load must leave a small machine time to be measured on."""


def play(test: Coroutine[Any, Any, float], deadline_s: float) -> float:
    return asyncio.run(asyncio.wait_for(test, deadline_s))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ReturningBroker]:
    started = ReturningBroker(tmp_path / "data")
    yield started
    started.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Lets everything go on until something is so; the test has a deadline of its own."""
    while not condition():  # noqa: ASYNC110 - whatever it is that happens
        await asyncio.sleep(0.005)


async def port_is_open(url: str) -> float:
    """The time at which somebody listens."""
    host, _, port = url.rpartition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(0.005)
            continue
        now = time.monotonic()
        writer.close()
        await writer.wait_closed()
        return now


async def bounced(broker: ReturningBroker, bounces: int) -> float:
    """The longest time in seconds from an open port to all links being attached."""
    ledgers = [Ledger(f"bounced/{number}") for number in range(SUBSCRIPTIONS)]
    said: list[Event] = []
    waits: list[float] = []
    async with AsyncExitStack() as stack:
        # The reconnect policy is the one that applications get.
        connections = [
            await stack.enter_async_context(connect(broker.url, on_event=said.append))
            for _ in range(CONNECTIONS)
        ]
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        senders, receivers = [], []
        for number, ledger in enumerate(ledgers):
            connection = connections[number % CONNECTIONS]
            senders.append(tasks.create_task(ledger.send(connection, PAUSE_S)))
            receivers.append(tasks.create_task(ledger.receive(connection, CREDIT)))
        for _ in range(bounces):
            enough = {ledger: len(set(ledger.received)) + 3 for ledger in ledgers}
            await until(lambda: all(len(set(each.received)) >= enough[each] for each in enough))  # noqa: B023
            await asyncio.to_thread(broker.kill)
            await until(lambda: not any(connection.healthy for connection in connections))
            starting = asyncio.create_task(asyncio.to_thread(broker.start))
            opened_at = await port_is_open(broker.url)
            await until(lambda: all(connection.healthy for connection in connections))
            waits.append(time.monotonic() - opened_at)
            await starting
        for ledger in ledgers:
            ledger.stopping = True
        await asyncio.gather(*senders)
        await until(lambda: all(ledger.is_complete for ledger in ledgers))
        for receiver in receivers:
            receiver.cancel()
    print("seconds from the open port to all attached:", *(f"{wait:.2f}" for wait in waits))
    for ledger in ledgers:
        ledger.check()
        ledger.check_twice(bounces, CREDIT)
    return max(waits)


@pytest.mark.timeout(180)
def test_a_hundred_subscriptions_are_back_after_a_bounce(broker: ReturningBroker) -> None:
    play(bounced(broker, 1), 120)


@pytest.mark.soak
@pytest.mark.timeout(1_000)
def test_a_hundred_subscriptions_are_back_after_twenty_bounces(broker: ReturningBroker) -> None:
    assert play(bounced(broker, 20), 900) <= BACK_S
