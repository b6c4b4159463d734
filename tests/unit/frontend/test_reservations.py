"""Large messages are sent when there is room, whichever clients do not read; no room stays unused."""

import pytest

from lightrail.amqp.events import ACCEPTED
from lightrail.frontend.outflow import FRONTEND_UNREAD_BYTES, ROOMS
from lightrail.frontend.reservations import LARGE_READ_BYTES, LARGE_READ_LOOKS
from lightrail.model import limits
from lightrail.wire.frames import DRAIN, EXACT, MORE
from tests.support.amqp.frontend_fakes import FakeConnection, FakeFrontend
from tests.support.now import now
from tests.unit.frontend.test_deliveries import Rig

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
    receivers.reservations.read(rig.connection)
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
