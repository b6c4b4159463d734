"""Connections that are cut after any byte, of either direction, with and without a word: nothing accepted is
lost, nothing is invented, each link keeps its order. The long form runs for LIGHTRAIL_SOAK_SECONDS."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lightrail.client import ConnectError, Event, ReconnectPolicy, connect
from tests.client.random_cuts import RandomCuts
from tests.support.amqp.client_ledger import Ledger
from tests.support.broker import Broker

DEADLINE_S = 60.0
SOAK_S = float(os.environ.get("LIGHTRAIL_SOAK_SECONDS", "600"))
SOON = ReconnectPolicy(first=0.01, longest=0.1, connect=1.0)
CREDIT = 20


def play(test: Coroutine[Any, Any, None], deadline_s: float = DEADLINE_S) -> None:
    asyncio.run(asyncio.wait_for(test, deadline_s))


async def until(condition: Callable[[], bool]) -> None:
    """Lets everything go on until something is so; the test has a deadline of its own."""
    while not condition():  # noqa: ASYNC110 - whatever it is that happens
        await asyncio.sleep(0.005)


async def traffic_through_cuts(
    broker: Broker, seed: int, enough: Callable[[RandomCuts], bool], scheme: str = "amqp"
) -> None:
    """One connection that sends and one that receives, each cut again and again."""
    ledgers = [Ledger(f"cuts/{scheme}/{seed}/{number}") for number in range(3)]
    said: list[Event] = []
    async with RandomCuts(broker.amqp, seed) as proxy:
        options: dict[str, Any] = {"reconnect": SOON, "heartbeat": 0.5, "on_event": said.append}

        async def opened() -> Any:
            # The first round is the application's own to repeat.
            while True:
                try:
                    return await connect(f"{scheme}://{proxy.url}", **options)
                except ConnectError:
                    continue

        sending, receiving = await opened(), await opened()
        async with sending, receiving, asyncio.TaskGroup() as tasks:
            senders = [tasks.create_task(ledger.send(sending)) for ledger in ledgers]
            receivers = [tasks.create_task(ledger.receive(receiving, CREDIT)) for ledger in ledgers]
            await until(lambda: enough(proxy) and all(len(ledger.accepted) > 20 for ledger in ledgers))
            proxy.cutting = False
            for ledger in ledgers:
                ledger.stopping = True
            await asyncio.gather(*senders)
            await until(lambda: all(ledger.is_complete for ledger in ledgers))
            for receiver in receivers:
                receiver.cancel()
    losses = sum(event.kind == "lost" for event in said)
    for ledger in ledgers:
        ledger.check()
        ledger.check_twice(losses, CREDIT)


@pytest.mark.parametrize(("scheme", "seed"), [("amqp", 0), ("amqp", 1), ("ws", 2)])
def test_nothing_accepted_is_lost_wherever_the_connection_is_cut(
    broker: Broker, scheme: str, seed: int
) -> None:
    play(traffic_through_cuts(broker, seed, lambda proxy: proxy.cuts >= 15, scheme))


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 300)
def test_nothing_accepted_is_lost_over_many_cuts(broker: Broker) -> None:
    end = time.monotonic() + SOAK_S
    seed = 1_000
    while time.monotonic() < end:
        play(traffic_through_cuts(broker, seed, lambda proxy: proxy.cuts >= 100), 300)
        seed += 1
