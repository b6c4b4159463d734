"""Timed locks and who may read, through the wire: what runs out, what stays when a consumer goes."""

from typing import Any

import pytest

from lightrail.model import conditions, limits
from lightrail.shard.queue.values import commands
from lightrail.shard.queue.values.commands import Change
from lightrail.shard.queue.values.effects import LockAnswer
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import ASKED, REPEATED, Kind, OutcomeCode, frame
from tests.support.shard.scene import Peer, Scene

KEY = "0123456789abcdef0123456789abcdef"


def scene_with(count: int, policy: Policy | None = None) -> tuple[Scene, Peer, Queue]:
    """A queue with so many messages and this policy."""
    scene = Scene(max_delivery_count=3)
    peer = scene.peer()
    peer.produce(1, "q")
    queue = scene.engine._queues.find("q")
    assert queue is not None
    if policy is not None:
        queue.machine.apply(Change(policy), 0)
    peer.send(1, 1, [b"m%d" % number for number in range(count)], durable=False)
    peer.take()
    return scene, peer, queue


def perform(scene: Scene, queue: Queue, command: commands.Command) -> LockAnswer:
    """What a request of a gateway comes to."""
    found = queue.machine.apply(command, scene.now_ms)
    scene.engine._performer.perform(queue, found, scene.now_ms)
    scene.engine._performer.touched[queue] = None
    scene.turn()
    (answer,) = [effect for effect in found if isinstance(effect, LockAnswer)]
    return answer


def test_a_lock_runs_out_on_time_and_counts_as_a_failed_delivery() -> None:
    scene, peer, queue = scene_with(2)
    peer.consume(5, "q", 2, lock_ms=300)
    assert scene.engine.deadline_ms == scene.now_ms + 300
    scene.tick(299)
    assert scene.queue("q") == {"ready": 0, "in_flight": 2}
    scene.tick(1)
    assert scene.queue("q") == {"ready": 2, "in_flight": 0}
    peer.credit(5, 4)
    assert [(each.number, each.attempts) for each in peer.delivered[5][2:]] == [(2, 1), (3, 1)]
    assert queue.machine.contents.counters.locks_expired == 2
    # What the client says of the former delivery means nothing any more.
    peer.settle(5, 0, 2)
    assert scene.queue("q") == {"ready": 0, "in_flight": 2}
    assert queue.machine.contents.counters.accepted == 0


def test_a_message_whose_locks_run_out_again_and_again_is_a_dead_letter() -> None:
    scene, peer, _ = scene_with(1)
    peer.consume(5, "q", 10, lock_ms=50)
    for _ in range(3):
        scene.tick(50)
    assert len(peer.messages(5)) == 3
    peer.consume(6, "q/$dlq", 1)
    assert peer.messages(6) == [b"m0"]


def test_what_was_settled_in_time_wakes_nobody() -> None:
    scene, peer, queue = scene_with(2)
    peer.consume(5, "q", 2, lock_ms=300)
    peer.settle(5, 0, 2)
    assert queue.next_deadline_ms is None
    scene.tick(300)
    assert scene.engine.deadline_ms is None
    assert queue.machine.contents.counters.locks_expired == 0


def test_the_policy_gives_locks_to_those_that_ask_for_none() -> None:
    scene, peer, queue = scene_with(1, Policy(lock_ms=70))
    peer.consume(5, "q", 1)
    assert queue.next_deadline_ms == scene.now_ms + 70
    peer.consume(6, "q", 1, presettled=True)
    scene.tick(70)
    assert peer.messages(6) == [b"m0"]
    assert queue.next_deadline_ms is None


def test_a_lock_with_a_key_is_settled_by_anybody_after_its_consumer_went() -> None:
    scene, peer, queue = scene_with(3)
    peer.consume(5, "q", 3, lock_ms=500, lock_key=KEY)
    peer.say(frame(Kind.CONSUMER_CLOSE, link=5))
    assert scene.queue("q") == {"ready": 0, "in_flight": 3}
    assert perform(scene, queue, commands.SettleLocked(KEY, 1)) == (True, 0)
    assert perform(scene, queue, commands.SettleLocked(KEY, 1)) == (False, 0)
    assert perform(scene, queue, commands.SettleLocked("f" * 32, 0)) == (False, 0)
    scene.now_ms += 100
    assert perform(scene, queue, commands.RenewLock(KEY, 2)) == (True, scene.now_ms + 500)
    scene.tick(400)
    assert scene.queue("q") == {"ready": 1, "in_flight": 1}
    assert perform(scene, queue, commands.RenewLock(KEY, 0)) == (False, 0)
    scene.tick(100)
    assert scene.queue("q") == {"ready": 2, "in_flight": 0}
    # With the last of them the key is forgotten.
    assert not queue.machine.contents.locks.by_key
    assert not queue.machine.contents.consumers.departed


def test_locks_with_a_key_outlive_the_process_that_took_them() -> None:
    scene, peer, queue = scene_with(2)
    gateway = scene.peer("gateway", 9)
    gateway.consume(5, "q", 1, lock_ms=500, lock_key=KEY)
    gateway.say(frame(Kind.GOODBYE))
    assert scene.queue("q") == {"ready": 1, "in_flight": 1}
    rejected = commands.Outcome(commands.OutcomeKind.REJECTED, "acme:bad", "no")
    assert perform(scene, queue, commands.SettleLocked(KEY, 0, rejected)).found
    peer.consume(6, "q/$dlq", 1)
    assert peer.messages(6) == [b"m0"]


def test_a_consumer_that_comes_back_under_its_key_has_its_locks_again() -> None:
    scene, _, queue = scene_with(2)
    gateway = scene.peer("gateway", 9)
    gateway.consume(5, "q", 1, lock_ms=500, lock_key=KEY)
    gateway.greet()
    gateway.consume(5, "q", lock_ms=500, lock_key=KEY, first=1)
    gateway.settle(5, 0, 1)
    assert scene.queue("q") == {"ready": 1, "in_flight": 0}
    gateway.credit(5, 2)
    assert gateway.messages(5) == [b"m0", b"m1"]
    assert perform(scene, queue, commands.SettleLocked(KEY, 1)).found
    # Nobody else may have the key meanwhile.
    other = scene.peer("other", 10)
    other.consume(1, "q", lock_ms=500, lock_key=KEY)
    assert other.refusals[0][2].condition == conditions.ILLEGAL_STATE


def renewed(peer: Peer, link: int, *numbers: int) -> object:
    """What a frontend is answered for deliveries of one of its links."""
    fields, _ = peer.answers[peer.ask("renew_deliveries", queue="q", link=link, numbers=list(numbers))]
    return fields.get("locked_ms", fields)


def test_a_link_keeps_what_it_renews_and_loses_what_it_does_not() -> None:
    scene, peer, queue = scene_with(4)
    peer.consume(5, "q", 3, lock_ms=300)
    peer.consume(6, "q", 1, lock_ms=300)
    scene.tick(200)
    peer.settle(5, 1, 1)
    # Its own, one that it has settled, and one that it never had.
    assert renewed(peer, 5, 0, 1, 3) == [300, 0, 0]
    scene.tick(100)
    assert scene.queue("q") == {"ready": 2, "in_flight": 1}
    assert renewed(peer, 5, 2, 0) == [0, 300]
    scene.tick(299)
    assert scene.queue("q") == {"ready": 2, "in_flight": 1}
    scene.tick(1)
    assert scene.queue("q") == {"ready": 3, "in_flight": 0}
    assert queue.machine.contents.counters.locks_expired == 3


def test_what_no_time_ends_needs_no_renewal_and_is_not_lost_by_one() -> None:
    scene, peer, queue = scene_with(2)
    peer.consume(5, "q", 1)
    peer.consume(6, "q", 1, browse=True)
    assert renewed(peer, 5, 0, 1) == [None, 0]
    assert queue.next_deadline_ms is None
    # The policy has a time now, and then none: those that have a timer by then can still be kept.
    queue.machine.apply(Change(Policy(lock_ms=80)), scene.now_ms)
    assert renewed(peer, 5, 0) == [80]
    queue.machine.apply(Change(Policy()), scene.now_ms)
    for _ in range(3):
        scene.tick(79)
        assert renewed(peer, 5, 0) == [80]
    scene.tick(80)
    assert scene.queue("q") == {"ready": 2, "in_flight": 0}


def test_a_frontend_renews_deliveries_of_its_own_links_only() -> None:
    scene, peer, _ = scene_with(1)
    peer.consume(5, "q", 1, lock_ms=300)
    other = scene.peer("other", 10)
    found = renewed(other, 5, 0)
    assert isinstance(found, dict)
    assert found["error"]["condition"] == conditions.MOVED


@pytest.mark.parametrize("numbers", [None, [], ["0"], [-1], [True], [0] * (limits.LOCKS_RENEWED_MAX + 1)])
def test_a_renewal_names_a_bounded_list_of_deliveries(numbers: object) -> None:
    _, peer, _ = scene_with(1)
    peer.consume(5, "q", 1, lock_ms=300)
    fields, _ = peer.answers[peer.ask("renew_deliveries", queue="q", link=5, numbers=numbers)]
    assert fields["error"]["condition"] == conditions.INVALID_FIELD
    assert "a list of 1 to 500 delivery numbers" in fields["error"]["description"]


def test_deliveries_are_settled_by_request_and_those_that_are_not_there_are_named() -> None:
    scene, peer, _ = scene_with(4)
    peer.consume(5, "q", 3)
    peer.settle(5, 1, 1)
    fields: dict[str, Any] = {"queue": "q", "link": 5}
    number = peer.ask("settle_deliveries", **fields, numbers=[2, 1, 9, 2])
    scene.settle_down()
    assert peer.answers[number][0] == {"found": [True, False, False, False]}
    number = peer.ask("settle_deliveries", **fields, numbers=[0], outcome="modified", delivery_failed=True)
    scene.settle_down()
    assert peer.answers[number][0] == {"found": [True]}
    assert scene.queue("q") == {"ready": 2, "in_flight": 0}
    peer.consume(6, "q", 1)
    assert peer.delivered[6][0].attempts == 1


def test_a_settlement_by_request_is_answered_when_it_is_on_disk() -> None:
    scene, peer, _ = scene_with(1)
    peer.send(1, 2, [b"durable"], durable=True)
    scene.settle_down()
    peer.consume(5, "q", 2)
    number = peer.ask("settle_deliveries", queue="q", link=5, numbers=[1])
    assert number not in peer.answers
    scene.settle_down()
    assert peer.answers[number][0] == {"found": [True]}


def test_a_frontend_settles_deliveries_of_its_own_links_only() -> None:
    scene, peer, _ = scene_with(1)
    peer.consume(5, "q", 1)
    other = scene.peer("other", 10)
    fields, _ = other.answers[other.ask("settle_deliveries", queue="q", link=5, numbers=[0])]
    assert fields["error"]["condition"] == conditions.MOVED


def test_readers_are_counted_and_browsers_are_not() -> None:
    _, peer, _ = scene_with(1, Policy(max_consumers=2))
    peer.consume(4, "q", browse=True)
    peer.consume(5, "q")
    peer.consume(6, "q")
    peer.consume(7, "q")
    ((link, _, refusal),) = peer.refusals
    assert (link, refusal.condition) == (7, conditions.RESOURCE_LIMIT_EXCEEDED)
    assert "its policy allows 2" in refusal.description
    peer.say(frame(Kind.CONSUMER_CLOSE, link=5))
    peer.consume(8, "q")
    assert len(peer.refusals) == 1


def test_an_exclusive_queue_has_one_reader() -> None:
    _, peer, _ = scene_with(1, Policy(exclusive=True))
    peer.consume(5, "q")
    peer.consume(6, "q", browse=True, credit=1)
    assert peer.messages(6) == [b"m0"]
    peer.consume(7, "q")
    assert [(link, refusal.condition) for link, _, refusal in peer.refusals] == [
        (7, conditions.RESOURCE_LOCKED)
    ]


def test_a_single_active_consumer_gets_everything_until_it_goes() -> None:
    scene, peer, _ = scene_with(6, Policy(single_active=True))
    peer.consume(5, "q", 2)
    peer.consume(6, "q", 10)
    peer.consume(7, "q", 1, priority=3)
    assert peer.messages(5) == [b"m0", b"m1"]
    assert not peer.messages(6) + peer.messages(7)
    # A standby has nothing to wait for when it drains.
    peer.credit(6, 10, drain=True)
    assert [answer.link for answer in peer.take(Kind.DRAINED)] == [6]
    peer.credit(6, 10)
    peer.settle(5, 0, 1)
    peer.say(frame(Kind.CONSUMER_CLOSE, link=5))
    assert peer.messages(7) == [b"m1"]
    peer.say(frame(Kind.CONSUMER_CLOSE, link=7))
    assert peer.messages(6) == [b"m1", b"m2", b"m3", b"m4", b"m5"]
    assert scene.queue("q") == {"ready": 0, "in_flight": 5}


def test_a_policy_may_make_one_of_many_consumers_the_active_one() -> None:
    _, peer, queue = scene_with(1)
    peer.consume(5, "q", 2)
    peer.consume(6, "q", 2)
    queue.machine.apply(Change(Policy(single_active=True)), 0)
    peer.send(1, 2, [b"a", b"b"], durable=False)
    assert (peer.messages(5), peer.messages(6)) == ([b"m0", b"a"], [])
    queue.machine.apply(Change(Policy()), 0)
    peer.send(1, 3, [b"c"], durable=False)
    assert peer.messages(6) == [b"b", b"c"]


def test_figures_say_what_is_locked_and_parked() -> None:
    scene, peer, _ = scene_with(2, Policy(max_length=2, overflow="flow_control"))
    peer.send(1, 2, [b"x", b"y", b"z"], durable=False)
    peer.consume(5, "q", 1, lock_ms=100)
    figures = dict(scene.engine._queues.figures(""))["q"]()
    assert (figures.ready, figures.in_flight, figures.locked, figures.parked) == (1, 1, 1, 3)
    peer.settle(5, 0, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
    figures = dict(scene.engine._queues.figures(""))["q"]()
    assert (figures.ready, figures.locked, figures.parked) == (2, 0, 3)


def answers(scene: Scene, peer: Peer) -> list[tuple[int, int]]:
    """First delivery and count of each answer to settlements."""
    scene.settle_down()
    return [(each.number, each.count) for each in peer.take(Kind.SETTLED)]


def test_an_outcome_of_what_is_locked_no_longer_is_answered_so() -> None:
    scene, peer, queue = scene_with(8)
    peer.consume(5, "q", 8, lock_ms=500, lock_key=KEY)
    peer.ask("settle_locks", queue="q", locks=[f"{KEY}-2", f"{KEY}-3", f"{KEY}-6"])
    peer.settle(5, 1, 4, asked=ASKED)
    peer.settle(5, 6, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True), asked=ASKED)
    assert answers(scene, peer) == [(1, 1), (2, 2), (4, 1), (6, 1)]
    assert peer.not_locked == [(5, 2, 2), (5, 6, 1)]
    assert scene.queue("q") == {"ready": 0, "in_flight": 3}
    scene.tick(500)
    # What has ended, and comes again under another number, is not settled by the former one.
    peer.settle(5, 0, 1, asked=ASKED)
    assert answers(scene, peer) == [(0, 1)]
    assert peer.not_locked[2:] == [(5, 0, 1)]
    # What a frontend has sent before may have settled them then.
    peer.settle(5, 1, 4, asked=ASKED | REPEATED)
    assert answers(scene, peer) == [(1, 4)]
    assert len(peer.not_locked) == 3
    assert queue.machine.contents.counters.accepted == 5


def test_an_outcome_of_a_link_without_a_key_is_answered_whatever_it_settles() -> None:
    scene, peer, _ = scene_with(2)
    peer.consume(5, "q", 2)
    for _ in range(2):
        peer.settle(5, 0, 2, asked=ASKED)
    assert answers(scene, peer) == [(0, 2)] * 2
    assert peer.not_locked == []
    assert scene.queue("q") == {"ready": 0, "in_flight": 0}


def locked_until(peer: Peer, **fields: Any) -> list[int | None]:
    """The end of the lock of each message that a peek shows; None for one that is not shown."""
    found, _ = peer.answers[peer.ask("peek", queue="q", **fields)]
    return [each.get("locked_until_ms") for each in found["messages"]]


def test_a_peek_shows_until_when_messages_are_locked_under_a_key() -> None:
    scene, peer, queue = scene_with(5)
    start = scene.now_ms
    peer.consume(5, "q", 3, lock_ms=500, lock_key=KEY)
    peer.consume(6, "q", 1, lock_ms=700)
    # The fourth is locked by a link without a key, the last one by none.
    assert locked_until(peer) == [start + 500] * 3 + [None, None]
    scene.tick(100)
    assert perform(scene, queue, commands.RenewLock(KEY, 1)).found
    wanted = [start + 500, start + 600, start + 500, None, None]
    assert locked_until(peer) == wanted
    peer.say(frame(Kind.CONSUMER_CLOSE, link=5))
    assert queue.machine.view.holder_of(KEY) is not None
    assert locked_until(peer) == wanted
    assert locked_until(peer, **{"from": 1}, count=2) == wanted[1:3]
    assert perform(scene, queue, commands.SettleLocked(KEY, 1)).found
    assert locked_until(peer) == [start + 500] * 2 + [None, None]
    scene.tick(400)
    assert locked_until(peer) == [None] * 4
