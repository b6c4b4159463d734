"""The bound over all messages that forwarders of a gateway hold."""

from dataclasses import dataclass

import pytest

from lightrail.gateway.forwarding.room import FORWARDING_BYTES_MAX, ForwardingRoom


@dataclass(eq=False)
class Source:
    room: ForwardingRoom
    is_waiting: bool = False
    held: int = 2
    size: int = 0
    given_back: int = 0

    def hold(self, size: int) -> None:
        self.size = size
        self.room.hold(self, size)

    def give_back(self) -> None:
        self.given_back += 1
        self.hold(0)


@pytest.mark.parametrize("bytes_max", [100, FORWARDING_BYTES_MAX])
def test_many_sources_that_wait_hold_no_more_than_the_bound(bytes_max: int) -> None:
    room = ForwardingRoom(bytes_max)
    sources = [Source(room, is_waiting=True) for _ in range(50)]
    for each in sources:
        each.hold(bytes_max // 10)
        assert room.held == sum(each.size for each in sources) <= bytes_max
        assert room.left == bytes_max - room.held
    assert sum(each.given_back for each in sources) == 40


def test_one_that_waits_for_its_target_makes_room_before_one_that_does_not() -> None:
    room = ForwardingRoom(100)
    works, waits, waits_more = Source(room), Source(room, is_waiting=True), Source(room, is_waiting=True)
    works.hold(60)
    waits.hold(10)
    waits_more.hold(20)
    works.hold(75)
    assert [each.size for each in (works, waits, waits_more)] == [75, 10, 0]
    waits_more.hold(30)
    assert [each.size for each in (works, waits, waits_more)] == [75, 10, 0]


def test_a_single_source_may_hold_one_message_above_the_bound() -> None:
    room = ForwardingRoom(100)
    source = Source(room)
    source.hold(1_000)
    assert (source.size, room.left) == (1_000, 0)
    source.hold(0)
    assert (room.held, room.left) == (0, 100)


def test_a_single_message_that_is_being_sent_is_not_received_again_for_want_of_room() -> None:
    room = ForwardingRoom(100)
    large, others = Source(room, held=1), [Source(room) for _ in range(4)]
    large.hold(80)
    for _ in range(10):
        for each in others:
            each.hold(8)
    assert (large.given_back, large.size) == (0, 80)
    assert room.held <= 100
    # Beside one that waits, or among single ones, it is the size that counts.
    waits = Source(room, is_waiting=True, held=1)
    waits.hold(20)
    assert (large.given_back, waits.given_back) == (0, 1)
    other = Source(room, held=1)
    other.hold(90)
    assert (large.given_back, other.given_back) == (0, 1)
