"""Takeovers: a link that its client attaches elsewhere opens behind all that was sent for the former one."""

import sys
from typing import Any

import pytest

from lightrail.model import conditions
from lightrail.shard.links import takeovers
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.frames import Kind, frame
from tests.support.shard.scene import Peer, Scene

LINK = "1" * 32
FORMER, NEW = 2, 5


def attached(scene: Scene, messages: int = 3, **options: Any) -> tuple[Peer, Peer]:
    """A frontend with deliveries on the client's link, which has not answered yet; and another frontend."""
    first, second = scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)
    first.produce(1, "q")
    first.send(1, 1, [b"%d" % number for number in range(messages)])
    first.consume(FORMER, "q", messages, client_link=LINK, steals=True, **options)
    scene.settle_down()
    first.yields = False
    return first, second


def attach(peer: Peer, **options: Any) -> None:
    peer.consume(NEW, "q", 10, client_link=LINK, steals=True, **options)
    peer.scene.settle_down()


def opened(peer: Peer) -> bool:
    return any(answer.link == NEW for answer in peer.take(Kind.CONSUMER_READY))


def test_what_the_former_frontend_had_sent_is_settled_before_the_link_opens() -> None:
    scene = Scene()
    first, second = attached(scene)
    attach(second)
    assert not opened(second)
    assert [answer.link for answer in first.take(Kind.YIELD)] == [FORMER]
    first.settle(FORMER, 0, 2)
    first.yielded(FORMER)
    scene.settle_down()
    assert opened(second)
    assert second.messages(NEW) == [b"2"]
    assert [(link, refusal.condition) for link, _, refusal in first.refusals] == [(FORMER, conditions.STOLEN)]


def test_a_resumed_link_does_not_have_what_was_settled_at_the_former_frontend() -> None:
    scene = Scene()
    first, second = attached(scene, suspended_ms=60_000)
    attach(second, suspended_ms=60_000, recovers=True)
    first.settle(FORMER, 0, 1)
    first.close_consumer(FORMER)
    first.yielded(FORMER)
    scene.settle_down()
    assert second.recovered[NEW][2] == [(1, 2)]


def test_a_frontend_that_does_not_answer_is_waited_for_no_longer_than_the_bound() -> None:
    scene = Scene()
    _, second = attached(scene)
    attach(second)
    scene.tick(takeovers.YIELD_MS - 1)
    assert not opened(second)
    scene.tick(1)
    scene.settle_down()
    assert opened(second)
    assert second.messages(NEW) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("end", ["closed", "lost"])
def test_a_former_link_that_has_ended_is_not_waited_for(end: str) -> None:
    scene = Scene()
    first, second = attached(scene)
    attach(second)
    if end == "closed":
        first.close_consumer(FORMER)
    else:
        scene.engine.lost(first.identity)
    scene.tick()
    scene.settle_down()
    assert opened(second)


def test_a_link_that_closes_while_it_waits_is_not_opened() -> None:
    scene = Scene()
    first, second = attached(scene)
    attach(second)
    second.close_consumer(NEW)
    first.yielded(FORMER)
    scene.settle_down()
    assert not opened(second)
    assert first.refusals == []
    assert scene.queue("q") == {"ready": 0, "in_flight": 3}


def test_a_frontend_that_is_lost_while_its_link_waits_steals_nothing() -> None:
    scene = Scene()
    first, second = attached(scene)
    attach(second)
    scene.engine.lost(second.identity)
    first.yielded(FORMER)
    scene.settle_down()
    assert first.refusals == []
    assert scene.queue("q") == {"ready": 0, "in_flight": 3}


def test_an_answer_without_a_question_does_nothing() -> None:
    scene = Scene()
    first, _ = attached(scene)
    first.yielded(FORMER)
    first.yielded(77)
    scene.settle_down()
    assert first.refusals == []
    assert scene.queue("q") == {"ready": 0, "in_flight": 3}


def test_a_link_of_the_same_frontend_asks_nobody() -> None:
    """Frames of one frontend have an order."""
    scene = Scene()
    first, _ = attached(scene)
    attach(first)
    assert opened(first)


def test_an_opening_that_is_not_understood_any_more_ends_its_link() -> None:
    """The filter of the new link is wrong: the former one stays as it would without the wait."""
    scene = Scene()
    first, second = attached(scene)
    attach(second, filter={"selector": "'"})
    first.yielded(FORMER)
    scene.settle_down()
    assert [link for link, _, _ in second.refusals] == [NEW]


def mass_takeover(count: int) -> tuple[int, Scene, Peer]:
    """The calls that a turn with the answers for so many links makes; each link is attached elsewhere."""
    scene = Scene()
    first, second = scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)
    first.yields = False
    for link in range(1, count + 1):
        first.consume(link, f"q{link % 10}", client_link=f"{link:032x}", steals=True)
    openings = [
        frame(
            Kind.CONSUMER_OPEN,
            link=link,
            body=ConsumerOpen(f"q{link % 10}", client_link=f"{link:032x}", steals=True).encode(),
        )
        for link in range(1, count + 1)
    ]
    second.say(*openings)
    calls = 0

    def counting(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(counting)
    try:
        scene.receive(first.identity, [frame(Kind.YIELDED, link=link) for link in range(1, count + 1)])
        scene.turn()
    finally:
        sys.setprofile(None)
    return calls, scene, second


def test_the_takeover_of_a_link_costs_the_same_among_many() -> None:
    few, many = mass_takeover(100)[0], mass_takeover(200)[0]
    assert many < 2.2 * few


def test_a_turn_opens_so_many_links_as_it_has_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeovers, "TAKEOVERS_AT_ONCE", 3)
    _, scene, second = mass_takeover(8)
    turns = 1
    while scene.engine.deadline_ms == 0:
        scene.turn()
        turns += 1
    assert [answer.link for answer in second.take(Kind.CONSUMER_READY)] == [*range(1, 9)]
    assert turns == 3
