"""Retiring queues: one without messages leaves for a gateway, and is served again unless it is deleted."""

from collections.abc import Callable

import pytest

from lightrail.model import conditions, limits
from lightrail.model.names import dead_letter_name
from lightrail.model.policy import Policy
from lightrail.namespace.deleting import own_queue
from lightrail.shard.journal.journal import Journal
from lightrail.shard.links.retiring import LEAVING_QUEUES_MAX
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.ownership import OwnershipState
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene

QUEUE = Policy.parse({"role": "queue", "delay": True})


class Story:
    """A shard with the queue q, its frontend, and the gateway that is about to delete the name."""

    def __init__(self, queue: str = "q") -> None:
        self.queue = queue
        self.names = EveryName()
        self.names.give(queue, QUEUE)
        self.files = FakeFiles()
        self.now_ms = 1_000_000_000
        self.start()

    def start(self) -> None:
        journal = Journal(self.files, "test", 0)
        recovered = journal.recover(1 << 30, self.now_ms)
        self.scene = Scene(journal, recovered, names=self.names, now_ms=self.now_ms)
        self.scene.refresh()
        self.scene.settle_down()
        self.peer: Peer = self.scene.peer()
        self.gateway = self.scene.peer("gateway-0", 8)

    def restart(self) -> None:
        self.files = self.files.after_crash(1, "none")
        self.start()

    def retires(self, queue: str = "", revision: int = 0) -> bool:
        """The answer to the gateway, when everything is on disk."""
        revision = revision or self.revision
        number = self.gateway.ask("retire", queue=queue or self.queue, revision=revision)
        assert not self.gateway.answers.get(number, [{}])[0].get("retired"), "before its record is on disk"
        self.scene.settle_down()
        answer = self.gateway.answers[number][0]
        assert "error" not in answer, answer
        return bool(answer["retired"])

    @property
    def revision(self) -> int:
        return self.names.get(self.queue).revision

    def write_anew(self) -> None:
        self.names.give(self.queue, QUEUE)
        self.scene.refresh()
        self.scene.settle_down()

    def wait(self, ms: int) -> None:
        for peer in self.scene.peers.values():
            peer.ping()
        self.scene.tick(ms)
        self.scene.settle_down()

    def state(self, queue: str = "") -> OwnershipState | None:
        found = self.scene.engine._queues.find(queue or self.queue)
        return None if found is None else found.state


def ready(story: Story) -> None:
    story.peer.produce(1, "q")
    story.peer.send(1, 1, [b"a"])


def locked(story: Story) -> None:
    ready(story)
    story.peer.consume(2, "q", 1)


def rejected(story: Story) -> None:
    locked(story)
    story.scene.settle_down()
    story.peer.settle(2, 0, 1, OutcomeCode.REJECTED)
    story.peer.close_consumer(2)


@pytest.mark.parametrize("fill", [ready, locked, rejected])
def test_a_queue_with_a_message_ready_locked_or_dead_is_served_on(fill: Callable[[Story], None]) -> None:
    story = Story()
    fill(story)
    story.scene.settle_down()
    assert not story.retires()
    assert story.state() is OwnershipState.SERVING
    story.peer.produce(3, "q")
    story.peer.send(3, 1, [b"b"])
    story.scene.settle_down()
    assert story.peer.accepted(3) == [1]


def test_an_empty_queue_leaves_and_what_is_sent_meanwhile_waits_and_ends_with_the_name() -> None:
    story = Story()
    story.peer.produce(1, "q", epoch=1)
    assert story.retires()
    assert story.state() is OwnershipState.LEAVING
    assert [each.link for each in story.peer.take(Kind.MOVED)] == [1]
    story.peer.send(1, 1, [b"a"])
    story.scene.settle_down()
    assert story.peer.accepted(1) == []
    assert not story.scene.retired, "the gateway deletes it"
    story.names.drop("q")
    story.scene.refresh()
    assert story.state() is None
    story.peer.produce(3, "q")
    assert story.peer.refusals[-1][2].condition == conditions.NOT_FOUND


def test_a_change_since_the_gateway_has_read_the_name_wins() -> None:
    story = Story()
    before = story.revision
    story.write_anew()
    assert not story.retires(revision=before)
    assert story.retires()
    story.write_anew()
    assert story.state() is OwnershipState.SERVING
    story.peer.produce(1, "q")
    story.peer.send(1, 1, [b"a"])
    story.scene.settle_down()
    assert story.peer.accepted(1) == [1]


def test_a_gateway_that_ends_before_it_deletes_leaves_a_queue_that_is_served_again() -> None:
    story = Story()
    assert story.retires()
    story.wait(limits.PEER_SILENCE_MS - 1)
    assert not story.scene.wishes_to_keep
    story.wait(1)
    assert story.scene.wishes_to_keep == ["q"]
    story.wait(limits.PEER_SILENCE_MS)
    assert story.scene.wishes_to_keep == ["q"] * 2, "the coordinator may not have answered"
    assert story.state() is OwnershipState.LEAVING, "a deletion may be applied late"
    story.write_anew()
    assert story.state() is OwnershipState.SERVING
    story.wait(limits.PEER_SILENCE_MS)
    assert story.scene.wishes_to_keep == ["q"] * 2
    story.restart()
    assert story.state() is OwnershipState.SERVING


def test_after_a_start_it_is_leaving_until_it_is_kept() -> None:
    story = Story()
    assert story.retires()
    story.restart()
    assert story.state() is OwnershipState.LEAVING
    story.wait(1_000)
    assert story.scene.wishes_to_keep
    assert not story.scene.retired
    story.write_anew()
    assert story.state() is OwnershipState.SERVING


def test_a_change_of_its_subscription_wins() -> None:
    story = Story(own_queue("t", "s"))
    story.names.give("t", Policy.parse({"role": "router"}))
    story.names.subscribe("t", "s", story.queue)
    story.scene.refresh()
    assert not story.retires()
    found = story.names.subscription("t", "s")
    assert found is not None
    assert story.retires(revision=found.revision)
    story.names.subscribe("t", "s", story.queue)
    story.scene.refresh()
    assert story.state() is OwnershipState.SERVING


def test_its_dead_letter_queue_leaves_with_it_and_returns_with_it() -> None:
    story = Story()
    rejected(story)
    story.scene.settle_down()
    story.peer.consume(4, dead_letter_name("q"), 1)
    story.scene.settle_down()
    story.peer.settle(4, 0, 1)
    story.scene.settle_down()
    assert story.retires()
    assert story.state(dead_letter_name("q")) is OwnershipState.LEAVING
    story.write_anew()
    assert story.state(dead_letter_name("q")) is OwnershipState.SERVING


def test_only_so_many_leave_at_a_time() -> None:
    story = Story()
    for number in range(LEAVING_QUEUES_MAX):
        story.names.give(f"n{number}", QUEUE)
    story.scene.refresh()
    assert all(
        story.retires(f"n{number}", story.names.get(f"n{number}").revision)
        for number in range(LEAVING_QUEUES_MAX)
    )
    assert not story.retires()
    story.names.drop("n0")
    story.scene.refresh()
    assert story.retires()
