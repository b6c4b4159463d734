"""Dealer: connections that end anywhere, in the bytes of ZMTP, end no process, and lose no whole message."""

import asyncio
import errno
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
import zmq

from lightrail.wire.sockets import zeromq_ends as dealers
from lightrail.wire.sockets.zeromq import MESSAGES_PER_TURN, LoopSocket
from lightrail.wire.sockets.zeromq_ends import HALF_SENT_MS, Dealer
from tests.support import zmtp

WAIT_S = 20
Context = zmq.Context[zmq.Socket[bytes]]


class Client:
    """A Dealer that keeps what it receives."""

    def __init__(self, context: Context, address: str, name: bytes = b"") -> None:
        self.got: list[list[bytes]] = []
        self.dealer = Dealer(
            asyncio.get_running_loop(),
            context,
            address,
            self.got.append,
            lambda: None,
            receive_max=0,
            name=name,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 - ZeroMQ's events
                await asyncio.sleep(0.001)

    def stands_still_until_something_arrives(self, where: LoopSocket) -> None:
        """The loop does nothing meanwhile, and looks at the socket afterwards, as this uses up its edge."""
        assert where._socket.poll(WAIT_S * 1_000)
        where._schedule()

    async def opens(self) -> None:
        await self.until(lambda: self.dealer.is_open)

    async def loses(self) -> None:
        await self.until(lambda: not self.dealer.is_open)


class Listener:
    """The other end, by hand."""

    def __init__(self, port: int = 0) -> None:
        self.socket = socket.create_server(("127.0.0.1", port))
        self.socket.settimeout(WAIT_S)
        self.port: int = self.socket.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"

    async def accept(self) -> socket.socket:
        """A connection behind its handshake."""
        return await asyncio.to_thread(self._accept)

    def _accept(self) -> socket.socket:
        connection = self.socket.accept()[0]
        connection.settimeout(WAIT_S)
        connection.sendall(zmtp.ready(b"ROUTER"))
        zmtp.read_handshake(connection)
        return connection


Test = Callable[[Context, Listener], Coroutine[None, None, None]]


def run(test: Test) -> None:
    context: Context = zmq.Context()
    listener = Listener()
    try:
        asyncio.run(test(context, listener))
    finally:
        listener.socket.close()
        context.term()


@asynccontextmanager
async def connected(context: Context, listener: Listener) -> AsyncIterator[tuple[Client, socket.socket]]:
    client = Client(context, listener.address)
    try:
        connection = await listener.accept()
        await client.opens()
        yield client, connection
        connection.close()
    finally:
        client.dealer.close()


@pytest.mark.parametrize("end", [socket.socket.close, zmtp.reset])
@pytest.mark.parametrize("parts", [1, 99, 100, 101, 350])
def test_a_peer_that_ends_while_its_message_is_read_ends_nothing(
    parts: int, end: Callable[[socket.socket], None]
) -> None:
    """ZeroMQ looks at the end of the connection after 100 parts: in the middle of the message."""

    async def test(context: Context, listener: Listener) -> None:
        async with connected(context, listener) as (client, connection):
            whole = [b"%d" % number for number in range(parts)]
            connection.sendall(zmtp.message([b"first"]))
            await client.until(lambda: bool(client.got))
            connection.sendall(zmtp.message(whole))
            # The loop does nothing until ZeroMQ's thread has received the message, and then the end.
            client.stands_still_until_something_arrives(client.dealer)
            end(connection)
            client.stands_still_until_something_arrives(client.dealer._events)
            await client.loses()
            await client.until(lambda: len(client.got) == 2)
            assert client.got[1] == whole

    run(test)


@pytest.mark.parametrize("end", [socket.socket.close, zmtp.reset])
def test_a_message_that_lacks_its_last_part_is_not_received(end: Callable[[socket.socket], None]) -> None:
    async def test(context: Context, listener: Listener) -> None:
        async with connected(context, listener) as (client, connection):
            half = zmtp.message([b"x" * 1_000] * 300, is_whole=False)
            connection.sendall(zmtp.message([b"whole"]) + half)
            await client.until(lambda: bool(client.got))
            end(connection)
            await client.loses()
            again = await listener.accept()
            again.sendall(zmtp.message([b"next"]))
            await client.until(lambda: len(client.got) > 1)
            assert client.got == [[b"whole"], [b"next"]]
            again.close()

    run(test)


def test_all_messages_that_arrived_before_the_loss_are_read() -> None:
    """More than fit into a turn of the loop, and the pause before the next connection is over."""

    async def test(context: Context, listener: Listener) -> None:
        async with connected(context, listener) as (client, connection):
            count = 5 * MESSAGES_PER_TURN
            client.dealer.messages_per_turn = 2
            connection.sendall(b"".join(zmtp.message([b"%d" % number, b""]) for number in range(count)))
            connection.close()
            again = await listener.accept()
            again.sendall(zmtp.message([b"next"]))
            await client.until(lambda: client.got[-1:] == [[b"next"]])
            assert [int(parts[0]) for parts in client.got[:-1]] == list(range(count))
            again.close()

    run(test)


def test_what_was_not_sent_before_the_loss_is_not_sent_to_the_successor() -> None:
    async def test(context: Context, listener: Listener) -> None:
        async with connected(context, listener) as (client, connection):
            large = b"x" * 1_000_000
            for _ in range(30):
                assert client.dealer.send([large, large])
            zmtp.reset(connection)
            await client.loses()
            assert not client.dealer.send([b"lost"])
            again = await listener.accept()
            await client.opens()
            assert client.dealer.send([b"new"])
            assert zmtp.read(again, 5) == zmtp.message([b"new"])
            again.close()

    run(test)


def test_a_socket_that_is_closed_with_a_message_half_sent_ends_nothing() -> None:
    """The peer ends at the same moment, which is repeated, as its order is that of threads."""

    async def test(context: Context, listener: Listener) -> None:
        large = b"x" * 8_000_000
        for _ in range(30):
            async with connected(context, listener) as (client, connection):
                assert client.dealer.send([b"a", large, b"z"])
                zmtp.read(connection, 10)
                end = threading.Thread(target=zmtp.reset, args=(connection,))
                end.start()
                client.dealer.close()
                end.join()

    run(test)


def test_a_socket_whose_connection_is_lost_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it could not send would hold up the end of its context."""
    lingers: list[int] = []
    real = LoopSocket.close

    def close(ends: LoopSocket, linger_ms: int = 0) -> None:
        lingers.append(linger_ms)
        real(ends, linger_ms)

    async def test(context: Context, listener: Listener) -> None:
        async with connected(context, listener) as (client, connection):
            zmtp.reset(connection)
            # The loop does nothing until ZeroMQ's thread has noticed it.
            assert client.dealer._events._socket.poll(WAIT_S * 1_000)
            assert client.dealer.send([b"lost"])
            monkeypatch.setattr(LoopSocket, "close", close)
            client.dealer.close(HALF_SENT_MS)
            assert lingers == [0, 0]

    run(test)


def test_a_peer_that_does_not_speak_zmtp_is_tried_again() -> None:
    async def test(context: Context, listener: Listener) -> None:
        client = Client(context, listener.address)
        for nonsense in (
            b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10,
            b"\xff" * 100,
            b"",
            zmtp.GREETING + b"\7" * 99,
        ):
            other = (await asyncio.to_thread(listener.socket.accept))[0]
            other.sendall(nonsense)
            other.close()
            assert not client.dealer.is_open
        connection = await listener.accept()
        await client.opens()
        connection.close()
        client.dealer.close()

    run(test)


def test_a_wrong_frame_ends_the_connection_and_the_next_one_is_used() -> None:
    async def test(context: Context, listener: Listener) -> None:
        async with connected(context, listener) as (client, connection):
            connection.sendall(zmtp.message([b"whole"]) + zmtp.part(b"half", True) + zmtp.too_large())
            await client.loses()
            again = await listener.accept()
            again.sendall(zmtp.message([b"next"]))
            await client.until(lambda: len(client.got) > 1)
            assert client.got == [[b"whole"], [b"next"]]
            again.close()

    run(test)


def pauses_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Milliseconds before each attempt to connect again."""
    pauses: list[int] = []
    real = Dealer._pause

    def pause(dealer: Dealer) -> None:
        pauses.append(dealer._pause_ms)
        real(dealer)

    monkeypatch.setattr(Dealer, "_pause", pause)
    return pauses


def test_the_pause_between_attempts_grows_to_its_most_and_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dealers, "RECONNECT_MS", 5)
    monkeypatch.setattr(dealers, "RECONNECT_MS_MAX", 12)
    pauses = pauses_of(monkeypatch)

    async def test(context: Context, listener: Listener) -> None:
        client = Client(context, listener.address)
        listener.socket.close()
        await client.until(lambda: len(pauses) == 4)
        assert pauses == [5, 10, 12, 12]
        again = Listener(listener.port)
        connection = await again.accept()
        await client.opens()
        del pauses[:]
        connection.close()
        await client.loses()
        assert pauses == [5]
        client.dealer.close()
        again.socket.close()

    run(test)


def test_a_process_without_a_free_file_descriptor_tries_to_connect_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(context: Context, listener: Listener) -> None:
        async with connected(context, listener) as (client, connection):
            real = context.socket
            failures: list[int] = [zmq.PAIR, zmq.DEALER]

            def fails(kind: int) -> "zmq.Socket[bytes]":
                if kind in failures:
                    failures.remove(kind)
                    raise zmq.ZMQError(errno.EMFILE)
                return real(kind)

            monkeypatch.setattr(context, "socket", fails)
            connection.close()
            again = await listener.accept()
            await client.opens()
            assert not failures
            again.close()

    run(test)
    assert caplog.text.count("Too many open files") == 2
