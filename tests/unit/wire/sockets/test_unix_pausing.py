"""A UnixRouter that is paused and resumed at any point loses nothing, and reorders nothing."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import zmtp
from tests.unit.wire.sockets.conftest import Run
from tests.unit.wire.sockets.ends import DealerEnd, RouterEnd, Scene, scene

RAW = zmtp.ready(b"DEALER", b"raw")


def numbers(found: list[list[bytes]]) -> list[int]:
    return [int(bytes(parts[0])) for parts in found]


def pauses_at(router: RouterEnd, *at: int) -> None:
    """The receiver of the messages of these numbers pauses the router."""

    def on_message(name: bytes, parts: list[bytes]) -> None:
        if int(bytes(parts[0])) in at:
            router.is_paused = True

    router.on_message = on_message


def numbered(count: int) -> bytes:
    return b"".join(zmtp.message([b"%d" % number]) for number in range(count))


@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_of_pauses_loses_nothing_and_reorders_nothing(
    run: Run, tmp_path: Path, seed: int
) -> None:
    """Pauses within a message and between turns, with parts of all sizes, and several connections."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            chance = random.Random(seed)
            router = RouterEnd(made, copies=chance.random() < 0.5)
            dealers = [DealerEnd(made, name=b"%d" % number) for number in range(3)]
            await made.until(lambda: len(router.names) == 3 and all(dealer.is_open for dealer in dealers))
            expected: dict[bytes, list[list[bytes]]] = {dealer._name: [] for dealer in dealers}

            def on_message(name: bytes, parts: list[bytes]) -> None:
                assert not router.is_paused, f"seed {seed}: a message was passed to a paused receiver"
                if chance.random() < 0.1:
                    router.is_paused = True
                    if chance.random() < 0.3:
                        router.resume()

            router.on_message = on_message
            for _ in range(150):
                dealer = chance.choice(dealers)
                for _ in range(chance.randrange(8)):
                    large = chance.choice((0, 1, 300, 70_000, 70_000, 900_000))
                    parts = [b"%d" % len(expected[dealer._name]), chance.randbytes(3) * (large // 3)]
                    expected[dealer._name].append(parts)
                    assert dealer.send(parts)
                await made.turns(chance.randrange(3))
                match chance.randrange(4):
                    case 0:
                        router.is_paused = True
                    case 1 | 2:
                        router.resume()
            router.on_message = lambda name, parts: None
            router.resume()
            total = sum(map(len, expected.values()))
            await made.until(lambda: len(router.got) >= total)
            for name, messages in expected.items():
                assert router.of(name) == messages, f"seed {seed}"
            assert made.counts.received == total, f"seed {seed}"

    run(test())


def test_a_paused_router_leaves_messages_in_the_connections(run: Run, tmp_path: Path) -> None:
    """The sender finds that its messages wait."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            router.is_paused = True
            for number in range(200):
                dealer.send([b"%d" % number, bytes(100_000)])
            await made.turns(50)
            connection = dealer._connection
            assert connection is not None
            assert connection.waiting > 100
            assert not router.got
            router.resume()
            await made.until(lambda: len(router.got) == 200)
            assert numbers(router.of(b"d")) == list(range(200))

    run(test())


def test_after_is_called_for_messages_that_were_read_before_the_pause(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            pauses_at(router, 0)
            for number in range(3):
                dealer.send([b"%d" % number])
            await made.until(lambda: router.afters == 1)
            assert numbers(router.of(b"d")) == [0]
            router.resume()
            await made.until(lambda: router.afters == 2)
            assert numbers(router.of(b"d")) == [0, 1, 2]

    run(test())


async def ends_by_itself(made: Scene, data: bytes) -> None:
    peer = await made.raw(data)
    peer.close()


async def ends_by_violation(made: Scene, data: bytes) -> None:
    await made.raw(data + zmtp.too_large())


@pytest.mark.parametrize("ends", [ends_by_itself, ends_by_violation])
@pytest.mark.parametrize("pauses", [(), (0,), (0, 1), (0, 1, 2), (2,), (1, 2)])
def test_a_connection_that_ends_while_the_router_is_paused_is_heard_to_its_last_message(
    run: Run, tmp_path: Path, pauses: tuple[int, ...], ends: Callable[..., object]
) -> None:
    """Also if further messages of it pause the router again."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            pauses_at(router, *pauses)
            router.is_paused = True
            await ends(made, RAW + numbered(3))  # type: ignore[misc]
            await made.turns()
            assert not router.got
            for pause in range(len(pauses) + 1):
                router.resume()
                read = pauses[pause] + 1 if pause < len(pauses) else 3
                await made.until(lambda read=read: len(router.got) == read)  # type: ignore[misc]
                await made.turns()
            await made.until(lambda: router.ends == 1)
            assert numbers(router.of(b"raw")) == [0, 1, 2]
            assert not router.send(b"raw", [b"lost"])
            assert (made.counts.connections, made.counts.received) == (0, 3)
            assert made.counts.refused == (ends is ends_by_violation)

    run(test())


@pytest.mark.parametrize("waits", [False, True])
def test_a_peer_that_ends_without_having_read_all_is_heard_after_the_pause(
    run: Run, tmp_path: Path, waits: bool
) -> None:
    """Its socket has an error, which the loop finds while nothing is read; see test_unix_hostile.py."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            peer = await made.raw()
            await made.until(lambda: bool(router.names))
            router.is_paused = True
            router.send(b"raw", [bytes(8 << 20) if waits else b"unread"])
            data = numbered(3) + zmtp.message([b"3", bytes(150_000)]) + zmtp.message([b"4"])
            await peer.send(data)
            await made.turns()
            peer.close()
            await made.turns()
            assert not router.got
            router.resume()
            await made.until(lambda: router.ends == 1)
            assert numbers(router.of(b"raw")) == [0, 1, 2, 3, 4]
            assert made.counts.connections == 0

    run(test())


def test_a_pause_in_the_turn_of_the_resuming_keeps_the_messages_of_an_ended_connection(
    run: Run, tmp_path: Path
) -> None:
    """resume, and before the loop has read anything: the end, whose turn passes messages that pause again."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            pauses_at(router, 0, 1)
            peer = await made.raw(RAW + numbered(4))
            await made.until(lambda: len(router.got) == 1)
            # The connection is still watched, and has three messages.
            connection = router._connections[b"raw"]
            peer.close()
            router.is_paused = False
            connection._read()
            assert numbers(router.of(b"raw")) == [0, 1]
            router.resume()
            await made.until(lambda: router.ends == 1)
            assert numbers(router.of(b"raw")) == [0, 1, 2, 3]
            assert made.counts.received == 4

    run(test())


def test_a_router_that_is_closed_after_resuming_passes_nothing(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            pauses_at(router, 0)
            for number in range(5):
                dealer.send([b"%d" % number])
            await made.until(lambda: bool(router.got))
            await made.turns()
            router.resume()
            router.close()
            await made.until(lambda: dealer.ends == 1)
            assert numbers(router.of(b"d")) == [0]

    run(test())


@pytest.mark.parametrize("linger_ms", [0, 10_000])
def test_the_receiver_of_a_message_after_a_pause_may_close_the_router(
    run: Run, tmp_path: Path, linger_ms: int
) -> None:
    """Several connections have messages, and one has something to send: nothing further is passed."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            peers = [await made.raw(zmtp.ready(b"DEALER", b"%d" % number)) for number in range(3)]
            await made.until(lambda: len(router.names) == 3)
            for name in router.names:
                router.send(name, [bytes(4 << 20)])
            pauses_at(router, 0)
            for peer in peers:
                await peer.send(numbered(3))
            await made.until(lambda: bool(router.got))
            await made.turns()
            before = len(router.got)
            router.on_message = lambda name, parts: router.close(linger_ms)
            router.resume()
            await made.until(lambda: len(router.got) == before + 1)
            if linger_ms:
                for peer in peers:
                    await peer.send(numbered(3))
            await made.turns()
            assert len(router.got) == before + 1

    run(test())
