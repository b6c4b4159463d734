"""The client against a broker: locks that end by time, and their renewal by hand and beside a handler."""

import os
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from lightrail.client import (
    ClosedError,
    Connection,
    Delivery,
    Event,
    LostError,
    ManagementError,
    Receiver,
    connect,
    sync,
)
from tests.client.conftest import play
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.broker import Broker

LOCK_S = 2.0
"""Long enough for a machine that is busy for a second; tests wait for the end of one such lock."""


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex}"


async def make(connection: Connection, queue: str, lock_s: float | None, *bodies: Any) -> None:
    """A queue with that lock_duration and these messages."""
    async with connection.management() as management:
        await management.create("lightrail.queue", queue, {"lock_duration": lock_s})
    async with connection.sender(queue) as sender:
        await sender.send_all(bodies)


async def first(receiver: Receiver) -> Delivery:
    [delivery] = await receiver.receive(timeout=20)
    return delivery


async def renew_for_ever(delivery: Delivery) -> None:
    """Until its lock is lost; a shard that is away is asked again."""
    while True:
        try:
            await delivery.renew()
        except ManagementError as error:
            if error.status != 503:
                raise


async def figures(connection: Connection, queue: str) -> Any:
    async with connection.management() as management:
        return (await management.read(queue))["figures"]


def test_a_renewed_lock_lasts_as_long_again_and_one_without_a_time_needs_no_renewal(
    broker: Broker, queue: str
) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            await make(connection, queue, 30.5, "timed")
            await make(connection, f"{queue}-2", None, "untimed")
            async with connection.receiver(queue) as receiver, connection.receiver(f"{queue}-2") as other:
                timed, untimed = await first(receiver), await first(other)
                assert await timed.renew() == 30.5
                assert await untimed.renew() is None
                await timed.accept()
                with pytest.raises(ClosedError):
                    await timed.renew()
            assert (await figures(connection, queue))["counters"]["accepted"] == 1

    play(test())


def test_the_holder_of_a_lock_that_ran_out_learns_that_the_message_comes_again(
    broker: Broker, queue: str
) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            await make(connection, queue, 0.1, "x")
            async with connection.receiver(queue, credit=0) as slow, connection.receiver(queue) as other:
                await slow.grant(1)
                lost = await first(slow)
                again = await first(other)
                while again.message.delivery_count < 1:
                    # It went to the other one first; the lock of that runs out, too.
                    lost, again = again, await first(other)
                with pytest.raises(LostError, match="has expired"):
                    await lost.renew()
                assert lost.lost
                with pytest.raises(LostError, match="renew_for"):
                    await lost.accept()
                with pytest.raises(LostError):
                    await lost.renew()

    play(test())


def test_locks_are_renewed_beside_the_handler_and_those_in_the_buffer_as_well(
    broker: Broker, queue: str
) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            await make(connection, queue, LOCK_S, *range(4))
            async with connection.receiver(queue, credit=0, renew_for=600) as keeping:
                await keeping.grant(3)
                handled = await first(keeping)
                async with connection.receiver(queue, credit=1) as control:
                    seen = await first(control)
                    assert seen.body == 3
                    # Its lock began after the others, and has run out when the message comes again.
                    again = await first(control)
                    assert (again.body, again.message.delivery_count) == (3, 1)
                    await again.accept()
                await handled.accept()
                for number in (1, 2):
                    waited = await first(keeping)
                    assert (waited.body, waited.message.delivery_count) == (number, 0)
                    await waited.accept()
            found = await figures(connection, queue)
            assert (found["ready"], found["in_flight"], found["counters"]["accepted"]) == (0, 0, 4)
            assert found["counters"]["locks_expired"] == 1

    play(test())


def test_a_lock_is_renewed_for_no_longer_than_was_asked_for(broker: Broker, queue: str) -> None:
    async def test() -> None:
        said: list[Event] = []
        async with connect(broker.amqp, on_event=said.append) as connection:
            await make(connection, queue, 0.2, "x")
            async with connection.receiver(queue, credit=1, renew_for=0.05) as receiver:
                stuck = await first(receiver)
                assert stuck.message.delivery_count == 0
                again = await first(receiver)
                assert again.message.delivery_count == 1

    play(test())


def test_after_a_loss_the_locks_of_what_comes_again_are_renewed(
    broker: Broker, proxy: CuttingProxy, queue: str
) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as steady, connect(proxy.url) as connection:
            await make(steady, queue, LOCK_S, "kept", "control")
            async with connection.receiver(queue, credit=0, renew_for=600) as keeping:
                await keeping.grant(1)
                before = await first(keeping)
                assert await before.renew() == LOCK_S
                proxy.cut()
                with pytest.raises(LostError):
                    await renew_for_ever(before)
                await keeping.grant(1)
                kept = await first(keeping)
                assert await kept.renew() == LOCK_S
                async with steady.receiver(queue, credit=1) as control:
                    await first(control)
                    again = await first(control)
                    assert again.body != kept.body
                    await again.accept()
                await kept.accept()
            assert (await figures(steady, queue))["counters"]["accepted"] == 2

    play(test())


def test_more_locks_than_a_request_names_are_renewed_together(broker: Broker, queue: str) -> None:
    async def test() -> None:
        async with connect(broker.amqp) as connection:
            await make(connection, queue, 30, *range(1_200))
            async with connection.receiver(queue, credit=1_200) as receiver:
                found: list[Delivery] = []
                while len(found) < 1_200:
                    found += await receiver.receive(1_200, timeout=20)
                await found[700].accept()
                del found[700]
                assert await receiver.renew(found) == [30.0] * 1_199

    play(test())


def test_what_a_shard_that_died_had_locked_is_lost_and_what_it_delivers_then_is_kept(
    tmp_path: Path, queue: str
) -> None:
    async def test(broker: Broker) -> None:
        async with connect(broker.amqp) as connection:
            await make(connection, queue, 30, "x")
            async with connection.receiver(queue) as receiver:
                before = await first(receiver)
                os.kill(broker.pid("shard"), signal.SIGKILL)
                with pytest.raises(LostError):
                    await renew_for_ever(before)
                assert before.lost
                again = await first(receiver)
                assert await again.renew() == 30.0
                await again.accept()
            assert (await figures(connection, queue))["in_flight"] == 0

    with Broker(tmp_path / "data") as broker:
        play(test(broker))


def test_without_await_it_is_the_same(broker: Broker, queue: str) -> None:
    with sync.connect(broker.amqp) as connection:
        with connection.management() as management:
            management.create("lightrail.queue", queue, {"lock_duration": 7})
        with connection.sender(queue) as sender, connection.receiver(queue, renew_for=60) as receiver:
            sender.send("x")
            [delivery] = receiver.receive(timeout=20)
            assert delivery.renew() == 7
            assert not delivery.lost
            delivery.accept()
