"""Ranges of deliveries that are settled or given back: in pieces, with turns in between, and to the same
end."""

import itertools

import pytest

from lightrail.shard.engine.settling import SETTLE_SLICE, SETTLE_SLICE_REWRITTEN
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode, frame
from tests.support.shard.scene import Peer, Scene, numbered_messages

COUNT = 2 * SETTLE_SLICE + 500


@pytest.fixture
def scene() -> Scene:
    return Scene()


def taken(scene: Scene) -> Peer:
    """A consumer has all messages, each of which came on its own."""
    peer = scene.peer()
    peer.produce(1, "q")
    for number, message in enumerate(numbered_messages(COUNT), 1):
        peer.send(1, number, [message], durable=False)
    peer.consume(2, "q", COUNT)
    assert len(peer.messages(2)) == COUNT
    peer.delivered.clear()
    return peer


def pieces(scene: Scene, peer: Peer, *parts: bytes) -> list[int]:
    """Receives one message in as many turns as it takes; what is in flight after each of them."""
    left = list(parts)
    found = []
    while left:
        left = scene.engine.receive(peer.identity, left, scene.now_ms)
        scene.turn()
        found.append(scene.queue("q")["in_flight"])
    return found


@pytest.mark.parametrize(
    ("code", "piece"),
    [
        (OutcomeCode.ACCEPTED, SETTLE_SLICE),
        (OutcomeCode.RELEASED, SETTLE_SLICE_REWRITTEN),
        (OutcomeCode.REJECTED, SETTLE_SLICE_REWRITTEN),
    ],
)
def test_a_range_of_all_numbers_is_settled_in_pieces(scene: Scene, code: OutcomeCode, piece: int) -> None:
    peer = taken(scene)
    settle = frame(Kind.SETTLE, flags=code, link=2, number=0, count=0xFFFF_FFFF)
    ping = frame(Kind.PING)
    peer.heard.clear()
    found = pieces(scene, peer, settle, ping)
    assert found == [max(0, COUNT - piece * (n + 1)) for n in range(-(-COUNT // piece))]
    assert [each.kind for each in peer.heard if each.kind is Kind.PONG] == [Kind.PONG]
    ready = 0 if code is not OutcomeCode.RELEASED else COUNT
    assert scene.queue("q")["ready"] == ready


def test_the_detail_of_an_outcome_goes_with_every_piece(scene: Scene) -> None:
    peer = taken(scene)
    detail = SettleDetail(undeliverable_here=True)
    settle = frame(
        Kind.SETTLE, flags=OutcomeCode.MODIFIED, link=2, number=0, count=COUNT, body=detail.encode()
    )
    pieces(scene, peer, settle)
    peer.credit(2, 3 * COUNT)
    assert not peer.messages(2)
    peer.consume(3, "q", COUNT)
    assert len(peer.messages(3)) == COUNT


def test_a_consumer_with_much_in_flight_closes_in_pieces(scene: Scene) -> None:
    peer = taken(scene)
    peer.credit(2, 2 * COUNT)
    found = pieces(scene, peer, frame(Kind.CONSUMER_CLOSE, link=2))
    most = SETTLE_SLICE_REWRITTEN
    assert all(before - after <= SETTLE_SLICE for before, after in itertools.pairwise(found))
    assert len(found) >= (COUNT - SETTLE_SLICE) // most
    assert scene.queue("q") == {"ready": COUNT, "in_flight": 0}
    peer.consume(3, "q", COUNT)
    assert peer.messages(3) == numbered_messages(COUNT)
    assert {each.attempts for each in peer.delivered[3]} == {0}


def test_a_range_of_few_pieces_is_settled_at_once(scene: Scene) -> None:
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered_messages(COUNT), durable=False)
    peer.consume(2, "q", COUNT)
    assert pieces(scene, peer, frame(Kind.SETTLE, link=2, number=0, count=COUNT)) == [0]
