"""Delivery-tags with hand-built frames: unique among the unsettled deliveries of a link (2.6.12).

The broker settles as soon as it has stored a delivery, so two that are to meet come in one write.
"""

import pytest

from lightrail.amqp.performatives import Detach, Transfer
from tests.conformance.test_transport_2_7_transfers import contents, settled
from tests.support.amqp.frame_peer import Peer, frame, value

TAGS = {
    "number": (b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"),
    "digit": (b"0", b"1"),
    "random": (b"a random tag 16b", b"another tag, 16b"),
}


def deliveries(*tags: bytes, handle: int = 0) -> bytes:
    return b"".join(
        frame(Transfer(handle=handle, delivery_id=number, delivery_tag=tag), value(number))
        for number, tag in enumerate(tags)
    )


@pytest.mark.parametrize("kind", TAGS)
def test_2_6_12_the_tag_must_be_unique_amongst_unsettled_deliveries(
    begun: Peer, queue: str, kind: str
) -> None:
    """The first delivery is what it would be without the second."""
    first, other = TAGS[kind]
    begun.attach_sender(queue)
    begun.send(deliveries(first, other, first))
    begun.error_of(Detach, "amqp:not-allowed")
    begun.write(Detach(handle=0, closed=True))
    assert contents(begun, queue, 2) == [value(0), value(1)]


@pytest.mark.parametrize("kind", TAGS)
def test_2_6_12_each_delivery_has_its_own_tag_frame_by_frame(begun: Peer, queue: str, kind: str) -> None:
    """As above, with deliveries of two frames each."""
    tag = TAGS[kind][0]
    begun.attach_sender(queue)
    pieces = b""
    for number in range(2):
        first = Transfer(handle=0, delivery_id=number, delivery_tag=tag, more=True)
        pieces += frame(first, value("ab")[:4]) + frame(Transfer(handle=0), value("ab")[4:])
    begun.send(pieces)
    begun.error_of(Detach, "amqp:not-allowed")
    begun.write(Detach(handle=0, closed=True))
    assert contents(begun, queue, 1) == [value("ab")]


def test_2_6_12_settlement_removes_the_tag_from_the_unsettled_map(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    for number in range(3):
        begun.write(Transfer(handle=0, delivery_id=number, delivery_tag=b"tag"), value(number))
        assert settled(begun, 1) == [number]
    assert contents(begun, queue, 3) == [value(number) for number in range(3)]


def test_2_6_12_tags_are_those_of_one_link(begun: Peer, queue: str) -> None:
    for handle in range(2):
        begun.attach_sender(queue, handle)
    begun.send(
        frame(Transfer(handle=0, delivery_id=0, delivery_tag=b"tag"), value(0)),
        frame(Transfer(handle=1, delivery_id=1, delivery_tag=b"tag"), value(1)),
    )
    assert sorted(settled(begun, 2)) == [0, 1]
    assert sorted(contents(begun, queue, 2)) == [value(0), value(1)]
