"""Senders and receivers with `resume`, over connections that are cut after any byte: each message is stored
once and received once, in order, and no outcome is unknown."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lightrail.client.sync
from lightrail.client import ConnectError, Connection, Delivery, Event, Outcome, ReconnectPolicy, connect
from tests.client.random_cuts import RandomCuts
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.amqp.returning_broker import ReturningBroker
from tests.support.broker import Broker

DEADLINE_S = 90.0
SOAK_S = float(os.environ.get("LIGHTRAIL_SOAK_SECONDS", "600"))
SOON = ReconnectPolicy(first=0.002, longest=0.02, connect=1.0)
RESUME_S = 60
WINDOW = 30
LOCK_S = 2
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
    """Whether the state of the links is on disk."""
    transient: bool = True
    """Whether half of the messages are not durable."""
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
                    is_durable = not self.transient or self.chance.random() < 0.5
                    self.outcomes.append(sender.send_nowait(len(self.outcomes), durable=is_durable))
                await asyncio.wait(self.outcomes[-WINDOW:])

    async def receive(self, connection: Connection) -> None:
        """Accepts deliveries, some of them when others have followed."""
        options: Any = {"credit": CREDIT, "resume": RESUME_S, "durable": self.durable}
        async with connection.receiver(self.name, **options) as receiver:
            while not (self.stopping and len(self.received) >= len(self.outcomes)):
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


async def exchange(
    url: str,
    everything: list[Once],
    disturb: Callable[[list[Event]], Coroutine[Any, Any, None]],
    policy: ReconnectPolicy = SOON,
    unexpected: Collection[str] = ("lock-lost", "link-lost"),
) -> None:
    """Sends and receives until `disturb` has returned, each link over its own connection; then checks."""
    events: list[Event] = []
    options: dict[str, Any] = {"reconnect": policy, "heartbeat": 0.4, "on_event": events.append}

    async def opened() -> Connection:
        # The first round is the application's own to repeat.
        while True:
            try:
                return await connect(url, **options)
            except ConnectError:
                continue

    count = len(everything)
    connections = [await opened() for _ in range(2 * count)]
    async with asyncio.TaskGroup() as tasks:
        for each, sending, receiving in zip(
            everything, connections[:count], connections[count:], strict=True
        ):
            tasks.create_task(each.send(sending))
            tasks.create_task(each.receive(receiving))
        await disturb(events)
        for each in everything:
            each.stopping = True
    for connection in connections:
        await connection.close()
    for each in everything:
        each.check()
    assert not [event for event in events if event.kind in unexpected]
    async with connect(url.rpartition("/")[2]) as connection:
        for each in everything:
            receiver = connection.receiver(each.name)
            assert await receiver.receive(1, timeout=0.2) == [], "an outcome was not stored"


async def through_cuts(
    broker: Broker, seed: int, cuts: int, scheme: str = "amqp", *, durable: bool = True
) -> None:
    """Each of eight connections is cut again and again."""
    chance = random.Random(seed)
    everything = [Once(f"once/{scheme}/{seed}/{number}", chance, durable) for number in range(4)]
    bytes_min, bytes_max = (600, 12_000) if scheme == "amqp" else (1_000, 16_000)
    async with RandomCuts(broker.amqp, seed, bytes_max, bytes_min, silent=0.02) as proxy:

        async def disturb(_: list[Event]) -> None:
            await until(lambda: proxy.cuts >= cuts)
            proxy.cutting = False

        await exchange(f"{scheme}://{proxy.url}", everything, disturb)


@pytest.mark.parametrize(
    ("scheme", "seed", "cuts", "durable"),
    [("amqp", 0, 400, True), ("amqp", 1, 400, False), ("ws", 2, 200, True)],
)
def test_over_many_cuts_each_message_is_stored_and_received_once_in_order(
    broker: Broker, scheme: str, seed: int, cuts: int, durable: bool
) -> None:
    play(through_cuts(broker, seed, cuts, scheme, durable=durable))


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 600)
def test_over_thousands_of_cuts_each_message_is_stored_and_received_once(broker: Broker) -> None:
    end = time.monotonic() + SOAK_S
    seed = 1_000
    while time.monotonic() < end:
        play(through_cuts(broker, seed, 1_000, durable=seed % 2 == 0), 600)
        seed += 1


async def further(everything: list[Once], count: int = 100) -> None:
    """Until each receiver has so many more messages."""
    goals = [len(each.received) + count for each in everything]
    await until(lambda: all(len(each.received) >= goal for each, goal in zip(everything, goals, strict=True)))


def test_when_frontends_are_killed_links_are_resumed_at_the_others(tmp_path: Path) -> None:
    async def test() -> None:
        chance = random.Random(3)
        everything = [Once(f"frontends/{number}", chance, durable=False) for number in range(4)]
        with Broker(tmp_path / "data", "--frontends", "2", "--shards", "2") as broker:

            async def disturb(events: list[Event]) -> None:
                for number in (0, 1):
                    await further(everything)
                    os.kill(broker.pid("frontend", number), signal.SIGKILL)
                await further(everything)
                assert [event.kind for event in events].count("lost") >= len(everything)

            await exchange(f"amqp://{broker.amqp}", everything, disturb)

    play(test())


def test_durable_messages_are_stored_and_received_once_over_kills_of_the_whole_broker(tmp_path: Path) -> None:
    async def test() -> None:
        chance = random.Random(4)
        everything = [Once(f"kills/{number}", chance, transient=False) for number in range(2)]
        broker = ReturningBroker(tmp_path / "data")
        try:

            async def disturb(events: list[Event]) -> None:
                for _ in range(2):
                    await further(everything)
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.start)
                await further(everything)
                assert [event.kind for event in events].count("lost") >= 8

            # Of a port without a listener: many attempts could connect it to itself, and keep the broker off.
            slowly = ReconnectPolicy(first=0.05, longest=0.5)
            await exchange(f"amqp://{broker.url}", everything, disturb, slowly)
        finally:
            await asyncio.to_thread(broker.stop)

    play(test())


def test_when_the_shard_alone_is_killed_links_are_resumed_on_their_connections(tmp_path: Path) -> None:
    """The broker detaches durable receivers then, whose outcomes it may not have stored (ADR 47)."""

    async def test() -> None:
        everything = [Once(f"shard/{number}", random.Random(6), transient=False) for number in range(4)]
        with Broker(tmp_path / "data", "--shards", "1") as broker:

            async def disturb(events: list[Event]) -> None:
                await further(everything)
                os.kill(broker.pid("shard"), signal.SIGKILL)
                await further(everything)
                assert {event.kind for event in events} == {"connected", "link-lost", "link-attached"}

            await exchange(f"amqp://{broker.amqp}", everything, disturb, unexpected=("lock-lost",))

    play(test())


def test_the_lock_of_a_delivery_is_renewed_over_a_loss(broker: Broker, proxy: CuttingProxy) -> None:
    async def test() -> None:
        events: list[Event] = []

        def connected() -> int:
            return [event.kind for event in events].count("connected")

        async with connect(broker.amqp) as direct:
            async with direct.management() as management:
                await management.create("lightrail.queue", "renewed", {"lock_duration": LOCK_S})
            await direct.sender("renewed").send("slow")
            async with connect(proxy.url, reconnect=SOON, on_event=events.append) as connection:
                receiver = connection.receiver("renewed", resume=RESUME_S, renew_for=60)
                (delivery,) = await receiver.receive()
                for number in range(2):
                    proxy.cut()
                    await until(lambda: connected() == number + 2 and receiver.healthy)  # noqa: B023 - awaited here
                    # The lock would have expired: real time is the subject.
                    assert await direct.receiver("renewed").receive(1, timeout=1.5 * LOCK_S) == []
                    assert await delivery.renew() == LOCK_S
                await delivery.accept()
                await receiver.close()
                assert not delivery.lost

    play(test())


def test_without_await_links_are_resumed_as_well(broker: Broker, proxy: CuttingProxy) -> None:
    with lightrail.client.sync.connect(proxy.url, reconnect=SOON) as connection:
        sender = connection.sender("plain", resume=RESUME_S)
        receiver = connection.receiver("plain", resume=RESUME_S)
        received = []
        for number in range(20):
            answer = sender.send_nowait(number)
            proxy.cut()
            assert answer.result(DEADLINE_S).accepted
            (delivery,) = receiver.receive(timeout=DEADLINE_S)
            proxy.cut()
            delivery.accept()
            received.append(delivery.body)
        assert sender.resumes
        assert receiver.receive(timeout=0.2) == []
        assert received == [*range(20)]


def test_a_queue_in_memory_is_resumed_until_its_shard_ends(tmp_path: Path) -> None:
    async def test() -> None:
        everything = [Once("memory", random.Random(5))]
        with Broker(tmp_path / "data", "--store", "memory") as broker:
            async with RandomCuts(broker.amqp, 5, 6_000, 600, silent=0.0) as proxy:

                async def disturb(_: list[Event]) -> None:
                    await until(lambda: proxy.cuts >= 20)
                    proxy.cutting = False

                await exchange(f"amqp://{proxy.url}", everything, disturb)

    play(test())
