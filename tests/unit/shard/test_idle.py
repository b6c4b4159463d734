"""Idle queues: the time without use is exact, over restarts too, and nothing accepted is deleted."""

import asyncio
from collections.abc import Callable

import pytest

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.model import conditions
from lightrail.model.names import is_dead_letter
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.store import StoreBusyError
from lightrail.shard.links.idle import (
    IDLE_AFTER_START_MS,
    IDLE_CHECK_MS,
    IDLE_LOOKS_OF_A_TICK,
    IDLE_NOTED_MS,
    IDLE_PAUSE_MS,
    USES,
)
from lightrail.shard.links.retiring import LEAVING_QUEUES_MAX
from lightrail.shard.queues.declarations import EveryName
from lightrail.shard.queues.ownership import OwnershipState
from lightrail.shard.queues.queues import Queues
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.moving_scene import Cluster
from tests.support.shard.scene import Peer, Scene, numbered_messages

DAY_MS = 86_400_000
MAX_MS = 300_000
MESSAGES = numbered_messages(3)


class Story:
    """A shard with a queue, from which `max_idle` seconds have to pass; and a frontend."""

    def __init__(self, queue: str = "q", max_idle: float = MAX_MS / 1000, **policy: object) -> None:
        self.queue = queue
        self.names = EveryName()
        self.files = FakeFiles()
        self.given = Policy.parse({"role": "queue", "max_idle": max_idle, **policy})
        self.names.give(queue, self.given)
        self.now_ms = 1_000_000_000
        self.start()

    def start(self) -> None:
        """Starts the shard on its disk."""
        journal = Journal(self.files, "test", 0)
        recovered = journal.recover(1 << 30, self.now_ms)
        self.scene = Scene(journal, recovered, names=self.names, now_ms=self.now_ms)
        self.scene.refresh()
        self.scene.settle_down()
        self.peer: Peer = self.scene.peer()

    def restart(self, after_ms: int = 0) -> None:
        """Ends the shard in order, or kills it, which is the same for what is synced; starts it later."""
        self.files = self.files.after_crash(1, "none")
        self.now_ms += after_ms
        self.start()

    def wait(self, wait_ms: int) -> None:
        """Time passes, while the frontend says that it is there."""
        until_ms = self.now_ms + wait_ms
        while self.now_ms < until_ms:
            step_ms = min(2_000, until_ms - self.now_ms)
            self.now_ms += step_ms
            for peer in list(self.scene.peers.values()):
                peer.ping()
            self.scene.tick(step_ms)
            self.scene.settle_down()

    def write_anew(self) -> None:
        self.names.give(self.queue, self.given)
        self.scene.refresh()
        self.scene.settle_down()

    def state(self) -> OwnershipState:
        found = self.scene.engine._queues.find(self.queue)
        assert found is not None
        return found.state

    def is_retired(self) -> bool:
        """Whether its deletion was requested."""
        return bool(self.scene.retired)

    def is_there_for(self, wait_ms: int) -> None:
        """The queue is there to the last millisecond, and leaves then."""
        self.wait(wait_ms - 1)
        assert (self.state(), self.is_retired()) == (OwnershipState.SERVING, False)
        self.wait(1)
        assert (self.state(), self.is_retired()) == (OwnershipState.LEAVING, True)


def test_a_queue_is_there_for_its_time_to_the_millisecond_though_nobody_ever_used_it() -> None:
    story = Story()
    story.is_there_for(MAX_MS)
    assert [(record.name, record.revision) for record, _ in story.scene.retired] == [("q", 2)]


def test_a_queue_for_which_the_shard_has_no_room_is_watched_when_there_is_some() -> None:
    story = Story()
    queues = story.scene.engine._queues
    queues.queues_max = 1
    for name in ("q1", "q2"):
        story.names.give(name, story.given)
    story.scene.refresh()
    story.wait(10_000)
    assert not story.scene.has_queue("q1")
    queues.queues_max = 3
    story.wait(MAX_MS + 20_000)
    assert {record.name for record, _ in story.scene.retired} == {"q", "q1", "q2"}


def test_without_the_field_it_stays_and_when_it_gets_the_field_the_time_begins() -> None:
    story = Story()
    story.wait(200_000)
    story.names.give("q", Policy.parse({"role": "queue"}))
    story.scene.refresh()
    story.wait(3 * MAX_MS)
    assert story.state() is OwnershipState.SERVING
    story.write_anew()
    story.is_there_for(MAX_MS)


def send(story: Story) -> None:
    story.peer.produce(1, "q")
    story.peer.send(1, 1, MESSAGES)


def receive(story: Story) -> None:
    story.peer.consume(2, "q", 1)
    story.peer.close_consumer(2)


def drain(story: Story) -> None:
    story.peer.consume(2, "q")
    story.peer.credit(2, 1, drain=True)
    story.peer.close_consumer(2)


def peek(story: Story) -> None:
    story.peer.ask("peek", queue="q")


def look_for_dead_letters(story: Story) -> None:
    story.peer.consume(2, f"{story.queue}/$dlq", 1)
    story.peer.close_consumer(2)


@pytest.mark.parametrize("use", [send, receive, drain, peek, look_for_dead_letters, Story.write_anew])
@pytest.mark.parametrize("before_ms", [5_000, 200_000])
def test_each_use_begins_the_time_anew(use: Callable[[Story], None], before_ms: int) -> None:
    story = Story()
    story.wait(before_ms)
    use(story)
    story.scene.settle_down()
    story.wait(MAX_MS - 1)
    assert story.state() is OwnershipState.SERVING
    # A use is known to the look after it.
    story.wait(1 + 2 * IDLE_CHECK_MS)
    assert story.state() is OwnershipState.LEAVING


def test_every_request_that_is_a_use_is_one_of_a_shard() -> None:
    story = Story()
    known = story.scene.engine._requests._operations
    assert set(known) >= USES
    assert {"queue", "queues", "kept", "export", "freeze", "transact"} <= set(known) - USES


def test_never_under_a_receiver_that_waits_and_an_open_link_alone_is_no_use() -> None:
    story = Story()
    story.peer.produce(1, "q")
    story.peer.consume(2, "q", 1)
    story.wait(5 * MAX_MS)
    assert story.state() is OwnershipState.SERVING
    story.peer.credit(2, 1, drain=True)
    story.wait(MAX_MS + 2 * IDLE_CHECK_MS)
    assert story.state() is OwnershipState.LEAVING


def test_never_while_a_delivery_is_not_settled_or_a_message_waits_for_its_time() -> None:
    story = Story(delay=True)
    send(story)
    story.peer.consume(2, "q", 1)
    story.wait(3 * MAX_MS)
    assert story.state() is OwnershipState.SERVING
    story.peer.settle(2, 0, 1)
    story.wait(MAX_MS + 2 * IDLE_CHECK_MS)
    assert story.state() is OwnershipState.LEAVING, "messages that nobody receives do not keep it"
    forwarding = Story(forward_to="other")
    forwarding.wait(3 * MAX_MS)
    assert forwarding.state() is OwnershipState.SERVING


def test_never_while_dead_letters_wait_for_the_gateway_that_forwards_them() -> None:
    story = Story(dead_letter="graveyard")
    send(story)
    story.peer.consume(2, "q", 1)
    story.peer.settle(2, 0, 1, OutcomeCode.REJECTED)
    story.peer.close_consumer(2)
    story.wait(3 * MAX_MS)
    assert story.state() is OwnershipState.SERVING
    story.peer.consume(3, "q/$dlq", 5)
    story.peer.settle(3, 0, 1)
    story.wait(MAX_MS + 2 * IDLE_CHECK_MS)
    assert story.state() is OwnershipState.LEAVING, "a gateway that waits for others is no use"


def test_messages_of_its_topic_are_no_use_of_a_subscription_and_its_rules_are() -> None:
    story = Story("t/Subscriptions/s")
    story.names.give("t", Policy.parse({"role": "router"}))
    story.names.subscribe("t", "s", story.queue)
    story.scene.refresh()
    story.wait(IDLE_NOTED_MS)
    story.names.subscribe("t", "s", story.queue)
    story.scene.refresh()
    story.peer.produce(1)
    story.peer.targets(1, 1, story.queue)
    for number in range(1, 4):
        story.wait(60_000)
        story.peer.route(1, number, 1, MESSAGES)
    assert story.state() is OwnershipState.SERVING
    story.wait(MAX_MS - 180_000 + 2 * IDLE_CHECK_MS)
    assert story.state() is OwnershipState.LEAVING
    record, guards = story.scene.retired[-1]
    assert record.name == story.queue
    assert set(guards) == {"subscriptions/t//s", f"placement/{story.queue}"}
    story.names.subscribe("t", "s", story.queue)
    story.scene.refresh()
    assert story.state() is OwnershipState.SERVING, "the deletion fails, as its rules were changed"


# --- starts and pauses -----------------------------------------------------------------------------------


def test_the_time_goes_on_while_the_shard_is_restarted_each_day() -> None:
    story = Story(max_idle=7 * DAY_MS / 1000)
    story.wait(IDLE_NOTED_MS + 2 * IDLE_CHECK_MS)
    for _ in range(6):
        story.restart(DAY_MS)
        story.wait(1_000)
    story.restart(DAY_MS - 6_000 - IDLE_NOTED_MS - 2 * IDLE_CHECK_MS - 1)
    story.is_there_for(IDLE_AFTER_START_MS)


@pytest.mark.parametrize("use", [send, receive, peek])
def test_a_use_just_before_the_shard_is_killed_is_remembered(use: Callable[[Story], None]) -> None:
    story = Story(max_idle=7 * DAY_MS / 1000)
    story.wait(DAY_MS // 24)
    story.now_ms += 6 * DAY_MS
    story.restart()
    story.wait(30_000)
    use(story)
    story.scene.settle_down()
    story.restart(DAY_MS)
    story.wait(IDLE_AFTER_START_MS + 2 * IDLE_CHECK_MS)
    assert story.state() is OwnershipState.SERVING


def test_clients_have_time_to_return_after_a_pause_of_the_process() -> None:
    story = Story()
    story.wait(MAX_MS - 10_000)
    story.now_ms += IDLE_PAUSE_MS + 1
    story.scene.tick(IDLE_PAUSE_MS + 1)
    assert story.state() is OwnershipState.SERVING
    story.peer.greet()
    story.is_there_for(IDLE_AFTER_START_MS)


def test_a_move_carries_the_time() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.names.give("q", Policy.parse({"role": "queue", "max_idle": 7 * DAY_MS / 1000}))
        cluster.start()
        await cluster.place("q")
        began_ms = cluster.now_ms
        cluster.pass_time(IDLE_NOTED_MS + 3 * IDLE_CHECK_MS)
        await cluster.moved("q", 1)
        found = cluster.shards[1].scene.engine._queues.find("q")
        assert found is not None
        assert found.idle_since_ms == began_ms
        cluster.shards[1].die()
        cluster.shards[1].start()
        found = cluster.shards[1].scene.engine._queues.find("q")
        assert found is not None
        assert found.idle_since_ms == began_ms
        cluster.close()

    asyncio.run(story())


# --- while it leaves -------------------------------------------------------------------------------------


def leaving() -> Story:
    story = Story()
    story.peer.produce(1, "q", epoch=1)
    story.peer.send(1, 1, MESSAGES)
    story.scene.settle_down()
    story.peer.take()
    story.wait(MAX_MS + 2 * IDLE_CHECK_MS)
    assert story.is_retired()
    return story


def test_what_is_sent_between_the_decision_and_the_deletion_is_not_accepted() -> None:
    story = leaving()
    assert [each.link for each in story.peer.take(Kind.MOVED)] == [1]
    story.peer.send(1, 2, MESSAGES)
    story.peer.produce(3, "q", epoch=1)
    story.peer.consume(4, "q/$dlq", 1, epoch=1)
    story.peer.produce(5)
    story.peer.targets(5, 1, "q")
    story.peer.route(5, 1, 1, MESSAGES)
    asked = story.peer.ask("peek", queue="q")
    story.scene.settle_down()
    assert {each.link for each in story.peer.take() if each.kind == Kind.MOVED} == {3, 4}
    assert [(link, why.condition) for link, _, why in story.peer.refusals] == [(5, conditions.MOVED)]
    assert story.peer.answers[asked][0]["error"]["condition"] == conditions.MOVED
    story.names.drop("q")
    story.scene.refresh()
    story.peer.produce(6, "q")
    assert not story.scene.has_queue("q")
    assert story.peer.refusals[-1][2].condition == conditions.NOT_FOUND


def test_a_change_of_its_name_wins_and_the_links_go_on() -> None:
    story = leaving()
    story.write_anew()
    assert story.state() is OwnershipState.SERVING
    story.peer.produce(1, "q", epoch=1, number=2)
    story.peer.send(1, 2, MESSAGES)
    story.scene.settle_down()
    assert story.peer.accepted(1) == [2]
    story.peer.consume(7, "q", 10)
    assert story.peer.messages(7) == MESSAGES * 2
    story.restart()
    assert story.state() is OwnershipState.SERVING


def test_its_deletion_is_requested_once_its_record_is_synced_and_until_it_is_there() -> None:
    story = Story()
    story.wait(MAX_MS - 1)
    story.scene.tick(1)
    assert (story.state(), story.is_retired()) == (OwnershipState.LEAVING, False)
    story.scene.settle_down()
    assert story.is_retired()
    count = len(story.scene.retired)
    story.wait(20_000)
    assert len(story.scene.retired) > count, "the coordinator may not have answered"


def test_after_a_start_it_goes_on_leaving_since_the_deletion_may_be_applied_late() -> None:
    story = leaving()
    story.restart()
    assert story.state() is OwnershipState.LEAVING
    story.wait(1_000)
    assert story.is_retired()
    story.write_anew()
    assert story.state() is OwnershipState.SERVING
    later = leaving()
    later.names.give("q", later.given)
    later.restart()
    assert later.state() is OwnershipState.SERVING


def test_a_tick_looks_at_a_part_of_many_queues_and_the_next_one_at_the_others() -> None:
    story = Story()
    queues = [f"q{number}" for number in range(IDLE_LOOKS_OF_A_TICK)]
    for queue in queues:
        story.names.give(queue, story.given)
    story.scene.refresh()
    # All of them are due at once.
    late_ms = IDLE_NOTED_MS
    story.now_ms += late_ms
    counts = []
    for wait_ms in (late_ms, 1_000):
        story.scene.tick(wait_ms)
        found = [story.scene.engine._queues.find(each) for each in [*queues, "q"]]
        counts.append(sum(each is not None and each.idle_since_ms > 0 for each in found))
    assert counts == [IDLE_LOOKS_OF_A_TICK, IDLE_LOOKS_OF_A_TICK + 1]


def test_no_queue_begins_to_leave_while_the_coordinator_can_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story()
    is_away = True

    def refresh() -> None:
        if is_away:
            raise CoordinatorError("etcd is away")

    monkeypatch.setattr(story.names, "refresh", refresh)
    story.scene.refresh()
    story.wait(2 * MAX_MS)
    assert story.state() is OwnershipState.SERVING, "messages of its topic would wait for its deletion"
    is_away = False
    story.scene.refresh()
    story.wait(IDLE_CHECK_MS)
    assert story.state() is OwnershipState.LEAVING


def test_dead_letters_do_not_leave_without_their_queue_after_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk is full when the queue is served again, as the rules of its subscription were changed."""
    story = Story("t/Subscriptions/s")
    story.names.give("t", Policy.parse({"role": "router"}))
    story.names.subscribe("t", "s", story.queue)
    story.scene.refresh()
    look_for_dead_letters(story)
    story.wait(MAX_MS + 2 * IDLE_CHECK_MS)
    assert story.state() is OwnershipState.LEAVING
    note = Queues.note

    def full(queues: Queues, queue: Queue, now_ms: int) -> None:
        if is_dead_letter(queue.name):
            raise StoreBusyError("the disk is full")
        note(queues, queue, now_ms)

    monkeypatch.setattr(Queues, "note", full)
    story.names.subscribe("t", "s", story.queue)
    story.scene.refresh()
    story.scene.settle_down()
    story.restart()
    dead_letters = story.scene.engine._queues.find(f"{story.queue}/$dlq")
    assert dead_letters is not None
    assert (story.state(), dead_letters.state) == (OwnershipState.SERVING, OwnershipState.SERVING)


def test_a_queue_that_could_not_leave_as_the_disk_was_full_is_served_after_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story()
    look_for_dead_letters(story)
    story.wait(MAX_MS - 1)
    note, left = Queues.note, 1

    def full(queues: Queues, queue: Queue, now_ms: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreBusyError("the disk is full")
        note(queues, queue, now_ms)

    monkeypatch.setattr(Queues, "note", full)
    story.wait(2 * IDLE_CHECK_MS)
    assert (left < 0, story.state()) == (True, OwnershipState.SERVING)
    send(story)
    story.scene.settle_down()
    story.restart()
    assert story.state() is OwnershipState.SERVING


def test_only_so_many_leave_at_a_time() -> None:
    story = Story()
    for number in range(LEAVING_QUEUES_MAX):
        story.names.give(f"q{number}", story.given)
    story.scene.refresh()
    story.wait(MAX_MS + 20_000)
    assert len({record.name for record, _ in story.scene.retired}) == LEAVING_QUEUES_MAX
    assert story.state() is OwnershipState.LEAVING
    for record, _ in story.scene.retired:
        story.names.drop(record.name)
    story.scene.refresh()
    story.wait(20_000)
    assert len({record.name for record, _ in story.scene.retired}) == LEAVING_QUEUES_MAX + 1
