"""What may wait for clients that do not read grows where it is used, up to a bound of the process."""

import gc
import tracemalloc

import pytest

from lightrail.amqp.events import ACCEPTED
from lightrail.frontend.connection import UNSETTLED_RUN_BYTES, ClientConnection
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.links.settlements import UNSETTLED_SLICE_BYTES
from lightrail.frontend.outflow import FRONTEND_UNREAD_BYTES, ROOMS, SHARE, WRITE_ANSWERS_BYTES
from lightrail.model import limits
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.shard.scene import Scene as ShardScene
from tests.unit.frontend.test_deliveries import slice_of

MESSAGE = b"\x00\x53\x75\xb0" + (992).to_bytes(4, "big") + bytes(992)
TINY = b"\x00\x53\x75\xa0\x05hello"
"""Of ten bytes."""


def granted(scene: Scene) -> int:
    return sum(ROOMS * (each.room - limits.WRITE_ROOM_MIN) + each.lent_bytes for each in scene.connections)


async def receiver(scene: Scene) -> tuple[Client, ClientConnection]:
    client = scene.client()
    session = await client.open()
    link = await client.receiver(session)
    scene.shard.ready()
    await client.turn()
    link.grant(1_000_000)
    await client.turn()
    return client, client.protocol


def consumer_of(connection: ClientConnection) -> ConsumerLink:
    """What is behind the only link of a connection."""
    (consumer,) = connection.links
    assert isinstance(consumer, ConsumerLink)
    return consumer


def deliver(connection: ClientConnection, count: int) -> None:
    """The shard sends so many messages of 1,000 bytes, ten at a time."""
    consumer = consumer_of(connection)
    for _ in range(count // 10):
        number = consumer.delivered()
        consumer.deliver(slice_of(number, [MESSAGE] * 10), number, 10)


def test_a_receiver_that_uses_its_window_gets_the_largest_room_and_gives_it_back() -> None:
    async def test(scene: Scene) -> None:
        _, connection = await receiver(scene)
        assert connection.room == limits.WRITE_ROOM_MIN
        deliver(connection, 5_000)
        assert connection.room == limits.WRITE_HIGH_WATER
        assert connection.window_bytes == limits.DELIVERY_WINDOW_BYTES
        assert scene.frontend.outflow.free_bytes == FRONTEND_UNREAD_BYTES - granted(scene)
        connection.abort()
        await scene.settle()
        assert scene.frontend.outflow.free_bytes == FRONTEND_UNREAD_BYTES

    play(test)


def test_a_receiver_that_needs_little_keeps_the_smallest_room() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        link = await client.receiver(session)
        scene.shard.ready()
        await client.turn()
        for turn in range(1, 200):
            link.grant(50)
            await client.turn()
            deliver(client.protocol, 50)
            await client.turn()
            assert consumer_of(client.protocol).delivered() == 50 * turn
        assert client.protocol.room == limits.WRITE_ROOM_MIN

    play(test)


def test_all_connections_together_never_get_more_than_the_process_has() -> None:
    async def test(scene: Scene) -> None:
        outflow = scene.frontend.outflow
        clients = [await receiver(scene) for _ in range(100)]
        for _ in range(3):
            for _, connection in clients:
                deliver(connection, 1_000)
                assert outflow.free_bytes == FRONTEND_UNREAD_BYTES - granted(scene) >= 0
        rooms = [connection.room for _, connection in clients]
        assert max(rooms) == limits.WRITE_HIGH_WATER
        assert min(rooms) == limits.WRITE_ROOM_MIN
        assert SHARE * ROOMS * 2 * min(rooms) > outflow.free_bytes

    play(test)


def test_where_there_is_no_room_who_receives_nothing_gives_it_up() -> None:
    async def test(scene: Scene) -> None:
        outflow = scene.frontend.outflow
        calls = []
        scene.frontend.later = lambda wait_ms, call: calls.append((wait_ms, call))  # type: ignore[method-assign]
        clients = [(await receiver(scene))[1] for _ in range(60)]
        for connection in clients:
            deliver(connection, 3_000)
            connection.transport.written.clear()  # type: ignore[union-attr]
        assert clients[0].room == limits.WRITE_HIGH_WATER
        assert clients[-1].room < limits.WRITE_HIGH_WATER
        for _ in range(4):
            looks = [call for wait_ms, call in calls if wait_ms == limits.OUTFLOW_LOOK_MS]
            assert len(looks) == 1
            calls.clear()
            await scene.settle()
            for connection in clients:
                connection.transport.written.clear()  # type: ignore[union-attr]
            looks[0]()
            deliver(clients[-1], 3_000)
            if clients[-1].room == limits.WRITE_HIGH_WATER:
                break
        assert clients[-1].room == limits.WRITE_HIGH_WATER
        assert clients[0].room == limits.WRITE_ROOM_MIN
        assert outflow.free_bytes == FRONTEND_UNREAD_BYTES - granted(scene)
        # Of what its shard might send, the most is taken back.
        consumer = consumer_of(clients[0])
        assert consumer._window.credit <= clients[0].window_bytes // len(MESSAGE)

    play(test)


def test_answers_to_who_does_not_read_are_lent_and_given_back() -> None:
    async def test(scene: Scene) -> None:
        outflow = scene.frontend.outflow
        client = scene.client()
        await client.open()
        connection = client.protocol
        connection.pause_writing()
        while outflow.lend(connection):
            assert outflow.free_bytes == FRONTEND_UNREAD_BYTES - granted(scene)
        most = limits.WRITE_HIGH_WATER - limits.WRITE_ROOM_MIN + WRITE_ANSWERS_BYTES
        assert connection.lent_bytes == most
        connection.resume_writing()
        assert outflow.free_bytes == FRONTEND_UNREAD_BYTES

    play(test)


# --- what is not settled -------------------------------------------------------------------------------


def test_slices_of_tiny_messages_count_with_what_is_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_UNSETTLED_BYTES", 100_000)

    async def test(scene: Scene) -> None:
        _, connection = await receiver(scene)
        consumer = consumer_of(connection)
        for number in range(120):
            consumer.deliver(slice_of(number, [TINY]), number, 1)
        assert 120 * 10 < limits.CONNECTION_UNSETTLED_BYTES < 120 * UNSETTLED_SLICE_BYTES
        assert connection.has_too_much_unsettled()
        assert consumer in connection.starved
        consumer.settlements.settle(0, 119, ACCEPTED)
        assert connection.unsettled_bytes == 0

    play(test)


def test_so_do_runs_that_settlements_in_another_order_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_UNSETTLED_BYTES", 100_000)

    async def test(scene: Scene) -> None:
        client, connection = await receiver(scene)
        (link,) = client.amqp.sessions[0].inputs.values()
        consumer_of(connection).deliver(slice_of(0, [TINY] * 600), 0, 600)
        await client.turn()
        assert not connection.has_too_much_unsettled()
        for number in range(0, 600, 2):
            link.settle(number, number, ACCEPTED)
        await client.turn()
        assert connection.unsettled_bytes < 10_000
        assert connection.has_too_much_unsettled()

    play(test)


@pytest.mark.parametrize(("per_batch", "every_other"), [(1, False), (500, False), (500, True)])
def test_what_a_shard_has_around_them_is_no_more_than_they_count_for(
    per_batch: int, every_other: bool
) -> None:
    messages = 10_000
    scene = ShardScene()
    peer = scene.peer("frontend-0")
    peer.greet()
    peer.produce(1, "q")
    peer.consume(2, "q")
    scene.settle_down()
    gc.collect()
    tracemalloc.start()
    for number in range(messages // per_batch):
        peer.send(1, number + 1, [TINY] * per_batch, durable=False)
        if number % 50 == 0:
            scene.settle_down()
    peer.credit(2, messages)
    scene.settle_down()
    if every_other:
        for number in range(0, messages, 2):
            peer.settle(2, number, 1)
        scene.settle_down()
    peer.delivered.clear()
    scene.store.records.clear()  # type: ignore[attr-defined]
    gc.collect()
    found = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    runs = messages // 2 if every_other else 1
    counted = 10 * messages + messages // per_batch * UNSETTLED_SLICE_BYTES
    assert found < counted + runs * UNSETTLED_RUN_BYTES + 100_000
