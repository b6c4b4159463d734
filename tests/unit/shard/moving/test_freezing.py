"""Freezing: from one frame on nothing of a queue changes here, and every link keeps its deliveries."""

from typing import Any

import pytest

from lightrail.journal.record import Queue
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy
from lightrail.shard.journal.record import declared_of
from lightrail.shard.links.takeovers import YIELD_MS
from lightrail.shard.moving.freezing import MOVE_FROZEN_MS
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.frames import HEADER, Kind, OutcomeCode
from tests.support.shard.scene import Peer, Scene, SmallStore
from tests.unit.shard.fake_map import FakeMap

LATE_MS = MOVE_FROZEN_MS


class Story:
    """A shard with q in epoch 3; its link 1 sends, and link 2 holds two messages of three."""

    def __init__(self, policy: dict[str, Any] | None = None) -> None:
        self.map = FakeMap(q=(0, 3))
        self.names = EveryName()
        self.names.give("q", Policy.parse({"role": "queue", **(policy or {})}))
        self.scene = Scene(map=self.map, names=self.names)
        self.peer = self.scene.peer()
        self.other = self.scene.peer("shard-1", boot=50)
        self.peer.produce(1, "q", epoch=3)
        self.peer.send(1, 1, [b"a", b"b", b"c"])
        self.peer.consume(2, "q", 2, epoch=3)
        self.scene.settle_down()
        self.peer.take()

    def freeze(self) -> dict[str, Any]:
        number = self.other.ask("freeze", queue="q", epoch=3)
        self.scene.settle_down()
        return self.other.answers[number][0]

    def pass_time(self, wait_ms: int) -> None:
        """In steps, during which the frontends say that they are there."""
        for _ in range(0, wait_ms, 1_000):
            for peer in list(self.scene.peers.values()):
                peer.ping()
            self.scene.tick(1_000)
        self.scene.settle_down()

    def give_back(self) -> None:
        self.map.give("q", 0, 5)
        self.scene.refresh()
        self.scene.settle_down()


def test_every_link_is_sent_away_and_the_answer_waits_for_the_disk() -> None:
    story = Story()
    story.other.ask("freeze", queue="q", epoch=3)
    moved = story.peer.take(Kind.MOVED)
    assert sorted(each.link for each in moved) == [1, 2]
    assert story.other.answers == {}
    story.scene.settle_down()
    (state,) = story.other.answers[1][0]["states"]
    assert (state["queue"], state["links"]) == ("q", [[7, 2]])
    store = story.scene.store
    assert isinstance(store, SmallStore)
    last = [each for each in store.records if isinstance(each, Queue)][-1]
    assert (declared_of(last.policy).frozen, declared_of(last.policy).epoch) == (True, 3)
    assert story.scene.counts.queues_frozen == 1


def test_a_second_freeze_in_the_same_epoch_is_answered_anew_and_one_in_another_is_refused() -> None:
    story = Story()
    first = story.freeze()
    assert story.freeze()["states"][0]["state"]["messages"] == 3
    assert first["states"][0]["queue"] == "q"
    for epoch in (2, 4):
        number = story.other.ask("freeze", queue="q", epoch=epoch)
        story.scene.settle_down()
        assert story.other.answers[number][0]["error"]["condition"] == conditions.MOVED


def test_answers_that_waited_for_the_disk_still_leave() -> None:
    story = Story()
    story.peer.send(1, 2, [b"d"])
    assert story.peer.accepted(1) == []
    story.freeze()
    assert story.peer.accepted(1) == [2]


def test_what_links_say_after_the_freeze_changes_nothing() -> None:
    story = Story()
    story.freeze()
    before = story.scene.queue("q")
    story.peer.take()
    story.peer.send(1, 2, [b"late"])
    story.peer.credit(2, 100)
    story.peer.close_producer(1)
    assert story.peer.take() == []
    assert story.peer.bounced == []
    assert story.scene.queue("q") == before == {"ready": 1, "in_flight": 2}


def test_settlements_and_closes_come_back_with_the_queue_and_its_epoch() -> None:
    story = Story()
    story.freeze()
    story.peer.settle(2, 0, 1)
    story.peer.settle(2, 1, 1, OutcomeCode.REJECTED)
    story.peer.close_consumer(2)
    assert [fields for fields, _ in story.peer.bounced] == [{"queue": "q", "epoch": 3}] * 3
    kinds = [HEADER.unpack_from(part) for _, part in story.peer.bounced]
    assert [(each[0], each[1], each[4], each[6]) for each in kinds] == [
        (Kind.SETTLE, OutcomeCode.ACCEPTED, 2, 0),
        (Kind.SETTLE, OutcomeCode.REJECTED, 2, 1),
        (Kind.CONSUMER_CLOSE, 0, 2, 0),
    ]
    assert story.scene.queue("q") == {"ready": 1, "in_flight": 2}


def test_settlements_still_come_back_when_the_queue_has_gone_and_not_after_the_number_was_opened_again() -> (
    None
):
    story = Story()
    story.freeze()
    story.map.give("q", 1, 4)
    story.scene.refresh()
    assert story.scene.engine._queues.find("q") is None
    assert (story.scene.counts.moves_out, story.scene.counts.queues_frozen) == (1, 0)
    story.peer.settle(2, 0, 1)
    assert len(story.peer.bounced) == 1
    story.map.give("p", 0, 1)
    story.peer.consume(2, "p", epoch=1)
    story.peer.settle(2, 0, 1)
    assert len(story.peer.bounced) == 1


def test_a_consumer_that_was_opened_too_late_gets_its_settlements_back_as_well() -> None:
    story = Story()
    story.freeze()
    story.peer.consume(5, "q", epoch=3, resume=True)
    story.peer.settle(5, 7, 1)
    assert len(story.peer.bounced) == 1


def test_the_loss_of_a_frontend_releases_nothing_of_a_frozen_queue() -> None:
    story = Story()
    story.freeze()
    for _ in range(0, 2 * limits.PEER_SILENCE_MS, 1_000):
        story.scene.tick(1_000)
    assert list(story.scene.engine._frontends) == []
    assert story.scene.queue("q") == {"ready": 1, "in_flight": 2}


def test_nothing_expires_and_no_lock_runs_out_while_frozen() -> None:
    story = Story({"max_age": 1, "lock_duration": 1})
    story.freeze()
    story.pass_time(5_000)
    assert story.scene.queue("q") == {"ready": 1, "in_flight": 2}


def test_batches_that_wait_for_room_are_dropped_unanswered() -> None:
    story = Story({"max_length": 3, "overflow": "flow_control"})
    story.peer.send(1, 2, [b"waits"])
    story.freeze()
    assert story.peer.accepted(1) == []
    assert story.peer.refusals == []
    assert story.scene.engine._house.memory.parked == 0


def test_routed_batches_that_wait_for_room_are_refused_to_be_sent_elsewhere() -> None:
    story = Story({"max_length": 3, "overflow": "flow_control"})
    story.peer.produce(9)
    story.peer.targets(9, 1, "q")
    story.peer.route(9, 1, 1, [b"waits"])
    story.freeze()
    ((link, number, refusal),) = story.peer.refusals
    assert (link, number, refusal.condition) == (9, 1, conditions.MOVED)
    story.peer.route(9, 2, 1, [b"late"], afresh=True)
    assert story.peer.refusals[-1][2].condition == conditions.MOVED


def test_a_freeze_is_not_the_last_consumer_leaving() -> None:
    story = Story({"lifetime": "last_consumer"})
    story.freeze()
    story.pass_time(3 * limits.PEER_SILENCE_MS)
    assert story.scene.wishes == []


def test_the_dead_letter_queue_is_frozen_with_its_queue() -> None:
    story = Story()
    story.peer.settle(2, 0, 1, OutcomeCode.REJECTED)
    story.peer.consume(3, "q/$dlq", 1, epoch=3)
    states = story.freeze()["states"]
    assert [(each["queue"], each["links"]) for each in states] == [("q", [[7, 2]]), ("q/$dlq", [[7, 3]])]
    story.peer.settle(3, 0, 1)
    assert story.peer.bounced[0][0] == {"queue": "q/$dlq", "epoch": 3}


def test_without_room_for_the_freeze_nothing_is_frozen() -> None:
    story = Story()
    assert isinstance(story.scene.store, SmallStore)
    story.scene.store.full_for_all = True
    assert story.freeze()["error"]["condition"] == conditions.RESOURCE_LIMIT_EXCEEDED
    story.scene.store.full_for_all = False
    story.peer.settle(2, 0, 2)
    assert story.scene.queue("q") == {"ready": 1, "in_flight": 0}


# --- given back ------------------------------------------------------------------------------------------


def test_a_queue_that_nobody_takes_is_asked_for_and_never_thawed_by_time() -> None:
    story = Story()
    story.freeze()
    story.pass_time(LATE_MS - 1_000)
    assert story.scene.wishes_back == []
    story.pass_time(2_000)
    assert set(story.scene.wishes_back) == {"q"}
    story.pass_time(60_000)
    story.peer.take()
    story.peer.consume(2, "q", epoch=3)
    assert len(story.peer.take(Kind.MOVED)) == 1


def test_given_back_it_goes_on_and_consumers_have_what_they_held() -> None:
    story = Story()
    story.freeze()
    story.give_back()
    story.peer.consume(2, "q", epoch=5, first=2, resume=True)
    story.peer.credit(2, 3)
    story.peer.settle(2, 0, 2)
    assert story.peer.messages(2) == [b"a", b"b", b"c"]
    story.peer.produce(1, "q", epoch=5)
    story.peer.send(1, 1, [b"a", b"b", b"c"])
    story.peer.send(1, 2, [b"d"])
    story.scene.settle_down()
    assert story.peer.accepted(1) == [1, 2]
    assert story.scene.queue("q") == {"ready": 1, "in_flight": 1}


def test_given_back_it_gets_the_policy_that_its_name_has_by_then() -> None:
    story = Story()
    story.freeze()
    story.names.give("q", Policy.parse({"role": "queue", "max_length": 5}))
    story.scene.refresh()
    queue = story.scene.engine._queues.find("q")
    assert queue is not None
    assert queue.machine.contents.policy.max_length is None
    story.give_back()
    assert queue.machine.contents.policy.max_length == 5


def test_a_name_that_is_dropped_takes_its_frozen_queue_with_it() -> None:
    story = Story()
    story.freeze()
    story.names.drop("q")
    story.scene.refresh()
    assert story.scene.engine._queues.find("q") is None
    assert story.scene.counts.queues_frozen == 0


# --- consumers that are awaited ----------------------------------------------------------------------------


def test_a_settlement_finds_an_awaited_consumer_before_its_link_is_opened() -> None:
    story = Story()
    story.freeze()
    story.give_back()
    story.peer.settle(2, 0, 1)
    assert story.peer.bounced == []
    assert story.scene.queue("q") == {"ready": 1, "in_flight": 1}
    story.peer.close_consumer(2)
    assert story.scene.queue("q") == {"ready": 2, "in_flight": 0}


def attached_elsewhere(**options: Any) -> tuple[Story, Peer]:
    """A link whose queue was frozen and is served again, and that its client attaches at another frontend."""
    story = Story()
    story.peer.send(1, 2, [b"d", b"e"])
    story.peer.consume(3, "q", 3, epoch=3, client_link="1" * 32, steals=True, **options)
    assert story.scene.queue("q") == {"ready": 0, "in_flight": 5}
    story.freeze()
    story.give_back()
    other = story.scene.peer("frontend-9", boot=9)
    other.consume(7, "q", 1, epoch=5, client_link="1" * 32, steals=True, **options)
    story.scene.settle_down()
    assert other.delivered == {}
    return story, other


def test_a_consumer_that_its_client_attaches_elsewhere_is_awaited_no_longer_than_the_bound() -> None:
    """Its link, to which the move is not known yet, ends when it opens again (transport 2.6.1)."""
    story, other = attached_elsewhere()
    story.scene.tick(YIELD_MS)
    story.scene.settle_down()
    assert [each.message for each in other.delivered[7]] == [b"c"]
    story.peer.consume(3, "q", epoch=5, first=1, resume=True, client_link="1" * 32)
    assert [refusal.condition for _, _, refusal in story.peer.refusals] == [conditions.STOLEN]
    assert story.scene.queue("q") == {"ready": 2, "in_flight": 3}


def test_what_the_former_link_settles_behind_its_queue_is_settled_before_the_new_one_opens() -> None:
    story, other = attached_elsewhere(suspended_ms=60_000, recovers=True)
    story.peer.settle(3, 0, 1)
    assert other.recovered == {}
    story.peer.close_consumer(3)
    story.scene.settle_down()
    assert other.recovered[7][2] == [(1, 2)]


def test_a_former_link_that_opens_behind_its_queue_is_asked_first() -> None:
    story, other = attached_elsewhere(suspended_ms=60_000, recovers=True)
    story.peer.yields = False
    story.peer.consume(3, "q", epoch=5, first=3, resume=True, client_link="1" * 32, suspended_ms=60_000)
    assert [answer.link for answer in story.peer.take(Kind.YIELD)] == [3]
    story.peer.settle(3, 0, 2)
    assert other.recovered == {}
    story.peer.yielded(3)
    story.scene.settle_down()
    assert other.recovered[7][2] == [(2, 1)]


def test_what_nobody_takes_is_released_without_a_failed_attempt() -> None:
    story = Story()
    story.freeze()
    story.give_back()
    story.pass_time(limits.PEER_SILENCE_MS - 1_000)
    assert story.scene.queue("q") == {"ready": 1, "in_flight": 2}
    story.pass_time(1_000)
    assert story.scene.queue("q") == {"ready": 3, "in_flight": 0}
    story.peer.consume(4, "q", 3, epoch=5)
    # Shown as delivered before, and not counted.
    assert [each.attempts for each in story.peer.delivered[4]] == [1, 1, 0]
    queue = story.scene.engine._queues.find("q")
    assert queue is not None
    assert all(not run.attempts for run in queue.machine.contents.runs())


@pytest.mark.parametrize("options", [{"first": 2}, {"first": 1, "resume": True}])
def test_a_link_that_does_not_go_on_where_it_was_is_opened_as_a_new_one(options: dict[str, Any]) -> None:
    story = Story()
    story.freeze()
    story.give_back()
    story.peer.delivered.clear()
    story.peer.consume(2, "q", epoch=5, **options)
    story.peer.credit(2, options["first"] + 3)
    assert [(each.message, each.attempts) for each in story.peer.delivered[2]] == [
        (b"a", 1),
        (b"b", 1),
        (b"c", 0),
    ]


def test_a_link_with_nobody_to_take_over_is_opened_as_a_new_one() -> None:
    story = Story()
    peer: Peer = story.scene.peer("frontend-9", boot=9)
    peer.consume(7, "q", epoch=3, first=40, resume=True)
    peer.credit(7, 41)
    assert [each.number for each in peer.delivered[7]] == [40]


def test_consumers_that_nobody_has_taken_over_yet_go_on_with_their_queue() -> None:
    story = Story()
    story.freeze()
    story.give_back()
    number = story.other.ask("freeze", queue="q", epoch=5)
    story.scene.settle_down()
    assert story.other.answers[number][0]["states"][0]["links"] == [[7, 2]]
    story.peer.settle(2, 0, 1)
    assert story.peer.bounced[-1][0] == {"queue": "q", "epoch": 5}
    assert story.scene.queue("q") == {"ready": 1, "in_flight": 2}


def test_of_consumers_that_were_sent_away_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOVED_LINKS_MAX", 2)
    story = Story()
    for link in (3, 4, 5):
        story.peer.consume(link, "q", 0, epoch=3)
    story.freeze()
    # The first two of four are forgotten: what they settle comes back no more, and ends nothing.
    for link in (2, 3, 4, 5):
        story.peer.settle(link, 0, 1)
    assert len(story.peer.bounced) == 2
    assert story.scene.queue("q") == {"ready": 1, "in_flight": 2}


def test_of_a_consumer_whose_queue_is_about_to_come_so_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOVE_HELD_FRAMES_MAX", 2)
    story = Story()
    awaited = story.scene.engine._links.receiving
    awaited.expect([(story.peer.boot, 9)])
    for number in range(3):
        story.peer.settle(9, number, 1)
    assert [len(parts) for parts in awaited._expected.values()] == [2]
    awaited.unexpect([(story.peer.boot, 9)])
    assert not awaited._expected
