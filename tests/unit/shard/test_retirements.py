"""A gateway that deletes a topic lets its queues leave: over restarts, and only with the topic."""

from typing import Any

import pytest

from lightrail.model import conditions
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.links.idle import IDLE_CHECK_MS
from lightrail.shard.links.retiring import LEAVES_WITH_MS
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.ownership import OwnershipState
from lightrail.wire.frames import Kind
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, numbered_messages

MAX_MS = 300_000
QUEUE = "t/Subscriptions/s"
TOPIC = Policy.parse({"role": "router", "max_idle": MAX_MS / 1000})


class Story:
    """A shard with the own queue of a subscription, and a gateway."""

    def __init__(self) -> None:
        self.names = EveryName()
        self.files = FakeFiles()
        self.names.give("t", TOPIC)
        self.names.give(QUEUE, Policy.parse({"role": "queue"}))
        self.names.subscribe("t", "s", QUEUE)
        self.now_ms = 1_000_000_000
        self.start()
        self.peer.produce(1, QUEUE, epoch=1)

    def start(self) -> None:
        journal = Journal(self.files, "test", 0)
        recovered = journal.recover(1 << 30, self.now_ms)
        self.scene = Scene(journal, recovered, names=self.names, now_ms=self.now_ms)
        self.scene.refresh()
        self.scene.settle_down()
        self.peer: Peer = self.scene.peer()

    def restart(self) -> None:
        self.files = self.files.after_crash(1, "none")
        self.start()

    def wait(self, wait_ms: int) -> None:
        for _ in range(0, wait_ms, 2_000):
            self.now_ms += 2_000
            self.peer.ping()
            self.scene.tick(2_000)
            self.scene.settle_down()

    def ask(self, **fields: Any) -> dict[str, Any]:
        given: dict[str, Any] = {
            "queue": QUEUE,
            "topic": "t",
            "revision": self.names.get("t").revision,
            "leaves": True,
        }
        number = self.peer.ask("leave", **given | fields)
        self.scene.settle_down()
        return self.peer.answers[number][0]

    def state(self) -> OwnershipState:
        found = self.scene.engine._queues.find(QUEUE)
        assert found is not None
        return found.state


def leaving() -> Story:
    story = Story()
    story.wait(MAX_MS + 2 * IDLE_CHECK_MS)
    assert story.ask() == {"leaves": True}
    return story


def test_a_queue_leaves_when_its_time_is_over_and_not_before() -> None:
    story = Story()
    assert story.ask() == {"over_ms": story.now_ms + MAX_MS}
    story.wait(MAX_MS - 2_000)
    assert "over_ms" in story.ask()
    story.wait(2 * IDLE_CHECK_MS)
    assert story.ask(leaves=False)["over_ms"] <= story.now_ms
    assert story.state() is OwnershipState.SERVING
    assert story.ask() == {"leaves": True}
    assert story.state() is OwnershipState.LEAVING
    assert [each.link for each in story.peer.take(Kind.MOVED)] == [1]
    assert story.ask() == {"leaves": True}, "another gateway asks as well"


def test_a_queue_in_use_says_when_its_time_is_over() -> None:
    story = Story()
    story.peer.consume(2, QUEUE, 1)
    story.wait(2 * MAX_MS)
    assert story.ask() == {"over_ms": story.now_ms + MAX_MS}
    story.peer.credit(2, 1, drain=True)
    story.wait(MAX_MS + IDLE_CHECK_MS)
    assert story.ask() == {"leaves": True}


def test_messages_of_the_topic_are_uses_of_it_and_direct_ones_as_well() -> None:
    story = Story()
    story.wait(MAX_MS)
    story.peer.produce(3)
    story.peer.targets(3, 1, QUEUE)
    story.peer.route(3, 1, 1, numbered_messages(1))
    assert story.ask() == {"over_ms": story.now_ms + MAX_MS}


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"revision": 1}, conditions.PRECONDITION_FAILED),
        ({"topic": "other", "revision": 1}, conditions.PRECONDITION_FAILED),
        ({"revision": "x"}, conditions.INVALID_FIELD),
        ({"queue": 5}, conditions.INVALID_FIELD),
        ({"queue": "t"}, conditions.NOT_FOUND),
    ],
)
def test_what_is_no_queue_of_this_topic_as_it_is_gets_an_error(
    fields: dict[str, Any], condition: str
) -> None:
    story = Story()
    story.wait(MAX_MS)
    assert story.ask(**fields)["error"]["condition"] == condition
    assert story.state() is OwnershipState.SERVING


def test_a_queue_of_which_the_gateway_knows_more_than_the_shard_does_not_leave() -> None:
    story = Story()
    story.wait(MAX_MS + 2 * IDLE_CHECK_MS)
    known = story.names.get(QUEUE).revision + 10
    assert story.ask(known=known)["error"]["condition"] == conditions.RESOURCE_LOCKED
    assert story.state() is OwnershipState.SERVING


def test_it_goes_on_leaving_after_a_start_and_its_deletion_is_not_requested_but_that_the_topic_is_kept() -> (
    None
):
    story = leaving()
    story.restart()
    assert story.state() is OwnershipState.LEAVING
    story.wait(2 * LEAVES_WITH_MS)
    assert (story.scene.wishes, set(story.scene.wishes_to_keep)) == ([], {"t"})
    assert story.state() is OwnershipState.LEAVING, "the deletion may be applied late"
    story.names.give("t", TOPIC)
    story.scene.refresh()
    assert story.state() is OwnershipState.SERVING
    story.restart()
    assert story.state() is OwnershipState.SERVING


@pytest.mark.parametrize("changed", ["topic", "queue", "rules"])
def test_a_change_while_the_shard_was_down_is_known_to_it_at_its_start(changed: str) -> None:
    story = leaving()
    if changed == "topic":
        story.names.give("t", TOPIC)
    elif changed == "queue":
        story.names.give(QUEUE, Policy.parse({"role": "queue", "description": "used"}))
    else:
        story.names.subscribe("t", "s", QUEUE)
    story.restart()
    assert story.state() is OwnershipState.SERVING
    story.peer.consume(2, QUEUE, 1)
    story.restart()
    assert story.state() is OwnershipState.SERVING


def test_topics_that_change_at_once_cost_one_look_at_all_queues_and_none_if_they_have_the_field_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story()
    looks: list[int] = []

    def queues_of(_: object, shard: int) -> list[str]:
        looks.append(shard)
        return [QUEUE]

    monkeypatch.setattr(type(story.scene.engine._queues.tenancy.map), "queues_of", queues_of)
    names = [f"t{number}" for number in range(100)]
    for name in names:
        story.names.give(name, TOPIC)
    story.scene.refresh()
    assert len(looks) == 1
    for name in names:
        story.names.give(name, Policy.parse({"role": "router", "max_idle": 2 * MAX_MS / 1000}))
    story.scene.refresh()
    assert len(looks) == 1
    story.names.give("t", Policy.parse({"role": "router"}))
    story.scene.refresh()
    assert len(looks) == 2
    assert story.scene.engine._links.idle._watched == {}


def test_it_is_deleted_with_its_topic() -> None:
    story = leaving()
    story.names.drop("t")
    story.names.drop(QUEUE)
    story.scene.refresh()
    assert not story.scene.has_queue(QUEUE)
    story.wait(2 * LEAVES_WITH_MS)
    assert story.scene.wishes_to_keep == []
