"""A client's connection: attaching through coordinator and shard, ends of every kind, nothing leaks."""

import asyncio
import socket
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from lightrail.amqp import events, frames
from lightrail.amqp.errors import LinkProtocolError
from lightrail.amqp.link_endpoint import LinkEndpoint
from lightrail.amqp.performatives import (
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
)
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.values import Symbol
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.users import UserRecord
from lightrail.frontend import intake
from lightrail.frontend.client import PROTON_CHANNEL_MAX, PROTON_MAX_FRAME_SIZES
from lightrail.frontend.links.transfers import ProducerLink
from lightrail.model import conditions, limits
from lightrail.model.links import Ending
from lightrail.model.placement import Placement
from lightrail.namespace.records import Right
from lightrail.namespace.rights import ANYBODY
from lightrail.wire.bodies import ConsumerOpen, ProducerOpen, Refusal, SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode, deliver
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.now import now


def slice_of(number: int, count: int, size: int = 20) -> bytes:
    body = b"\x00\x53\x75\xa0" + bytes((size - 5,)) + b"x" * (size - 5)
    ends = array("I", [size * index for index in range(1, count + 1)])
    return deliver(1, 1, number, count, 0, number, 0, 0, 0, 0, 0, ends, body * count)


# --- attaching -----------------------------------------------------------------------------------------


def test_a_sender_is_attached_when_its_shard_is_ready_and_gets_credit() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        link = await client.sender(session)
        (said,) = scene.shard.take()
        assert ProducerOpen.decode(said.body).queue == "q"
        assert client.take(events.Attached) == []
        scene.shard.ready()
        await client.turn()
        assert [event.link for event in client.take(events.Attached)] == [link]
        assert link.credit == limits.LINK_CREDIT_MAX
        link.send_one(b"\x00\x53\x75\xa0\x01x")
        await client.turn()
        (said,) = scene.shard.take()
        assert (said.kind, said.count) == (Kind.ENQUEUE, 1)
        (producer,) = scene.shard.producers.values()
        producer.answered(1, 1)
        await client.turn()
        (outcome,) = client.take(events.Outcome)
        assert (outcome.first, outcome.last, outcome.settled) == (0, 0, True)

    play(test)


def test_a_receiver_is_attached_and_gets_what_it_gave_credit_for() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        source = Source(address="q", filter={Symbol("f"): 1})
        link = session.attach("r", False, source=source, target=Target())
        await client.turn()
        (opened, _) = scene.shard.take()
        opening = ConsumerOpen.decode(opened.body)
        assert opening == ConsumerOpen("q", label="client/r", user="anonymous")
        scene.shard.ready()
        await client.turn()
        assert link.source.filter is None
        link.grant(10)
        await client.turn()
        (credit,) = scene.shard.take()
        assert (credit.kind, credit.number) == (Kind.CREDIT, 10)
        (consumer,) = scene.shard.consumers.values()
        consumer.deliver(slice_of(0, 3), 0, 3)
        await client.turn()
        (transfers,) = client.take(events.Transfers)
        assert len(transfers.payloads) == 3
        link.settle(transfers.first_delivery_id, transfers.first_delivery_id + 2)
        await client.turn()
        (settled,) = scene.shard.take()
        assert (settled.kind, settled.number, settled.count) == (Kind.SETTLE, 0, 3)
        assert settled.flags == OutcomeCode.ACCEPTED

    play(test)


def test_links_of_one_queue_ask_the_coordinator_once() -> None:
    class Counting(MemoryCoordinator):
        asked = 0

        async def place(self, queue: str) -> Placement:
            self.asked += 1
            await asyncio.sleep(0)
            return await super().place(queue)

    async def test() -> None:
        coordinator = Counting()
        scene = await Scene.start(coordinator)
        client = scene.client()
        session = await client.open()
        for number in range(5):
            session.attach(f"r{number}", False, source=Source(address="q"), target=Target())
        await client.turn()
        assert len(scene.shard.consumers) == 5
        assert coordinator.asked == 1
        scene.frontend.shard_connections.end()

    asyncio.run(test())


@pytest.mark.parametrize("end", ["detach", "end", "close", "lost"])
def test_gone_before_its_queue_was_placed(end: str) -> None:
    """The answer of the coordinator finds nobody: nothing is opened at the shard."""

    class Slow(MemoryCoordinator):
        def __init__(self) -> None:
            super().__init__()
            self.go_on = asyncio.Event()

        async def place(self, queue: str) -> Placement:
            await self.go_on.wait()
            return await super().place(queue)

    async def test() -> None:
        coordinator = Slow()
        scene = await Scene.start(coordinator)
        client = scene.client()
        session = await client.open()
        link = await client.receiver(session)
        if end == "detach":
            link.detach()
        elif end == "end":
            session.end()
        elif end == "close":
            client.amqp.close()
        else:
            client.transport.abort()
        await client.turn()
        coordinator.go_on.set()
        await client.turn()
        assert scene.shard.take() == []
        assert scene.links_attached() == 0
        assert scene.frontend._tasks == set()
        scene.frontend.shard_connections.end()

    asyncio.run(test())


def test_a_coordinator_that_fails_refuses_the_link() -> None:
    class Broken(MemoryCoordinator):
        async def place(self, queue: str) -> Placement:
            raise OSError("no disk")

    async def test() -> None:
        scene = await Scene.start(Broken())
        client = scene.client()
        session = await client.open()
        await client.sender(session)
        (detached,) = client.take(events.Detached)
        assert detached.error is not None
        assert detached.error.condition == conditions.INTERNAL_ERROR
        assert scene.frontend.shard_connections._look_ups == {}
        scene.frontend.shard_connections.end()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("is_sender", "source", "target", "condition"),
    [
        (True, Source(), None, conditions.INVALID_FIELD),
        (True, Source(), Target(dynamic=True, address="q"), conditions.INVALID_FIELD),
        (True, Source(), Target(address="a" * 600), conditions.INVALID_FIELD),
        (False, Source(), Target(), conditions.INVALID_FIELD),
        (False, None, Target(), conditions.NOT_FOUND),
        (False, Source(dynamic=True, address="q"), Target(), conditions.INVALID_FIELD),
    ],
)
def test_what_can_not_be_attached_is_refused_with_its_condition(
    is_sender: bool, source: Any, target: Any, condition: str
) -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        session.attach("l", is_sender, source=source, target=target)
        await client.turn()
        (attached,) = client.take(events.Attached)
        attach = attached.link.attach
        assert attach is not None
        assert (attach.target if is_sender else attach.source) is None
        (detached,) = client.take(events.Detached)
        assert detached.closed
        assert detached.error is not None
        assert detached.error.condition == condition
        assert detached.error.description
        assert scene.frontend.counts.links_refused == 1
        assert scene.shard.take() == []

    play(test)


@pytest.mark.parametrize("ready", [True, False])
def test_a_link_that_the_shard_will_not_have(ready: bool) -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        await client.receiver(session)
        if ready:
            scene.shard.ready()
            await client.turn()
        (consumer,) = scene.shard.consumers.values()
        consumer.ended(Refusal(conditions.RESOURCE_LOCKED, "somebody else has it"))
        await client.turn()
        (detached,) = client.take(events.Detached)
        assert detached.error is not None
        assert detached.error.condition == conditions.RESOURCE_LOCKED
        assert scene.links_attached() == 0

    play(test)


# --- ends ----------------------------------------------------------------------------------------------


async def both(scene: Scene, **options: Any) -> tuple[Client, Any, Any, Any]:
    """A client with a sender and a receiver, attached."""
    client = scene.client(**options)
    session = await client.open()
    sender = await client.sender(session)
    receiver = await client.receiver(session)
    scene.shard.ready()
    await client.turn()
    scene.shard.take()
    assert scene.links_attached() == 2
    return client, session, sender, receiver


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


def test_a_message_that_is_larger_than_the_receiver_takes_returns_and_its_neighbours_are_sent() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        link = session.attach("r", False, source=Source(address="q"), target=Target())
        link.max_message_size = 100
        # The attach is on its way already: what it says is what counts.
        client.amqp.output.clear()
        client.amqp.output.append(frames.frame(0, link.attach_body(None, None, None)))
        await client.turn()
        scene.shard.ready()
        await client.turn()
        link.grant(10)
        await client.turn()
        (consumer,) = scene.shard.consumers.values()
        consumer.deliver(slice_of(0, 1, 200), 0, 1)
        consumer.deliver(slice_of(1, 1, 50), 1, 1)
        await client.turn()
        (transfers,) = client.take(events.Transfers)
        assert [len(each) for each in transfers.payloads] == [50]
        (said,) = scene.shard.take(Kind.SETTLE)
        detail = SettleDetail.decode(said.body)
        assert (said.number, said.count, detail.undeliverable_here, detail.delivery_failed) == (
            0,
            1,
            True,
            False,
        )
        assert scene.frontend.counts.messages_too_large == 1
        assert scene.links_attached() == 1

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


# --- reading and writing -------------------------------------------------------------------------------


def test_a_client_that_does_not_read_gets_a_window() -> None:
    async def test(scene: Scene) -> None:
        client, _, _, receiver = await both(scene)
        receiver.grant(100_000)
        await client.turn()
        (credit,) = scene.shard.take()
        first = credit.number
        client.protocol.pause_writing()
        (consumer,) = scene.shard.consumers.values()
        consumer.deliver(slice_of(0, first), 0, first)
        assert scene.shard.take() == []
        client.protocol.resume_writing()
        (credit,) = scene.shard.take()
        assert credit.number > first
        assert scene.frontend.counts.write_stalls == 1

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


def test_a_client_that_we_do_not_read_is_not_taken_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "CONNECTION_UNANSWERED_BYTES", 100)

    async def test(scene: Scene) -> None:
        client, _, sender, _ = await both(scene)
        for _ in range(20):
            sender.send_one(b"\x00\x53\x75\xa0\x0a0123456789")
        await client.turn()
        assert not now(client.transport.reading)
        for _ in range(4):
            scene.time_ms += limits.IDLE_TIME_OUT_MS
            scene.frontend.deadlines.ring()
            await client.turn()
        assert client.amqp.opened
        (producer,) = scene.shard.producers.values()
        producer.answered(1, 20)
        assert client.transport.reading
        scene.time_ms += limits.IDLE_TIME_OUT_MS + 1
        scene.frontend.deadlines.ring()
        await client.turn()
        assert client.take(events.Closed)

    play(test)


class Later:
    """The frontend's timers in the test's hand."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.calls: list[tuple[int, Any]] = []
        scene.frontend.later = lambda wait_ms, call: self.calls.append((scene.time_ms + wait_ms, call))  # type: ignore[method-assign]

    def pass_ms(self, wait_ms: int) -> None:
        self.scene.time_ms += wait_ms
        due = [call for at, call in self.calls if at <= self.scene.time_ms]
        self.calls = [each for each in self.calls if each[0] > self.scene.time_ms]
        for call in due:
            call()


def test_a_connection_whose_own_settlements_make_room_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue holds its senders back until a consumer settles: that may be behind their messages."""
    monkeypatch.setattr(intake, "CONNECTION_UNANSWERED_BYTES", 100)
    message = b"\x00\x53\x75\xa0\x0a0123456789"

    async def test(scene: Scene) -> None:
        later = Later(scene)
        client, _, sender, receiver = await both(scene)
        receiver.grant(10)
        await client.turn()
        (consumer,) = scene.shard.consumers.values()
        consumer.deliver(slice_of(0, 3), 0, 3)
        for _ in range(20):
            sender.send_one(message)
        await client.turn()
        (transfers,) = client.take(events.Transfers)
        assert not now(client.transport.reading)
        later.pass_ms(intake.INTAKE_STALL_MS - 1)
        assert not now(client.transport.reading)
        later.pass_ms(1)
        assert now(client.transport.reading)
        # What it goes on sending is refused; its settlement is heard.
        scene.shard.take()
        sender.send_one(message)
        receiver.settle(transfers.first_delivery_id, transfers.first_delivery_id)
        await client.turn()
        assert [said.kind for said in scene.shard.take()] == [Kind.SETTLE]
        (outcome,) = client.take(events.Outcome)
        assert outcome.state.error.condition == conditions.RESOURCE_LIMIT_EXCEEDED
        # There is room: all goes on.
        (producer,) = scene.shard.producers.values()
        producer.answered(1, 1)
        await client.turn()
        credit = sender.credit
        assert credit > 0
        client.take(events.Outcome)
        sender.send_one(message)
        await client.turn()
        assert [said.kind for said in scene.shard.take()] == [Kind.ENQUEUE]

    play(test)


def test_credit_that_refused_messages_used_up_is_granted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "CONNECTION_UNANSWERED_BYTES", 100)
    monkeypatch.setattr(limits, "LINK_CREDIT_MAX", 20)
    message = b"\x00\x53\x75\xa0\x0a0123456789"

    async def test(scene: Scene) -> None:
        later = Later(scene)
        client, session, sender, _ = await both(scene)
        other = await client.sender(session, "other", "other")
        scene.shard.ready()
        await client.turn()
        for _ in range(20):
            sender.send_one(message)
        await client.turn()
        later.pass_ms(intake.INTAKE_STALL_MS)
        while now(other.credit):
            other.send_one(message)
        await client.turn()
        assert now(other.credit) == 0
        next(iter(scene.shard.producers.values())).answered(1, 1)
        await client.turn()
        assert other.credit == 20

    play(test)


def test_what_came_settled_and_is_refused_ends_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "CONNECTION_UNANSWERED_BYTES", 100)
    message = b"\x00\x53\x75\xa0\x0a0123456789"

    async def test(scene: Scene) -> None:
        later = Later(scene)
        client, _, sender, _ = await both(scene)
        for _ in range(20):
            sender.send_one(message, 0, True)
        await client.turn()
        later.pass_ms(intake.INTAKE_STALL_MS)
        sender.send_one(message, 0, True)
        await client.turn()
        (detached,) = client.take(events.Detached)
        assert detached.error is not None
        assert detached.error.condition == conditions.RESOURCE_LIMIT_EXCEEDED

    play(test)


def test_a_connection_that_only_sends_is_read_again_after_shard_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that waits is its own to make room for: TCP slows it down, as long as anything is answered."""
    monkeypatch.setattr(intake, "CONNECTION_UNANSWERED_BYTES", 100)

    async def test(scene: Scene) -> None:
        later = Later(scene)
        client = scene.client()
        sender = await client.sender(await client.open())
        scene.shard.ready()
        await client.turn()
        for turn in range(2):
            for _ in range(20):
                sender.send_one(b"\x00\x53\x75\xa0\x0a0123456789")
            await client.turn()
            assert not client.transport.reading, turn
        (producer,) = scene.shard.producers.values()
        for _ in range(scene.frontend.settings.shard_wait // intake.INTAKE_STALL_MS - 1):
            later.pass_ms(intake.INTAKE_STALL_MS)
            assert not client.transport.reading
        producer.answered(1, 1)
        for _ in range(scene.frontend.settings.shard_wait // intake.INTAKE_STALL_MS):
            later.pass_ms(intake.INTAKE_STALL_MS)
            assert not client.transport.reading
        later.pass_ms(intake.INTAKE_STALL_MS)
        assert client.transport.reading

    play(test)


def test_a_half_open_connection_is_closed_in_time() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        await client.turn()
        assert scene.frontend.connections.half_open == 1
        scene.time_ms += limits.OPENING_TIME_MS + 1
        scene.frontend.deadlines.ring()
        await scene.settle()
        # It has seen our header, so it is told; then it is gone, whether it answers or not.
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


# --- who may enter -------------------------------------------------------------------------------------


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
        scene.frontend.shard_connections.end()

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
        scene.frontend.shard_connections.end()

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
        scene.frontend.shard_connections.end()

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


@pytest.mark.parametrize("others", [0, 1])
def test_who_has_most_of_too_many_unfinished_messages_is_closed(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Not to read its socket would not help: only its own last frames make room."""
    monkeypatch.setattr(intake, "FRONTEND_UNFINISHED_BYTES", 100_000)

    async def test(scene: Scene) -> None:
        clients = []
        for number in range(1 + others):
            client = scene.client()
            link = await client.sender(await client.open(), f"s{number}")
            scene.shard.ready()
            await client.turn()
            clients.append((client, link))

        def begin(client: Client, link: Any, size: int) -> None:
            body = encode_performative(
                Transfer(handle=link.output_handle, delivery_id=0, delivery_tag=b"0", more=True)
            )
            client.protocol.data_received(frames.frame(0, body + b"\x00\x53\x75\xb0" + bytes(size)))

        for client, link in clients[1:]:
            begin(client, link, 10_000)
        client, link = clients[0]
        begin(client, link, 60_000)
        await client.turn()
        assert client.take(events.Closed) == []
        more = encode_performative(Transfer(handle=link.output_handle, more=True))
        client.protocol.data_received(frames.frame(0, more + bytes(60_000)))
        await client.turn()
        (closed,) = client.take(events.Closed)
        assert closed.error is not None
        assert closed.error.condition == conditions.RESOURCE_LIMIT_EXCEEDED
        for other, _ in clients[1:]:
            await other.turn()
            assert other.take(events.Closed) == []

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


# --- the end of the frontend ---------------------------------------------------------------------------


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
