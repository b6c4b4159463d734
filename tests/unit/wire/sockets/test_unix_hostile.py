"""Peers of unix sockets that do not keep to ZMTP, are silent, or belong to another user."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from lightrail.wire.sockets import unix, unix_ends
from lightrail.wire.sockets import zmtp as codec
from lightrail.wire.sockets.zmtp import APART_BYTES
from tests.support import zmtp
from tests.support.zmtp import AFTER_READY, BEFORE_READY
from tests.unit.wire.sockets.conftest import Run
from tests.unit.wire.sockets.ends import DealerEnd, RawListener, RawPeer, RouterEnd, Scene, scene

RAW = zmtp.ready(b"DEALER", b"raw")


async def serves_others(made: Scene, router: RouterEnd, dealer: DealerEnd) -> None:
    """The other connection of the router works, both ways."""
    before, received = len(router.of(b"d")), len(dealer.got)
    assert dealer.send([b"still"])
    await made.until(lambda: len(router.of(b"d")) == before + 1)
    assert router.send(b"d", [b"there"])
    await made.until(lambda: len(dealer.got) == received + 1)


@pytest.mark.parametrize("name", BEFORE_READY)
def test_who_does_not_greet_lawfully_is_refused_and_others_are_served(
    run: Run, tmp_path: Path, name: str
) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            peer = await made.raw(BEFORE_READY[name][0])
            await peer.ended()
            assert made.counts.refused == 1
            assert router.names == [b"d"]
            assert made.counts.connections == 2
            assert not router._unnamed
            await serves_others(made, router, dealer)

    run(test())


@pytest.mark.parametrize("name", AFTER_READY)
def test_a_violation_ends_a_connection_behind_its_whole_messages(run: Run, tmp_path: Path, name: str) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            peer = await made.raw(RAW + zmtp.message([b"a", b"b"]) + zmtp.part(b"half", True))
            await peer.send(AFTER_READY[name][0] + zmtp.message([b"later"]))
            await peer.ended()
            await made.until(lambda: router.ends == 1)
            assert router.of(b"raw") == [[b"a", b"b"]]
            assert not router.send(b"raw", [b"answer"])
            assert made.counts.refused == 1
            await serves_others(made, router, dealer)

    run(test())


def test_a_listener_that_breaks_the_rules_is_connected_to_again(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            listener = RawListener(made)
            dealer = DealerEnd(made)
            for refused, data in enumerate(
                (zmtp.greeting(version=b"\2\0"), zmtp.ready(b"DEALER"), zmtp.ready(b"ROUTER") + b"\x80\0")
            ):
                peer = await listener.accept(data)
                await peer.ended()
                assert made.counts.refused == refused + 1
            peer = await listener.accept(zmtp.ready(b"ROUTER") + zmtp.message([b"hello"]))
            await made.until(lambda: dealer.got == [[b"hello"]])
            listener.close()

    run(test())


def test_a_part_that_is_announced_too_large_ends_the_connection_by_its_head(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            peer = await made.raw(RAW + zmtp.announced(codec.PART_BYTES_MAX + 1))
            await peer.ended()
            assert made.counts.refused == 1
            assert not router.got

    run(test())


def test_a_part_that_memory_has_no_room_for_leaves_no_frames_to_be_misread(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "PART_BYTES_MAX", 1 << 62)

    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            peer = await made.raw(RAW + zmtp.message([b"whole"]) + zmtp.announced(1 << 61))
            await peer.ended()
            assert router.of(b"raw") == [[b"whole"]]
            assert made.counts.refused == 1

    run(test())


# --- silence ----------------------------------------------------------------------------------------------


def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for a greeting is over in the next turn of the loop."""
    monkeypatch.setattr(unix, "HANDSHAKE_S", 0)


@pytest.mark.parametrize("data", [b"", b"\xff", zmtp.GREETING, RAW[:-1]])
def test_a_peer_that_does_not_greet_in_time_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            soon(monkeypatch)
            peer = await made.raw(data)
            await peer.ended()
            assert made.counts.refused == 1
            assert router.names == [b"d"]
            await serves_others(made, router, dealer)

    run(test())


def test_the_time_for_a_greeting_is_counted_until_the_greeting(run: Run, tmp_path: Path) -> None:
    """The timer is that of HANDSHAKE_S, and no more than the greeting stops it."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            timers: list[tuple[float, asyncio.TimerHandle]] = []
            real = made.loop.call_later

            class Loop:
                def __getattr__(self, name: str) -> object:
                    return getattr(made.loop, name)

                def call_later(self, delay: float, *args: object) -> asyncio.TimerHandle:
                    timers.append((delay, real(delay, *args)))  # type: ignore[arg-type]
                    return timers[-1][1]

            router._loop = Loop()  # type: ignore[assignment]
            peer = await made.raw(RAW[:-1])
            await made.turns()
            assert [(delay, timer.cancelled()) for delay, timer in timers] == [(unix.HANDSHAKE_S, False)]
            await peer.send(RAW[-1:])
            await made.until(lambda: router.names == [b"raw"])
            assert [(delay, timer.cancelled()) for delay, timer in timers] == [(unix.HANDSHAKE_S, True)]

    run(test())


def test_a_listener_that_does_not_greet_in_time_is_connected_to_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon(monkeypatch)

    async def test() -> None:
        async with scene(tmp_path) as made:
            listener = RawListener(made)
            dealer = DealerEnd(made)
            peer = await listener.accept(b"")
            await peer.ended()
            assert (made.counts.refused, dealer.opens) == (1, 0)
            monkeypatch.undo()
            await listener.accept_until(lambda: dealer.is_open)
            assert dealer.opens == 1
            listener.close()

    run(test())


def test_who_greets_while_the_router_is_paused_is_no_silent_peer(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            router.is_paused = True
            peer = await made.raw(RAW + zmtp.message([b"early"]))
            await made.until(lambda: router.names == [b"raw"])
            connection = router._connections[b"raw"]
            assert connection._greeting is None
            assert router.send(b"raw", [b"to you"])
            await peer.handshake()
            assert await peer.message() == [b"to you"]
            await peer.send(zmtp.message([b"late"]))
            await made.turns()
            assert router.got == []
            router.resume()
            await made.until(lambda: router.of(b"raw") == [[b"early"], [b"late"]])

    run(test())


# --- commands ---------------------------------------------------------------------------------------------


def test_a_ping_is_answered_between_whole_messages_also_if_much_waits(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            peer = await made.raw()
            await made.until(lambda: bool(router.names))
            large = os.urandom(8 << 20)
            assert router.send(b"raw", [b"head", large, b"tail"])
            assert router._connections[b"raw"].waiting
            # In one turn the PING can be read, and there is room for more octets of the message.
            peer.socket.send(zmtp.ping(b"c" * 1_000) + zmtp.message([b"seen"]))
            begun = peer.socket.recv(1 << 18)
            await made.until(lambda: router.of(b"raw") == [[b"seen"]])
            assert router.send(b"raw", [b"last"])
            expected = codec.ready(b"ROUTER") + zmtp.message([b"head", large, b"tail"])
            expected += zmtp.pong(b"c" * 16) + zmtp.message([b"last"])
            assert begun + await peer.read(len(expected) - len(begun)) == expected

    run(test())


# --- ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "half",
    [
        b"\0",
        b"\0\5ab",
        zmtp.part(b"first", True),
        zmtp.announced(APART_BYTES),
        zmtp.announced(3 << 20) + bytes(2 << 20),
        zmtp.part(b"first", True) + zmtp.announced(3 << 20) + bytes(2 << 20),
    ],
    ids=["head", "part", "message", "large head", "large part", "message with a large part"],
)
def test_a_message_that_is_cut_by_the_end_is_not_delivered(run: Run, tmp_path: Path, half: bytes) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            peer = await made.raw(RAW + zmtp.message([b"whole", b"one"]) + half)
            peer.close()
            await made.until(lambda: router.ends == 1)
            assert router.of(b"raw") == [[b"whole", b"one"]]
            assert made.counts.refused == 0
            assert made.counts.connections == 2
            await serves_others(made, router, dealer)

    run(test())


def test_an_end_before_the_greeting_leaves_nothing(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            for data in (b"", b"\xff", zmtp.GREETING):
                (await made.raw(data)).close()
            await made.until(lambda: router.ends == 3)
            assert (made.counts.connections, made.counts.refused, len(router._unnamed)) == (0, 0, 0)

    run(test())


@pytest.mark.parametrize("size", [0, 10, 700_000])
@pytest.mark.parametrize("waits", [False, True])
def test_a_peer_that_ends_without_having_read_all_is_heard_to_its_last_message(
    run: Run, tmp_path: Path, size: int, waits: bool
) -> None:
    """On uvloop an error ends the watching of a socket; a killed process leaves such an error."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            peer = await made.raw()
            await made.until(lambda: b"raw" in router.names)
            assert router.send(b"raw", [b"unread" if not waits else bytes(8 << 20)])
            assert bool(router._connections[b"raw"].waiting) is waits
            number = size // 1_000
            if number:
                await peer.send(b"".join(zmtp.message([b"x" * 1_000]) for _ in range(number)))
            peer.socket.send(zmtp.message([b"last"]) if size else b"")
            peer.close()
            await made.until(lambda: router.ends == 1)
            assert len(router.of(b"raw")) == number + bool(size)
            assert made.counts.connections == 2
            # The number of its file is that of the next connection, which is watched.
            again = await made.raw(RAW + zmtp.message([b"again"]))
            await made.until(lambda: router.of(b"raw")[-1:] == [[b"again"]])
            again.close()
            await made.until(lambda: router.ends == 2)
            await serves_others(made, router, dealer)

    run(test())


def test_a_dealer_whose_listener_ends_without_having_read_all_connects_again(
    run: Run, tmp_path: Path
) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            listener = RawListener(made)
            dealer = DealerEnd(made)
            for opens in range(1, 4):
                peer = await listener.accept(zmtp.ready(b"ROUTER"))
                await made.until(lambda opens=opens: dealer.opens == opens)  # type: ignore[misc]
                assert dealer.send([b"unread"])
                peer.socket.send(zmtp.message([b"%d" % opens]))
                peer.close()
                await made.until(lambda opens=opens: dealer.ends == opens)  # type: ignore[misc]
            assert dealer.got == [[b"1"], [b"2"], [b"3"]]
            listener.close()

    run(test())


# --- other users ------------------------------------------------------------------------------------------


def test_a_process_of_another_user_is_refused_by_a_router(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            monkeypatch.setattr(unix_ends, "is_admitted", lambda _: False)
            peer = await made.raw()
            assert await peer.ended() == b""
            assert made.counts.refused == 1
            assert router.names == [b"d"]
            await serves_others(made, router, dealer)

    run(test())


def test_a_listener_of_another_user_is_told_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unix_ends, "is_admitted", lambda _: False)

    async def test() -> None:
        async with scene(tmp_path) as made:
            listener = RawListener(made)
            dealer = DealerEnd(made)
            accepted, _ = await made.loop.sock_accept(listener.socket)
            peer = RawPeer(made, accepted)
            assert await peer.ended() == b""
            assert not dealer.is_open
            monkeypatch.undo()
            await listener.accept_until(lambda: dealer.is_open)
            listener.close()

    run(test())
    assert "a process of another user listens there" in caplog.text


@pytest.mark.parametrize(("offset", "admitted"), [(0, True), (1, False)])
def test_processes_of_the_same_user_and_of_root_are_admitted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, admitted: bool
) -> None:
    """Tests may be those of root, whom everybody trusts: the credentials are as if they were a user's."""
    me = 1_000
    monkeypatch.setattr(os, "geteuid", lambda: me)

    class Socket:
        def getsockopt(self, *_: object) -> bytes:
            return unix._CREDENTIALS.pack(1, me + offset, 0)

    class OfRoot(Socket):
        def getsockopt(self, *_: object) -> bytes:
            return unix._CREDENTIALS.pack(1, 0, 0)

    assert unix.is_admitted(Socket()) is admitted  # type: ignore[arg-type]
    assert unix.is_admitted(OfRoot())  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
@pytest.mark.parametrize(("user", "admitted"), [(0, True), (65_534, False)])
def test_the_system_tells_the_user_of_the_process_that_connects(user: int, admitted: bool) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        # An address without a file, drawn by the system: the other user may not enter the directory.
        listening.bind("")
        listening.listen()
        child = os.fork()
        if not child:
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as connecting:
                connecting.connect(listening.getsockname())
                connecting.recv(1)
            os._exit(0)
        accepted, _ = listening.accept()
        with accepted:
            assert unix.is_admitted(accepted) is admitted
        assert os.waitpid(child, 0)[1] == 0
