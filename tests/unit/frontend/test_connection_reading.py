"""Reading of a client's connection: what stops it, what starts it again, and credit meanwhile."""

from typing import Any

import pytest

from lightrail.amqp import events, frames
from lightrail.amqp.performatives import Transfer, encode_performative
from lightrail.frontend import intake
from lightrail.model import conditions, limits
from lightrail.wire.frames import Kind
from tests.support.amqp.frontend_links import both, slice_of
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.now import now


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
