"""The client against LightRail, ActiveMQ Artemis and RabbitMQ: the same laws for all, and what each lacks."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from lightrail.client import (
    AuthenticationError,
    Connection,
    Delivery,
    Event,
    LinkError,
    Message,
    OutcomeKind,
    Receiver,
    ReconnectPolicy,
    SendError,
    connect,
    sync,
)
from tests.brokers.conftest import PASSWORD, Peer

DEADLINE_S = 60.0
SOON = ReconnectPolicy(first=0.05, longest=0.3)
HEARTBEAT_S = 2.0
"""RabbitMQ counts it in whole seconds."""
SILENCE_S = 4.5
"""Longer than either side bears without heartbeats."""
DELETED_S = 5.0
LARGE = 2_000_000
LINKS = 300


def play(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


async def received(receiver: Receiver, count: int) -> list[Delivery]:
    """So many deliveries, with no outcome yet."""
    return [await anext(receiver) for _ in range(count)]


async def bodies(receiver: Receiver, count: int) -> list[Any]:
    """Of so many messages, which are accepted."""
    found = []
    for delivery in await received(receiver, count):
        found.append(delivery.body)
        await delivery.accept()
    return found


async def nothing_is_left(connection: Connection, address: str) -> None:
    """Asks by a message that is sent now: it is the only one."""
    async with connection.sender(address) as sender, connection.receiver(address) as receiver:
        await sender.send("the last")
        assert await bodies(receiver, 1) == ["the last"]


@pytest.mark.parametrize("body", [b"\x00bytes", "text ä", {"a": 1}, [1, "x"], 7, None, True, 1.5], ids=repr)
def test_what_is_sent_arrives_equal(peer: Peer, body: Any) -> None:
    async def test() -> None:
        address = peer.queue()
        sent = Message(
            body,
            id="m-1",
            subject="made",
            correlation_id="c-1",
            content_type="text/x",
            properties={"number": 1, "text": "two"},
            annotations={"x-opt-own": 3},
        )
        async with (
            connect(peer.url, reconnect=SOON) as connection,
            connection.sender(address) as sender,
            connection.receiver(address) as receiver,
        ):
            assert (await sender.send(sent)).accepted
            (delivery,) = await received(receiver, 1)
            await delivery.accept()
        found = delivery.message
        for name in ("body", "id", "subject", "correlation_id", "content_type", "durable"):
            assert getattr(found, name) == getattr(sent, name), name
        assert dict(found.properties) == dict(sent.properties)
        assert found.annotations["x-opt-own"] == 3

    play(test())


def test_messages_in_flight_arrive_once_and_in_order(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url) as connection, connection.sender(address) as sender:
            outcomes = await sender.send_all(range(2_000))
            assert all(outcome.accepted for outcome in outcomes)
            async with connection.receiver(address, credit=50) as receiver:
                assert await bodies(receiver, 2_000) == list(range(2_000))
            await nothing_is_left(connection, address)

    play(test())


def test_no_more_is_delivered_than_there_is_credit_for(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url) as connection, connection.sender(address) as sender:
            await sender.send_all(range(5))
            async with connection.receiver(address, credit=0) as bounded:
                await bounded.grant(2)
                assert await bodies(bounded, 2) == [0, 1]
                async with connection.receiver(address) as other:
                    assert await bodies(other, 3) == [2, 3, 4]

    play(test())


def test_what_is_released_comes_again_and_is_not_counted(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url) as connection, connection.sender(address) as sender:
            await sender.send("once more")
            async with connection.receiver(address) as receiver:
                (first,) = await received(receiver, 1)
                await first.release()
                (second,) = await received(receiver, 1)
                assert (second.body, second.message.delivery_count) == ("once more", 0)
                await second.accept()
            await nothing_is_left(connection, address)

    play(test())


def test_a_failed_delivery_is_counted(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url) as connection, connection.sender(address) as sender:
            await sender.send("fails")
            async with connection.receiver(address) as receiver:
                (first,) = await received(receiver, 1)
                await first.fail()
                (second,) = await received(receiver, 1)
                assert (second.body, second.message.delivery_count) == ("fails", 1)
                await second.accept()

    play(test())


def test_what_is_rejected_leaves_the_queue(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url) as connection, connection.sender(address) as sender:
            await sender.send("bad")
            async with connection.receiver(address) as receiver:
                (delivery,) = await received(receiver, 1)
                await delivery.reject("amqp:decode-error", "not what was expected")
            await nothing_is_left(connection, address)

    play(test())


def test_what_was_received_and_not_settled_comes_again_to_others(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url) as connection, connection.sender(address) as sender:
            await sender.send_all(range(3))
            async with connection.receiver(address) as receiver:
                assert [delivery.body for delivery in await received(receiver, 3)] == [0, 1, 2]
            async with connection.receiver(address) as receiver:
                assert sorted(await bodies(receiver, 3)) == [0, 1, 2]

    play(test())


def test_pre_settled_messages_arrive(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url) as connection:
            async with (
                connection.sender(address, presettled=True) as sender,
                connection.receiver(address, presettled=True) as receiver,
            ):
                for number in range(100):
                    await sender.send(number)
                assert [delivery.body for delivery in await received(receiver, 100)] == list(range(100))
            await nothing_is_left(connection, address)

    play(test())


def test_a_message_of_many_frames_arrives_equal(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        body = bytes(range(256)) * (LARGE // 256)
        async with connect(peer.url) as connection, connection.sender(address) as sender:
            await sender.send(body)
            async with connection.receiver(address) as receiver:
                assert await bodies(receiver, 1) == [body]

    play(test())


def test_a_selector_chooses(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url) as connection, connection.sender(address) as sender:
            await sender.send_all(Message(number, properties={"number": number}) for number in range(10))
            async with connection.receiver(address, selector="number > 7") as receiver:
                assert await bodies(receiver, 2) == [8, 9]

    play(test())


def test_a_dead_letter_is_received_as_any_message(peer: Peer) -> None:
    async def test() -> None:
        address, dead = peer.with_dead_letters()
        async with (
            connect(peer.url) as connection,
            connection.receiver(dead) as letters,
            connection.sender(address) as sender,
            connection.receiver(address) as receiver,
        ):
            await sender.send("fails for good")
            (delivery,) = await received(receiver, 1)
            await delivery.dead_letter("app:no-such-customer", "customer 7")
            assert await bodies(letters, 1) == ["fails for good"]

    play(test())


def test_annotations_that_a_receiver_adds_arrive(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url) as connection, connection.sender(address) as sender:
            await sender.send("noted")
            async with connection.receiver(address) as receiver:
                (first,) = await received(receiver, 1)
                await first.modify(annotations={"x-opt-seen-by": "first"})
                (second,) = await received(receiver, 1)
                await second.accept()
                assert second.message.annotations.get("x-opt-seen-by") == "first"

    play(test())


def test_what_a_receiver_passes_over_is_for_others(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        taken: list[int] = []

        async def take(delivery: Delivery) -> None:
            taken.append(delivery.body)

        async with connect(peer.url) as connection, connection.sender(address) as sender:
            await sender.send_all(range(4))
            async with connection.receiver(address) as odd:
                for _ in range(2):
                    assert await odd.select(lambda message: take if message.body % 2 else None, timeout=10.0)
                assert taken == [1, 3]
                async with connection.receiver(address) as others:
                    assert sorted(await bodies(others, 2)) == [0, 2]

    play(test())


def test_each_receiver_of_a_topic_gets_each_message(peer: Peer) -> None:
    async def test() -> None:
        address = peer.topic()
        async with (
            connect(peer.url) as connection,
            connection.receiver(address) as first,
            connection.receiver(address) as second,
            connection.sender(address) as sender,
        ):
            await sender.send_all(range(5))
            for receiver in (first, second):
                assert await bodies(receiver, 5) == list(range(5))

    play(test())


def test_that_a_queue_was_deleted_is_an_error_of_its_receivers(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url, reconnect=SOON) as connection, connection.receiver(address) as receiver:
            await receiver.opened()
            await asyncio.to_thread(peer.delete, address)
            with pytest.raises(LinkError, match="deleted"):
                await receiver.receive(1, timeout=DELETED_S)

    play(test())


def test_browsing_leaves_messages(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url) as connection, connection.sender(address) as sender:
            await sender.send_all(range(3))
            async with connection.receiver(address, browse=True) as browser:
                assert await bodies(browser, 3) == [0, 1, 2]
                async with connection.receiver(address) as receiver:
                    (first,) = await receiver.receive(1, timeout=5.0)
                    assert first.body == 0

    play(test())


def test_a_question_is_answered(peer: Peer) -> None:
    async def answer(connection: Connection, address: str) -> None:
        async with connection.receiver(address) as questions, connection.sender() as answers:
            async for question in questions:
                asked = question.message
                doubled = Message(2 * asked.body, to=asked.reply_to, correlation_id=asked.correlation_id)
                await answers.send(doubled)
                await question.accept()

    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url) as connection, connect(peer.url) as other:
            service = asyncio.create_task(answer(other, address))
            try:
                async with connection.requester(address) as requester:
                    assert (await requester.request(21)).body == 42
            finally:
                service.cancel()

    play(test())


def test_many_links_are_open_at_once(peer: Peer) -> None:
    async def test() -> None:
        async with connect(peer.url) as connection:
            receivers = [connection.receiver(peer.queue()) for _ in range(LINKS)]
            await asyncio.gather(*(receiver.opened() for receiver in receivers))
            async with connection.sender(receivers[-1].address) as sender:
                await sender.send("to the last")
            assert await bodies(receivers[-1], 1) == ["to the last"]

    play(test())


def test_a_wrong_password_is_an_error_that_names_it(peer: Peer) -> None:
    async def test() -> None:
        wrong = peer.url.replace(f":{PASSWORD}@", ":wrong@").replace(":guest@", ":wrong@")
        assert wrong != peer.url
        with pytest.raises(AuthenticationError, match="user or the password"):
            await connect(wrong)

    play(test())


def test_an_address_that_there_is_nothing_for_is_an_error_that_names_it(peer: Peer) -> None:
    async def test() -> None:
        address = peer.queue()
        async with connect(peer.url, reconnect=SOON) as connection, connection.sender(address) as sender:
            with pytest.raises(LinkError, match="nothing"):
                await connection.sender(peer.refused).opened()
            # Others on the connection go on, or are back at once.
            while True:
                try:
                    await sender.send("goes on")
                    break
                except SendError as error:
                    if error.outcome.kind is not OutcomeKind.UNKNOWN:
                        raise
            async with connection.receiver(address) as receiver:
                assert (await bodies(receiver, 1)) == ["goes on"]

    play(test())


def test_a_quiet_connection_is_kept_by_heartbeats(peer: Peer) -> None:
    async def test() -> None:
        events: list[Event] = []
        address = peer.queue()
        async with connect(peer.url, heartbeat=HEARTBEAT_S, on_event=events.append) as connection:
            async with connection.receiver(address) as receiver, connection.sender(address) as sender:
                assert not await receiver.receive(1, timeout=SILENCE_S)
                await sender.send("after the silence")
                assert await bodies(receiver, 1) == ["after the silence"]
            assert [event.kind for event in events] == ["connected"]

    play(test())


def test_the_synchronous_client_sends_and_receives(peer: Peer) -> None:
    address = peer.queue()
    with (
        sync.connect(peer.url) as connection,
        connection.sender(address) as sender,
        connection.receiver(address) as receiver,
    ):
        sender.send("without await")
        (delivery,) = receiver.receive(1, timeout=DEADLINE_S)
        assert delivery.body == "without await"
        delivery.accept()


def test_nothing_accepted_is_lost_over_a_kill_and_links_come_back(peer: Peer) -> None:
    address = peer.kept()

    async def test() -> None:
        accepted: list[int] = []
        enough = asyncio.Event()
        over = asyncio.Event()

        async def send(connection: Connection) -> None:
            async with connection.sender(address) as sender:
                number = 0
                while not over.is_set():
                    number += 1
                    try:
                        await sender.send(number)
                    except SendError as error:
                        if error.outcome.kind is not OutcomeKind.UNKNOWN:
                            raise
                        continue
                    accepted.append(number)
                    if len(accepted) >= 50:
                        enough.set()

        async with connect(peer.url, reconnect=SOON) as connection, connection.receiver(address) as receiver:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(send(connection))
                await enough.wait()
                await asyncio.to_thread(peer.server.kill)
                before = len(accepted)
                await asyncio.to_thread(peer.server.start)
                while len(accepted) < before + 50:  # noqa: ASYNC110 - the sender is back
                    await asyncio.sleep(0.01)
                over.set()
            found: set[int] = set()
            while not found >= set(accepted):
                found.update(await bodies(receiver, 1))

    play(test())
