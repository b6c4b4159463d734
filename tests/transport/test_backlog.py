"""A backlog of store and forward drains in order and in bounded memory; the long form is of a million."""

import asyncio
import resource
from pathlib import Path

import pytest

from lightrail.transport import Envelope, Received, StoreForwardTransport, transport_of
from lightrail.transport.amqp import AmqpBroker
from tests.support.amqp.returning_broker import ReturningBroker

TASKS = 100
GROWTH_MAX_MB = 150
"""Of this process, over the drain: batches of 500 messages, whatever the backlog is."""


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


async def drained(broker: ReturningBroker, directory: Path, count: int) -> None:
    broker.kill()
    url = f"amqp://{broker.url}/backlog"
    outbox = StoreForwardTransport(transport_of(url), directory / "outbox.db")
    numbers = iter(range(count))
    order: list[int] = []

    async def send() -> None:
        for number in numbers:
            await outbox.send(Envelope(body=b"%09d" % number))

    await asyncio.gather(*(send() for _ in range(TASKS)))
    assert (await outbox.depth()).messages == count
    before = resident_mb()
    await asyncio.to_thread(broker.start)
    await outbox.drained()
    assert resident_mb() - before < GROWTH_MAX_MB
    assert outbox.progress.forwarded == count
    await outbox.close()
    reader = AmqpBroker(f"amqp://{broker.url}")
    await reader.open()
    transport = reader.transport("backlog", credit=1_000)

    def note(received: Received) -> None:
        order.append(int(received.envelope.body))

    for _ in range(count):
        assert await transport.receive(lambda envelope: note, timeout=10)
    assert order == list(range(count))
    await reader.close()


def test_a_backlog_drains_in_order(tmp_path: Path) -> None:
    broker = ReturningBroker(tmp_path / "broker")
    try:
        asyncio.run(asyncio.wait_for(drained(broker, tmp_path, 20_000), 100))
    finally:
        broker.stop()


@pytest.mark.soak
def test_a_backlog_of_a_million_drains_in_order(tmp_path: Path) -> None:
    broker = ReturningBroker(tmp_path / "broker")
    try:
        asyncio.run(drained(broker, tmp_path, 1_000_000))
    finally:
        broker.stop()
