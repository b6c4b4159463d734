"""Opening of a client's connection: time, users, SASL, and how many may be open or opening."""

import asyncio
from typing import Any

import pytest

from lightrail.amqp import frames
from lightrail.amqp.performatives import (
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    decode_performative,
    encode_performative,
)
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.values import Symbol
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.users import UserRecord
from lightrail.model import limits
from lightrail.namespace.records import Right
from lightrail.namespace.rights import ANYBODY
from lightrail.wire.bodies import ConsumerOpen
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.now import now


def test_a_half_open_connection_is_closed_in_time() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        await client.turn()
        assert scene.frontend.connections.half_open == 1
        scene.time_ms += limits.OPENING_TIME_MS + 1
        scene.frontend.deadlines.ring()
        await scene.settle()
        # The client has seen the header, so it gets a close; the connection ends also without an answer.
        scene.time_ms += limits.CLOSING_TIME_MS + 1
        scene.frontend.deadlines.ring()
        await scene.settle()
        assert client.transport.closing
        assert scene.frontend.connections.half_open == 0

    play(test)


def test_a_peer_with_a_short_idle_time_out_hears_from_us_in_time() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client(settings=ConnectionSettings(is_server=False, idle_time_out_ms=2_000))
        await client.open()
        scene.time_ms += 500
        scene.frontend.deadlines.ring()
        await scene.settle()
        assert bytes(client.transport.written) == frames.EMPTY_FRAME

    play(test)


def test_a_connection_that_is_gone_leaves_no_deadline() -> None:
    async def test(scene: Scene) -> None:
        clients = [scene.client() for _ in range(5)]
        for client in clients:
            await client.open()
            client.transport.abort()
        await scene.settle()
        scene.time_ms += 10 * limits.IDLE_TIME_OUT_MS
        scene.frontend.deadlines.ring()
        assert not scene.frontend.deadlines
        assert scene.frontend.deadlines._timer is None

    play(test)


def test_deadlines_of_connections_that_ended_are_forgotten_and_others_kept() -> None:
    async def test(scene: Scene) -> None:
        stays = scene.client()
        for _ in range(4 * limits.STALE_ENTRIES_MIN):
            scene.client().transport.abort()
            await scene.settle()
        assert len(scene.frontend.deadlines) <= limits.STALE_ENTRIES_MIN + 2
        deadline_ms = stays.protocol.deadline_ms
        assert deadline_ms is not None
        scene.time_ms += deadline_ms - scene.frontend.now_ms()
        scene.frontend.deadlines.ring()
        await scene.settle()
        assert stays.transport.closing

    play(test)


def test_without_users_nobody_from_elsewhere_gets_in_not_even_without_sasl() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client("10.0.0.1")
        await client.turn()
        assert client.transport.aborted
        assert bytes(client.transport.written) == b""
        assert not scene.frontend.connections
        assert scene.frontend.counts.connections_refused == 1

    play(test)


async def sasl(client: Client, mechanism: str, response: bytes) -> list[Any]:
    """What the server says to a SASL client."""
    init = SaslInit(mechanism=Symbol(mechanism), initial_response=response)
    client.protocol.data_received(frames.SASL_HEADER + frames.sasl_frame(encode_performative(init)))
    for _ in range(100):
        await client.scene.settle()
        await asyncio.sleep(0.005)
        if client.transport.closing or b"\x00\x53\x44" in client.transport.written:
            break
    data = bytes(client.transport.written)
    client.transport.written.clear()
    assert data.startswith(frames.SASL_HEADER)
    position = len(frames.SASL_HEADER)
    found = []
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        found.append(decode_performative(data, position + 8, position + size)[0])
        position += size
    return found


@pytest.mark.parametrize(("password", "code"), [(b"secret", 0), (b"wrong", 1)])
def test_plain_over_the_socket(password: bytes, code: int) -> None:
    async def test() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.add_user(UserRecord.make("ann", "secret", 4_096))
        scene = await Scene.start(coordinator)
        client = scene.client()
        offered, outcome = await sasl(client, "PLAIN", b"\0ann\0" + password)
        assert isinstance(offered, SaslMechanisms)
        assert isinstance(outcome, SaslOutcome)
        assert outcome.code == code
        assert client.transport.closing is (code != 0)
        assert client.protocol.client.user == (None if code else "ann")
        assert scene.frontend.counts.authentications_failed == code
        if not code:
            session = await client.open()
            assert client.amqp.opened
            await scene.frontend.service.permit(ANYBODY, "ann", "", frozenset({Right.LISTEN}))
            scene.frontend.directory.refresh()
            await client.receiver(session)
            assert ConsumerOpen.decode(scene.shard.said[0].body).user == "ann"
        scene.frontend.shard_connections.wiring.close()

    asyncio.run(test())


def test_the_time_to_open_does_not_run_while_a_password_waits_for_its_check() -> None:
    class Slow(MemoryCoordinator):
        """Finds users when it may."""

        def __init__(self) -> None:
            super().__init__()
            self.may = asyncio.Event()

        async def user(self, name: str) -> UserRecord | None:
            await self.may.wait()
            return await super().user(name)

    async def test() -> None:
        coordinator = Slow()
        await coordinator.add_user(UserRecord.make("ann", "secret", 4_096))
        coordinator.may.set()
        scene = await Scene.start(coordinator)
        coordinator.may.clear()
        client = scene.client()
        init = SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0ann\0secret")
        client.protocol.data_received(frames.SASL_HEADER + frames.sasl_frame(encode_performative(init)))
        await scene.settle()
        for _ in range(3):
            scene.time_ms += limits.OPENING_TIME_MS
            client.protocol.tick(scene.time_ms)
            await scene.settle()
        assert not now(client.transport.closing)
        coordinator.may.set()
        while b"\x00\x53\x44" not in client.transport.written:  # noqa: ASYNC110 - hashed in a thread
            await asyncio.sleep(0.001)
        assert client.protocol.client.user == "ann"
        scene.time_ms += limits.OPENING_TIME_MS - 1
        client.protocol.tick(scene.time_ms)
        await scene.settle()
        assert not now(client.transport.closing)
        scene.time_ms += 1
        client.protocol.tick(scene.time_ms)
        await scene.settle()
        assert client.transport.closing
        scene.frontend.shard_connections.wiring.close()

    asyncio.run(test())


def test_users_that_can_not_be_read_are_no_good_outcome() -> None:
    class Broken(MemoryCoordinator):
        async def user(self, name: str) -> UserRecord | None:
            raise OSError("no disk")

    async def test() -> None:
        coordinator = Broken()
        await coordinator.add_user(UserRecord.make("ann", "secret", 4_096))
        scene = await Scene.start(coordinator)
        client = scene.client()
        _, outcome = await sasl(client, "PLAIN", b"\0ann\0secret")
        assert outcome.code == 1
        assert client.transport.closing
        scene.frontend.shard_connections.wiring.close()

    asyncio.run(test())


def test_more_connections_than_the_limit_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 2)

    async def test(scene: Scene) -> None:
        first, second = scene.client(), scene.client()
        for client in (first, second):
            await client.open()
        late = scene.client()
        await scene.settle()
        assert late.transport.aborted
        assert scene.frontend.counts.connections_refused == 1
        # One that is closed makes room.
        first.transport.abort()
        await scene.settle()
        await scene.client().open()
        assert len(scene.frontend.connections) == 2

    play(test)


def test_more_half_open_connections_than_the_limit_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HALF_OPEN_MAX", 3)

    async def test(scene: Scene) -> None:
        clients = [scene.client() for _ in range(5)]
        await scene.settle()
        assert [client.transport.aborted for client in clients] == [False, False, False, True, True]
        await clients[0].open()
        late = scene.client()
        await scene.settle()
        assert not late.transport.aborted
        assert scene.frontend.counts.connections_refused == 2

    play(test)
