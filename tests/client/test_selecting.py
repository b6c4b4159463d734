"""The client against a broker: receivers that choose, by filters of the broker or by themselves."""

import asyncio
import uuid
from typing import Any

import pytest

from lightrail.amqp.values import Described, Symbol
from lightrail.client import Delivery, LinkError, Message, connect
from tests.client.conftest import play
from tests.support.broker import Broker

COLOURS = ("red", "green", "red", "blue")


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex}"


@pytest.mark.parametrize(
    "chosen",
    [
        {"selector": "colour = 'red'"},
        {"sql": "application_properties.colour = 'red'"},
        {"properties": {"colour": "red"}},
        {"subject": "car.red.#"},
        {"group": "reds"},
        {"selector": "colour IN ('red', 'blue')", "group": "reds"},
    ],
    ids=lambda chosen: "+".join(chosen),
)
def test_a_filter_lets_through_what_it_names_and_leaves_the_rest(
    broker: Broker, queue: str, chosen: dict[str, Any]
) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.sender(queue) as sender:
                for number, colour in enumerate(COLOURS):
                    await sender.send(
                        number, subject=f"car.{colour}.x", group=f"{colour}s", properties={"colour": colour}
                    )
            async with connection.receiver(queue, **chosen) as receiver:
                for number in (0, 2):
                    delivery = await anext(receiver)
                    assert delivery.body == number
                    await delivery.accept()
                assert not await receiver.receive(timeout=0.05)
            async with connection.receiver(queue) as receiver:
                assert [(await anext(receiver)).body for _ in range(2)] == [1, 3]

    play(test())


def test_a_filter_that_the_broker_does_not_have_is_an_error_and_never_everything(
    broker: Broker, queue: str
) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            unknown = {"colour-filter": Described(Symbol("example:colour-filter"), "red")}
            receiver = connection.receiver(queue, filters=unknown)
            with pytest.raises(LinkError, match="filters by colour-filter, and this one does not") as caught:
                await receiver.opened()
            assert caught.value.condition == "amqp:not-implemented"
            wrong = connection.receiver(queue, selector="colour = ")
            with pytest.raises(LinkError, match="expected a literal") as caught:
                await wrong.opened()
            assert caught.value.condition == "amqp:invalid-field"

    play(test())


def test_select_calls_the_handler_of_what_was_chosen_and_leaves_the_rest_to_others(
    broker: Broker, queue: str
) -> None:
    async def test() -> None:
        handled: list[Any] = []

        async def handle(delivery: Delivery) -> None:
            handled.append(delivery.body)

        def odd(message: Message) -> Any:
            return handle if message.body % 2 else None

        async with connect(broker.amqp) as connection:
            async with connection.sender(queue) as sender:
                await sender.send_all(range(6))
            async with connection.receiver(queue, credit=2) as receiver:
                for _ in range(3):
                    assert await receiver.select(odd, timeout=10)
                assert not await receiver.select(odd, timeout=0.05)
            assert handled == [1, 3, 5]
            async with connection.receiver(queue) as receiver:
                found = [await anext(receiver) for _ in range(3)]
                assert [each.body for each in found] == [0, 2, 4]
                assert not any(each.message.delivery_count for each in found)
                for each in found:
                    await each.accept()

    play(test())


def test_a_handler_or_a_choice_that_raises_is_a_failed_attempt_and_the_receiver_goes_on(
    broker: Broker, queue: str
) -> None:
    async def test() -> None:
        def fail(_: Any) -> None:
            raise KeyError("broken")

        counts: list[int] = []
        async with connect(broker.amqp) as connection:
            async with connection.sender(queue) as sender:
                await sender.send("x")
            async with connection.receiver(queue) as receiver:
                with pytest.raises(KeyError, match="broken"):
                    await receiver.select(lambda _: fail, timeout=10)
                with pytest.raises(KeyError, match="broken"):
                    await receiver.select(fail, timeout=10)
                seen = await receiver.select(
                    lambda _: lambda delivery: counts.append(delivery.message.delivery_count), timeout=10
                )
                assert seen
                assert counts == [2]
                assert not await receiver.select(lambda _: fail, timeout=0.05)

    play(test())


def test_a_handler_may_settle_by_itself(broker: Broker, queue: str) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.sender(queue) as sender:
                await sender.send("x")
            async with connection.receiver(queue) as receiver:
                assert await receiver.select(lambda _: lambda delivery: delivery.release(), timeout=10)
                [again] = await receiver.receive(timeout=10)
                assert (again.body, again.message.delivery_count) == ("x", 0)

    play(test())


def test_members_of_a_group_go_to_one_receiver_at_a_time_in_order(broker: Broker, queue: str) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.management() as management:
                await management.create("lightrail.queue", queue, {"groups": True})
            async with connection.sender(queue) as sender:
                await sender.send_all(Message(number, group="ab"[number % 2]) for number in range(40))
            seen: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}

            async def work(index: int) -> None:
                async with connection.receiver(queue, credit=1) as receiver:
                    while sum(map(len, seen.values())) < 40:
                        for delivery in await receiver.receive(timeout=0.05):
                            seen[str(delivery.message.group)].append((delivery.body, index))
                            await delivery.accept()

            await asyncio.gather(work(0), work(1))
            for first, group in enumerate("ab"):
                assert [number for number, _ in seen[group]] == list(range(first, 40, 2))
                assert len({index for _, index in seen[group]}) == 1

    play(test())
