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

from lightrail.amqp.messages import write_value
from lightrail.amqp.performatives import Discharge
from lightrail.client import Connection, Delivery, Message, ReconnectPolicy, Requester, Sender, connect
from lightrail.client.transaction import TransactionLink
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

    async def send_all(self) -> None:
        numbers = range(self.numbers, self.numbers + 2 * WINDOW)
        self.numbers += 2 * WINDOW
        self.tried.update(numbers)
        await self.sender.send_all(numbers)
        self.accepted.update(numbers)

    async def close_requester(self) -> None:
        requester = self.connection.requester("service")
        requester._sender.send_nowait("?")
        await requester.close()

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
    Scene.send_all,
    Scene.close_requester,
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


# --- nothing goes on after its caller was cancelled ---------------------------------------------------------


def alone(test: Callable[[EngineBroker, Connection], Coroutine[Any, Any, None]]) -> None:
    """Plays a test with a broker that gives no credit, and a connection that is not connected again."""

    async def run() -> None:
        policy = ReconnectPolicy(first=3_600, longest=3_600)
        async with EngineBroker(credit=0) as broker, connect(broker.url, reconnect=policy) as connection:
            await test(broker, connection)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_messages_of_a_cancelled_send_all_are_not_sent_later() -> None:
    async def test(broker: EngineBroker, connection: Connection) -> None:
        sender = connection.sender("queue", window=WINDOW)
        await sender.opened()
        await cancelled_after(send_all(sender, 2 * WINDOW), 3)
        assert not sender._waiting
        broker.give_credit(WINDOW)
        await sender.send("next")
        assert [Message.decode(each).body for each in broker.of("queue")] == ["next"]

    async def send_all(sender: Sender, count: int) -> None:
        await sender.send_all(range(count))

    alone(test)


def test_a_request_that_is_cancelled_while_its_link_is_lost_leaves_nothing() -> None:
    async def test(broker: EngineBroker, connection: Connection) -> None:
        requester = connection.requester("service")
        await requester.opened()
        broker.connections[0].transport.abort()
        await until(lambda: not requester._receiver.healthy)
        await cancelled_after(request(requester), 3)
        assert not requester._receiver._awaiting
        assert not requester._answers

    async def request(requester: Requester) -> None:
        await requester.request("?")

    alone(test)


def test_a_requester_whose_closing_is_cancelled_is_closed() -> None:
    async def test(broker: EngineBroker, connection: Connection) -> None:
        requester = connection.requester("service")
        await requester.opened()
        # Its outcome is awaited by the closing.
        requester._sender.send_nowait("?")
        await cancelled_after(requester.close(), 3)
        await until(lambda: not broker.connections[0].incoming and not broker.connections[0].outgoing)

    alone(test)


def test_a_resumed_receiver_whose_closing_is_cancelled_is_closed() -> None:
    async def test(broker: EngineBroker, connection: Connection) -> None:
        broker.of("queue").append(Message(1).encode())
        receiver = connection.receiver("queue", resume=60)
        [delivery] = await receiver.receive()
        await delivery.accept()
        await cancelled_after(receiver.close(), 1)
        await until(lambda: not broker.connections[0].outgoing)

    alone(test)


@pytest.mark.parametrize("fail", [False, True], ids=["commit", "rollback"])
def test_a_discharge_that_is_cancelled_before_it_is_sent_rolls_back(fail: bool) -> None:
    """Otherwise the transaction would stay open at the broker, with its messages."""

    async def test(broker: EngineBroker, connection: Connection) -> None:
        link = TransactionLink(connection, "transactions")
        await cancelled_after(discharge(link), 3)
        [(payload, answer, _)] = link._waiting
        assert payload == write_value(Discharge(txn_id=b"1", fail=True))
        assert not answer.cancelled()
        assert link._discharges == {answer}

    async def discharge(link: TransactionLink) -> None:
        await link.discharge(b"1", fail=fail)

    alone(test)
