"""What was opened is open again: brokers that are killed, frozen and started again, links that are ended."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from lightrail.client import (
    ConnectError,
    Connection,
    Event,
    LostError,
    OutcomeKind,
    ReconnectPolicy,
    SendError,
    connect,
)
from tests.support import wait
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.amqp.returning_broker import ReturningBroker

DEADLINE_S = 60.0
SOON = ReconnectPolicy(first=0.02, longest=0.2)


def play(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReturningBroker]:
    """For tests that start it again when they have killed it."""
    started = ReturningBroker(tmp_path_factory.mktemp("again") / "data")
    yield started
    started.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Lets everything go on until something is so; the test has a deadline of its own."""
    while not condition():  # noqa: ASYNC110 - whatever it is that happens
        await asyncio.sleep(0.005)


class Traffic:
    """One sender and one receiver, and a ledger of what was accepted and received."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.name = name
        self.connection = connection
        self.accepted: list[int] = []
        self.unknown: set[int] = set()
        self.received: list[int] = []
        self.stopping = False

    async def send(self) -> None:
        number = 0
        async with self.connection.sender(self.name) as sender:
            while not self.stopping:
                try:
                    await sender.send(number)
                    self.accepted.append(number)
                except SendError as error:
                    if error.outcome.kind is not OutcomeKind.UNKNOWN:
                        raise
                    self.unknown.add(number)
                number += 1

    async def receive(self) -> None:
        async with self.connection.receiver(self.name, credit=20) as receiver:
            async for delivery in receiver:
                self.received.append(delivery.body)
                with suppress(LostError):
                    await delivery.accept()


def ahead(enough: dict[Traffic, int]) -> bool:
    return all(len(each.received) > count for each, count in enough.items())


def test_over_kills_of_the_broker_everything_accepted_arrives_without_a_line_of_application_code(
    again: ReturningBroker,
) -> None:
    async def test() -> None:
        said: list[Event] = []
        async with connect(again.url, reconnect=SOON, on_event=said.append) as connection:
            traffic = [Traffic(connection, f"kills/{number}") for number in range(5)]
            async with asyncio.TaskGroup() as tasks:
                senders = [tasks.create_task(each.send()) for each in traffic]
                receivers = [tasks.create_task(each.receive()) for each in traffic]
                for _ in range(2):
                    enough = {each: len(each.received) + 20 for each in traffic}
                    await until(partial(ahead, enough))
                    await asyncio.to_thread(again.kill)
                    await asyncio.to_thread(again.start)
                    await until(lambda: connection.healthy)
                for each in traffic:
                    each.stopping = True
                await asyncio.gather(*senders)
                await until(lambda: all(set(each.accepted) <= set(each.received) for each in traffic))
                for receiver in receivers:
                    receiver.cancel()
        for each in traffic:
            assert each.accepted
            assert set(each.received) <= set(each.accepted) | each.unknown
            first = list(dict.fromkeys(each.received))
            assert first == sorted(first), "each arrives in order when it comes for the first time"
        assert [event.kind for event in said].count("connected") == 3

    play(test())


def test_a_broker_that_stands_still_is_lost_and_found_again(again: ReturningBroker) -> None:
    async def test() -> None:
        said: list[Event] = []
        async with (
            connect(again.url, reconnect=SOON, heartbeat=0.3, on_event=said.append) as connection,
            connection.sender("still") as sender,
        ):
            await sender.send(1)
            frontend = again.broker.pid("frontend")
            await asyncio.to_thread(wait.freeze, frontend)
            await until(lambda: any(event.kind == "lost" for event in said))
            assert not connection.healthy
            os.kill(frontend, signal.SIGCONT)
            await until(lambda: connection.healthy)
            assert (await sender.send(2)).accepted

    play(test())


def test_messages_that_wait_while_nobody_is_there_are_sent_when_somebody_is(again: ReturningBroker) -> None:
    async def test() -> None:
        async with connect(again.url, reconnect=SOON) as connection, connection.sender("waits") as sender:
            await sender.send("before")
            await asyncio.to_thread(again.kill)
            await until(lambda: not connection.healthy)
            answers = [sender.send_nowait(number) for number in range(10)]
            await asyncio.to_thread(again.start)
            assert all(outcome.accepted for outcome in await asyncio.gather(*answers))

    play(test())


def test_a_connection_is_given_up_after_the_attempts_that_were_allowed(proxy: CuttingProxy) -> None:
    async def test() -> None:
        policy = ReconnectPolicy(first=0.01, longest=0.02, attempts=3)
        said: list[Event] = []
        connection = await connect(proxy.url, reconnect=policy, on_event=said.append)
        receiver = connection.receiver("given-up")
        await receiver.opened()
        await asyncio.to_thread(proxy.close)
        with pytest.raises(ConnectError):
            await receiver.receive()
        assert connection.closed
        assert [event.kind for event in said].count("failed") == 3

    play(test())
