"""Requests and openings for which nobody waits any more when they come to the shard."""

from typing import Any

import pytest

from lightrail.model import conditions
from lightrail.wire.bodies import ProducerOpen, encode_request
from lightrail.wire.frames import COUNT_MASK, DUE, HEADER, TIMED, Kind, frame
from tests.support.shard.scene import Peer, Scene


def request(scene: Scene, peer: Peer, due_ms: int, op: str, **fields: Any) -> dict[str, Any]:
    peer.requests += 1
    body = encode_request({"op": op, **fields})
    peer.say(frame(Kind.REQUEST, flags=DUE, epoch=due_ms, number=peer.requests, body=body))
    scene.settle_down()
    return peer.answers[peer.requests][0]


@pytest.mark.parametrize(
    ("op", "fields"), [("purge", {}), ("delete", {"count": 10}), ("cancel", {"sequences": [0]})]
)
def test_a_late_request_is_refused_and_not_executed(op: str, fields: dict[str, Any]) -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"a"], durable=True)
    scene.settle_down()
    found = request(scene, peer, scene.now_ms - 1, op, queue="q", **fields)
    assert found["error"]["condition"] == conditions.LATE
    assert scene.queue("q") == {"ready": 1, "in_flight": 0}
    assert "error" not in request(scene, peer, scene.now_ms, op, queue="q", **fields)


def test_a_late_opening_ends_its_link_and_nothing_is_stored() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    for link, late_ms in ((2, 1), (3, 0)):
        due = scene.now_ms - late_ms & COUNT_MASK
        opening = ProducerOpen("q").encode()
        peer.say(frame(Kind.PRODUCER_OPEN, flags=DUE, link=link, count=due, number=1, body=opening))
        peer.send(link, 1, [b"%d" % link], durable=True)
        scene.settle_down()
    assert [(answer.link, answer.kind) for answer in peer.take(Kind.GONE)] == [(2, Kind.GONE)]
    assert [message for *_, message in scene.everything("q")] == [b"3"]


def test_welcomes_and_pongs_say_what_the_clock_shows() -> None:
    scene = Scene(now_ms=(1 << 40) + 123_456)
    heard: list[bytes] = []
    peer = Peer(scene)
    hear = peer.hear

    def listen(parts: Any) -> None:
        heard.extend(parts)
        hear(parts)

    peer.hear = listen  # type: ignore[method-assign]
    peer.greet()
    peer.ping()
    scene.settle_down()
    found = {part[0]: HEADER.unpack_from(part)[1:4:2] for part in heard}
    low = scene.now_ms & COUNT_MASK
    assert found[Kind.WELCOME] == found[Kind.PONG] == (TIMED, low)
