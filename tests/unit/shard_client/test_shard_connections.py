"""ShardConnections: shards that come, go and are elsewhere; when a process is ready; where queues are."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.cluster.map import PLACEMENT, SHARD_SETS, SHARDS, Member, Placed, unplacing
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model import conditions
from lightrail.shard_client import shard_connections
from lightrail.shard_client.peers.shards import ConnectionState
from lightrail.shard_client.shard_connections import ShardConnections
from lightrail.wire.bodies import Welcome
from lightrail.wire.frames import VERSION, Kind, frame
from tests.support.shard.owner_scene import HandWire
from tests.support.shard.wires import wiring_of

Check = Callable[[ShardConnections, MemoryCoordinator], Awaitable[None]]


def play(monkeypatch: pytest.MonkeyPatch, check: Check) -> None:
    async def main() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.set_shards(2)
        made = ShardConnections(
            coordinator,
            asyncio.get_running_loop(),
            wiring_of(HandWire),
            name="frontend-0",
            boot=7,
            now_ms=lambda: 1_000_000,
            schedule_flush=lambda: None,
            flush=lambda: None,
        )
        try:
            await check(made, coordinator)
        finally:
            made.close()

    asyncio.run(main())


async def register(coordinator: MemoryCoordinator, shard: int, address: str, boot: int = 1) -> None:
    await coordinator.write([Write(f"{SHARDS}{shard}", Member(shard, boot, address).encode())])


def greet(made: ShardConnections, shard: int, boot: int = 1) -> None:
    peer = made.peers[shard]
    wire: Any = peer._socket
    welcome = Welcome(VERSION, shard, boot, peer._attempt)
    wire.receive([frame(Kind.WELCOME, body=welcome.encode())])
    assert peer.state is ConnectionState.SERVING


def test_shards_come_move_and_go_with_their_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(made: ShardConnections, coordinator: MemoryCoordinator) -> None:
        made.refresh()
        assert made.peers == {}
        await register(coordinator, 1, "inproc://one")
        made.refresh()
        assert [(shard, peer.address) for shard, peer in made.peers.items()] == [(1, "inproc://one")]
        peer = made.peers[1]
        greet(made, 1)
        # Elsewhere, and another process at the same address: a new connection, and the links stay.
        for address, boot in (("inproc://two", 1), ("inproc://two", 2)):
            socket: Any = peer._socket
            await register(coordinator, 1, address, boot)
            made.refresh()
            assert made.peers[1] is peer
            assert (peer.address, peer.state) == (address, ConnectionState.GREETING)
            assert peer._socket is not socket
            assert not socket.up
        # Down: its links wait for it.
        await coordinator.write([Write(f"{SHARDS}1", None)])
        made.refresh()
        assert made.peers[1] is peer
        # Removed.
        await coordinator.write([Write(f"{SHARD_SETS}1", None)])
        made.refresh()
        assert made.peers == {}

    play(monkeypatch, check)


def test_a_shard_that_greets_before_its_registration_is_heard_of_is_greeted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(made: ShardConnections, coordinator: MemoryCoordinator) -> None:
        await register(coordinator, 1, "inproc://one")
        made.refresh()
        greet(made, 1)
        peer = made.peers[1]
        peer.greet_again("a test")
        greet(made, 1, boot=2)
        socket, greetings = peer._socket, peer.greetings
        await register(coordinator, 1, "inproc://one", boot=2)
        made.refresh()
        assert (peer._socket, peer.state, peer.greetings) == (socket, ConnectionState.SERVING, greetings)
        # The next one is another process, and has not greeted.
        await register(coordinator, 1, "inproc://one", boot=3)
        made.refresh()
        assert peer._socket is not socket
        assert peer.state is ConnectionState.GREETING

    play(monkeypatch, check)


def test_a_process_that_was_ready_stays_so_without_one_of_its_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(made: ShardConnections, coordinator: MemoryCoordinator) -> None:
        assert made.not_ready() == "waiting for a shard"
        made.add(0, "inproc://a")
        made.add(1, "inproc://b")
        assert made.not_ready() == "waiting for shard 0, 1"
        greet(made, 0)
        assert made.not_ready() == "waiting for shard 1"
        greet(made, 1)
        assert made.not_ready() is None
        made.peers[0].greet_again("a test")
        assert made.not_ready() is None
        assert made.not_serving() == [0]

    play(monkeypatch, check)


def test_a_start_waits_for_shards_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(made: ShardConnections, coordinator: MemoryCoordinator) -> None:
        made.add(0, "inproc://a")
        assert made.not_ready() is not None
        monkeypatch.setattr(shard_connections, "START_WAIT_S", 0.0)
        await made.until_ready()
        assert made.not_ready() is None

    play(monkeypatch, check)


def test_a_new_queue_is_placed_once_and_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(made: ShardConnections, coordinator: MemoryCoordinator) -> None:
        assert made.placement("q") is None
        placement = await made.place("q")
        assert made.placement("q") == placement
        assert made.placement("q/$dlq") == placement
        moved = made.moved
        entry = await coordinator.entry(f"{PLACEMENT}q")
        assert entry is not None
        moved_to = Placed.encode(1 - placement.shard, 2)
        await coordinator.write([Write(f"{PLACEMENT}q", moved_to, entry.revision)])
        made.refresh()
        assert made.placement("q") == (1 - placement.shard, 2)
        assert made.moved > moved

    play(monkeypatch, check)


def test_a_queue_is_lost_only_by_the_coordinators_word(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(made: ShardConnections, coordinator: MemoryCoordinator) -> None:
        await made.place("q")
        assert await made.lost("q") is None
        await coordinator.write(unplacing(["q"]))
        refusal = await made.lost("q")
        assert refusal is not None
        assert refusal.condition == conditions.RESOURCE_DELETED

        async def unreachable(queue: str) -> None:
            raise CoordinatorError("nobody answers")

        monkeypatch.setattr(coordinator, "placement", unreachable)
        assert await made.lost("q") is None

    play(monkeypatch, check)
