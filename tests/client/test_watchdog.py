"""What changes at the broker while a connection is there: names, rights, passwords, addresses. It comes back
by itself or is reported, and nothing is repeated for ever."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightrail.cli import admin
from lightrail.client import (
    AuthenticationError,
    Connection,
    Event,
    LinkError,
    NotAllowedError,
    ReconnectPolicy,
    SendError,
    connect,
)
from lightrail.client.management import QUEUE
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.amqp.returning_broker import ReturningBroker
from tests.support.broker import Broker

DEADLINE_S = 60.0
SOON = ReconnectPolicy(first=0.02, longest=0.2)


def play(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


async def until(condition: Callable[[], bool]) -> None:
    """Lets everything go on until something is so; the test has a deadline of its own."""
    while not condition():  # noqa: ASYNC110 - whatever it is that happens
        await asyncio.sleep(0.005)


USERS = ("ann", "bob", "eve")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReturningBroker]:
    """With a user for each test, whose password is pencil."""
    data = tmp_path_factory.mktemp("secured") / "data"
    for user in USERS:
        administer(data, user, "user", "add", password="pencil")
    started = ReturningBroker(data)
    yield started
    started.stop()


def administer(
    data: Path, user: str, thing: str, action: str, *more: str, password: str | None = None
) -> None:
    words = ["--data", str(data), thing, action, user, *more]
    if password is not None:
        file = data.with_name("password")
        file.write_text(password + "\n")
        words += ["--password-file", str(file)]
    assert admin.main(words) == 0


async def change(
    data: Path, user: str, thing: str, action: str, *more: str, password: str | None = None
) -> None:
    """In a thread: the command runs a loop of its own."""
    await asyncio.to_thread(partial(administer, data, user, thing, action, *more, password=password))


def test_a_queue_that_is_deleted_is_reported_and_the_one_made_after_it_is_another(broker: Broker) -> None:
    async def test() -> None:
        said: list[Event] = []
        async with (
            connect(broker.amqp, reconnect=SOON, on_event=said.append) as connection,
            connection.management() as management,
        ):
            await management.create(QUEUE, "deleted")
            sender, receiver = connection.sender("deleted"), connection.receiver("deleted")
            await sender.send("before")
            assert (await anext(receiver)).body == "before"
            waits = asyncio.create_task(receiver.receive())
            await management.delete("deleted")
            with pytest.raises(LinkError, match="deleted"):
                await waits
            with pytest.raises(LinkError, match="deleted"):
                await sender.send("late")
            assert {event.kind for event in said} == {"connected", "link-lost"}
            assert connection.healthy, "what is refused for good is wanted no more"
            await management.create(QUEUE, "deleted")
            async with connection.sender("deleted") as again, connection.receiver("deleted") as found:
                await again.send("after")
                delivery = await anext(found)
                assert delivery.body == "after"
                await delivery.accept()

    play(test())


def test_a_password_that_changed_is_reported_to_everyone_who_waits_and_not_tried_again(
    secured: ReturningBroker,
) -> None:
    async def test() -> None:
        said: list[Event] = []
        async with connect(
            f"amqp://ann:pencil@{secured.url}", reconnect=SOON, on_event=said.append
        ) as connection:
            sender, receiver = connection.sender("private"), connection.receiver("private")
            await sender.send("x")
            await (await anext(receiver)).accept()
            waits = asyncio.create_task(receiver.receive())
            await asyncio.to_thread(secured.kill)
            await until(lambda: not connection.healthy)
            answer = sender.send_nowait("waits")
            await change(secured.data, "ann", "user", "password", password="another")
            await asyncio.to_thread(secured.start)
            for waiting in (waits, answer):
                with pytest.raises(AuthenticationError, match="refused"):
                    await waiting
            assert connection.closed
            assert said[-1].kind == "closed"
            assert "refused" in said[-1].reason
        count = len(said)
        async with connect(f"amqp://ann:another@{secured.url}") as connection:
            await connection.sender("private").send("again")
        assert len(said) == count, "the first one tried nothing meanwhile"

    play(test())


def test_a_right_that_was_withdrawn_is_reported_and_works_again_for_who_opens_anew(
    secured: ReturningBroker,
) -> None:
    async def test() -> None:
        said: list[Event] = []
        async with connect(
            f"amqp://bob:pencil@{secured.url}", reconnect=SOON, on_event=said.append
        ) as connection:
            sender, receiver = connection.sender("rights"), connection.receiver("other/name")
            await sender.send("x")
            await receiver.opened()
            await asyncio.to_thread(secured.kill)
            await change(secured.data, "bob", "permission", "set", "/", "listen")
            await asyncio.to_thread(secured.start)
            with pytest.raises((NotAllowedError, SendError)):
                await sender.send("no right")
            with pytest.raises(NotAllowedError):
                await sender.send("no right")
            await until(lambda: connection.healthy)
            assert receiver.healthy, "the others go on"
            assert [event.kind for event in said].count("link-lost") == 1
            await asyncio.to_thread(secured.kill)
            await change(secured.data, "bob", "permission", "set", "/", "all")
            await asyncio.to_thread(secured.start)
            await until(lambda: connection.healthy)
            async with connection.sender("rights") as again:
                assert (await again.send("allowed")).accepted

    play(test())


def test_a_wrong_password_is_reported_and_not_repeated(secured: ReturningBroker) -> None:
    async def test() -> None:
        async with connect(f"amqp://eve:pencil@{secured.url}") as connection:
            assert connection.healthy
        said: list[Event] = []
        with pytest.raises(AuthenticationError, match="refused"):
            await connect(f"amqp://eve:wrong@{secured.url}", on_event=said.append)
        assert [event.kind for event in said] == ["closed"]
        # Who does not log in may put a token, and can do nothing else.
        async with connect(secured.url) as connection:
            with pytest.raises(LinkError, match="neither a user nor a token: log in"):
                await sent(connection, "q")

    play(test())


async def sent(connection: Connection, name: str) -> None:
    async with connection.sender(name) as sender:
        assert (await sender.send("x")).accepted


def test_the_second_address_is_used_while_the_first_one_is_dead_in_every_round(
    broker: Broker, proxy: CuttingProxy
) -> None:
    async def test() -> None:
        said: list[Event] = []
        async with connect(proxy.url, broker.amqp, reconnect=SOON, on_event=said.append) as connection:
            await sent(connection, "either")
            assert said[-1].where.endswith(proxy.url)
            await asyncio.to_thread(proxy.close)
            await until(lambda: not connection.healthy)
            await until(lambda: connection.healthy)
            await sent(connection, "either")
            assert said[-1].where.endswith(broker.amqp)
            began = time.monotonic()
        assert time.monotonic() - began < 5.0, "it closes at once"

    play(test())
