"""Processes of the broker that stand still (SIGSTOP) and go on, or are killed one by one, under load: the
ledger of what was accepted and received is whole. The long form runs for LIGHTRAIL_SOAK_SECONDS."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.client import Event, ReconnectPolicy, connect
from tests.support import wait
from tests.support.amqp.client_ledger import Ledger
from tests.support.amqp.returning_broker import ReturningBroker

SOAK_S = float(os.environ.get("LIGHTRAIL_SOAK_SECONDS", "600"))
SOON = ReconnectPolicy(first=0.02, longest=0.2, connect=2.0)
HEARTBEAT_S = 0.3
CREDIT = 20
LEDGERS = 5


def play(test: Coroutine[Any, Any, None], deadline_s: float) -> None:
    asyncio.run(asyncio.wait_for(test, deadline_s))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ReturningBroker]:
    started = ReturningBroker(tmp_path / "data")
    yield started
    started.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Lets everything go on until something is so; the test has a deadline of its own."""
    while not condition():  # noqa: ASYNC110 - whatever it is that happens
        await asyncio.sleep(0.005)


async def freeze(broker: ReturningBroker, role: str, enough: Callable[[], bool]) -> None:
    """A process stands still until enough was noticed of that."""
    pid = broker.broker.pid(role)
    await asyncio.to_thread(wait.freeze, pid)
    try:
        await until(enough)
    finally:
        os.kill(pid, signal.SIGCONT)


async def disturbed(broker: ReturningBroker, disturbances: Iterator[str]) -> None:
    ledgers = [Ledger(f"frozen/{number}") for number in range(LEDGERS)]
    said: list[Event] = []

    def losses() -> int:
        return sum(event.kind == "lost" for event in said)

    async with (
        connect(broker.url, reconnect=SOON, heartbeat=HEARTBEAT_S, on_event=said.append) as connection,
        asyncio.TaskGroup() as tasks,
    ):
        senders = [tasks.create_task(ledger.send(connection)) for ledger in ledgers]
        receivers = [tasks.create_task(ledger.receive(connection, CREDIT)) for ledger in ledgers]
        for disturbance in disturbances:
            goal = {ledger: len(set(ledger.received)) + 5 for ledger in ledgers}
            await until(lambda: all(len(set(each.received)) >= goal[each] for each in goal))  # noqa: B023
            before = losses()
            if disturbance == "kill":
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            elif disturbance == "frontend":
                await freeze(broker, "frontend", lambda: losses() > before)  # noqa: B023
            else:
                # The frontend still answers, so nothing is lost: all wait.
                end = time.monotonic() + 0.5
                await freeze(broker, "shard", lambda: time.monotonic() > end)  # noqa: B023
            await until(lambda: connection.healthy)
        for ledger in ledgers:
            ledger.stopping = True
        await asyncio.gather(*senders)
        await until(lambda: all(ledger.is_complete for ledger in ledgers))
        for receiver in receivers:
            receiver.cancel()
    for ledger in ledgers:
        ledger.check()
        ledger.check_twice(losses(), CREDIT)


def test_nothing_accepted_is_lost_over_processes_that_stand_still_and_are_killed(
    broker: ReturningBroker,
) -> None:
    play(disturbed(broker, iter(("frontend", "shard", "kill", "frontend"))), 90)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 300)
def test_nothing_accepted_is_lost_over_many_disturbances(broker: ReturningBroker) -> None:
    draw = random.Random(12)
    end = time.monotonic() + SOAK_S

    def drawn() -> Iterator[str]:
        while time.monotonic() < end:
            yield draw.choice(("frontend", "shard", "kill"))

    play(disturbed(broker, drawn()), SOAK_S + 200)
