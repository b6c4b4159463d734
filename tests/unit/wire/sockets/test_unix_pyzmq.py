"""UnixRouter and UnixDealer with libzmq at the other end, at the same ipc:// addresses."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from lightrail.wire.sockets.unix import UnixConnection
from lightrail.wire.sockets.zmtp import ZmtpReader
from tests.unit.wire.sockets.conftest import WAIT_S, Run
from tests.unit.wire.sockets.ends import DealerEnd, RouterEnd, Scene, scene

Socket = zmq.Socket[bytes]
SIZES = (0, 1, 255, 256, 65_535, 65_536, 65_537, 512 * 1024, (3 << 20) + 5)
HEARTBEAT_MS = 1


@asynccontextmanager
async def zeromq() -> AsyncIterator[Callable[[int], Socket]]:
    """Makes sockets, without bounds of messages that wait."""
    context: zmq.Context[Socket] = zmq.Context()

    def make(kind: int) -> Socket:
        made = context.socket(kind)
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            made.setsockopt(option, 0)
        made.setsockopt(zmq.RCVTIMEO, WAIT_S * 1_000)
        made.setsockopt(zmq.RECONNECT_IVL, 1)
        return made

    try:
        yield make
    finally:
        context.destroy(0)


def dealer_to(made: Scene, make: Callable[[int], Socket], name: bytes = b"") -> Socket:
    dealer = make(zmq.DEALER)
    if name:
        dealer.setsockopt(zmq.ROUTING_ID, name)
    dealer.connect(f"ipc://{made.path}")
    return dealer


def router_at(made: Scene, make: Callable[[int], Socket]) -> Socket:
    router = make(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.bind(f"ipc://{made.path}")
    return router


async def received(socket: Socket, count: int) -> list[list[bytes]]:
    """So many messages, read in a thread."""
    return await asyncio.to_thread(lambda: [socket.recv_multipart() for _ in range(count)])


def messages() -> list[list[bytes]]:
    chance = random.Random(2)
    parts = [chance.randbytes(size) for size in SIZES]
    return [*([part] for part in parts), parts, [b""] * 50]


def test_a_dealer_of_libzmq_exchanges_parts_of_all_sizes(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made, zeromq() as make:
            router = RouterEnd(made)
            dealer = dealer_to(made, make, b"z")
            for message in messages():
                dealer.send_multipart(message)
            await made.until(lambda: len(router.got) == len(messages()))
            assert router.of(b"z") == messages()
            for message in messages():
                assert router.send(b"z", message)
            assert await received(dealer, len(messages())) == messages()

    run(test())


def test_a_router_of_libzmq_exchanges_parts_of_all_sizes(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made, zeromq() as make:
            router = router_at(made, make)
            dealer = DealerEnd(made, name=b"d")
            await made.until(lambda: dealer.is_open)
            for message in messages():
                assert dealer.send(message)
            assert await received(router, len(messages())) == [[b"d", *message] for message in messages()]
            for message in messages():
                router.send_multipart([b"d", *message])
            await made.until(lambda: len(dealer.got) == len(messages()))
            assert dealer.got == messages()

    run(test())


@pytest.mark.parametrize("zmq_listens", [True, False])
def test_thousands_of_messages_pass_both_ways_at_once_in_order(
    run: Run, tmp_path: Path, zmq_listens: bool
) -> None:
    count = 10_000

    def sends_and_receives(other: Socket, head: list[bytes]) -> list[list[bytes]]:
        for number in range(count):
            other.send_multipart([*head, b"%d" % number, b"x" * (number % 400)])
        return [other.recv_multipart() for _ in range(count)]

    async def test() -> None:
        async with scene(tmp_path) as made, zeromq() as make:
            if zmq_listens:
                other, head = router_at(made, make), [b"d"]
                dealer = DealerEnd(made, name=b"d")
                await made.until(lambda: dealer.is_open)
                dealer.send([b"hello"])
                # libzmq knows the name from here on.
                await received(other, 1)
                send, got = dealer.send, dealer.got
            else:
                router = RouterEnd(made)
                other, head = dealer_to(made, make, b"d"), []
                await made.until(lambda: router.names == [b"d"])
                send, got = (lambda parts: router.send(b"d", parts)), [parts for _, parts in router.got]
                router.on_message = lambda name, parts: got.append(parts)
            answers = asyncio.create_task(asyncio.to_thread(sends_and_receives, other, head))
            for number in range(count):
                assert send([b"%d" % number, b"y" * (number % 400)])
                if number % 100 == 0:
                    await asyncio.sleep(0)
            await made.until(lambda: len(got) == count)
            assert got == [[b"%d" % number, b"x" * (number % 400)] for number in range(count)]
            assert await answers == [
                [*head, b"%d" % number, b"y" * (number % 400)] for number in range(count)
            ]

    run(test())


def test_ping_pong_with_libzmq_needs_nothing_else_to_go_on(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made, zeromq() as make:
            router = RouterEnd(made)

            def answer(name: bytes, parts: list[bytes]) -> None:
                assert router.send(name, parts)

            router.on_message = answer
            dealer = dealer_to(made, make)

            def ping_pong() -> int:
                for number in range(1_000):
                    dealer.send_multipart([b"%d" % number, b""])
                    assert dealer.recv_multipart() == [b"%d" % number, b""]
                return number

            assert await asyncio.to_thread(ping_pong) == 999

    run(test())


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each command that arrived: whether it was between two parts of a message."""
    found: list[bool] = []
    real = ZmtpReader._command

    def command(reader: ZmtpReader, body: bytes) -> None:
        found.append(bool(reader._parts))
        real(reader, body)

    monkeypatch.setattr(ZmtpReader, "_command", command)
    return found


async def with_heartbeats(made: Scene, make: Callable[[int], Socket], timeout_ms: int) -> Socket:
    """A dealer `z`, which ends a connection whose other end does not answer in this time."""
    dealer = make(zmq.DEALER)
    dealer.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, timeout_ms)
    dealer.setsockopt(zmq.ROUTING_ID, b"z")
    dealer.connect(f"ipc://{made.path}")
    return dealer


def test_the_heartbeats_of_libzmq_are_answered(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made, zeromq() as make:
            router = RouterEnd(made)
            answers: list[bytes] = []
            enough = asyncio.Event()
            real = UnixConnection._send_octets

            def send_octets(connection: UnixConnection, data: bytes) -> None:
                answers.append(data)
                real(connection, data)
                if len(answers) == 20:
                    enough.set()

            monkeypatch.setattr(UnixConnection, "_send_octets", send_octets)
            dealer = await with_heartbeats(made, make, WAIT_S * 1_000)
            await enough.wait()
            assert set(b"".join(answers).split(b"\4\5\4PONG")) == {b""}
            dealer.send(b"still the same connection")
            await made.until(lambda: router.of(b"z") == [[b"still the same connection"]])
            assert (router.names, router.ends) == ([b"z"], 0)

    run(test())


def test_heartbeats_of_libzmq_between_the_parts_of_a_message_do_no_harm(
    run: Run, tmp_path: Path, commands: list[bool]
) -> None:
    """libzmq pings when its time has come, also in the middle of a message that waits to be read."""

    async def test() -> None:
        async with scene(tmp_path) as made, zeromq() as make:
            router = RouterEnd(made)
            dealer = await with_heartbeats(made, make, WAIT_S * 1_000)
            await made.until(lambda: router.names == [b"z"])
            large = os.urandom(300_000)
            expected = []
            while not any(commands):
                router.is_paused = True
                for number in range(5):
                    expected.append([b"%d" % number, large, large, large])
                    dealer.send_multipart(expected[-1])
                # Time of libzmq's clock, for it to ping; if that was not in a message, it is tried again.
                await asyncio.sleep(2 * HEARTBEAT_MS / 1_000)
                router.resume()
                await made.until(lambda: len(router.got) == len(expected) or bool(router.ends))
                assert router.of(b"z") == expected
            assert (router.names, router.ends) == ([b"z"], 0)

    run(test())


def test_names_that_libzmq_gives_and_names_that_are_drawn_for_it(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made, zeromq() as make:
            router = RouterEnd(made)
            longest = b"n" * 255
            dealers = [dealer_to(made, make, name) for name in (b"z", longest, b"", b"")]
            await made.until(lambda: len(router.names) == 4)
            drawn = set(router.names) - {b"z", longest}
            assert len(drawn) == 2
            for name in router.names:
                assert router.send(name, [name])
            found = {(await received(dealer, 1))[0][0] for dealer in dealers}
            assert found == {b"z", longest, *drawn}

    run(test())


def test_libzmq_draws_a_name_for_a_dealer_without_one(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made, zeromq() as make:
            router = router_at(made, make)
            dealers = [DealerEnd(made) for _ in range(2)]
            await made.until(lambda: all(dealer.is_open for dealer in dealers))
            for number, dealer in enumerate(dealers):
                dealer.send([b"%d" % number])
            names = {parts[1]: parts[0] for parts in await received(router, 2)}
            router.send_multipart([names[b"0"], b"to 0"])
            router.send_multipart([names[b"1"], b"to 1"])
            await made.until(lambda: all(dealer.got for dealer in dealers))
            assert [dealer.got for dealer in dealers] == [[[b"to 0"]], [[b"to 1"]]]

    run(test())


def test_a_dealer_of_libzmq_takes_over_the_name_of_another_one(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made, zeromq() as make:
            router = RouterEnd(made)
            first = make(zmq.DEALER)
            first.setsockopt(zmq.RECONNECT_IVL, -1)
            first.setsockopt(zmq.ROUTING_ID, b"z")
            first.connect(f"ipc://{made.path}")
            await made.until(lambda: router.names == [b"z"])
            second = dealer_to(made, make, b"z")
            await made.until(lambda: router.names == [b"z", b"z"])
            assert router.send(b"z", [b"to the second"])
            assert await received(second, 1) == [[b"to the second"]]
            second.send(b"from the second")
            await made.until(lambda: router.of(b"z") == [[b"from the second"]])
            assert not first.poll(0)

    run(test())


def test_a_dealer_takes_over_the_name_of_another_one_at_a_router_of_libzmq(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made, zeromq() as make:
            router = router_at(made, make)
            first = DealerEnd(made, name=b"d")
            await made.until(lambda: first.is_open)
            first.send([b"1"])
            await received(router, 1)
            first.close()
            second = DealerEnd(made, name=b"d")
            await made.until(lambda: second.is_open)
            second.send([b"2"])
            assert await received(router, 1) == [[b"d", b"2"]]
            router.send_multipart([b"d", b"to the second"])
            await made.until(lambda: second.got == [[b"to the second"]])

    run(test())


def test_each_end_finds_the_next_listener_of_the_other_kind(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made, zeromq() as make:
            router, dealer = await made.pair()
            foreign = dealer_to(made, make, b"z")
            await made.until(lambda: b"z" in router.names)
            router.close()
            await made.until(lambda: dealer.ends == 1)
            listener = router_at(made, make)
            await made.until(lambda: dealer.opens == 2)
            dealer.send([b"mine"])
            await asyncio.to_thread(foreign.send, b"foreign")
            found = await received(listener, 2)
            assert sorted(found) == [[b"d", b"mine"], [b"z", b"foreign"]]
            listener.close(0)
            await made.until(lambda: dealer.ends == 2)
            again = RouterEnd(made)
            await made.until(lambda: set(again.names) == {b"d", b"z"})

    run(test())
