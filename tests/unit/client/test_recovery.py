"""What keeps a connection true, against a broker in the same loop that misbehaves as the test asks for."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lightrail.client import (
    AuthenticationError,
    ClientError,
    ClosedError,
    ConnectError,
    Event,
    LinkError,
    LostError,
    OutcomeKind,
    ReconnectPolicy,
    SendError,
    connect,
)
from lightrail.client import connection as connections
from lightrail.client.options import pause_s
from tests.support.amqp.engine_broker import EngineBroker

DEADLINE_S = 20.0
SOON = ReconnectPolicy(first=0.005, longest=0.05, connect=5.0)


def play(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - whatever it is that happens
        await asyncio.sleep(0.001)


def test_a_connection_that_is_closed_in_the_moment_of_its_open_is_an_attempt_that_failed() -> None:
    async def test() -> None:
        async with EngineBroker() as broker:
            broker.closes_at_once = 1
            with pytest.raises(ConnectError, match="full"):
                await connect(broker.url, reconnect=SOON)
            async with connect(broker.url, reconnect=SOON) as connection:
                broker.closes_at_once = 3
                broker.connections[0].transport.abort()
                await until(lambda: broker.attempts == 6)
                await until(lambda: connection.healthy)

    play(test())


def test_credentials_that_cannot_be_checked_now_are_tried_again_and_wrong_ones_are_not() -> None:
    async def test() -> None:
        async with EngineBroker() as broker:
            said: list[Event] = []
            async with connect(broker.url, reconnect=SOON, on_event=said.append) as connection:
                sender = connection.sender("there")
                receiver = connection.receiver("there")
                await sender.opened()
                await receiver.opened()
                broker.sasl_codes.extend([4, 2])
                broker.connections[0].transport.abort()
                await until(lambda: [event.kind for event in said].count("connected") == 2)
                assert "can't check" in next(event.reason for event in said if event.kind == "failed")
                broker.sasl_codes.append(1)
                broker.give_credit(0)
                waits = asyncio.create_task(sender.send("waits"))
                broker.connections[0].transport.abort()
                with pytest.raises(AuthenticationError):
                    await receiver.receive()
                with pytest.raises((AuthenticationError, SendError)):
                    await waits
                with pytest.raises(AuthenticationError):
                    await sender.send("late")
                with pytest.raises(ClosedError, match="refused the user"):
                    connection.sender("another")
                assert connection.closed
                attempts = broker.attempts
                assert said[-1].kind == "closed"
                assert "refused the user" in said[-1].reason
                await asyncio.sleep(10 * SOON.longest)
                assert broker.attempts == attempts, "nothing is tried again"

    play(test())


def test_a_session_that_the_broker_ends_is_begun_again_with_all_its_links() -> None:
    async def test() -> None:
        async with (
            EngineBroker() as broker,
            connect(broker.url, reconnect=SOON) as connection,
            connection.sender("ends") as sender,
            connection.receiver("ends") as receiver,
        ):
            served = broker.connections[0]
            for session in list(served.engine.sessions.values()):
                session.end("amqp:internal-error", "no more")
            served.write()
            await until(lambda: served not in broker.connections and connection.healthy)
            await sender.send("again")
            assert (await anext(receiver)).body == "again"

    play(test())


def test_a_link_that_the_broker_detaches_is_attached_again_and_both_are_reported() -> None:
    async def test() -> None:
        said: list[Event] = []
        async with (
            EngineBroker() as broker,
            connect(broker.url, reconnect=SOON, on_event=said.append) as connection,
            connection.sender("detached") as sender,
        ):
            served = broker.connections[0]
            for _ in range(3):
                served.incoming.pop().detach("amqp:link:detach-forced", "moved")
                served.write()
                await until(lambda: not sender.healthy)
                assert not connection.healthy
                await until(lambda: connection.healthy)
            assert (await sender.send("again")).accepted
            assert [event.kind for event in said] == ["connected", *(3 * ["link-lost", "link-attached"])]
            served.incoming.pop().detach("amqp:unauthorized-access", "no right to send")
            served.write()
            await until(lambda: not sender.healthy)
            with pytest.raises(LinkError, match="no right"):
                await sender.send("late")
            assert not broker.connections[0].incoming, "it is not attached again"

    play(test())


def test_pauses_grow_between_their_bounds() -> None:
    policy = ReconnectPolicy(first=0.1, factor=2.0, longest=0.5)
    assert [pause_s(policy, attempt, lambda: 1.0) for attempt in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert [pause_s(policy, attempt, lambda: 0.0) for attempt in (0, 10_000)] == [0.05, 0.25]


def test_pauses_grow_where_connections_are_lost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def counted(policy: ReconnectPolicy, attempt: int) -> float:
        waits.append(attempt)
        return 0.001

    monkeypatch.setattr(connections, "pause_s", counted)

    async def test() -> None:
        async with EngineBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            for attempts in range(2, 6):
                broker.connections[0].transport.abort()
                await until(lambda: broker.attempts == attempts)  # noqa: B023 - awaited here
                await until(lambda: connection.healthy)
            assert waits == [0, 1, 2, 3]

    play(test())


def test_an_event_callback_that_raises_stops_nothing() -> None:
    async def test() -> None:
        failed: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))

        def raises(event: Event) -> None:
            raise RuntimeError(event.kind)

        async with (
            EngineBroker() as broker,
            connect(broker.url, reconnect=SOON, on_event=raises) as connection,
        ):
            broker.connections[0].transport.abort()
            await until(lambda: not connection.healthy)
            await until(lambda: connection.healthy)
        assert [str(context["exception"]) for context in failed] == [
            "connected",
            "lost",
            "connected",
            "closed",
        ]

    play(test())


def test_the_second_address_is_used_where_the_first_is_dead_and_the_first_when_it_is_back() -> None:
    async def test() -> None:
        said: list[Event] = []
        first, second = EngineBroker(), EngineBroker()
        async with second:
            async with (
                first,
                connect(first.url, second.url, reconnect=SOON, on_event=said.append) as connection,
            ):
                sender = connection.sender("either")
                await sender.send(1)
            await until(lambda: bool(said) and said[-1].kind == "closed")
            async with first:
                connection = await connect(first.url, second.url, reconnect=SOON, on_event=said.append)
                sender = connection.sender("either")
                await sender.send(2)
            await until(lambda: said[-1].where.endswith(second.url))
            await sender.send(3)
            assert said[-1].where.endswith(second.url)
            async with first:
                second.connections[0].transport.abort()
                await until(lambda: not connection.healthy)
                await sender.send(4)
                assert said[-1].where.endswith(first.url)
                await connection.close()
        assert [len(broker.of("either")) for broker in (first, second)] == [3, 1]

    play(test())


def test_sends_that_are_cancelled_before_the_broker_gives_credit_leave_no_trace_in_the_window() -> None:
    async def test() -> None:
        async with EngineBroker(credit=0) as broker, connect(broker.url) as connection:
            async with connection.sender("full", window=2) as sender:
                tasks = [asyncio.create_task(sender.send(number)) for number in range(5)]
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                broker.give_credit(10)
                await asyncio.gather(*(sender.send(number) for number in range(10)))
            assert len(broker.of("full")) == 10

    play(test())


def test_a_requester_whose_answers_are_refused_says_so_to_those_who_wait_and_those_who_come() -> None:
    async def test() -> None:
        async with (
            EngineBroker() as broker,
            connect(broker.url, reconnect=SOON) as connection,
            connection.requester("service") as requester,
        ):
            waits = asyncio.create_task(requester.request("?"))
            await until(lambda: len(broker.of("service")) == 1)
            served = broker.connections[0]
            served.outgoing[0].detach("amqp:unauthorized-access", "no right to listen")
            served.write()
            with pytest.raises((LinkError, LostError)):
                await waits
            with pytest.raises(LinkError, match="no right"):
                await requester.request("?")

    play(test())


def test_another_loop_is_told_so() -> None:
    async def test() -> None:
        async with EngineBroker() as broker, connect(broker.url) as connection:
            sender, receiver = connection.sender("loops"), connection.receiver("loops")
            await sender.opened()

            async def elsewhere() -> None:
                for call in (sender.send("x"), receiver.receive(), connection.close(), sender.close()):
                    with pytest.raises(ClientError, match="on the event loop that opened it"):
                        await call
                with pytest.raises(ClientError, match="another one"):
                    sender.send_nowait("x")
                with pytest.raises(ClientError, match="another one"):
                    connection.sender("y")

            await asyncio.to_thread(asyncio.run, elsewhere())
            assert (await sender.send("here")).accepted

    play(test())


def test_a_loop_that_ends_with_an_open_connection_leaves_nothing_open_and_later_calls_say_so() -> None:
    kept: list[Any] = []

    async def test() -> None:
        async with EngineBroker() as broker:
            connection = await connect(broker.url)
            sender, receiver = connection.sender("left"), connection.receiver("left")
            await receiver.opened()
            await sender.send("x")
            kept.extend([connection, sender, receiver, asyncio.create_task(receiver.receive(2))])

    play(test())
    connection, sender, receiver, waits = kept
    assert waits.done()
    assert connection.closed

    async def later() -> None:
        with pytest.raises(ClientError, match="loop"):
            await sender.send("late")
        with pytest.raises(ClientError, match="loop"):
            await receiver.receive()
        await connection.close()

    play(later())


def test_a_link_for_which_the_whole_session_is_ended_is_refused_and_the_others_come_back() -> None:
    async def test() -> None:
        async with EngineBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            broker.missing = {"missing"}
            sender, receiver = connection.sender("there"), connection.receiver("there")
            await asyncio.gather(sender.opened(), receiver.opened())
            refused = [connection.sender("missing"), connection.receiver("missing")]
            last = connection.sender("last")
            for link in refused:
                with pytest.raises(LinkError, match="no queue 'missing'") as raised:
                    await link.opened()
                assert raised.value.condition == "amqp:not-found"
            await last.opened()
            await until(lambda: connection.healthy)
            await sender.send("still there")
            (delivery,) = await receiver.receive(1, timeout=DEADLINE_S)
            assert delivery.body == "still there"
            # One session for each that was refused, and the one that stays.
            assert broker.attempts == 3

    play(test())


@pytest.mark.parametrize("condition", ["amqp:internal-error", "amqp:session:window-violation"])
def test_a_session_that_is_ended_for_no_link_of_it_refuses_none(condition: str) -> None:
    async def test() -> None:
        async with EngineBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("there")
            await sender.opened()
            (served,) = broker.connections
            (session,) = served.engine.sessions.values()
            session.end(condition, "a fault")
            served.write()
            if condition.startswith("amqp:session:"):
                # Attached while the end is on its way, which is not for it.
                connection.receiver("there")
            await until(lambda: broker.attempts == 2)
            await until(lambda: connection.healthy)
            assert (await sender.send("after it")).kind is OutcomeKind.ACCEPTED

    play(test())
