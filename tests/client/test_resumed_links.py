"""Senders and receivers with `resume`, over connections that are cut after any byte: each message is stored
once and received once, in order, and no outcome is unknown."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from lightrail.client import ConnectError, Connection, Delivery, Event, Outcome, ReconnectPolicy, connect
from tests.client.random_cuts import RandomCuts
from tests.support.broker import Broker

DEADLINE_S = 90.0
SOON = ReconnectPolicy(first=0.002, longest=0.02, connect=1.0)
RESUME_S = 60
WINDOW = 30
CREDIT = 20


def play(test: Coroutine[Any, Any, None], deadline_s: float = DEADLINE_S) -> None:
    asyncio.run(asyncio.wait_for(test, deadline_s))


async def until(condition: Callable[[], bool]) -> None:
    """Lets everything go on until something is so; the test has a deadline of its own."""
    while not condition():  # noqa: ASYNC110 - whatever it is that happens
        await asyncio.sleep(0.005)


@dataclass(eq=False)
class Once:
    """One queue, one sender and one receiver: what was sent, its outcomes, and what was received.

    Args:
        chance: decides which deliveries are settled later, in another order.
    """

    name: str
    chance: random.Random
    durable: bool = True
    outcomes: list["asyncio.Future[Outcome]"] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    kept: list[Delivery] = field(default_factory=list)
    stopping: bool = False

    async def send(self, connection: Connection) -> None:
        """Numbers in order, as many at once as the window has room for."""
        options: Any = {"window": WINDOW, "resume": RESUME_S, "durable": self.durable}
        async with connection.sender(self.name, **options) as sender:
            assert sender.resumes
            while not self.stopping:
                for _ in range(self.chance.randrange(1, WINDOW)):
                    self.outcomes.append(
                        sender.send_nowait(len(self.outcomes), durable=self.chance.random() < 0.5)
                    )
                await asyncio.wait(self.outcomes[-WINDOW:])

    async def receive(self, connection: Connection) -> None:
        """Accepts deliveries, some of them when others have followed."""
        options: Any = {"credit": CREDIT, "resume": RESUME_S, "durable": self.durable}
        async with connection.receiver(self.name, **options) as receiver:
            while not (self.stopping and len(self.received) == len(self.outcomes)):
                for delivery in await receiver.receive(CREDIT, timeout=0.02):
                    self.received.append(delivery.body)
                    self.kept.append(delivery)
                self.chance.shuffle(self.kept)
                for _ in range(self.chance.randrange(len(self.kept) + 1)):
                    await self.kept.pop().accept()
            for delivery in self.kept:
                await delivery.accept()

    def check(self) -> None:
        """Each message was accepted, and received once, in the order of sending."""
        outcomes = [str(outcome.result()) for outcome in self.outcomes]
        assert outcomes == ["accepted"] * len(outcomes)
        assert self.received == [*range(len(outcomes))]


async def through_cuts(
    broker: Broker, seed: int, cuts: int, scheme: str = "amqp", links: int = 4, durable: bool = True
) -> None:
    """Links that send and receive, each over a connection that is cut again and again."""
    chance = random.Random(seed)
    everything = [Once(f"once/{scheme}/{seed}/{number}", chance, durable) for number in range(links)]
    events: list[Event] = []
    bytes_min, bytes_max = (600, 12_000) if scheme == "amqp" else (1_000, 16_000)
    async with RandomCuts(broker.amqp, seed, bytes_max, bytes_min, silent=0.02) as proxy:
        options: dict[str, Any] = {"reconnect": SOON, "heartbeat": 0.4, "on_event": events.append}

        async def opened() -> Connection:
            # The first round is the application's own to repeat.
            while True:
                try:
                    return await connect(f"{scheme}://{proxy.url}", **options)
                except ConnectError:
                    continue

        connections = [await opened() for _ in range(2 * links)]
        async with asyncio.TaskGroup() as tasks:
            sending, receiving = connections[:links], connections[links:]
            senders = [tasks.create_task(each.send(on)) for each, on in zip(everything, sending, strict=True)]
            for each, on in zip(everything, receiving, strict=True):
                tasks.create_task(each.receive(on))
            await until(lambda: proxy.cuts >= cuts)
            proxy.cutting = False
            for each in everything:
                each.stopping = True
            await asyncio.gather(*senders)
        for connection in connections:
            await connection.close()
    for each in everything:
        each.check()
    assert not [event for event in events if event.kind == "lock-lost"]
    async with connect(broker.amqp) as connection:
        for each in everything:
            receiver = connection.receiver(each.name)
            assert await receiver.receive(1, timeout=0.2) == [], "an outcome was not stored"


@pytest.mark.parametrize(("scheme", "seed", "cuts"), [("amqp", 0, 400), ("amqp", 1, 400), ("ws", 2, 200)])
def test_over_many_cuts_each_message_is_stored_and_received_once_in_order(
    broker: Broker, scheme: str, seed: int, cuts: int
) -> None:
    play(through_cuts(broker, seed, cuts, scheme))
