"""Connections over unix sockets that are closed with something to send: it lingers, and for how long."""

import asyncio
import socket
import threading
import time
from pathlib import Path

import pytest

from lightrail.wire.sockets import wiring as wirings
from tests.support import zmtp
from tests.unit.wire.sockets.conftest import WAIT_S, Run
from tests.unit.wire.sockets.ends import DealerEnd, RawListener, RawPeer, RouterEnd, Scene, scene

LARGE = bytes(4 << 20)


async def lingering(made: Scene, linger_ms: int) -> RawPeer:
    """A router with 8 MiB and a message for a peer has been closed."""
    router = RouterEnd(made)
    peer = await made.raw()
    await made.until(lambda: bool(router.names))
    router.send(b"raw", [LARGE, LARGE])
    router.send(b"raw", [b"last"])
    router.close(linger_ms)
    return peer


def test_what_waits_is_delivered_before_the_connection_ends(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            peer = await lingering(made, WAIT_S * 1_000)
            assert not made.has_file()
            await peer.handshake()
            assert await peer.message() == [LARGE, LARGE]
            assert await peer.message() == [b"last"]
            assert await peer.ended() == b""
            assert made.counts.connections == 0

    run(test())


def test_a_dealer_delivers_what_waits_before_it_ends(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            listener = RawListener(made)
            dealer = DealerEnd(made)
            peer = await listener.accept()
            await made.until(lambda: dealer.is_open)
            dealer.send([LARGE])
            dealer.close(WAIT_S * 1_000)
            assert not dealer.send([b"lost"])
            await peer.handshake()
            assert await peer.message() == [LARGE]
            assert await peer.ended() == b""
            listener.close()

    run(test())


def test_without_lingering_what_waits_is_lost(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            peer = await lingering(made, 0)
            assert made.counts.connections == 0
            assert len(await peer.ended()) < len(LARGE)

    run(test())


def test_lingering_ends_with_its_time(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            peer = await lingering(made, 1)
            (connection,) = made.wiring._lingering
            # Nobody reads until the time is over.
            while not connection.is_closed:  # noqa: ASYNC110 - no callback tells it
                await asyncio.sleep(0.001)
            assert not made.wiring._lingering
            assert len(await peer.ended()) < len(LARGE)

    run(test())


def test_a_lingering_connection_whose_peer_ends_is_closed(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            peer = await lingering(made, WAIT_S * 1_000)
            (connection,) = made.wiring._lingering
            peer.close()
            await made.turns()
            assert connection.is_closed
            assert made.counts.connections == 0

    run(test())


def reads_all(connected: socket.socket, found: list[int]) -> None:
    """A reader in a thread, who takes small pieces: as many octets as there were are put into `found`."""
    with connected:
        connected.settimeout(WAIT_S)
        size = 0
        while more := connected.recv(100_000):
            size += len(more)
    found.append(size)


def test_the_end_of_a_process_waits_for_a_slow_reader(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the time of the socket itself was shorter, as no timer runs meanwhile."""
    monkeypatch.setattr(wirings, "LINGER_S", WAIT_S)
    found: list[int] = []

    async def test() -> None:
        async with scene(tmp_path) as made:
            peer = await lingering(made, 1)
            reader = threading.Thread(target=reads_all, args=(peer.socket.dup(), found))
            reader.start()
            made.wiring.close()
            reader.join()

    run(test())
    frames = [zmtp.message([LARGE, LARGE]), zmtp.message([b"last"]), zmtp.ready(b"ROUTER")]
    assert found == [sum(map(len, frames))]


def test_the_end_of_a_process_does_not_wait_longer_than_its_time(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wirings, "LINGER_S", 0.01)

    async def test() -> None:
        async with scene(tmp_path) as made:
            peer = await lingering(made, WAIT_S * 1_000)
            made.wiring.close()
            assert made.counts.connections == 0
            assert len(await peer.ended()) < len(LARGE)

    run(test())


def test_what_waits_is_not_sent_after_the_time_even_if_the_peer_reads(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            peer = await lingering(made, WAIT_S * 1_000)
            (connection,) = made.wiring._lingering
            real = connection._socket
            sent: list[bytes] = []

            class Socket:
                def __getattr__(self, name: str) -> object:
                    return getattr(real, name)

                def sendall(self, data: bytes) -> None:
                    sent.append(data)

            connection._socket = Socket()  # type: ignore[assignment]
            connection.finish(time.monotonic())
            assert connection.is_closed
            assert not sent
            await peer.ended()

    run(test())
