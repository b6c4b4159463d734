"""UnixRouter and UnixDealer together: what is sent arrives in order; who does not read holds up nobody."""

import os
import random
from pathlib import Path

import pytest

from lightrail.wire.sockets import unix_ends
from lightrail.wire.sockets.zmtp import APART_BYTES
from tests.support import zmtp
from tests.unit.wire.sockets.conftest import Run
from tests.unit.wire.sockets.ends import DealerEnd, RawListener, RouterEnd, scene

SIZES = (0, 1, 255, 256, 65_535, 65_536, 65_537, 512 * 1024, (5 << 20) + 3)
RAW = zmtp.ready(b"DEALER", b"raw")


def numbers(found: list[list[bytes]]) -> list[int]:
    return [int(bytes(parts[0])) for parts in found]


# --- messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [True, False])
def test_parts_of_all_sizes_arrive_both_ways(run: Run, tmp_path: Path, copies: bool) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made, copies=copies)
            dealer = DealerEnd(made, name=b"d", copies=copies)
            await made.until(lambda: dealer.is_open and b"d" in router.names)
            chance = random.Random(1)
            parts = [chance.randbytes(size) for size in SIZES]
            messages = [*([part] for part in parts), parts, parts[::-1]]
            for message in messages:
                assert dealer.send(message)
                assert router.send(b"d", message)
            await made.until(lambda: len(router.got) == len(dealer.got) == len(messages))
            assert router.of(b"d") == messages
            assert dealer.got == messages
            largest = router.got[len(SIZES) - 1][1][0]
            # More than is read at once: it is received into memory of its own.
            assert type(largest) is (bytes if copies else memoryview)
            assert (made.counts.sent, made.counts.received) == (2 * len(messages), 2 * len(messages))

    run(test())


def test_thousands_of_messages_arrive_in_order_both_ways(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            count = 20_000
            for number in range(count):
                assert dealer.send([b"%d" % number, b"x" * (number % 300)])
                assert router.send(b"d", [b"%d" % number, b"y" * (number % 300)])
            await made.until(lambda: len(router.got) == len(dealer.got) == count)
            assert numbers(router.of(b"d")) == numbers(dealer.got) == list(range(count))
            assert len(router.got[299][1][1]) == 299

    run(test())


def test_large_parts_are_sent_from_the_memory_of_the_sender(run: Run, tmp_path: Path) -> None:
    """What waits is the part itself, or a view of it."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            router, _ = await made.pair()
            await made.raw()
            await made.until(lambda: b"raw" in router.names)
            parts = [os.urandom(4 << 20), os.urandom(APART_BYTES)]
            assert router.send(b"raw", parts)
            begun, _, last = router._connections[b"raw"]._unsent
            assert isinstance(begun, memoryview)
            assert begun.obj is parts[0]
            assert last is parts[1]

    run(test())


def test_a_name_is_the_one_that_was_given_or_one_that_was_drawn(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, _ = await made.pair()
            nameless = [DealerEnd(made), DealerEnd(made)]
            await made.until(lambda: len(router.names) == 3)
            drawn = router.names[1:]
            assert all(name[0] == 0 and len(name) == 9 for name in drawn)
            assert len(set(drawn)) == 2
            for name in drawn:
                assert router.send(name, [name])
            await made.until(lambda: all(dealer.got for dealer in nameless))
            assert {dealer.got[0][0] for dealer in nameless} == set(drawn)
            assert not router.send(b"nobody", [b"lost"])

    run(test())


def test_a_name_that_is_not_allowed_is_found_at_once(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            for name in (b"\0n", b"n" * 256):
                with pytest.raises(ValueError, match="expected at most 255 octets"):
                    DealerEnd(made, name=name)
            made.made.clear()

    run(test())


def test_the_later_connection_of_a_name_replaces_the_earlier_one(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            first = await made.raw()
            await made.until(lambda: router.names == [b"raw"])
            second = await made.raw()
            await made.until(lambda: router.names == [b"raw", b"raw"])
            await first.handshake()
            assert await first.ended() == b""
            assert router.send(b"raw", [b"to the second"])
            await second.handshake()
            assert await second.message() == [b"to the second"]
            await second.send(zmtp.message([b"from the second"]))
            await made.until(lambda: router.of(b"raw") == [[b"from the second"]])
            assert made.counts.connections == 1

    run(test())


# --- who does not read ------------------------------------------------------------------------------------


def test_a_peer_that_does_not_read_holds_up_nobody_and_misses_nothing(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            slow = await made.raw()
            await made.until(lambda: b"raw" in router.names)
            connection = router._connections[b"raw"]
            count, waited = 5_000, 0
            for number in range(count):
                assert router.send(b"raw", [b"%d" % number, b"x" * 999])
                assert connection.waiting >= waited
                waited = connection.waiting
            assert waited > count / 2
            assert router.send(b"d", [b"meanwhile"])
            await made.until(lambda: bool(dealer.got))
            await slow.handshake()
            for number in range(count):
                assert await slow.message() == [b"%d" % number, b"x" * 999]
            assert connection.waiting == 0
            assert router.send(b"raw", [b"afterwards"])
            assert await slow.message() == [b"afterwards"]

    run(test())


def test_what_waits_is_sent_without_looking_at_all_of_it_each_time(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As often as the system takes more, no more pieces are offered to it than one call sends."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            router, _ = await made.pair()
            slow = await made.raw()
            await made.until(lambda: b"raw" in router.names)
            connection = router._connections[b"raw"]
            for _ in range(50_000):
                router.send(b"raw", [b"x" * 20])
            waits = connection._unsent
            assert connection.waiting > 10_000
            offered: list[int] = []
            real = connection._socket

            class Socket:
                def __getattr__(self, name: str) -> object:
                    return getattr(real, name)

                def sendmsg(self, chunks: list[bytes]) -> int:
                    offered.append(len(chunks))
                    return real.sendmsg(chunks)

            connection._socket = Socket()  # type: ignore[assignment]
            await slow.handshake()
            for _ in range(50_000):
                await slow.message()
            assert max(offered) <= 512
            assert connection._unsent is waits

    run(test())


def test_about_send_max_messages_wait_and_those_beyond_are_dropped(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made, send_max=10)
            slow = await made.raw()
            await made.until(lambda: b"raw" in router.names)
            sent = [number for number in range(5_000) if router.send(b"raw", [b"%d" % number, bytes(999)])]
            assert router._connections[b"raw"].waiting == 10
            assert sent == list(range(len(sent)))
            await slow.handshake()
            assert [int((await slow.message())[0]) for _ in sent] == sent
            assert router.send(b"raw", [b"room again"])
            assert await slow.message() == [b"room again"]

    run(test())


def test_about_send_max_messages_of_a_dealer_wait(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            listener = RawListener(made)
            dealer = DealerEnd(made, send_max=10)
            slow = await listener.accept()
            await made.until(lambda: dealer.is_open)
            sent = [number for number in range(5_000) if dealer.send([b"%d" % number, bytes(999)])]
            assert dealer._connection is not None
            assert dealer._connection.waiting == 10
            await slow.handshake()
            assert [int((await slow.message())[0]) for _ in sent] == list(range(len(sent)))
            listener.close()

    run(test())


# --- turns and exceptions ---------------------------------------------------------------------------------


def test_after_is_called_once_in_a_turn_in_which_several_connections_were_read(
    run: Run, tmp_path: Path
) -> None:
    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            dealers = [DealerEnd(made, name=b"%d" % number) for number in range(10)]
            await made.until(lambda: len(router.names) == 10 and all(dealer.is_open for dealer in dealers))
            for dealer in dealers:
                dealer.send([b"a"])
                dealer.send([b"b"])
            at_after: list[int] = []
            router.on_after = lambda: at_after.append(len(router.got))
            await made.until(lambda: len(router.got) == 20 and bool(at_after))
            assert at_after == [20]

    run(test())


def test_what_receive_raises_strands_no_message_and_after_is_called(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(*_: object) -> None:
        raise RuntimeError("on purpose")

    async def test() -> None:
        async with scene(tmp_path) as made:
            router, dealer = await made.pair()
            router.on_message = router.on_after = dealer.on_message = dealer.on_after = raises
            for number in range(3):
                dealer.send([b"%d" % number])
                router.send(b"d", [b"%d" % number])
            await made.until(
                lambda: len(router.got) == len(dealer.got) == 3 and bool(router.afters and dealer.afters)
            )
            dealer.send([b"3"])
            router.send(b"d", [b"3"])
            await made.until(lambda: router.afters == 2 and dealer.afters == 2)
            assert numbers(router.of(b"d")) == numbers(dealer.got) == [0, 1, 2, 3]

    run(test())
    assert caplog.text.count("could not be applied") == 8
    assert caplog.text.count("could not be ended") == 4


def test_what_on_open_raises_strands_no_message(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def raises() -> None:
        raise RuntimeError("on purpose")

    async def test() -> None:
        async with scene(tmp_path) as made:
            listener = RawListener(made)
            dealer = DealerEnd(made)
            dealer.on_opening = raises
            await listener.accept(zmtp.ready(b"ROUTER") + zmtp.message([b"with the greeting"]))
            await made.until(lambda: bool(dealer.got))
            listener.close()

    run(test())
    assert "could not be handled" in caplog.text


def test_many_connect_at_once_and_all_are_served(run: Run, tmp_path: Path) -> None:
    """More than are accepted in a turn."""

    async def test() -> None:
        async with scene(tmp_path) as made:
            router = RouterEnd(made)
            count = 3 * unix_ends.ACCEPTED_AT_ONCE
            dealers = [DealerEnd(made, name=b"%d" % number) for number in range(count)]
            await made.until(lambda: all(dealer.is_open for dealer in dealers) and len(router.names) == count)
            for dealer in dealers:
                dealer.send([dealer._name])
            await made.until(lambda: len(router.got) == count)
            assert all(parts == [name] for name, parts in router.got)

    run(test())
