"""How connections over unix sockets begin again, who owns the file, and who may close what when."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.support import zmtp
from tests.unit.wire.sockets.conftest import WAIT_S, Run
from tests.unit.wire.sockets.ends import DealerEnd, RawListener, RouterEnd, scene

LARGE = bytes(4 << 20)


def numbers(found: list[list[bytes]]) -> list[int]:
    return [int(bytes(parts[0])) for parts in found]


# --- again ------------------------------------------------------------------------------------------------


def test_a_dealer_connects_as_soon_as_somebody_listens(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            dealer = DealerEnd(made)
            assert not dealer.is_open
            assert not dealer.was_open
            assert not dealer.send([b"lost"])
            router = RouterEnd(made)
            await made.until(lambda: dealer.is_open)
            assert dealer.send([b"sent"])
            await made.until(lambda: bool(router.got))
            assert [parts for _, parts in router.got] == [[b"sent"]]

    run(test())


def test_a_dealer_connects_to_the_process_that_listens_next(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            for opens in range(2, 5):
                router.close()
                await made.until(lambda opens=opens: dealer.ends == opens - 1)  # type: ignore[misc]
                assert not dealer.send([b"lost"])
                assert not dealer.is_open
                assert dealer.was_open
                router = RouterEnd(made)
                await made.until(lambda opens=opens: dealer.opens == opens)  # type: ignore[misc]
                assert dealer.send([b"%d" % opens])
                await made.until(lambda router=router: bool(router.got))  # type: ignore[misc]
                assert router.got == [(b"d", [b"%d" % opens])]

    run(test())


def test_the_file_of_a_killed_process_is_in_nobodys_way(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            killed = RawListener(made)
            killed.close()
            dealer = DealerEnd(made)
            assert not dealer.is_open
            RouterEnd(made)
            await made.until(lambda: dealer.is_open)

    run(test())


def test_the_pauses_of_a_dealer_grow_to_their_most_and_begin_anew(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            pauses: list[float] = []
            real = made.loop.call_later
            enough = asyncio.Event()

            class Loop:
                def __getattr__(self, name: str) -> object:
                    return getattr(made.loop, name)

                def call_later(self, delay: float, callback: object, *args: object) -> asyncio.TimerHandle:
                    if callback == dealer._connect:
                        pauses.append(delay)
                        delay = 0
                        if len(pauses) == 8:
                            enough.set()
                            delay = WAIT_S
                    return real(delay, callback, *args)  # type: ignore[arg-type]

            listener = RawListener(made)
            dealer = DealerEnd(made)
            dealer._loop = Loop()  # type: ignore[assignment]
            peer = await listener.accept()
            await made.until(lambda: dealer.is_open)
            listener.close()
            peer.close()
            await enough.wait()
            assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5]
            listener = RawListener(made)
            dealer._connect()
            peer = await listener.accept()
            await made.until(lambda: dealer.opens == 2)
            pauses.clear()
            peer.close()
            await made.until(lambda: dealer.ends == 2)
            assert pauses == [0.02]
            listener.close()

    run(test())


def test_what_was_not_sent_before_the_loss_is_not_sent_to_the_successor(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            listener = RawListener(made)
            dealer = DealerEnd(made)
            peer = await listener.accept()
            await made.until(lambda: dealer.is_open)
            for _ in range(5):
                assert dealer.send([LARGE])
            peer.close()
            await made.until(lambda: dealer.ends == 1)
            peer = await listener.accept()
            await made.until(lambda: dealer.opens == 2)
            assert dealer.send([b"new"])
            await peer.handshake()
            assert await peer.message() == [b"new"]
            listener.close()

    run(test())


# --- the file ---------------------------------------------------------------------------------------------


def test_a_router_removes_its_file(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            assert made.has_file()
            router.close()
            assert not made.has_file()
            router.close()

    run(test())


def test_a_router_leaves_the_file_of_its_successor(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            first = RouterEnd(made)
            second = RouterEnd(made)
            first.close()
            assert made.has_file()
            dealer = DealerEnd(made, name=b"d")
            await made.until(lambda: dealer.is_open and second.names == [b"d"])

    run(test())


def test_a_router_whose_file_was_removed_is_closed_all_the_same(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            os.unlink(made.path)
            router.close()

    run(test())


# --- closing ----------------------------------------------------------------------------------------------


def test_who_receives_may_close_the_router_and_hears_nothing_further(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            router.on_message = lambda name, parts: router.close()
            for number in range(3):
                dealer.send([b"%d" % number])
            await made.until(lambda: dealer.ends == 1)
            await made.turns()
            assert numbers(router.of(b"d")) == [0]
            assert router.afters == 0

    run(test())


def test_a_router_that_lingers_when_its_receiver_closes_it_passes_nothing_further(
    run: Run, tmp_path: Path
) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            peer = await made.raw()
            await made.until(lambda: bool(router.names))
            router.send(b"raw", [LARGE])
            router.on_message = lambda name, parts: router.close(WAIT_S * 1_000)
            await peer.send(b"".join(zmtp.message([b"%d" % number]) for number in range(3)))
            await made.until(lambda: bool(router.got))
            await peer.handshake()
            assert await peer.message() == [LARGE]
            assert await peer.ended() == b""
            assert numbers(router.of(b"raw")) == [0]

    run(test())


def test_after_may_close_the_router(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            router.on_after = router.close
            dealer.send([b"0"])
            await made.until(lambda: dealer.ends == 1)
            assert router.afters == 1
            assert made.counts.connections == 0

    run(test())


def test_receive_after_and_on_open_may_close_the_dealer(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            listener = RawListener(made)
            data = zmtp.ready(b"ROUTER") + zmtp.message([b"0"]) + zmtp.message([b"1"])
            for where, got, afters in (("on_message", 1, 0), ("on_after", 2, 1), ("on_opening", 0, 0)):
                dealer = DealerEnd(made)
                setattr(dealer, where, lambda *_, dealer=dealer: dealer.close())
                peer = await listener.accept(data)
                await peer.ended()
                assert (len(dealer.got), dealer.afters) == (got, afters)
                assert not dealer.is_open
                assert not dealer.send([b"lost"])
            await made.turns()
            assert made.counts.connections == 0
            listener.close()

    run(test())


def test_a_dealer_that_is_closed_between_connections_does_not_connect(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            dealer = DealerEnd(made)
            timer = dealer._timer
            assert timer is not None
            dealer.close()
            assert timer.cancelled()
            dealer.close()

    run(test())
