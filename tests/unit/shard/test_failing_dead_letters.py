"""Dead letters that fail again: they wait as their queue's policy says, or at a pace of their own."""

import pytest

from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene
from tests.unit.shard.test_follower import names_of

FAIL = SettleDetail(delivery_failed=True)
DEAD = "q/$dlq"


def named(**policy: object) -> EveryName:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", **policy}))
    return names


def buried(scene: Scene, count: int = 1, *, credit: int = 1_000) -> Peer:
    """Dead letters of a queue, with consumer 3."""
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"m%d" % number for number in range(count)], durable=True)
    scene.settle_down()
    peer.consume(2, "q", count)
    peer.settle(2, 0, count, OutcomeCode.REJECTED)
    scene.settle_down()
    peer.consume(3, DEAD, credit)
    scene.settle_down()
    return peer


def waits_ms(scene: Scene, peer: Peer, count: int) -> list[int]:
    """How long the only dead letter waits after each of so many failures."""
    found = []
    for number in range(count):
        peer.settle(3, number, 1, OutcomeCode.MODIFIED, FAIL)
        assert len(peer.delivered[3]) == number + 1
        contents = scene.queue_contents(DEAD)
        due_ms = scene.queue_view(DEAD).due_ms(next(iter(contents.retries or ())))
        assert due_ms is not None
        found.append(due_ms - scene.now_ms)
        scene.tick(found[-1])
        assert len(peer.delivered[3]) == number + 2
    return found


def test_a_dead_letter_that_fails_again_and_again_waits_longer_up_to_a_bound() -> None:
    scene = Scene(names=named())
    peer = buried(scene)
    first, longest = limits.DEAD_LETTER_RETRY_MS, limits.DEAD_LETTER_RETRY_MS_MAX
    waits = waits_ms(scene, peer, 12)
    assert waits == [min(first << number, longest) for number in range(12)]
    assert waits[-1] == longest


def test_the_retries_of_a_queue_hold_for_its_dead_letters() -> None:
    scene = Scene(names=named(retry_delay=2, retry_growth=3, retry_delay_max=10))
    assert waits_ms(scene, buried(scene), 3) == [2_000, 6_000, 10_000]


def test_a_change_of_the_queues_retries_reaches_its_dead_letters() -> None:
    scene = Scene(names=named(retry_delay=3_600))
    peer = buried(scene)
    peer.settle(3, 0, 1, OutcomeCode.MODIFIED, FAIL)
    names_of(scene).give("q", Policy.parse({"role": "queue"}))
    scene.refresh()
    scene.tick(limits.DEAD_LETTER_RETRY_MS)
    assert [each.attempts for each in peer.delivered[3]] == [0, 1]


@pytest.mark.parametrize("outcome", [OutcomeCode.RELEASED, OutcomeCode.MODIFIED])
def test_dead_letters_that_did_not_fail_are_ready_at_once(outcome: OutcomeCode) -> None:
    scene = Scene(names=named())
    peer = buried(scene)
    peer.settle(3, 0, 1, outcome, SettleDetail())
    assert len(peer.delivered[3]) == 2


def test_a_rejected_dead_letter_waits_for_other_consumers_and_not_for_a_time() -> None:
    scene = Scene(names=named())
    peer = buried(scene)
    peer.settle(3, 0, 1, OutcomeCode.REJECTED)
    assert scene.queue(DEAD) == {"ready": 1, "in_flight": 0}


def test_a_waiting_dead_letter_returns_to_its_position_and_others_pass() -> None:
    scene = Scene(names=named())
    peer = buried(scene, 3, credit=1)
    peer.settle(3, 0, 1, OutcomeCode.MODIFIED, FAIL)
    peer.credit(3, 2)
    assert [each.message[-1:] for each in peer.delivered[3]] == [b"0", b"1"]
    scene.tick(limits.DEAD_LETTER_RETRY_MS)
    peer.credit(3, 4)
    assert [each.message[-1:] for each in peer.delivered[3]] == [b"0", b"1", b"0", b"2"]


def test_a_drain_and_a_browser_get_the_other_dead_letters_and_the_figures_show_the_waiting_one() -> None:
    scene = Scene(names=named())
    peer = buried(scene, 2, credit=1)
    peer.settle(3, 0, 1, OutcomeCode.MODIFIED, FAIL)
    peer.consume(4, DEAD, 10, browse=True)
    peer.consume(5, DEAD)
    peer.credit(5, 10, drain=True)
    scene.settle_down()
    assert [[each.message[-1:] for each in peer.delivered[link]] for link in (4, 5)] == [[b"1"], [b"1"]]
    assert [answer.link for answer in peer.take(Kind.DRAINED)] == [5]
    peer.settle(5, 0, 1, OutcomeCode.RELEASED)
    fields, _ = peer.answers[peer.ask("queue", queue=DEAD)]
    assert [fields[key] for key in ("ready", "delayed", "in_flight")] == [1, 1, 0]
    fields, _ = peer.answers[peer.ask("peek", queue=DEAD)]
    assert [each["state"] for each in fields["messages"]] == ["delayed", "ready"]


def test_a_dead_letter_has_failed_no_more_often_after_a_restart_than_before() -> None:
    files = FakeFiles()

    def scene_of() -> Scene:
        journal = Journal(files, "test", 0)
        return Scene(journal, journal.recover(1 << 30, 1), names=named(max_delivery_count=1))

    scene = scene_of()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"m"], durable=True)
    scene.settle_down()
    peer.consume(2, "q", 1)
    peer.settle(2, 0, 1, OutcomeCode.MODIFIED, FAIL)
    scene.settle_down()
    attempts = []
    for _ in range(2):
        peer.consume(3, DEAD, 1)
        scene.settle_down()
        attempts += [each.attempts for each in peer.delivered[3]]
        files = files.after_crash(1, "all")
        scene = scene_of()
        peer = scene.peer()
    assert attempts == [0, 0]
