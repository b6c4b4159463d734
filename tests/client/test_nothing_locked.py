"""What ends in order leaves nothing locked: messages without an outcome are there for the next receiver at
once, in their order, and count as never delivered."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from lightrail.client import Connection, Delivery, Receiver, connect
from tests.support.broker import Broker

DEADLINE_S = 30.0
COUNT = 50


def play(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


async def fill(connection: Connection, name: str) -> None:
    async with connection.sender(name) as sender:
        await asyncio.gather(*(sender.send(number) for number in range(COUNT)))


async def everything_is_there(connection: Connection, name: str, expected: list[int]) -> None:
    async with connection.receiver(name, credit=2 * COUNT) as receiver:
        found: list[Delivery] = []
        while len(found) < len(expected):
            found += await receiver.receive(COUNT, timeout=5.0)
        assert [delivery.body for delivery in found] == expected
        assert {delivery.message.delivery_count for delivery in found} == {0}
        for delivery in found:
            await delivery.accept()
        assert not await receiver.receive(timeout=0.05)


@pytest.mark.parametrize("same", [True, False], ids=("same-connection", "another-connection"))
def test_what_a_receiver_did_not_settle_is_there_for_the_next_one(broker: Broker, same: bool) -> None:
    async def test() -> None:
        name = f"locked/{same}"
        async with connect(broker.amqp) as connection, connect(broker.amqp) as other:
            await fill(connection, name)
            async with connection.receiver(name, credit=20) as receiver:
                first = [await anext(receiver) for _ in range(15)]
                for delivery in first[::2]:
                    await delivery.accept()
            left = [number for number in range(COUNT) if number % 2 or number >= 15]
            await everything_is_there(connection if same else other, name, left)

    play(test())


def test_what_is_on_its_way_when_a_receiver_closes_goes_back_uncounted(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            await fill(connection, "way")
            for turns in range(30):
                async with connection.receiver("way", credit=COUNT):
                    # Closed a few steps after its credit left: before, while and after the messages come.
                    for _ in range(turns):
                        await asyncio.sleep(0)
            await everything_is_there(connection, "way", list(range(COUNT)))

    play(test())


def test_a_connection_that_closes_under_its_receivers_gives_back_what_they_have(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as other:
            await fill(other, "under")
            async with connect(broker.amqp) as connection:
                receivers = [connection.receiver("under", credit=5) for _ in range(4)]
                for receiver in receivers:
                    await receiver.receive(2)
                waits = [asyncio.create_task(anext(receiver)) for receiver in receivers]
                await asyncio.sleep(0)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            async with other.receiver("under", credit=2 * COUNT) as receiver:
                found: list[Delivery] = []
                while len(found) < COUNT:
                    found += await receiver.receive(COUNT, timeout=5.0)
                assert sorted(delivery.body for delivery in found) == list(range(COUNT))
                assert {delivery.message.delivery_count for delivery in found} == {0}

    play(test())


def test_a_cancelled_consumer_leaves_nothing_locked(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            await fill(connection, "consumer")

            async def consume() -> None:
                async with connection.receiver("consumer", credit=20) as receiver:
                    async for _ in receiver:
                        pass

            for turns in range(0, 40, 4):
                task = asyncio.create_task(consume())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await everything_is_there(connection, "consumer", list(range(COUNT)))

    play(test())


def test_an_opening_that_is_cancelled_in_the_turn_of_its_attach_gives_back_uncounted(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            await fill(connection, "opening")
            for _ in range(20):
                receiver = connection.receiver("opening", credit=20)

                async def consume(receiver: Receiver = receiver) -> None:
                    async with receiver:
                        raise AssertionError("expected an opening that was cancelled, found an open receiver")

                task = asyncio.create_task(consume())
                while not receiver.healthy:  # noqa: ASYNC110 - the very turn in which that changes is wanted
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await everything_is_there(connection, "opening", list(range(COUNT)))

    play(test())
