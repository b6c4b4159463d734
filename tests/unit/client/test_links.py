"""Sessions: a connection has as many links as it opens, over as many sessions as they need."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lightrail.client import ClientError, connect
from tests.support.amqp.engine_broker import EngineBroker
from tests.unit.client.test_recovery import SOON, play, until


def links_by_session(broker: EngineBroker) -> list[int]:
    """Of the connection that is there."""
    (served,) = broker.connections
    return [len(session.links) for _, session in sorted(served.engine.sessions.items())]


def with_broker(
    test: Callable[[EngineBroker], Coroutine[Any, Any, None]], **settings: int
) -> Coroutine[Any, Any, None]:
    async def run() -> None:
        async with EngineBroker(**settings) as broker:
            await test(broker)

    return run()


def test_links_beyond_the_brokers_handle_max_go_to_further_sessions_also_after_a_loss() -> None:
    async def test(broker: EngineBroker) -> None:
        async with connect(broker.url, reconnect=SOON) as connection:
            senders = [connection.sender(f"q-{number}") for number in range(5)]
            receivers = [connection.receiver(f"q-{number}") for number in range(5)]
            for times in (1, 2, 3):
                await until(lambda: connection.healthy)
                assert links_by_session(broker) == [3, 3, 3, 1]
                assert broker.attempts == times
                for number, (sender, receiver) in enumerate(zip(senders, receivers, strict=True)):
                    assert (await sender.send(number)).accepted
                    [delivery] = await receiver.receive()
                    assert delivery.body == number
                    await delivery.accept()
                broker.connections[0].transport.abort()
                await until(lambda: not connection.healthy)

    play(with_broker(test, handle_max=2))


def test_a_handle_that_a_closed_link_leaves_is_used_again() -> None:
    async def test(broker: EngineBroker) -> None:
        async with connect(broker.url) as connection:
            senders = [connection.sender("q") for _ in range(6)]
            for sender in senders:
                await sender.opened()
            for _ in range(5):
                await senders.pop(0).close()
                senders.append(connection.sender("q"))
                await senders[-1].opened()
                assert sum(links_by_session(broker)) == 6
                assert len(links_by_session(broker)) == 3
            assert broker.attempts == 1

    play(with_broker(test, handle_max=1))


def test_more_links_than_all_sessions_take_are_an_error_and_harm_nothing() -> None:
    async def test(broker: EngineBroker) -> None:
        async with connect(broker.url) as connection:
            senders = [connection.sender(f"q-{number}") for number in range(4)]
            with pytest.raises(ClientError, match="accepts 2 on each of 2 sessions"):
                connection.receiver("one more")
            for sender in senders:
                assert (await sender.send("x")).accepted
            await senders.pop().close()
            await connection.receiver("one more").opened()
            assert links_by_session(broker) == [2, 2]

    play(with_broker(test, handle_max=1, channel_max=1))


def test_links_that_are_opened_while_the_connection_is_away_wait_for_the_brokers_word() -> None:
    """The broker closes connections that use a handle above its handle-max."""

    async def test(broker: EngineBroker) -> None:
        async with connect(broker.url, reconnect=SOON) as connection:
            broker.holds = True
            broker.connections[0].transport.abort()
            await until(lambda: not connection.healthy)
            senders = [connection.sender("q") for _ in range(4)]
            await until(lambda: bool(broker.connections) and broker.connections[0].is_held)
            for _ in range(50):
                # Turns in which the client reads the open and could attach.
                await asyncio.sleep(0)
            broker.holds = False
            broker.connections[0].write()
            await asyncio.gather(*(sender.opened() for sender in senders))
            assert links_by_session(broker) == [1] * 4
            assert broker.attempts == 2

    play(with_broker(test, handle_max=0))
