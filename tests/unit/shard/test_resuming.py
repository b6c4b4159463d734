"""Suspended consumers (2.6.13): who keeps which deliveries, for how long, how many, and gets them again."""

from typing import Any

import pytest

from lightrail.model import conditions, limits
from lightrail.model.policy import Policy
from lightrail.shard.effects.receiving_link import ReceivingState
from lightrail.shard.links.receiving import resuming
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support import work
from tests.support.shard.scene import Delivered, Peer, Scene, numbered_messages

LINK = "1" * 32
MINUTE = 60_000
BODIES = [b"a", b"b", b"c", b"d"]


def opening(**options: Any) -> dict[str, Any]:
    given = {"client_link": LINK, "steals": True, "suspended_ms": MINUTE, "recovers": True}
    return given | options


def scene_of(
    messages: list[bytes] = BODIES, *, policy: dict[str, Any] | None = None, **options: Any
) -> Scene:
    """A queue with messages."""
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", **(policy or {})}))
    scene = Scene(names=names, **options)
    sender = scene.peer("sender", boot=3)
    sender.produce(1, "q")
    sender.send(1, 1, messages)
    scene.settle_down()
    return scene


def attach(peer: Peer, link: int, credit: int = 0, **options: Any) -> tuple[int, int, list[tuple[int, int]]]:
    """Opens the link; terminus, next number and unsettled deliveries, as the shard answers."""
    peer.consume(link, "q", **opening(**options))
    peer.scene.settle_down()
    found = peer.recovered.pop(link)
    if credit:
        peer.credit(link, found[1] + credit)
    return found


def pass_time(scene: Scene, wait_ms: int) -> None:
    """Frontends are heard all the time."""
    for _ in range(0, wait_ms, 1_000):
        for peer in scene.peers.values():
            peer.ping()
        scene.tick(1_000)


def delivered(peer: Peer, link: int) -> list[Delivered]:
    return peer.delivered.pop(link, [])


def messages(peer: Peer, link: int) -> list[bytes]:
    return [each.message for each in delivered(peer, link)]


def suspended(scene: Scene, count: int = 2, **options: Any) -> Peer:
    """A frontend whose client has left with so many unsettled deliveries."""
    peer = scene.peer("frontend-0", boot=7)
    attach(peer, 2, count, **options)
    assert len(delivered(peer, 2)) == count
    peer.close_consumer(2)
    return peer


# --- what is kept ----------------------------------------------------------------------------------------


def test_deliveries_are_kept_under_their_numbers_for_the_next_attach_at_any_frontend() -> None:
    scene = scene_of()
    first, second = scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)
    terminus, number, ranges = attach(first, 2, 3)
    assert (terminus, number, ranges) == (7 << 32 | 2, 0, [])
    first.settle(2, 1, 1)
    first.close_consumer(2)
    assert scene.queue("q") == {"ready": 1, "in_flight": 2}
    assert attach(second, 5) == (terminus, 3, [(0, 1), (2, 1)])
    second.resend(5, (0, 1), (2, 1))
    assert [each[0::2] for each in delivered(second, 5)] == [(0, 0), (2, 0)]
    assert [each.number for each in second.take(Kind.RESENT)] == [3]
    second.credit(5, 4)
    assert [(each.number, each.message) for each in delivered(second, 5)] == [(3, b"d")]
    second.settle(5, 0, 4)
    scene.settle_down()
    assert scene.queue("q") == {"ready": 0, "in_flight": 0}


def test_a_lost_frontend_suspends_its_links_without_a_failed_delivery() -> None:
    scene = scene_of()
    first, second = scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)
    attach(first, 2, 2)
    scene.engine.lost(first.identity)
    assert scene.queue("q") == {"ready": 2, "in_flight": 2}
    assert attach(second, 5)[1:] == (2, [(0, 2)])
    second.resend(5, (0, 2))
    assert [each.attempts for each in delivered(second, 5)] == [0, 0]


def test_a_stolen_link_keeps_its_deliveries() -> None:
    scene = scene_of()
    first, second = scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)
    attach(first, 2, 2)
    assert attach(second, 5)[1:] == (2, [(0, 2)])
    assert [(link, refusal.condition) for link, _, refusal in first.refusals] == [(2, conditions.STOLEN)]
    first.settle(2, 0, 2)
    assert scene.queue("q")["in_flight"] == 2


def test_what_a_former_attach_settled_late_is_settled() -> None:
    """Its SETTLE was behind the CONSUMER_CLOSE, as where it was held for a move."""
    scene = scene_of()
    peer = suspended(scene)
    peer.settle(2, 0, 1)
    assert attach(peer, 5)[2] == [(1, 1)]


def test_the_answer_waits_for_outcomes_that_are_not_on_disk() -> None:
    scene = scene_of()
    first, second = scene.peer("frontend-0", boot=7), scene.peer("frontend-1", boot=8)
    attach(first, 2, 2)
    first.settle(2, 0, 1)
    scene.begin_commit()
    first.close_consumer(2)
    second.consume(5, "q", **opening())
    assert second.take(Kind.CONSUMER_READY) == []
    scene.end_commit()
    scene.settle_down()
    assert second.recovered[5][2] == [(1, 1)]
    assert [each.link for each in second.take(Kind.CONSUMER_READY)] == [5]


def test_a_consumer_that_has_nothing_unsettled_is_not_kept() -> None:
    scene = scene_of()
    peer = scene.peer()
    attach(peer, 2, 1)
    peer.settle(2, 0, 1)
    peer.close_consumer(2)
    assert len(scene.engine._links.receiving) == 0
    assert attach(peer, 5) == (7 << 32 | 5, 0, [])


def test_a_suspended_consumer_gets_nothing_new() -> None:
    scene = scene_of(BODIES[:2])
    suspended(scene)
    other = scene.peer("frontend-9", boot=9)
    other.consume(1, "q", 10)
    sender = scene.peer("sender-2", boot=4)
    sender.produce(1, "q")
    sender.send(1, 1, [b"new"])
    scene.settle_down()
    assert messages(other, 1) == [b"new"]


# --- what ends it ----------------------------------------------------------------------------------------


def test_after_its_time_deliveries_return_as_of_a_lost_link() -> None:
    scene = scene_of()
    suspended(scene)
    pass_time(scene, MINUTE - 1_000)
    assert scene.queue("q") == {"ready": 2, "in_flight": 2}
    pass_time(scene, 1_000)
    assert scene.queue("q") == {"ready": 4, "in_flight": 0}
    peer = scene.peer("frontend-9", boot=9)
    assert attach(peer, 1, 4)[2] == []
    assert [each.attempts for each in delivered(peer, 1)] == [1, 1, 0, 0]
    assert len(scene.engine._links.receiving) == 0
    assert scene.unattached == []


def test_after_the_time_of_a_lost_frontend_no_failed_delivery_is_counted() -> None:
    scene = scene_of()
    peer = scene.peer()
    attach(peer, 2, 2)
    scene.engine.lost(peer.identity)
    pass_time(scene, MINUTE)
    queue = scene.engine._queues.find("q")
    assert queue is not None
    assert scene.queue("q") == {"ready": 4, "in_flight": 0}
    assert all(not run.attempts for run in queue.machine.contents.runs())


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        # The client has no state of these deliveries, and had ended the link in order.
        ({"recovers": False}, 0),
        ({"suspended_ms": None}, 0),
        # It may have worked on them since: they are marked.
        ({"priority": 3}, 1),
        ({"default_failed": False}, 1),
    ],
    ids=["no map", "not resumable", "another priority", "another outcome"],
)
def test_an_attach_that_does_not_go_on_releases_what_was_kept(options: dict[str, Any], shown: int) -> None:
    scene = scene_of()
    peer = suspended(scene)
    peer.consume(5, "q", 4, **opening(**options))
    scene.settle_down()
    found = [(each.number, each.attempts) for each in delivered(peer, 5)]
    assert found == [(0, shown), (1, shown), (2, 0), (3, 0)]
    queue = scene.engine._queues.find("q")
    assert queue is not None
    assert all(not run.attempts for run in queue.machine.contents.runs())


def test_a_link_that_its_frontend_opens_again_begins_anew() -> None:
    """The shard was greeted anew: the frontend counts its deliveries as returned."""
    scene = scene_of()
    peer = scene.peer()
    attach(peer, 2, 2)
    peer.delivered.clear()
    peer.greet()
    terminus, number, ranges = attach(peer, 2, 4, steals=False, first=2, terminus=99)
    assert (terminus, number, ranges) == (99, 2, [])
    assert [(each.number, each.message) for each in delivered(peer, 2)] == [*enumerate(BODIES, 2)]


def test_locks_of_the_policy_run_out_meanwhile() -> None:
    scene = scene_of(policy={"lock_duration": 30})
    peer = suspended(scene)
    pass_time(scene, 31_000)
    assert scene.queue("q") == {"ready": 4, "in_flight": 0}
    assert attach(peer, 5)[1:] == (2, [])


def test_a_suspended_consumer_ends_with_its_queue() -> None:
    names = EveryName()
    scene = Scene(names=names)
    sender = scene.peer("sender", boot=3)
    sender.produce(1, "q")
    sender.send(1, 1, BODIES)
    scene.settle_down()
    suspended(scene)
    names.drop("q")
    scene.refresh()
    scene.settle_down()
    assert len(scene.engine._links.receiving) == 0
    assert scene.unattached == []


# --- bounds ----------------------------------------------------------------------------------------------


def test_a_link_with_more_deliveries_than_the_limit_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUSPENDED_DELIVERIES_MAX", 1)
    scene = scene_of()
    suspended(scene)
    assert scene.queue("q") == {"ready": 4, "in_flight": 0}


@pytest.mark.parametrize(
    ("limit", "most"), [("SUSPENDED_CONSUMERS_MAX", 2), ("SUSPENDED_DELIVERIES_SUM_MAX", 4)]
)
def test_beyond_the_share_of_a_user_its_longest_suspended_link_is_released(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(limits, limit, most)
    scene = scene_of()
    peer = suspended(scene, 1)
    attach(peer, 3, 2, client_link="2" * 32)
    peer.close_consumer(3)
    assert scene.queue("q") == {"ready": 2, "in_flight": 2}
    assert attach(peer, 5)[2] == []
    assert attach(peer, 6, client_link="2" * 32)[2] == [(0, 2)]


def test_beyond_the_share_of_a_user_no_link_of_another_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bob's link has been suspended longest."""
    monkeypatch.setattr(limits, "SUSPENDED_CONSUMERS_MAX", 4)
    scene = scene_of()
    peer = suspended(scene, 1, user="bob")
    for link in (3, 4):
        attach(peer, link, 1, client_link=str(link) * 32, user="ann")
        peer.close_consumer(link)
    assert scene.queue("q") == {"ready": 2, "in_flight": 2}
    assert attach(peer, 5, user="bob")[2] == [(0, 1)]
    assert attach(peer, 6, client_link="3" * 32, user="ann")[2] == []
    assert attach(peer, 7, client_link="4" * 32, user="ann")[2] == [(0, 1)]


# --- sent again ------------------------------------------------------------------------------------------


def test_no_more_bytes_are_sent_again_at_once_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "RESENT_BYTES", 2)
    scene = scene_of()
    sender = scene.peer("sender-2", boot=4)
    sender.produce(1, "q")
    for number, body in enumerate((b"ee", b"ff"), 1):
        sender.send(1, number, [body])
    scene.settle_down()
    peer = suspended(scene, 6)
    assert attach(peer, 5)[2] == [(0, 6)]
    peer.resend(5, (0, 6))
    assert messages(peer, 5) == BODIES
    assert [each.number for each in peer.take(Kind.RESENT)] == [4]
    peer.resend(5, (4, 2))
    assert messages(peer, 5) == [b"ee"]
    assert [each.number for each in peer.take(Kind.RESENT)] == [5]
    peer.resend(5, (5, 1))
    assert messages(peer, 5) == [b"ff"]
    assert [each.number for each in peer.take(Kind.RESENT)] == [6]


def test_no_more_messages_are_sent_again_at_once_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "RESENT_MESSAGES", 3)
    scene = scene_of()
    peer = suspended(scene, 4)
    attach(peer, 5)
    peer.resend(5, (0, 4))
    assert messages(peer, 5) == BODIES[:3]
    assert [each.number for each in peer.take(Kind.RESENT)] == [3]
    peer.resend(5, (3, 1))
    assert messages(peer, 5) == BODIES[3:]
    assert [each.number for each in peer.take(Kind.RESENT)] == [4]


def test_what_is_only_on_disk_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "RESENT_BYTES", 2_000)
    sent = [bytes(500) + body for body in numbered_messages(12)]
    scene = scene_of(sent, memory_mark=1_000)
    peer = suspended(scene, 12)
    pass_time(scene, 5_000)
    queue = scene.engine._queues.find("q")
    assert queue is not None
    assert queue.machine.contents.deliveries.evicted_count == 12
    attach(peer, 5)
    peer.settle(5, 6, 1, OutcomeCode.RELEASED)
    found: dict[int, bytes] = {}
    at = 0
    while at < 12:
        peer.resend(5, (at, 12 - at))
        scene.settle_down()
        found |= {each.number: each.message for each in delivered(peer, 5)}
        (answer,) = peer.take(Kind.RESENT)
        assert answer.number > at
        at = answer.number
    assert found == {number: body for number, body in enumerate(sent) if number != 6}


def test_a_link_that_ends_while_its_messages_are_read_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_of([bytes(500), bytes(500)], memory_mark=100)
    peer = suspended(scene, 2)
    pass_time(scene, 5_000)
    attach(peer, 5)
    scene.reading = False
    peer.resend(5, (0, 2))
    (read,) = scene.take_reads()
    peer.close_consumer(5)
    peer.take()
    read.perform(scene.store)
    scene.engine.read_ended(read, None, scene.now_ms)
    scene.turn()
    assert delivered(peer, 5) == []
    assert peer.take(Kind.RESENT) == []


def test_a_resend_for_a_link_that_is_not_here_is_passed_over() -> None:
    scene = scene_of()
    peer = scene.peer()
    peer.resend(77, (0, 2))
    assert peer.take(Kind.RESENT, Kind.GONE) == []


# --- what it costs among many ----------------------------------------------------------------------------


def among(others: int) -> tuple[Scene, Peer]:
    """One suspended link of queue q, after so many of other queues."""
    scene = scene_of()
    peer = scene.peer("frontend-0", boot=7)
    for number in range(others):
        queue, link = f"other{number}", 100 + number
        peer.produce(link, queue)
        peer.send(link, 1, [b"m"])
        peer.consume(link, queue, 1, **opening(client_link=f"{number:032x}", suspended_ms=10 * MINUTE))
        peer.close_consumer(link)
    scene.settle_down()
    suspended(scene)
    assert len(scene.engine._links.receiving) == others + 1
    return scene, peer


def test_a_tick_costs_the_same_among_many_suspended_links() -> None:
    def cost(others: int) -> int:
        scene, _ = among(others)
        return work.lines(lambda: scene.engine._links.receiving.tick(scene.now_ms))

    assert cost(200) < cost(5) + 50


def test_the_end_of_a_queue_costs_the_same_among_many_suspended_links_of_others() -> None:
    def cost(others: int) -> int:
        scene, _ = among(others)
        queue = scene.engine._queues.find("q")
        assert queue is not None
        before = len(scene.engine._links.receiving)
        found = work.lines(lambda: scene.engine._links.receiving.send_away(queue))
        assert len(scene.engine._links.receiving) == before - 1
        assert [each.state for each in scene.engine._links.receiving.of(queue)] == [ReceivingState.AWAY]
        return found

    assert cost(200) < cost(5) + 50
