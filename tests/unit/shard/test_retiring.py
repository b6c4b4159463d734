"""Retiring queues: one without messages leaves for a gateway, and is served again unless it is deleted."""

from collections.abc import Callable

import pytest

from lightrail.cluster.coordinator import CoordinatorError, CoordinatorFullError, CoordinatorRefusedError
from lightrail.model import conditions, limits
from lightrail.model.names import dead_letter_name
from lightrail.model.policy import Policy
from lightrail.namespace.deleting import own_queue
from lightrail.shard.journal.journal import Journal
from lightrail.shard.links.idle import IDLE_CHECK_MS, IDLE_REFUSED_MS
from lightrail.shard.links.retiring import LEAVING_QUEUES_MAX
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.ownership import OwnershipState
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene
from tests.unit.shard import test_idle as idle
from tests.unit.shard.test_dead_letters import letters, opened
from tests.unit.shard.transactions.test_prepared import ID, answer, prepare
from tests.unit.shard.transactions.test_transactions import post

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


def test_a_queue_whose_dead_letters_wait_for_room_on_the_disk_is_served_on() -> None:
    scene, store, peer = opened(letters(1))
    store.full = True
    peer.settle(2, 0, 1, OutcomeCode.REJECTED, SettleDetail())
    peer.close_consumer(2)
    scene.settle_down()
    number = peer.ask("retire", queue="q", revision=1)
    scene.settle_down()
    assert peer.answers[number][0] == {"retired": False}


def test_a_queue_without_consumers_is_there_for_the_decision_of_a_transaction_that_sends_to_it() -> None:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", "lifetime": "last_consumer"}))
    scene = Scene(names=names)
    peer = scene.peer()
    peer.consume(2, "q")
    assert answer(scene, peer, prepare(peer, post("q"))) == {"prepared": True}
    peer.close_consumer(2)
    peer.ping()
    scene.tick(limits.PEER_SILENCE_MS // 2)
    scene.settle_down()
    assert scene.wishes == []
    assert answer(scene, peer, peer.ask("conclude", id=ID, commit=True)) == {"concluded": True}
    peer.ping()
    scene.tick(limits.PEER_SILENCE_MS // 2)
    scene.settle_down()
    assert scene.wishes == ["q"]


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


# --- a coordinator that does not delete --------------------------------------------------------------------


class Idle(idle.Story):
    """A queue whose time is over, with the deletions that its shard has requested."""

    def __init__(self) -> None:
        super().__init__()
        self.wait(idle.MAX_MS)
        assert self.state() is OwnershipState.LEAVING

    def end(self, error: CoordinatorError | None) -> None:
        """The first attempt that is under way ends."""
        self.scene.engine.deletion_ended(self.scene.retired.pop(0), error, self.now_ms)
        self.scene.settle_down()


REFUSALS = CoordinatorRefusedError("permission denied"), CoordinatorFullError("no space")


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("is_used", [False, True])
def test_a_queue_whose_deletion_is_refused_is_served_again_and_leaves_later(
    error: CoordinatorError, is_used: bool
) -> None:
    story = Idle()
    story.end(error)
    assert story.state() is OwnershipState.SERVING
    if is_used:
        story.peer.produce(1, "q")
        story.peer.send(1, 1, [b"a"])
        story.scene.settle_down()
        assert story.peer.accepted(1) == [1]
    story.wait(IDLE_REFUSED_MS)
    assert story.state() is (OwnershipState.SERVING if is_used else OwnershipState.LEAVING)
    if not is_used:
        story.end(error)
    story.restart()
    assert story.state() is OwnershipState.SERVING


def test_while_an_attempt_is_under_way_or_may_be_applied_late_it_is_leaving() -> None:
    story = Idle()
    story.wait(limits.PEER_SILENCE_MS)
    assert len(story.scene.retired) == 2
    story.end(REFUSALS[0])
    assert story.state() is OwnershipState.LEAVING, "another attempt has not ended"
    story.end(REFUSALS[0])
    assert story.state() is OwnershipState.SERVING
    story = Idle()
    story.end(CoordinatorError("it is not known whether this was written"))
    story.wait(limits.PEER_SILENCE_MS)
    story.end(REFUSALS[0])
    assert story.state() is OwnershipState.LEAVING
    story.restart()
    story.wait(1_000)
    story.end(REFUSALS[0])
    assert story.state() is OwnershipState.LEAVING, "so may attempts before the start"
    story.write_anew()
    assert story.state() is OwnershipState.SERVING


def test_an_attempt_that_was_sent_before_the_queue_was_served_does_not_end_a_later_one() -> None:
    story = Idle()
    story.write_anew()
    assert story.state() is OwnershipState.SERVING
    story.wait(idle.MAX_MS + 2 * IDLE_CHECK_MS)
    assert story.state() is OwnershipState.LEAVING
    story.end(REFUSALS[0])
    assert story.state() is OwnershipState.LEAVING, "the later one may be applied"
    while story.scene.retired:
        story.end(REFUSALS[0])
    assert story.state() is OwnershipState.SERVING


def test_no_queue_begins_to_leave_while_the_coordinator_does_not_answer() -> None:
    story = idle.Story()
    story.scene.engine.coordinator_answers = lambda: False
    story.wait(idle.MAX_MS + IDLE_REFUSED_MS)
    assert story.state() is OwnershipState.SERVING
    number = story.peer.ask("retire", queue="q", revision=100)
    story.scene.settle_down()
    assert story.peer.answers[number][0] == {"retired": False}
    story.scene.engine.coordinator_answers = lambda: True
    story.wait(IDLE_CHECK_MS)
    assert story.state() is OwnershipState.LEAVING


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
