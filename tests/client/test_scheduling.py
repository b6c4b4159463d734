"""The client against a broker: messages for later, called off, put off, and tried again later."""

import time
import uuid

import pytest

from lightrail.client import ClientError, ManagementError, connect
from tests.client.conftest import play
from tests.support.broker import Broker


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex}"


def test_a_scheduled_message_comes_at_its_time(broker: Broker, queue: str) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.management() as management:
                await management.create("lightrail.queue", queue, {"delay": True})
            async with connection.sender(queue) as sender, connection.receiver(queue) as receiver:
                began = time.time()
                await sender.schedule("later", delay=1.0, annotations={"x-opt-k": 1})
                await sender.schedule("sooner", at=began + 0.5)
                await sender.send("now")
                found = []
                for least in (0.0, 0.5, 1.0):
                    [delivery] = await receiver.receive(timeout=10)
                    assert time.time() - began >= least - 0.002
                    found.append(delivery.body)
                    await delivery.accept()
                assert found == ["now", "sooner", "later"]
                assert delivery.message.annotations["x-opt-k"] == 1

    play(test())


def test_a_queue_that_would_not_wait_is_an_error_that_says_what_to_do(broker: Broker, queue: str) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connection.sender(queue) as sender:
            with pytest.raises(ClientError, match="policy `delay`"):
                await sender.schedule("x", delay=60)
            with pytest.raises(ValueError, match="either a time or a delay"):
                await sender.schedule("x")

    play(test())


def test_a_scheduled_message_is_called_off_by_its_id(broker: Broker, queue: str) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connection.management() as management:
            await management.create("lightrail.queue", queue, {"delay": True})
            async with connection.sender(queue) as sender:
                for number in range(250):
                    await sender.schedule(number, delay=60, id=f"id-{number}")
            assert await management.cancel(queue, "id-240")
            assert not await management.cancel(queue, "id-240")
            assert not await management.cancel(queue, "id-1000")
            [(sequence, state, message)] = await management.peek(queue, count=1)
            assert (state, message.id) == ("delayed", "id-0")
            await management.cancel_scheduled(queue, sequence)
            with pytest.raises(ManagementError):
                await management.cancel_scheduled(queue, sequence)

    play(test())


def test_a_deferred_message_comes_again_at_its_time_counted_where_that_is_asked_for(
    broker: Broker, queue: str
) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.management() as management:
                await management.create("lightrail.queue", queue, {"delay": True})
            async with connection.sender(queue) as sender, connection.receiver(queue) as receiver:
                await sender.send("x")
                for count, failed in ((0, True), (1, False), (1, True)):
                    [delivery] = await receiver.receive(timeout=10)
                    assert delivery.message.delivery_count == count
                    began = time.time()
                    await delivery.defer(0.3, delivery_failed=failed)
                [delivery] = await receiver.receive(timeout=10)
                assert time.time() - began >= 0.298
                assert delivery.message.delivery_count == 2
                with pytest.raises(ValueError, match="0 seconds or more"):
                    await delivery.defer(-1)

    play(test())


def test_a_dead_letter_has_the_annotations_of_its_receiver(broker: Broker, queue: str) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            letters = connection.receiver(f"{queue}/$dlq")
            async with connection.sender(queue) as sender, connection.receiver(queue) as receiver:
                await sender.send("rejected", annotations={"x-opt-own": 1, "x-opt-host": "sender's"})
                [delivery] = await receiver.receive(timeout=10)
                # Names that are not annotations of applications, or the broker's own, are left out.
                notes = {"x-opt-host": "h", "x-opt-tries": 3, "plain": 1, "x-opt-dead-letter-reason": "none"}
                await delivery.dead_letter("no-such-customer", "customer 7", notes)
                [letter] = await letters.receive(timeout=10)
                found = letter.message.annotations
                assert (found["x-opt-own"], found["x-opt-host"], found["x-opt-tries"]) == (1, "h", 3)
                assert found["x-opt-dead-letter-reason"] == "rejected"
                assert found["x-opt-dead-letter-condition"] == "no-such-customer"
                assert "plain" not in found
                await letter.accept()
                # More than a message may have: the dead letter comes without them.
                await sender.send("much", annotations={"x-opt-own": "x" * 40_000})
                [delivery] = await receiver.receive(timeout=10)
                with pytest.raises(ValueError, match="an outcome of at most"):
                    await delivery.dead_letter("too-much", "", {"x-opt-much": "x" * 140_000})
                await delivery.dead_letter("too-much", "", {"x-opt-much": "x" * 40_000})
                [letter] = await letters.receive(timeout=10)
                assert letter.body == "much"
                assert "x-opt-much" not in letter.message.annotations

    play(test())


def test_a_dead_letter_keeps_its_reason(broker: Broker, queue: str) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connection.management() as management:
            async with connection.sender(queue) as sender, connection.receiver(queue) as receiver:
                await sender.send("x", id="7")
                [delivery] = await receiver.receive(timeout=10)
                await delivery.dead_letter("no-such-customer", "customer 7 is not there")
                # Settled when a round trip behind it is done.
                await sender.send("behind it")
            [(_, state, letter)] = await management.dead_letters(queue)
            assert (state, letter.id) == ("ready", "7")
            assert letter.annotations["x-opt-dead-letter-condition"] == "no-such-customer"
            assert letter.annotations["x-opt-dead-letter-description"] == "customer 7 is not there"
            async with connection.receiver(f"{queue}/$dlq") as receiver:
                [delivery] = await receiver.receive(timeout=10)
                assert delivery.body == "x"

    play(test())
