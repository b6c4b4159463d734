"""Pool: a connection to a shard lasts from one use to the next, and not for ever."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from lightrail.model import limits
from lightrail.shard.main import MOVE_SOURCE_IDLE_MS
from lightrail.shard_client.peers.pool import Pool
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.wire.bodies import Welcome, encode_request
from lightrail.wire.frames import VERSION, Kind, frame
from tests.support.shard.wires import wiring_of
from tests.support.sim.loop import SimLoop


class NobodyThere:
    """Takes the place of a socket."""

    def __init__(self, address: str, receive: Any, after: Any, **_: Any) -> None:
        self.closed = False

    def send(self, parts: Sequence[bytes]) -> bool:
        return False

    def close(self, linger_ms: int = 0) -> None:
        self.closed = True


class Rig:
    def __init__(self) -> None:
        self.loop = SimLoop()
        self.addresses: dict[int, str] = {0: "tcp://127.0.0.1:1"}
        self.pool = Pool(
            self.loop,
            wiring_of(NobodyThere),
            name="shard-1",
            boot=7,
            address=self.addresses.get,
            now_ms=lambda: int(self.loop.time() * 1000),
            idle_ms=MOVE_SOURCE_IDLE_MS,
        )

    def pass_time(self, milliseconds: int) -> None:
        self.loop.call_later(milliseconds / 1000, self.loop.stop)
        self.loop.run_forever()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.pool.close()
    made.loop.close()


def test_who_looks_in_again_and_again_finds_the_same_way(rig: Rig) -> None:
    """Greeting a source that comes back takes longer than one look."""
    way = rig.pool._take(0).peer
    rig.pool._leave(0)
    for _ in range(10):
        rig.pass_time(limits.MOVE_AGAIN_MS_MAX)
        assert rig.pool._take(0).peer is way
        rig.pool._leave(0)
    assert not way._socket.closed  # type: ignore[attr-defined]


def test_a_way_that_nobody_uses_ends(rig: Rig) -> None:
    way = rig.pool._take(0).peer
    rig.pass_time(2 * MOVE_SOURCE_IDLE_MS)
    assert rig.pool._take(0).peer is way
    rig.pool._leave(0)
    rig.pool._leave(0)
    rig.pass_time(MOVE_SOURCE_IDLE_MS + 1)
    assert way._socket.closed  # type: ignore[attr-defined]
    assert rig.pool._take(0).peer is not way


def test_a_request_is_sent_when_the_shard_is_greeted(rig: Rig) -> None:
    asking = rig.loop.create_task(rig.pool.request(0, "export", {}, greeting_ms=250))
    rig.pass_time(240)
    peer = rig.pool._pooled[0].peer
    assert not len(peer._requests)
    peer._socket.send = lambda parts: True  # type: ignore[method-assign]
    welcome = Welcome(VERSION, 0, 5, peer._attempt)
    peer._receive([frame(Kind.WELCOME, body=welcome.encode())])
    rig.pass_time(1)
    assert len(peer._requests) == 1
    peer._receive([frame(Kind.RESPONSE, number=1, body=encode_request({"next": None}))])
    rig.pass_time(1)
    assert asking.result().fields == {"next": None}


def test_a_request_fails_when_the_shard_is_not_greeted_in_time(rig: Rig) -> None:
    asking = rig.loop.create_task(rig.pool.request(0, "export", {}, greeting_ms=250))
    rig.pass_time(249)
    assert not asking.done()
    rig.pass_time(2)
    with pytest.raises(ShardDownError, match="shard 0 is not connected; try again"):
        asking.result()
    # The greeting goes on, for the next request.
    assert len(rig.pool) == 1
    assert rig.pool._pooled[0].users == 0


def test_a_source_without_an_address_is_away(rig: Rig) -> None:
    del rig.addresses[0]
    with pytest.raises(ShardDownError, match="shard 0 is not registered now"):
        rig.pool._take(0)


def test_a_shard_that_was_started_elsewhere_is_reached_there(rig: Rig) -> None:
    peer = rig.pool._take(0).peer
    former = peer._socket
    rig.addresses[0] = "tcp://127.0.0.1:2"
    assert rig.pool._take(0).peer is peer
    assert peer.address == "tcp://127.0.0.1:2"
    assert former.closed  # type: ignore[attr-defined]
