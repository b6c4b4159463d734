"""Ends of a client's connection, of every kind: the peer hears why, deliveries return, nothing leaks."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.errors import LinkProtocolError
from lightrail.amqp.link_endpoint import LinkEndpoint
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.values import Symbol
from lightrail.frontend.client import PROTON_CHANNEL_MAX, PROTON_MAX_FRAME_SIZES
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.model import conditions, limits
from lightrail.model.links import Ending
from lightrail.wire.frames import Kind
from tests.support.amqp.frontend_links import both, slice_of
from tests.support.amqp.frontend_scene import Client, Scene, play


@pytest.mark.parametrize("end", ["detach", "end", "close", "lost", "garbage", "closed"])
def test_however_it_ends_nothing_is_left(end: str) -> None:
    async def test(scene: Scene) -> None:
        client, session, sender, receiver = await both(scene)
        if end == "detach":
            sender.detach()
            receiver.detach()
        elif end == "end":
            session.end()
        elif end == "close":
            client.amqp.close()
        elif end == "lost":
            client.transport.abort()
        elif end == "closed":
            # The client does not answer the close, and is not waited for.
            client.transport.stuck = True
            client.protocol.close(conditions.RESOURCE_LOCKED, "another connection is the only one")
        else:
            client.protocol.data_received(b"\x00\x00\x00\x01garbage")
        await (scene.settle() if end == "closed" else client.turn())
        assert sorted(scene.shard.closed) == [("consumer", 2), ("producer", 1)]
        assert scene.links_attached() == 0
        counts = scene.frontend.counts
        assert counts.sessions == (1 if end == "detach" else 0)
        assert len(scene.frontend.connections) == (0 if end in ("close", "lost", "garbage") else 1)
        assert scene.frontend.connections.half_open == 0

    play(test)


@pytest.mark.parametrize("closes", [True, False])
def test_what_a_client_sent_before_its_socket_was_reset_is_applied(closes: bool) -> None:
    """The transport of a socket whose write fails does not read the client's last bytes."""

    async def test(scene: Scene) -> None:
        client, _, _, _ = await both(scene)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            client.transport.extra["socket"] = ours
            if closes:
                client.amqp.close()
                theirs.sendall(b"".join(client.amqp.output))
            client.protocol.connection_lost(ConnectionResetError())
        assert scene.shard.endings == [Ending.BY_CLIENT if closes else Ending.FAILED]
        assert len(scene.frontend.connections) == 0

    play(test)


def test_the_last_bytes_are_answered_when_the_client_ends_its_direction() -> None:
    """TLS accepts no bytes afterwards: go-amqp, which ends it behind its close, would find no answer."""

    async def test(scene: Scene) -> None:
        client, _, _, _ = await both(scene)
        client.amqp.close()
        client.protocol.data_received(b"".join(client.amqp.output))
        assert not client.transport.written
        assert client.protocol.eof_received() is False
        client.amqp.feed(bytes(client.transport.written), scene.frontend.now_ms())
        assert client.amqp.closed

    play(test)


def test_answers_that_come_after_the_end_find_nobody() -> None:
    async def test(scene: Scene) -> None:
        client, _, sender, _ = await both(scene)
        sender.send_one(b"\x00\x53\x75\xa0\x01x")
        await client.turn()
        client.transport.abort()
        await client.turn()
        (producer,) = scene.shard.producers.values()
        (consumer,) = scene.shard.consumers.values()
        assert ("producer", 1) not in scene.shard.closed
        consumer.deliver(slice_of(0, 1), 0, 1)
        producer.answered(1, 1)
        await client.turn()
        assert ("producer", 1) in scene.shard.closed
        assert scene.frontend.counts.unanswered_bytes == 0

    play(test)


def test_an_attach_that_fits_into_no_frame_ends_its_session_and_leaves_nothing() -> None:
    async def test(scene: Scene) -> None:
        settings = ConnectionSettings(is_server=False, max_frame_size=512, idle_time_out_ms=0)
        client = scene.client(settings=settings)
        session = await client.open()
        session.attach("n" * 430, False, source=Source(address="q"), target=Target(address="t" * 100))
        await client.turn()
        scene.shard.ready()
        await client.turn()
        (ended,) = client.take(events.Ended)
        assert ended.error is not None
        assert ended.error.condition == conditions.FRAME_SIZE_TOO_SMALL
        assert scene.links_attached() == 0
        assert scene.shard.closed == [("consumer", 1)]

    play(test)


def test_a_mistake_of_ours_ends_one_connection_with_a_condition(caplog: pytest.LogCaptureFixture) -> None:
    async def test(scene: Scene) -> None:
        client, _, sender, _ = await both(scene)
        other, _, other_sender, _ = await both_more(scene)

        def fail(*_: object) -> None:
            raise ValueError("a mistake")

        scene.shard.producers[1].transfers = fail  # type: ignore[method-assign,assignment]
        sender.send_one(b"\x00\x53\x75\xa0\x01x")
        await client.turn()
        (closed,) = client.take(events.Closed)
        assert closed.error is not None
        assert closed.error.condition == conditions.INTERNAL_ERROR
        assert "a mistake" in caplog.text
        other_sender.send_one(b"\x00\x53\x75\xa0\x01x")
        await other.turn()
        assert [said.link for said in scene.shard.take(Kind.ENQUEUE)] == [3]

    class Patched(ProducerLink):
        """Without slots: the test puts a method of its own in."""

    async def both_more(scene: Scene) -> tuple[Client, Any, Any, Any]:
        client = scene.client()
        session = await client.open()
        sender = await client.sender(session)
        scene.shard.ready()
        await client.turn()
        scene.shard.take()
        return client, session, sender, None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightrail.frontend.links.attaching.ProducerLink", Patched)
        play(test)


def test_a_silent_peer_is_closed_and_what_it_held_goes_back() -> None:
    async def test(scene: Scene) -> None:
        client, _, _, _ = await both(scene)
        client.transport.stuck = True
        scene.time_ms += limits.IDLE_TIME_OUT_MS + 1
        scene.frontend.deadlines.ring()
        await scene.settle()
        assert sorted(scene.shard.closed) == [("consumer", 2), ("producer", 1)]
        assert client.protocol in scene.frontend.connections
        # It does not answer the close, nor read it: the socket goes all the same.
        for _ in range(3):
            scene.time_ms += limits.CLOSING_TIME_MS + 1
            scene.frontend.deadlines.ring()
            await scene.settle()
        assert client.transport.aborted
        assert not scene.frontend.connections
        assert not scene.frontend.deadlines

    play(test)


def test_a_connection_that_we_close_returns_its_deliveries_and_ends_its_output_at_once() -> None:
    async def test(scene: Scene) -> None:
        client, _, _, _ = await both(scene)
        client.protocol.hold_reading()
        client.protocol.close(conditions.CONNECTION_FORCED, "the broker is shutting down")
        await scene.settle()
        assert sorted(scene.shard.closed) == [("consumer", 2), ("producer", 1)]
        assert client.transport.ended
        assert client.transport.reading, "its close, or the end of the socket, is read"
        assert not client.transport.closing
        await client.turn()
        assert client.transport.closing

    play(test)


def test_over_tls_a_client_has_some_time_to_answer_before_the_socket_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(scene: Scene) -> None:
        later: list[Callable[[], None]] = []
        monkeypatch.setattr(scene.frontend, "later", lambda wait_ms, call: later.append(call))
        client, _, _, _ = await both(scene)
        client.transport.has_eof = False
        client.protocol.close(conditions.CONNECTION_FORCED, "the broker is shutting down")
        await scene.settle()
        assert not client.transport.closing
        later[-1]()
        assert client.transport.closing

    play(test)


@pytest.mark.parametrize("product", [{}, {Symbol("product"): "QpidJMS"}])
@pytest.mark.parametrize("stopping", [True, False])
def test_a_client_that_does_not_look_at_its_socket_after_a_close_gets_none_when_the_frontend_ends(
    product: dict[Symbol, Any], stopping: bool
) -> None:
    async def test(scene: Scene) -> None:
        settings = ConnectionSettings(
            is_server=False,
            container_id="client",
            idle_time_out_ms=0,
            channel_max=PROTON_CHANNEL_MAX,
            max_frame_size=PROTON_MAX_FRAME_SIZES[-1],
            properties=product,
        )
        client, _, _, _ = await both(scene, settings=settings)
        scene.frontend.stopping = stopping
        client.protocol.close(conditions.CONNECTION_FORCED, "the broker is shutting down")
        await client.turn()
        assert ("producer", 1) in scene.shard.closed
        assert client.transport.closing
        assert len(client.take(events.Closed)) == (0 if stopping and not product else 1)

    play(test)


def test_deliveries_for_a_link_that_ended_in_the_same_turn_are_not_sent() -> None:
    async def test(scene: Scene) -> None:
        client, _, _, receiver = await both(scene)
        receiver.grant(10)
        await client.turn()
        (consumer,) = scene.shard.consumers.values()
        link = consumer._link
        assert isinstance(link, LinkEndpoint)
        link.fail(LinkProtocolError(conditions.INTERNAL_ERROR, "an error that the engine finds"))
        client.protocol.touch()
        consumer.deliver(slice_of(0, 1), 0, 1)
        await client.turn()
        assert client.take(events.Transfers) == []
        assert len(client.take(events.Detached)) == 1
        assert scene.shard.closed == [("consumer", 2)]

    play(test)


def test_at_the_end_every_client_is_told() -> None:
    async def test() -> None:
        scene = await Scene.start()
        client, _, sender, _ = await both(scene)
        sender.send_one(b"\x00\x53\x75\xa0\x01x")
        await client.turn()
        stopping = asyncio.ensure_future(scene.frontend.stop(5))
        await scene.settle()
        assert client.take(events.Closed) == []
        (producer,) = scene.shard.producers.values()
        producer.answered(1, 1)
        async with asyncio.timeout(10):
            while not client.events or not client.take(events.Closed):
                await asyncio.sleep(0.005)
                await client.turn()
            await stopping
        assert not scene.frontend.connections

    asyncio.run(test())
