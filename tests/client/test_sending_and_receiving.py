"""The client against a broker: what is sent arrives, what is settled is settled, what is refused says why."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from lightrail.client import (
    ClosedError,
    ConnectError,
    LinkError,
    Message,
    OutcomeKind,
    SendError,
    WindowFullError,
    connect,
)
from tests.support.broker import Broker

DEADLINE_S = 30.0


def play(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


def test_what_is_sent_arrives_in_order_and_as_it_was(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.sender("order") as sender:
                outcome = await sender.send({"id": 7}, subject="created", ttl=60, properties={"k": "v"})
                assert outcome.accepted
                for number in range(500):
                    await sender.send(Message(number, group="g"))
            async with connection.receiver("order", credit=10) as receiver:
                first = await anext(receiver)
                assert first.message.body == {"id": 7}
                assert (first.message.subject, first.message.properties["k"]) == ("created", "v")
                assert first.message.durable
                assert 0 < (first.message.ttl or 0) <= 60
                await first.accept()
                for number in range(500):
                    delivery = await anext(receiver)
                    assert delivery.body == number
                    await delivery.accept()
                assert not await receiver.receive(timeout=0)

    play(test())


def test_many_at_once_are_confirmed_each(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.sender("many", window=2_000) as sender:
                answers = [sender.send_nowait(number) for number in range(2_000)]
                with pytest.raises(WindowFullError, match="2000 messages"):
                    sender.send_nowait("one more")
                outcomes = await asyncio.gather(*answers)
                assert all(outcome.accepted for outcome in outcomes)
                await sender.send("one more")
            async with connection.receiver("many", credit=300) as receiver:
                found: list[Any] = []
                while len(found) < 2_001:
                    for delivery in await receiver.receive(100):
                        found.append(delivery.body)
                        await delivery.accept()
                assert found == [*range(2_000), "one more"]

    play(test())


def test_large_messages_go_in_several_frames(broker: Broker) -> None:
    async def test() -> None:
        body = bytes(range(256)) * 20_000
        async with connect(broker.amqp) as connection:
            async with connection.sender("large") as sender:
                await asyncio.gather(*(sender.send(body) for _ in range(3)))
            async with connection.receiver("large") as receiver:
                for _ in range(3):
                    delivery = await anext(receiver)
                    assert delivery.body == body
                    await delivery.accept()

    play(test())


def test_each_outcome_is_what_the_broker_makes_of_it(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.sender("outcomes") as sender:
                for name in ("released", "failed", "rejected", "accepted"):
                    await sender.send(name)
            async with connection.receiver("outcomes") as receiver:
                released = await anext(receiver)
                await released.release()
                with pytest.raises(ClosedError, match="outcome already"):
                    await released.accept()
                again = await anext(receiver)
                while again.body != "released":
                    await again.release()
                    again = await anext(receiver)
                await again.accept()
                failed = await anext(receiver)
                while failed.body != "failed":
                    await failed.release()
                    failed = await anext(receiver)
                assert failed.message.delivery_count == 0
                await failed.fail()
                failed = await anext(receiver)
                while failed.body != "failed":
                    await failed.release()
                    failed = await anext(receiver)
                assert failed.message.delivery_count == 1
                await failed.accept()
                for _ in range(2):
                    delivery = await anext(receiver)
                    if delivery.body == "rejected":
                        await delivery.reject("app:bad", "no good")
                    else:
                        await delivery.accept()
            async with connection.receiver("outcomes/$dlq") as letters:
                letter = await anext(letters)
                assert letter.body == "rejected"
                await letter.accept()

    play(test())


def test_what_was_received_and_not_settled_goes_back(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.sender("back") as sender:
                await sender.send("once")
            async with connection.receiver("back") as receiver:
                assert (await anext(receiver)).body == "once"
            async with connection.receiver("back") as receiver:
                delivery = await anext(receiver)
                await delivery.accept()
            async with connection.receiver("back") as receiver:
                assert not await receiver.receive(timeout=0.1)

    play(test())


def test_a_browser_leaves_everything_where_it_is(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.sender("looked") as sender:
                await sender.send("still")
            for _ in range(2):
                async with connection.receiver("looked", browse=True) as browser:
                    assert (await anext(browser)).body == "still"

    play(test())


def test_presettled_messages_need_no_answer_and_no_outcome(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.sender("fast", presettled=True) as sender:
                for number in range(100):
                    assert (await sender.send(number)).accepted
            async with connection.receiver("fast", presettled=True) as receiver:
                for number in range(100):
                    delivery = await anext(receiver)
                    assert delivery.body == number
                    assert delivery.settled

    play(test())


def test_several_tasks_share_a_receiver_and_nothing_waits_in_vain(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            found: list[int] = []
            everything = asyncio.Event()
            async with (
                connection.receiver("shared", credit=5) as receiver,
                connection.sender("shared") as sender,
            ):

                async def work() -> None:
                    while True:
                        (delivery,) = await receiver.receive()
                        found.append(delivery.body)
                        await delivery.accept()
                        if len(found) == 300:
                            everything.set()

                async with asyncio.TaskGroup() as tasks:
                    workers = [tasks.create_task(work()) for _ in range(7)]
                    for number in range(300):
                        await sender.send(number)
                    await everything.wait()
                    for worker in workers:
                        worker.cancel()
            assert sorted(found) == list(range(300))

    play(test())


def test_a_refused_message_raises_and_says_why(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connection.sender() as anonymous:
            with pytest.raises(SendError, match=r"no/such/place") as raised:
                await anonymous.send("to nowhere", to="$no/such/place")
            assert raised.value.outcome.kind is OutcomeKind.REJECTED
            assert raised.value.outcome.condition.startswith("amqp:")
            await anonymous.send("by its address", to="addressed")
            async with connection.receiver("addressed") as receiver:
                delivery = await anext(receiver)
                assert delivery.body == "by its address"
                await delivery.accept()

    play(test())


def test_a_link_that_the_broker_refuses_says_why_and_the_connection_goes_on(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            with pytest.raises(LinkError, match="system's") as raised:
                async with connection.receiver("$nothing/here"):
                    pass
            assert raised.value.condition == "amqp:not-found"
            async with connection.sender("order") as sender:
                await sender.send("still there")
            async with connection.receiver("order") as receiver:
                await (await anext(receiver)).accept()

    play(test())


def test_nobody_there_is_an_error_with_every_address() -> None:
    async def test() -> None:
        with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
            async with connect("amqp://127.0.0.1:1", "amqp://127.0.0.1:2"):
                pass

    play(test())


def test_the_second_address_is_taken_where_the_first_is_dead(broker: Broker) -> None:
    async def test() -> None:
        async with connect("amqp://127.0.0.1:1", broker.amqp) as connection:
            assert connection.healthy

    play(test())


def test_what_is_closed_says_so(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            sender, receiver = connection.sender("order"), connection.receiver("order")
            await sender.opened()
            await receiver.opened()
        assert connection.closed
        with pytest.raises(ClosedError):
            await sender.send("late")
        with pytest.raises(ClosedError):
            await receiver.receive()
        assert [delivery async for delivery in receiver] == []
        with pytest.raises(ClosedError):
            connection.sender("order")

    play(test())


def test_a_connection_knows_which_broker_it_has(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            assert connection.product == "LightRail"
        assert connection.product == ""

    play(test())
