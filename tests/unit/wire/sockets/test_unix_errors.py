"""Unix sockets whose system calls fail: without a free file descriptor, or without memory."""

import errno
import os
import socket
from pathlib import Path

import pytest

from lightrail.wire.sockets import unix_ends
from tests.unit.wire.sockets.conftest import Run
from tests.unit.wire.sockets.ends import DealerEnd, RouterEnd, scene


def fails_once(error: int) -> "type[socket.socket]":
    """Sockets, of which the first one can't be made."""
    failures = [OSError(error, os.strerror(error))]

    class Fails(socket.socket):
        def __new__(cls, *args: object, **named: object) -> "Fails":
            if failures:
                raise failures.pop()
            return super().__new__(cls)

    return Fails


def test_a_dealer_without_a_free_file_descriptor_connects_later(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            monkeypatch.setattr(socket, "socket", fails_once(errno.EMFILE))
            router._connections[b"d"].close()
            await made.until(lambda: dealer.opens == 2)

    run(test())
    assert "Too many open files" in caplog.text


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_router_without_a_free_file_descriptor_accepts_later(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(unix_ends, "NO_FILE_S", 0)

    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            real = router._listening
            failures = [error, error]

            class Listening:
                def __getattr__(self, name: str) -> object:
                    return getattr(real, name)

                def accept(self) -> object:
                    if failures:
                        raise OSError(failures.pop(), "on purpose")
                    return real.accept()

            router._listening = Listening()  # type: ignore[assignment]
            dealer = DealerEnd(made, name=b"d")
            await made.until(lambda: dealer.is_open)
            assert not failures

    run(test())


def test_a_router_that_is_closed_while_it_waits_for_a_file_descriptor_stays_closed(
    run: Run, tmp_path: Path
) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            router.close()
            # A closed socket has no number: watching it would raise.
            router._accept_again()

    run(test())


def test_a_connection_that_the_system_can_not_write_ends_and_is_made_again(run: Run, tmp_path: Path) -> None:
    """Without an end it would be mute for ever: the other end knows nothing of an ENOBUFS."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            connection = dealer._connection
            assert connection is not None
            real = connection._socket

            class Socket:
                def __getattr__(self, name: str) -> object:
                    return getattr(real, name)

                def send(self, data: bytes) -> int:
                    raise OSError(errno.ENOBUFS, "on purpose")

            router.send(b"d", [b"before"])
            connection._socket = Socket()  # type: ignore[assignment]
            assert not dealer.send([b"lost"])
            assert not dealer.send([b"lost"])
            await made.until(lambda: dealer.opens == 2 and router.names == [b"d", b"d"])
            assert dealer.got == [[b"before"]]
            assert dealer.send([b"again"])
            await made.until(lambda: router.of(b"d") == [[b"again"]])

    run(test())
