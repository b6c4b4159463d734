"""The client against a broker: routers, and subscriptions that last."""

import uuid

import pytest

from lightrail.client import connect
from tests.client.conftest import play
from tests.support.broker import Broker


@pytest.fixture
def router() -> str:
    return f"r-{uuid.uuid4().hex}"


def test_every_receiver_of_a_router_gets_a_copy_of_what_its_filter_names(broker: Broker, router: str) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            async with connection.management() as management:
                await management.create("lightrail.router", router)
            async with (
                connection.receiver(router) as one,
                connection.receiver(router, subject="orders.#") as two,
                connection.sender(router) as sender,
            ):
                await sender.send("a", subject="orders.new")
                await sender.send("b", subject="invoices.new")
                assert [(await anext(one)).body for _ in range(2)] == ["a", "b"]
                assert (await anext(two)).body == "a"
                assert not await two.receive(timeout=0.05)

    play(test())


def test_a_durable_subscription_collects_while_nobody_receives_until_it_is_ended(
    broker: Broker, router: str
) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection, connection.management() as management:
            await management.create("lightrail.router", router, {"unroutable": "drop"})
            async with (
                connect(broker.amqp, name=f"billing-{router}") as first,
                first.receiver(router, subscription="invoices"),
            ):
                pass
            async with connection.sender(router) as sender:
                await sender.send("meanwhile")
            [subscription] = await management.subscriptions(router)
            assert subscription["name"].startswith(f"{router}//")
            async with connect(broker.amqp, name=f"billing-{router}") as second:
                receiver = second.receiver(router, subscription="invoices")
                [delivery] = await receiver.receive(timeout=10)
                assert delivery.body == "meanwhile"
                await delivery.accept()
                await receiver.unsubscribe()
            assert await management.subscriptions(router) == []

    play(test())


def test_receivers_of_several_connections_share_a_subscription(broker: Broker, router: str) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as one, connect(broker.amqp) as two:
            async with one.management() as management:
                await management.create("lightrail.router", router)
            async with (
                one.receiver(router, subscription="team", shared=True, credit=1) as a,
                one.receiver(router, subscription="team", shared=True, credit=1) as b,
                two.receiver(router, subscription="team", shared=True, credit=1) as c,
                one.sender(router) as sender,
            ):
                await sender.send_all(range(3))
                found = [await receiver.receive(timeout=10) for receiver in (a, b, c)]
                assert sorted(delivery.body for [delivery] in found) == [0, 1, 2]

    play(test())


def test_a_subscription_needs_a_name_that_the_broker_knows_again(broker: Broker, router: str) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            with pytest.raises(ValueError, match="a connection with a `name`"):
                connection.receiver(router, subscription="invoices")
            with pytest.raises(ValueError, match="name of a subscription"):
                connection.receiver(router, shared=True)

    play(test())
