"""Requests and replies, and the management of a broker, over the client."""

import asyncio
import gc
import json
import urllib.request
from collections.abc import Coroutine
from typing import Any

import pytest

from lightrail.client import (
    ClosedError,
    Connection,
    LinkError,
    ManagementError,
    Message,
    ReconnectPolicy,
    connect,
)
from lightrail.client.management import NAME, QUEUE
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.broker import Broker

DEADLINE_S = 30.0


def play(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


async def answer_everything(connection: Connection, address: str) -> None:
    """Answers each question with twice its body."""
    async with connection.receiver(address) as questions, connection.sender() as answers:
        async for question in questions:
            asked = question.message
            await answers.send(
                Message(2 * asked.body, to=asked.reply_to, correlation_id=asked.correlation_id, durable=False)
            )
            await question.accept()


def test_each_question_gets_its_own_answer(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connect(broker.amqp) as other:
            service = asyncio.create_task(answer_everything(other, "service"))
            async with connection.requester("service") as requester:
                found = await asyncio.gather(*(requester.request(number) for number in range(100)))
                assert [message.body for message in found] == [2 * number for number in range(100)]
            service.cancel()

    play(test())


def links(broker: Broker, container: str) -> list[str]:
    """Addresses of all links of a connection."""
    with urllib.request.urlopen(f"http://{broker.http}/!connections?container={container}") as answer:
        (one,) = json.load(answer)["connections"]
    return [link["address"] for session in one["session_list"] for link in session["links"]]


def test_a_requester_that_can_not_be_opened_leaves_no_link(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp, name="asks") as connection:
            with pytest.raises(LinkError, match="nothing"):
                async with connection.requester("$nothing"):
                    pytest.fail("it was opened")
            opening = connection.requester("service")
            task = asyncio.create_task(opening.__aenter__())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(ClosedError, match="cancelled"):
                await opening.request("?")
            async with connection.sender("last"):
                assert await asyncio.to_thread(links, broker, "asks") == ["last"]

    play(test())


def test_a_question_that_nobody_answers_ends_in_time_and_expires(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.requester("nobody") as requester:
                with pytest.raises(TimeoutError):
                    await requester.request("?", timeout=0.05)
            async with connection.receiver("nobody") as receiver:
                assert not await receiver.receive(timeout=0.2)

    play(test())


def test_a_queue_is_made_changed_looked_into_and_deleted(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connection.management() as management:
            made = await management.create(QUEUE, "managed", {"max_delivery_count": 5})
            assert made["max_delivery_count"] == 5
            with pytest.raises(ManagementError, match="managed") as raised:
                await management.create(QUEUE, "managed")
            assert raised.value.status == 409
            changed = await management.update("managed", {"max_delivery_count": 7}, revision=made["revision"])
            assert changed["max_delivery_count"] == 7
            with pytest.raises(ManagementError) as raised:
                await management.update("managed", {"max_delivery_count": 8}, revision=made["revision"])
            assert raised.value.status == 412
            async with connection.sender("managed") as sender:
                for number in range(3):
                    await sender.send(number)
            peeked = await management.peek("managed", count=2)
            assert [(state, message.body) for _, state, message in peeked] == [("ready", 0), ("ready", 1)]
            names = {each["name"] async for each in management.query(NAME, "name", "max_delivery_count")}
            assert "managed" in names
            assert await management.purge("managed") == 3
            assert (await management.read("managed"))["figures"]["ready"] == 0
            await management.delete("managed")
            with pytest.raises(ManagementError) as raised:
                await management.read("managed")
            assert raised.value.status == 404

    play(test())


def test_a_requester_whose_connection_is_given_up_leaves_no_error_behind(
    proxy: CuttingProxy, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        ended = asyncio.Event()
        connection = await connect(
            proxy.url,
            reconnect=ReconnectPolicy(attempts=1),
            on_event=lambda event: ended.set() if event.kind == "closed" else None,
        )
        requester = connection.requester("$management")
        await requester.opened()
        await asyncio.to_thread(proxy.close)
        await ended.wait()

    play(test())
    gc.collect()
    assert "never retrieved" not in caplog.text
