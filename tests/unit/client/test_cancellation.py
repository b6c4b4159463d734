"""Any await may be cancelled at any step of the loop: the connection goes on, and no message, slot of a
window or credit is lost. Steps are counted, so nothing waits for a time to pass."""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from lightrail.client import Connection, Delivery, connect
from tests.support.amqp.engine_broker import EngineBroker

DEADLINE_S = 20.0
WINDOW = 3
CREDIT = 3
STEPS_MAX = 25


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - whatever it is that happens
        await asyncio.sleep(0)


class Scene:
    """A connection with a sender and a receiver of one queue, a service that answers, and a ledger."""

    def __init__(self, broker: EngineBroker, connection: Connection) -> None:
        self.broker = broker
        self.connection = connection
        self.numbers = 0
        self.accepted: set[int] = set()
        self.tried: set[int] = set()
        self.found: Counter[int] = Counter()
        self.unsettled: list[Delivery] = []

    async def begin(self) -> None:
        self.sender = self.connection.sender("queue", window=WINDOW)
        self.receiver = self.connection.receiver("queue", credit=CREDIT)
        self.requester = self.connection.requester("service")
        self.questions = self.connection.receiver("service")
        self.answers = self.connection.sender()
        for each in (self.sender, self.receiver, self.requester, self.questions, self.answers):
            await each.opened()
        self.service = asyncio.create_task(self.serve())
        self.links = self.attached

    @property
    def attached(self) -> int:
        served = self.broker.connections[0]
        return len(served.incoming) + len(served.outgoing)

    async def serve(self) -> None:
        async for question in self.questions:
            await question.accept()

    # --- what is cancelled -------------------------------------------------------------------------------

    async def open(self) -> None:
        async with connect(self.broker.url):
            await steps(1)

    async def open_sender(self) -> None:
        async with self.connection.sender("another") as sender:
            await sender.opened()

    async def open_receiver(self) -> None:
        async with self.connection.receiver("another", credit=2) as receiver:
            await receiver.receive()

    async def send(self) -> None:
        number = self.numbers
        self.numbers += 1
        self.tried.add(number)
        await self.sender.send(number)
        self.accepted.add(number)

    async def receive(self) -> None:
        self.took(await self.receiver.receive(2))

    async def receive_for_a_while(self) -> None:
        self.took(await self.receiver.receive(2, timeout=0.001))

    async def iterate(self) -> None:
        async for delivery in self.receiver:
            self.took([delivery])

    async def accept(self) -> None:
        for delivery in list(self.unsettled):
            self.unsettled.remove(delivery)
            await delivery.accept()

    async def request(self) -> None:
        await self.requester.request("?")

    async def close_sender(self) -> None:
        sender = self.connection.sender("another", window=2)
        for number in range(2):
            sender.send_nowait(number)
        await sender.close()

    def took(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.found[delivery.body] += 1
            self.unsettled.append(delivery)

    # --- afterwards --------------------------------------------------------------------------------------

    async def check(self) -> None:
        """The same sender and receiver work at full width, and the ledger is whole."""
        await until(lambda: self.attached == self.links and len(self.broker.connections) == 1)
        await self.accept()
        for _ in range(3 * WINDOW):
            sending = asyncio.create_task(self.send())
            while not sending.done():
                self.took(await self.receiver.receive(5, timeout=0.001))
                await self.accept()
            await sending
        while missing := self.accepted - self.found.keys():
            self.took(await self.receiver.receive(5))
            await self.accept()
            assert missing
        assert self.found.keys() <= self.tried
        assert set(self.found.values()) <= {1}, "nothing comes twice, and nothing is given out twice"
        # All slots of the window at once.
        self.broker.give_credit(0)
        answers = [self.sender.send_nowait(-1) for _ in range(WINDOW)]
        self.broker.give_credit(WINDOW)
        assert all(outcome.accepted for outcome in await asyncio.gather(*answers))
        # All of the credit but what a receiver gathers before it gives more.
        await until(lambda: len(self.receiver._incoming.buffer) >= CREDIT - CREDIT // 2)
        assert not self.sender._room
        assert not self.receiver._incoming._waiters
        assert not self.requester._answers
        self.service.cancel()


OPERATIONS = (
    Scene.open,
    Scene.open_sender,
    Scene.open_receiver,
    Scene.send,
    Scene.receive,
    Scene.receive_for_a_while,
    Scene.iterate,
    Scene.accept,
    Scene.request,
    Scene.close_sender,
)
Operation = Callable[[Scene], Coroutine[Any, Any, None]]


async def cancelled_after(work: Coroutine[Any, Any, None], count: int) -> None:
    task = asyncio.create_task(work)
    await steps(count)
    task.cancel()
    (found,) = await asyncio.gather(task, return_exceptions=True)
    if found is not None and not isinstance(found, asyncio.CancelledError):
        raise found


def play(schedule: list[tuple[Operation, int, int]]) -> None:
    """Each operation begins some steps after the one before, and is cancelled some steps later."""
    unheard: list[dict[str, Any]] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
        async with EngineBroker(credit=2) as broker, connect(broker.url) as connection:
            scene = Scene(broker, connection)
            await scene.begin()
            async with asyncio.TaskGroup() as tasks:
                for operation, gap, count in schedule:
                    await steps(gap)
                    tasks.create_task(cancelled_after(operation(scene), count))
            await scene.check()

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))
    gc.collect()
    assert not unheard


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_each_operation_may_be_cancelled_at_each_step(operation: Operation) -> None:
    play([(operation, 2, count) for count in range(STEPS_MAX)])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    some.lists(
        some.tuples(some.sampled_from(OPERATIONS), some.integers(0, 6), some.integers(0, STEPS_MAX)),
        max_size=30,
    )
)
def test_whatever_is_cancelled_whenever_nothing_is_lost_and_everything_goes_on(
    schedule: list[tuple[Operation, int, int]],
) -> None:
    play(schedule)
