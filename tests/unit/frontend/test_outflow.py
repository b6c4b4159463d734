"""What may wait for clients that do not read grows where it is used, up to a bound of the process."""

import gc
import tracemalloc

import pytest

from lightrail.amqp.events import ACCEPTED
from lightrail.frontend.connection import (
    ClientConnection,
)
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.outflow import (
    FRONTEND_UNREAD_BYTES,
    LARGE_READ_BYTES,
    LARGE_READ_LOOKS,
    ROOMS,
    SHARE,
    WRITE_ANSWERS_BYTES,
)
from lightrail.frontend.unsettled_bytes import RUNS_COUNTED_EVERY_MS, SESSIONS_COUNTED, UNSETTLED_SLICE_BYTES
from lightrail.model import limits
from lightrail.wire.frames import DRAIN, EXACT, MORE
from tests.support.amqp.frontend_fakes import FakeConnection, FakeFrontend
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.now import now
from tests.support.shard.scene import Scene as ShardScene
from tests.unit.frontend.test_deliveries import Rig, slice_of

KIB = 1024
MIB = 1024 * KIB
LARGE = 8 * MIB
CREDIT = 100


def share(rig: Rig) -> int:
    return rig.connection.window_bytes // rig.connection.consumers


class Receivers:
    """Connections of one frontend with one receiving link each, that have given credit."""

    def __init__(self, count: int) -> None:
        self.frontend = FakeFrontend()
        self.reservations = self.frontend.outflow.reservations
        self.rigs = [self.rig() for _ in range(count)]

    def rig(self, beside: Rig | None = None) -> Rig:
        """One more link: of a connection of its own, or beside another."""
        connection = beside.connection if beside is not None else FakeConnection(self.frontend)
        if beside is None:
            connection.room = limits.WRITE_ROOM_MIN
            connection.window_bytes = 2 * limits.WRITE_ROOM_MIN
        rig = Rig(warm=False, connection=connection)
        rig.credit(CREDIT)
        rig.hear()
        return rig

    @property
    def free(self) -> int:
        return self.frontend.outflow.free_bytes

    def turn(self) -> None:
        """What is due now."""
        while now := [call for wait_ms, call in self.frontend.calls if not wait_ms]:
            self.frontend.calls = [each for each in self.frontend.calls if each[0]]
            for call in now:
                call()

    def look(self) -> None:
        """A second passes."""
        calls, self.frontend.calls = self.frontend.calls, []
        for _, call in calls:
            call()
        self.turn()


def report(rig: Rig, size: int = LARGE) -> None:
    """The shard's next message is larger than its credit."""
    rig.hear()
    assert size > rig.room
    rig.limit = rig.next
    rig.room = 0
    rig.consumer.larger(rig.next, size)
    rig.hear()


def is_let_in(rig: Rig, size: int = LARGE) -> bool:
    rig.hear()
    return rig.limit > rig.next and rig.room >= size


def come(rig: Rig, size: int = LARGE, *, stuck: bool = False) -> None:
    """The message comes; where the client does not read, the socket is full with it."""
    assert is_let_in(rig, size)
    rig.connection.paused = stuck
    rig.deliver(1, size)


def read(receivers: Receivers, rig: Rig) -> None:
    """The client reads everything."""
    rig.connection.paused = False
    receivers.reservations.read(rig.connection)  # type: ignore[arg-type]
    rig.consumer.writable()
    receivers.turn()
    rig.hear()


def test_a_message_that_is_reported_gets_credit_of_its_size_and_the_next_one_that_of_others() -> None:
    receivers = Receivers(1)
    (rig,) = receivers.rigs
    assert rig.room == share(rig)
    assert [flags for _, flags in rig.credits] == [EXACT, EXACT | MORE]
    report(rig)
    assert rig.room == LARGE
    assert receivers.free == FRONTEND_UNREAD_BYTES - LARGE
    come(rig)
    receivers.turn()
    assert receivers.free == FRONTEND_UNREAD_BYTES - outgrown(rig)
    rig.hear()
    assert rig.room == share(rig)


def outgrown(rig: Rig) -> int:
    """What the connection's own room costs, which grows as its receivers use it."""
    return ROOMS * (rig.connection.room - limits.WRITE_ROOM_MIN)


def test_one_link_of_a_connection_at_a_time_and_the_next_when_the_client_has_read() -> None:
    receivers = Receivers(1)
    (first,) = receivers.rigs
    others = [receivers.rig(first) for _ in range(3)]
    for rig in (first, *others):
        report(rig)
    come(first, stuck=True)
    for _ in range(3):
        receivers.look()
        assert not any(is_let_in(rig) for rig in others)
    read(receivers, first)
    for rig in others:
        rig.consumer.writable()
    assert [is_let_in(rig) for rig in others] == [True, False, False]


def test_messages_that_fit_into_the_room_of_their_connection_come_beside_one_another() -> None:
    receivers = Receivers(1)
    (first,) = receivers.rigs
    others = [receivers.rig(first) for _ in range(40)]
    before = receivers.free
    for rig in others[-4:]:
        report(rig, 16 * KIB)
    assert all(is_let_in(rig, 16 * KIB) for rig in others[-4:])
    assert receivers.free == before


def test_clients_that_do_not_read_never_get_all_of_the_bytes() -> None:
    receivers = Receivers(40)
    for rig in receivers.rigs:
        report(rig)
    stuck = [rig for rig in receivers.rigs if is_let_in(rig)]
    for rig in stuck:
        come(rig, stuck=True)
    receivers.turn()
    assert 8 <= len(stuck) <= 16
    assert receivers.free >= LARGE
    assert receivers.free == FRONTEND_UNREAD_BYTES - len(stuck) * LARGE


def test_a_client_that_has_read_one_does_not_wait_behind_those_that_do_not_read() -> None:
    receivers = Receivers(1)
    (reader,) = receivers.rigs
    report(reader)
    come(reader)
    receivers.turn()
    stuck = [receivers.rig() for _ in range(100)]
    for rig in stuck:
        report(rig)
        if is_let_in(rig):
            come(rig, stuck=True)
    size = 2 * LARGE
    for _ in range(50):
        report(reader, size)
        come(reader, size)
        reader.outcome(reader.next - 1, reader.next - 1, ACCEPTED)
        receivers.turn()


def test_a_message_of_any_size_comes_while_there_is_no_other() -> None:
    receivers = Receivers(2)
    first, second = receivers.rigs
    size = limits.MAX_MESSAGE_BYTES
    report(first, size)
    report(second, size)
    assert is_let_in(first, size)
    assert not is_let_in(second, size)
    come(first, size, stuck=True)
    receivers.turn()
    assert not is_let_in(second, size)
    read(receivers, first)
    assert is_let_in(second, size)


def test_room_that_no_message_uses_is_taken_back_while_others_wait() -> None:
    receivers = Receivers(2)
    first, second = receivers.rigs
    size = 100 * MIB
    report(first, size)
    report(second, size)
    for _ in range(2):
        receivers.look()
    first.hear()
    assert first.room == share(first)
    assert first.limit > first.next, "it still gets what is small"
    assert is_let_in(second, size)


def wait_beside_one_that_is_sent_much(receivers: Receivers) -> tuple[Rig, Rig]:
    first, second = receivers.rigs
    size = 100 * MIB
    report(first, size)
    come(first, size, stuck=True)
    report(second, size)
    return first, second


def test_a_client_that_does_not_read_is_closed_while_others_wait() -> None:
    receivers = Receivers(2)
    first, second = wait_beside_one_that_is_sent_much(receivers)
    for _ in range(LARGE_READ_LOOKS):
        receivers.look()
        assert not first.connection.cuts
    for _ in range(5):
        receivers.look()
    assert len(first.connection.cuts) == 1
    first.consumer.close()
    receivers.turn()
    assert not is_let_in(second, 100 * MIB), "the bytes are the socket's until that is closed"
    first.connection.frontend.outflow.forget(first.connection)  # type: ignore[arg-type]
    receivers.turn()
    assert is_let_in(second, 100 * MIB)


def test_one_that_reads_slowly_is_not() -> None:
    receivers = Receivers(2)
    first, _ = wait_beside_one_that_is_sent_much(receivers)
    for _ in range(20 * LARGE_READ_LOOKS):
        first.connection.taken += 2 * LARGE_READ_BYTES // LARGE_READ_LOOKS
        receivers.look()
    assert not first.connection.cuts


def test_nor_one_that_does_not_read_while_nobody_waits() -> None:
    receivers = Receivers(1)
    (rig,) = receivers.rigs
    report(rig)
    come(rig, stuck=True)
    for _ in range(20 * LARGE_READ_LOOKS):
        receivers.look()
    assert not rig.connection.cuts


def test_a_link_that_is_closed_leaves_its_message_in_the_socket_and_the_room_with_it() -> None:
    receivers = Receivers(1)
    (rig,) = receivers.rigs
    report(rig)
    come(rig, stuck=True)
    rig.consumer.close()
    receivers.turn()
    assert receivers.free == FRONTEND_UNREAD_BYTES - LARGE
    read(receivers, rig)
    assert receivers.free == FRONTEND_UNREAD_BYTES


@pytest.mark.parametrize("end", ["close", "no credit", "shard again"])
def test_a_link_that_wants_no_message_any_more_frees_the_room(end: str) -> None:
    receivers = Receivers(2)
    for rig in receivers.rigs:
        report(rig, 100 * MIB)
        if end == "close":
            rig.consumer.close()
        elif end == "no credit":
            rig.credit(rig.next)
        else:
            rig.consumer.reopen()
    receivers.turn()
    assert receivers.free == FRONTEND_UNREAD_BYTES
    assert not receivers.reservations._line


def test_a_drain_waits_for_the_message_that_was_reported() -> None:
    receivers = Receivers(1)
    (rig,) = receivers.rigs
    rig.credit(CREDIT, drain=True)
    rig.hear()
    assert now(rig.draining)
    rig.consumer.larger(rig.next, LARGE)
    rig.drain()
    rig.hear()
    assert now(rig.link.drains) == 0
    assert rig.credits[-1][1] == EXACT | DRAIN | MORE
    come(rig)
    receivers.turn()
    rig.hear()
    rig.drain()
    rig.hear()
    while rig.draining:
        rig.drain()
        rig.hear()
    assert rig.link.drains == 1


def test_a_report_that_crossed_credit_enough_for_the_message_is_passed_over() -> None:
    receivers = Receivers(1)
    (rig,) = receivers.rigs
    report(rig)
    said = len(rig.credits)
    rig.consumer.larger(rig.next, LARGE)
    rig.hear()
    assert len(rig.credits) == said


def test_smaller_messages_that_come_instead_use_the_room_up() -> None:
    receivers = Receivers(1)
    (rig,) = receivers.rigs
    report(rig)
    for _ in range(3):
        rig.deliver(1, 200 * KIB)
    rig.consumer.larger(rig.next, LARGE)
    receivers.turn()
    assert is_let_in(rig)
    come(rig)
    receivers.turn()
    assert receivers.free == FRONTEND_UNREAD_BYTES - outgrown(rig)


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


def test_runs_of_many_sessions_are_counted_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_UNSETTLED_BYTES", 100_000)

    async def test(scene: Scene) -> None:
        client, connection = await receiver(scene)
        for _ in range(SESSIONS_COUNTED):
            client.amqp.begin()
        (link,) = client.amqp.sessions[0].inputs.values()
        consumer_of(connection).deliver(slice_of(0, [TINY] * 600), 0, 600)
        await client.turn()
        assert not connection.has_too_much_unsettled()
        for number in range(0, 600, 2):
            link.settle(number, number, ACCEPTED)
        await client.turn()
        scene.time_ms += RUNS_COUNTED_EVERY_MS - 1
        assert not connection.has_too_much_unsettled()
        scene.time_ms += 1
        assert connection.has_too_much_unsettled()
        link.settle(0, 599, ACCEPTED)
        await client.turn()
        assert not connection.has_too_much_unsettled(), "nobody waits for a count that is outdated"

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
    assert found < counted + runs * limits.UNSETTLED_RUN_BYTES + 100_000
