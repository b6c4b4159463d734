"""Transactions of the client: all or nothing, by blocks, after losses, and without await."""

import asyncio

import pytest

from lightrail.client import (
    ClosedError,
    Connection,
    LostError,
    Message,
    SendError,
    TransactionError,
    connect,
    sync,
)
from lightrail.frontend.transactions.transactions import TRANSACTIONS_PER_CONNECTION_MAX
from tests.client.conftest import play
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.broker import Broker


async def bodies(connection: Connection, address: str) -> list[object]:
    """What a queue has, which is taken from it."""
    async with connection.receiver(address) as receiver:
        found = await receiver.receive(100, timeout=0.2)
        for delivery in found:
            await delivery.accept()
        return [delivery.body for delivery in found]


async def put(connection: Connection, address: str, *bodies: object) -> None:
    async with connection.sender(address) as sender:
        await sender.send_all([Message(body, durable=True) for body in bodies])


def test_what_is_sent_and_accepted_takes_effect_with_the_commit(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connect(broker.amqp) as other:
            await put(connection, "txn/in", 1, 2)
            async with connection.receiver("txn/in") as receiver, connection.sender("txn/out") as sender:
                found = await receiver.receive(2)
                async with connection.transaction() as transaction:
                    for delivery in found:
                        await transaction.accept(delivery)
                        await transaction.send(sender, delivery.body * 10, durable=True)
                    assert await bodies(other, "txn/out") == []
                assert await bodies(other, "txn/out") == [10, 20]
            assert await bodies(other, "txn/in") == []

    play(test())


def test_a_begin_that_is_cancelled_leaves_no_transaction(broker: Broker) -> None:
    """Whether the broker has the declare already, or not."""

    async def test() -> None:
        async with connect(broker.amqp) as connection:
            for number in range(2 * TRANSACTIONS_PER_CONNECTION_MAX // 8):
                begun = [connection.transaction() for _ in range(16)]
                begins = [asyncio.create_task(each.begin()) for each in begun]
                for _ in range(number % 8):
                    await asyncio.sleep(0)
                for begin in begins:
                    begin.cancel()
                found = await asyncio.gather(*begins, return_exceptions=True)
                for transaction, error in zip(begun, found, strict=True):
                    if error is None:
                        await transaction.roll_back()
                if number % 8 == 7:
                    # Later requests of the link are answered behind those that were cancelled.
                    async with connection.transaction():
                        pass
            transactions = [connection.transaction() for _ in range(TRANSACTIONS_PER_CONNECTION_MAX)]
            for transaction in transactions:
                await transaction.begin()

    play(test())


def test_an_exception_in_the_block_rolls_it_back(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            await put(connection, "txn/raise", 1)
            async with connection.receiver("txn/raise") as receiver, connection.sender("txn/never") as sender:
                [delivery] = await receiver.receive()

                async def fail() -> None:
                    async with connection.transaction() as transaction:
                        await transaction.accept(delivery)
                        await transaction.send(sender, 1)
                        raise ZeroDivisionError

                with pytest.raises(ZeroDivisionError):
                    await fail()
                [again] = await receiver.receive()
                assert (again.body, again.message.delivery_count) == (1, 1)
                await again.accept()
            assert await bodies(connection, "txn/never") == []

    play(test())


def test_released_and_failed_in_a_transaction(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            await put(connection, "txn/back", 1, 2)
            async with connection.receiver("txn/back") as receiver:
                one, two = await receiver.receive(2)
                async with connection.transaction() as transaction:
                    await transaction.release(one)
                    await transaction.fail(two)
                found = [*await receiver.receive(2), *await receiver.receive(1, timeout=0.1)]
                assert sorted((each.body, each.message.delivery_count) for each in found) == [(1, 0), (2, 1)]

    play(test())


def test_transactions_side_by_side_and_messages_beside_them(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connection.sender("txn/many") as sender:

            async def one(number: int) -> None:
                transaction = connection.transaction()
                await transaction.begin()
                await transaction.send(sender, number)
                await (transaction.commit() if number % 2 else transaction.roll_back())

            await asyncio.gather(*(one(number) for number in range(20)), sender.send("beside"))
            found = await bodies(connection, "txn/many")
            assert len(found) == 11
            assert set(found) == {"beside", *range(1, 20, 2)}

    play(test())


def test_outcomes_leave_before_the_discharge_of_their_transaction(broker: Broker) -> None:
    """Also where the coordinator's link has something to send in the same turn of the loop already."""

    async def test() -> None:
        async with connect(broker.amqp) as connection, connect(broker.amqp) as other:
            await put(connection, "txn/turn", 1)
            async with connection.receiver("txn/turn") as receiver:
                [delivery] = await receiver.receive()
                first, second = connection.transaction(), connection.transaction()
                await first.begin()
                await second.begin()

                async def accept_and_commit() -> None:
                    await second.accept(delivery)
                    await second.commit()

                await asyncio.gather(first.commit(), accept_and_commit())
                assert receiver.healthy
            assert await bodies(other, "txn/turn") == []

    play(test())


def test_a_message_whose_receiver_was_closed_rolls_its_transaction_back(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connection.sender("txn/none") as sender:
            await put(connection, "txn/closed", 1)
            transaction = connection.transaction()
            await transaction.begin()
            async with connection.receiver("txn/closed") as receiver:
                [delivery] = await receiver.receive()
                await transaction.accept(delivery)
                await transaction.send(sender, 2)
            with pytest.raises(TransactionError, match="rolled back"):
                await transaction.commit()
            assert await bodies(connection, "txn/closed") == [1]
            assert await bodies(connection, "txn/none") == []

    play(test())


def test_one_that_has_ended_takes_nothing_more(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connection.sender("txn/ended") as sender:
            transaction = connection.transaction()
            with pytest.raises(ClosedError):
                await transaction.send(sender, 1)
            async with transaction:
                with pytest.raises(ClosedError):
                    await transaction.begin()
            for call in (transaction.send(sender, 1), transaction.commit(), transaction.roll_back()):
                with pytest.raises(ClosedError):
                    await call
            # It may begin anew.
            async with transaction:
                await transaction.send(sender, 2)
            assert await bodies(connection, "txn/ended") == [2]

    play(test())


def test_a_commit_that_the_broker_refuses_has_its_reason(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connection.management() as management:
            await management.create("lightrail.queue", "txn/full", {"max_length": 1, "overflow": "reject"})
            async with connection.sender("txn/full") as sender, connection.sender("txn/other") as other:
                transaction = connection.transaction()
                await transaction.begin()
                await transaction.send(other, 1)
                await transaction.send(sender, 1)
                await transaction.send(sender, 2)
                with pytest.raises(TransactionError, match="full") as raised:
                    await transaction.commit()
                assert raised.value.condition == "amqp:transaction:rollback"
                assert not raised.value.is_unknown
            assert await bodies(connection, "txn/other") == []

    play(test())


def test_a_lost_connection_ends_a_transaction_and_the_next_one_begins_anew(proxy: CuttingProxy) -> None:
    async def test() -> None:
        async with connect(proxy.url) as connection:
            async with connection.sender("txn/lost") as sender:
                transaction = connection.transaction()
                await transaction.begin()
                await transaction.send(sender, "lost")
                proxy.cut()

                async def send_on() -> None:
                    while True:
                        await transaction.send(sender, "lost as well")

                with pytest.raises((LostError, SendError)):
                    await send_on()
                with pytest.raises(TransactionError):
                    await transaction.commit()
                async with connection.transaction() as again:
                    await again.send(sender, "kept")
            assert await bodies(connection, "txn/lost") == ["kept"]

    play(test())


def test_a_scheduled_message_of_a_transaction_comes_at_its_time(broker: Broker) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connection.management() as management:
            await management.create("lightrail.queue", "txn/later", {"delay": True})
            async with connection.sender("txn/later") as sender, connection.receiver("txn/later") as receiver:
                async with connection.transaction() as transaction:
                    await transaction.schedule(sender, 2, delay=0.3)
                    await transaction.send(sender, 1)
                found = [*await receiver.receive(), *await receiver.receive()]
                assert [delivery.body for delivery in found] == [1, 2]

    play(test())


def test_without_await(broker: Broker) -> None:
    with sync.connect(broker.amqp) as connection:
        with connection.sender("txn/sync") as sender, connection.sender("txn/sync/in") as first:
            first.send(1)
            with connection.receiver("txn/sync/in") as receiver:
                [delivery] = receiver.receive()
                with connection.transaction() as transaction:
                    transaction.accept(delivery)
                    transaction.send(sender, 2)

                def fail() -> None:
                    with connection.transaction() as transaction:
                        transaction.send(sender, 3)
                        raise ZeroDivisionError

                with pytest.raises(ZeroDivisionError):
                    fail()
        with connection.receiver("txn/sync") as receiver:
            assert [each.body for each in receiver.receive(10)] == [2]
