"""Slices that follow each other are one frame, where the frame says the same of all their messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.shard.effects.delivering import JOINED_SLICES
from lightrail.shard.effects.performer import JOINED_SLICE_BYTES, JOINED_SLICE_MESSAGES
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard.scene import Peer, Scene, batch

PRODUCER, CONSUMER = 1, 2
FEW = JOINED_SLICE_MESSAGES


def opened(credit: int = 1_000, **options: bool) -> Peer:
    peer = Scene().peer()
    peer.produce(PRODUCER, "q")
    peer.consume(CONSUMER, "q", credit, **options)
    peer.take()
    return peer


def frames(peer: Peer) -> list[int]:
    """How many messages each DELIVER had."""
    return [answer.count for answer in peer.take(Kind.DELIVER)]


@pytest.mark.parametrize("presettled", [False, True])
def test_small_batches_of_one_turn_are_delivered_in_one_frame(presettled: bool) -> None:
    peer = opened(presettled=presettled)
    peer.say(*(batch(PRODUCER, number, [b"%d" % number] * (number % FEW + 1)) for number in range(1, 21)))
    sent = [b"%d" % number for number in range(1, 21) for _ in range(number % FEW + 1)]
    assert frames(peer) == [len(sent)]
    found = peer.delivered[CONSUMER]
    assert [each.message for each in found] == sent
    assert [each.number for each in found] == list(range(len(sent)))
    assert [each.sequence for each in found] == list(range(found[0].sequence, found[0].sequence + len(sent)))


def test_a_frame_takes_no_more_slices_than_its_bound() -> None:
    peer = opened()
    peer.say(*(batch(PRODUCER, number, [b"m"]) for number in range(1, 2 * JOINED_SLICES + 2)))
    assert frames(peer) == [JOINED_SLICES, JOINED_SLICES, 1]


@pytest.mark.parametrize("other", [{"expires_at_ms": 10**15}, {"message_format": 7}, {"durable": False}])
def test_what_a_frame_says_of_all_its_messages_parts_them(other: dict[str, Any]) -> None:
    peer = opened()
    peer.say(
        *(batch(PRODUCER, number, [b"%d" % number]) for number in (1, 2)),
        *(batch(PRODUCER, number, [b"%d" % number], **other) for number in (3, 4, 5)),
    )
    assert frames(peer) == [2, 3]


def test_large_batches_are_not_copied_together() -> None:
    peer = opened()
    large = bytes(JOINED_SLICE_BYTES + 1)
    sent = [b"1", large, b"2", b"3", large]
    peer.say(*(batch(PRODUCER, number, [message]) for number, message in enumerate(sent, 1)))
    assert frames(peer) == [1, 1, 2, 1]
    assert peer.messages(CONSUMER) == sent


def test_messages_that_failed_are_not_told_as_new_ones() -> None:
    peer = opened(credit=2)
    peer.say(*(batch(PRODUCER, number, [b"%d" % number]) for number in range(1, 5)))
    peer.settle(CONSUMER, 0, 2, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
    peer.delivered.clear()
    peer.take()
    peer.credit(CONSUMER, 10)
    found = peer.delivered[CONSUMER]
    assert [each.message for each in found] == [b"1", b"2", b"3", b"4"]
    assert [each.attempts for each in found] == [1, 1, 0, 0]
    assert frames(peer) == [2, 2]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 2 * FEW),
            st.sampled_from([1, 50, JOINED_SLICE_BYTES]),
            st.sampled_from([0, 10**15]),
        ),
        max_size=30,
    ),
    st.integers(1, 3),
)
def test_whatever_is_joined_nothing_changes_for_consumers(
    batches: list[tuple[int, int, int]], consumers: int
) -> None:
    peer = opened()
    for link in range(CONSUMER + 1, CONSUMER + consumers):
        peer.consume(link, "q", 1_000)
    parts = []
    sent: list[bytes] = []
    for number, (count, size, expires) in enumerate(batches, 1):
        messages = [b"%0*d" % (size, len(sent) + index) for index in range(count)]
        sent += messages
        parts.append(batch(PRODUCER, number, messages, expires_at_ms=expires))
    peer.say(*parts)
    got = {}
    for found in peer.delivered.values():
        assert [each.number for each in found] == list(range(len(found)))
        got.update({each.sequence: each.message for each in found})
    assert [got[sequence] for sequence in sorted(got)] == sent
