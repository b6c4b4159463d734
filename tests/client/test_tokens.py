"""The client against a broker: who shows tokens is let in by them, and shows the next one in time."""

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from urllib.request import Request, urlopen

import pytest

from lightrail.client import AuthenticationError, ConnectError, Event, Token, connect
from tests.client.conftest import play
from tests.interop.test_proton_security import admin
from tests.support.broker import Broker
from tests.support.namespace import permit


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("tokens") / "data"
    admin(data, "user", "add", "ann", password="a password")
    permit(data, "ann", "a", "send", "listen")
    with Broker(data, "--allow-anonymous", "true") as broker:
        yield broker


def token_of(broker: Broker, ttl: int) -> Token:
    secret = base64.b64encode(b"ann:a password").decode()
    request = Request(
        f"http://{broker.http}/!tokens",
        json.dumps({"ttl": ttl}).encode(),
        {"Authorization": f"Basic {secret}", "Content-Type": "application/json"},
    )
    with urlopen(request) as response:
        # Tokens end with a second.
        return Token(json.load(response)["token"], int(time.time()) + ttl)


def test_links_stay_open_beyond_the_life_of_a_token(guarded: Broker) -> None:
    shown: list[Token] = []

    def source() -> Token:
        shown.append(token_of(guarded, 4))
        return shown[-1]

    async def test() -> None:
        events: list[Event] = []
        async with (
            connect(guarded.amqp, token=source, on_event=events.append) as connection,
            connection.sender("a/q") as sender,
            connection.receiver("a/q") as receiver,
        ):
            first_ends = shown[0].expires_at
            assert first_ends is not None
            while len(shown) < 2 or time.time() < first_ends + 0.5:
                await sender.send("x")
                [delivery] = await receiver.receive(timeout=10)
                await delivery.accept()
                await asyncio.sleep(0.02)
            assert [event.kind for event in events] == ["connected"]

    play(test())


def refused(_: Broker) -> Token:
    return Token("nonsense")


def broken(_: Broker) -> Token:
    raise OSError("the authority is down")


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (refused, AuthenticationError, "refused the token"),
        (broken, ConnectError, "the token source failed: the authority is down"),
    ],
)
def test_a_token_that_is_refused_or_not_there_is_reported(
    guarded: Broker, source: Callable[[Broker], Token], error: type[Exception], words: str
) -> None:
    async def test() -> None:
        with pytest.raises(error, match=words):
            await connect(guarded.amqp, token=lambda: source(guarded))

    play(test())


def test_where_no_next_token_can_be_had_the_connection_is_lost_and_comes_back_with_one(
    guarded: Broker,
) -> None:
    given = 0

    async def source() -> Token:
        nonlocal given
        given += 1
        if 2 <= given <= 4:
            raise OSError("the authority is down")
        return token_of(guarded, 2)

    async def test() -> None:
        lost = asyncio.Event()
        again = asyncio.Event()

        def watch(event: Event) -> None:
            if event.kind == "lost":
                lost.set()
            elif event.kind == "connected" and lost.is_set():
                again.set()

        async with (
            connect(guarded.amqp, token=source, on_event=watch) as connection,
            connection.sender("a/q2") as sender,
        ):
            await lost.wait()
            await again.wait()
            assert (await sender.send("x")).accepted

    play(test())


def test_a_token_is_not_shown_by_its_repr() -> None:
    assert "secret" not in repr(Token("secret"))
