"""Wiring: which kind of sockets is made for an address, and that both kinds are connected with each other."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from lightrail.wire.sockets.counts import SocketCounts
from lightrail.wire.sockets.keys import WireKey
from lightrail.wire.sockets.unix_ends import UnixDealer, UnixRouter
from lightrail.wire.sockets.wiring import Connecting, Listening, Wiring
from lightrail.wire.sockets.zeromq_ends import Dealer, Router
from tests.unit.wire.sockets.conftest import WAIT_S, Run

Parts = list[bytes]
KINDS = pytest.mark.parametrize("on_loop", [True, False], ids=["loop", "zeromq"])
TCP = "tcp://127.0.0.1:0"


class Process:
    """A wiring with its sockets, and what these received."""

    def __init__(self, on_loop: bool, key: WireKey | None = None) -> None:
        self.wiring = Wiring(asyncio.get_running_loop(), key, on_loop=on_loop)
        self.got: list[Parts] = []
        self.names: list[bytes] = []
        self.opens = 0
        self.afters = 0
        self._event = asyncio.Event()
        self._made: list[Listening | Connecting] = []

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for what a callback makes true."""
        while not condition():
            self._event.clear()
            await self._event.wait()

    def listen(self, address: str, send_max: int = 0) -> Listening:
        made = self.wiring.listen(address, self._receive_of, self._after, send_max=send_max)
        self._made.append(made)
        return made

    def connect(self, address: str, name: bytes = b"") -> Connecting:
        made = self.wiring.connect(address, self._receive, self._after, name=name, on_open=self._open)
        self._made.append(made)
        return made

    def _receive_of(self, name: bytes, parts: Parts) -> None:
        self.names.append(name)
        self._receive(parts)

    def _receive(self, parts: Parts) -> None:
        self.got.append(parts)
        self._event.set()

    def _after(self) -> None:
        self.afters += 1
        self._event.set()

    def _open(self) -> None:
        self.opens += 1
        self._event.set()

    def counts(self, on_loop: bool) -> SocketCounts:
        return self.wiring.counts.loop if on_loop else self.wiring.counts.zeromq

    def close(self) -> None:
        for made in self._made:
            made.close()
        self.wiring.close()


@asynccontextmanager
async def processes(*on_loop: bool, key: WireKey | None = None) -> AsyncIterator[list[Process]]:
    made = [Process(each, key) for each in on_loop]
    try:
        yield made
    finally:
        for each in made:
            each.close()


# --- the choice -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_loop", "has_key", "is_ipc", "by_zeromq"),
    [
        (True, False, True, False),
        (True, True, True, True),
        (False, False, True, True),
        (False, True, True, True),
        (True, False, False, True),
        (True, True, False, True),
        (False, False, False, True),
    ],
)
def test_sockets_are_on_the_loop_for_ipc_without_a_key(
    run: Run, tmp_path: Path, on_loop: bool, has_key: bool, is_ipc: bool, by_zeromq: bool
) -> None:
    async def test() -> None:
        key = WireKey(*zmq.curve_keypair()) if has_key else None
        async with processes(on_loop, key=key) as (process,):
            listening = process.listen(f"ipc://{tmp_path}/s" if is_ipc else TCP)
            connecting = process.connect(listening.address, name=b"d")
            assert type(listening) is (Router if by_zeromq else UnixRouter)
            assert type(connecting) is (Dealer if by_zeromq else UnixDealer)
            await process.until(lambda: process.opens == 1)
            assert connecting.send([b"there"])
            await process.until(lambda: process.got == [[b"there"]])
            assert process.names == [b"d"]
            sent = process.wiring.counts
            assert (sent.zeromq.sent, sent.loop.sent) == (by_zeromq, not by_zeromq)

    run(test())


def test_a_wiring_is_on_the_loop_unless_it_is_said(run: Run) -> None:
    async def test() -> None:
        assert Wiring(asyncio.get_running_loop())._on_loop

    run(test())


# --- both kinds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listens_on_loop", [True, False])
@pytest.mark.parametrize("connects_on_loop", [True, False])
def test_both_kinds_are_connected_at_one_path(
    run: Run, tmp_path: Path, listens_on_loop: bool, connects_on_loop: bool
) -> None:
    async def test() -> None:
        async with processes(listens_on_loop, connects_on_loop) as (there, here):
            address = f"ipc://{tmp_path}/s"
            connecting = here.connect(address, name=b"d")
            assert [connecting.is_open, connecting.was_open] == [False, False]
            assert not connecting.send([b"lost"])
            listening = there.listen(address)
            assert listening.address == address
            await here.until(lambda: here.opens == 1)
            assert [connecting.is_open, connecting.was_open] == [True, True]
            large = os.urandom(3 << 20)
            messages = [[b"%d" % number, large if number % 100 == 50 else b""] for number in range(300)]
            for message in messages:
                assert connecting.send(message)
            await there.until(lambda: len(there.got) == 300)
            assert there.got == messages
            assert set(there.names) == {b"d"}
            for message in messages:
                assert listening.send(b"d", message)
            await here.until(lambda: len(here.got) == 300)
            assert here.got == messages
            assert there.afters
            assert here.afters
            assert not listening.send(b"nobody", [b"lost"])

    run(test())


@pytest.mark.parametrize("listens_on_loop", [True, False])
@pytest.mark.parametrize("connects_on_loop", [True, False])
def test_on_open_is_called_for_each_connection(
    run: Run, tmp_path: Path, listens_on_loop: bool, connects_on_loop: bool
) -> None:
    """Also when the next listener is of the other kind."""

    async def test() -> None:
        address = f"ipc://{tmp_path}/s"
        async with processes(connects_on_loop) as (here,):
            connecting = here.connect(address, name=b"d")
            for opens in range(1, 4):
                async with processes(listens_on_loop is (opens != 2)) as (there,):
                    there.listen(address)
                    await here.until(lambda opens=opens: here.opens == opens)  # type: ignore[misc]
                    assert connecting.send([b"%d" % opens])
                    await there.until(lambda there=there: bool(there.got))  # type: ignore[misc]
                    assert there.got == [[b"%d" % opens]]

    run(test())


@KINDS
def test_a_paused_socket_keeps_its_messages(run: Run, tmp_path: Path, on_loop: bool) -> None:
    async def test() -> None:
        async with processes(on_loop, on_loop) as (there, here):
            listening = there.listen(f"ipc://{tmp_path}/s")
            connecting = here.connect(listening.address)
            await here.until(lambda: here.opens == 1)
            listening.is_paused = True
            for number in range(100):
                assert connecting.send([b"%d" % number])
            for _ in range(10):
                await asyncio.sleep(0)
            assert not there.got
            listening.resume()
            await there.until(lambda: len(there.got) == 100)
            assert there.got == [[b"%d" % number] for number in range(100)]

    run(test())


@KINDS
def test_connections_and_messages_are_counted(run: Run, tmp_path: Path, on_loop: bool) -> None:
    """Those of sockets on the loop at both ends; ZeroMQ's listening end does not know its connections."""

    async def test() -> None:
        async with processes(on_loop, on_loop) as (there, here):
            listening = there.listen(f"ipc://{tmp_path}/s")
            connecting = here.connect(listening.address, name=b"d")
            await here.until(lambda: here.opens == 1)
            connecting.send([b"a"])
            connecting.send([b"b"])
            await there.until(lambda: len(there.got) == 2)
            listening.send(b"d", [b"c"])
            await here.until(lambda: bool(here.got))
            mine, theirs = here.counts(on_loop), there.counts(on_loop)
            assert (mine.connections, mine.sent, mine.received, mine.refused) == (1, 2, 1, 0)
            assert (theirs.connections, theirs.sent, theirs.received, theirs.refused) == (on_loop, 1, 2, 0)
            connecting.close()
            assert mine.connections == 0
            unused = here.counts(not on_loop)
            assert (unused.connections, unused.sent, unused.received) == (0, 0, 0)

    run(test())


# --- addresses --------------------------------------------------------------------------------------------


@KINDS
def test_an_ipc_address_that_can_not_be_bound_is_an_os_error(run: Run, tmp_path: Path, on_loop: bool) -> None:
    (tmp_path / "directory").mkdir()

    async def test() -> None:
        async with processes(on_loop) as (process,):
            for path in (f"{tmp_path}/missing/s", f"{tmp_path}/directory", f"{tmp_path}/{'long' * 50}"):
                with pytest.raises(OSError):
                    process.listen(f"ipc://{path}")
            # The process is none the worse.
            listening = process.listen(f"ipc://{tmp_path}/s")
            process.connect(listening.address)
            await process.until(lambda: process.opens == 1)

    run(test())


@KINDS
def test_a_tcp_address_that_can_not_be_bound_is_an_os_error(run: Run, on_loop: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def test() -> None:
            async with processes(on_loop) as (process,):
                for address in (f"tcp://127.0.0.1:{port}", "tcp://nonsense:port", "nonsense"):
                    with pytest.raises(OSError):
                        process.listen(address)

        run(test())


def test_a_tcp_address_that_can_not_be_connected_to_is_an_os_error(run: Run) -> None:
    async def test() -> None:
        async with processes(True) as (process,):
            with pytest.raises(OSError):
                process.connect("tcp://nonsense:port")

    run(test())


@KINDS
def test_the_file_of_a_killed_process_is_replaced(run: Run, tmp_path: Path, on_loop: bool) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(f"{tmp_path}/s")

    async def test() -> None:
        async with processes(on_loop) as (process,):
            listening = process.listen(f"ipc://{tmp_path}/s")
            process.connect(listening.address)
            await process.until(lambda: process.opens == 1)

    run(test())


@KINDS
def test_what_was_sent_is_delivered_behind_the_close(run: Run, tmp_path: Path, on_loop: bool) -> None:
    """It lingers in the wiring, until the other end has read it."""

    async def test() -> None:
        async with processes(on_loop, on_loop) as (there, here):
            listening = there.listen(f"ipc://{tmp_path}/s")
            connecting = here.connect(listening.address, name=b"d")
            await here.until(lambda: here.opens == 1)
            large = os.urandom(4 << 20)
            assert connecting.send([large, large])
            connecting.close(WAIT_S * 1_000)
            await there.until(lambda: bool(there.got))
            assert there.got == [[large, large]]

    run(test())
