"""Queues and the directory: what is declared is served, what is dropped goes, what is unknown is kept."""

import asyncio
import json
import logging
from typing import Any

import pytest

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.journal.record import Queue, QueueEvent
from lightrail.model import conditions, limits
from lightrail.model.policy import QUEUE, Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import Service
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import declared_of, encode_declared
from lightrail.shard.queues.declarations import EveryName, shard_policy
from lightrail.wire.bodies import ProducerOpen, SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode, frame
from tests.support import work
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore, batch

ROUTER = Policy.parse({"role": "router"})


def names_of(scene: Scene) -> EveryName:
    assert isinstance(scene.names, EveryName)
    return scene.names


def events(scene: Scene) -> list[tuple[QueueEvent, str]]:
    assert isinstance(scene.store, SmallStore)
    return [(QueueEvent(each.event), each.name) for each in scene.store.records if isinstance(each, Queue)]


def restart(files: FakeFiles, names: EveryName) -> tuple[Scene, Peer]:
    journal = Journal(files, "test", 0)
    scene = Scene(journal, journal.recover(1 << 30, 1), names=names)
    scene.settle_down()
    return scene, scene.peer()


def keep(scene: Scene, name: str) -> None:
    """The name's entry is written anew, with what it has."""
    names_of(scene).give(name, scene.names.get(name).policy)
    scene.refresh()


def end(scene: Scene) -> None:
    scene.settle_down()
    scene.store.close()


# --- what is served ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.PRODUCER_READY, Kind.CONSUMER_READY])
def test_only_what_the_directory_calls_a_queue_is_served(kind: Kind) -> None:
    scene = Scene()
    peer = scene.peer()
    names_of(scene).give("r", ROUTER)
    names_of(scene).drop("nothing")
    open_ = peer.produce if kind == Kind.PRODUCER_READY else peer.consume
    for link, name in enumerate(("q", "r", "nothing", "q/$dlq", "nothing/$dlq"), 1):
        open_(link, name)
    assert [answer.link for answer in peer.take(kind)] == [1, 4]
    assert [(link, refusal.condition) for link, _, refusal in peer.refusals] == [
        (2, conditions.NOT_FOUND),
        (3, conditions.NOT_FOUND),
        (5, conditions.NOT_FOUND),
    ]
    assert "has role router" in peer.refusals[0][2].description
    assert "it has no role" in peer.refusals[1][2].description


def test_a_name_given_by_another_process_is_seen_at_the_next_open() -> None:
    coordinator = MemoryCoordinator()
    here, there = Directory(coordinator), Directory(coordinator)
    scene = Scene(names=here)
    peer = scene.peer()
    peer.produce(1, "q")
    assert [refusal.condition for _, _, refusal in peer.refusals] == [conditions.NOT_FOUND]

    async def give() -> None:
        await coordinator.set_shards(1)
        await Service(coordinator, there).give(ANYBODY, "q", QUEUE)

    asyncio.run(give())
    peer.produce(2, "q")
    assert peer.take(Kind.PRODUCER_READY)


def test_the_declaration_is_in_the_journal() -> None:
    scene = Scene()
    names_of(scene).give("q", Policy.parse({"role": "queue", "max_delivery_count": 3}))
    scene.peer().produce(1, "q")
    assert isinstance(scene.store, SmallStore)
    (declared,) = [each for each in scene.store.records if isinstance(each, Queue)]
    created = scene.names.get("q").created
    assert json.loads(declared.policy) == {
        "created": created,
        "policy": {"role": "queue", "max_delivery_count": 3},
    }
    assert declared_of(declared.policy).created == created
    for text in ("{}", "[]", ""):
        assert declared_of(text).created is None


def test_a_changed_policy_reaches_the_machine_and_the_journal() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.consume(2, "q", 10)
    names_of(scene).give("q", Policy.parse({"role": "queue", "max_delivery_count": 1}))
    scene.refresh()
    assert events(scene) == [(QueueEvent.DECLARED, "q"), (QueueEvent.POLICY, "q")]
    peer.send(1, 1, [b"a"])
    peer.settle(2, 0, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
    assert scene.queue("q/$dlq") == {"ready": 1, "in_flight": 0}
    assert peer.refusals == []


def test_policies_become_milliseconds_and_the_servers_defaults() -> None:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", "max_delivery_count": 4}))
    assert shard_policy(names.get("q"), 10).max_delivery_count == 4
    assert shard_policy(names.get("other"), 10).max_delivery_count == 10
    assert shard_policy(names.get("q/$dlq"), 10).max_delivery_count == 0
    assert not shard_policy(names.get("q/$dlq"), 10).dead_letter
    assert shard_policy(names.get("q"), 10).expired_to_dead_letter
    names.give("brief", Policy.parse({"role": "queue", "expired": "discard"}))
    assert not shard_policy(names.get("brief"), 10).expired_to_dead_letter


# --- what goes -----------------------------------------------------------------------------------------


def test_a_dropped_name_takes_its_queue_its_links_and_its_dead_letters_with_it() -> None:
    files = FakeFiles()
    names = EveryName()
    scene, peer = restart(files, names)
    peer.produce(1, "q")
    peer.produce(2, "other")
    peer.consume(3, "q", 2)
    peer.consume(4, "q/$dlq")
    for number in range(1, 4):
        peer.send(1, number, [b"%d" % number])
        peer.send(2, number, [b"other"])
    peer.settle(3, 0, 1, OutcomeCode.REJECTED)
    scene.settle_down()
    assert scene.queue("q") == {"ready": 1, "in_flight": 1}
    names.drop("q")
    scene.refresh()
    scene.settle_down()
    gone = [(link, refusal.condition) for link, _, refusal in peer.refusals]
    assert sorted(gone) == [(link, conditions.RESOURCE_DELETED) for link in (1, 3, 4)]
    assert {name for name, _ in scene.engine._queues.figures("")} == {"other"}
    assert scene.store.usage().live_bytes > 0
    peer.refusals.clear()
    peer.settle(3, 1, 1)
    peer.send(1, 9, [b"late"])
    peer.produce(5, "q")
    assert [refusal.condition for _, _, refusal in peer.refusals] == [conditions.NOT_FOUND]
    # What is live now is what the other queue holds.
    peer.consume(6, "other", 10)
    peer.settle(6, 0, 3)
    scene.settle_down()
    assert scene.store.usage().live_bytes == 0
    end(scene)

    scene, _ = restart(files, names)
    assert {name for name, _ in scene.engine._queues.figures("")} == {"other"}
    end(scene)


def test_a_name_made_again_is_another_queue() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"old"])
    names_of(scene).drop("q")
    names_of(scene).give("q", QUEUE)
    peer.consume(2, "q", 10)
    assert [refusal.condition for _, _, refusal in peer.refusals] == [conditions.RESOURCE_DELETED]
    assert peer.messages(2) == []
    peer.produce(1, "q")
    peer.send(1, 1, [b"new"])
    assert peer.messages(2) == [b"new"]


def test_messages_read_back_for_a_deleted_queue_do_not_reach_its_successor() -> None:
    scene = Scene(memory_mark=20_000)
    scene.reading = False
    peer = scene.peer()
    peer.produce(1, "q")
    for number in range(1, 60):
        peer.send(1, number, [b"%01000d" % number])
        scene.settle_down()
    peer.consume(2, "q", 200)
    reads = scene.take_reads()
    assert reads
    names_of(scene).drop("q")
    names_of(scene).give("q", QUEUE)
    peer.produce(3, "q")
    peer.consume(4, "q", 10)
    for read in reads:
        read.perform(scene.store)
        scene.engine.read_ended(read, None, scene.now_ms)
    scene.turn()
    assert peer.messages(4) == []
    assert scene.engine._house.memory.resident == 0
    assert scene.engine._performer.reading == {}


def test_an_end_that_finds_no_room_is_written_later() -> None:
    scene = Scene()
    scene.peer().produce(1, "q")
    assert isinstance(scene.store, SmallStore)
    scene.store.full_for_all = True
    names_of(scene).drop("q")
    scene.refresh()
    scene.tick()
    scene.store.full_for_all = False
    scene.tick()
    assert events(scene) == [(QueueEvent.DECLARED, "q"), (QueueEvent.DELETED, "q")]
    scene.tick()
    assert len(events(scene)) == 2


def test_a_directory_that_cannot_be_read_leaves_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(EveryName):
        def refresh(self) -> None:
            raise CoordinatorError("the file is locked")

    scene = Scene(names=Broken())
    peer = scene.peer()
    peer.produce(1, "q")
    peer.produce(2, "q")
    assert len(peer.take(Kind.PRODUCER_READY)) == 2
    assert len([each for each in caplog.records if "names can't be read" in each.message]) == 1


# --- after a start -------------------------------------------------------------------------------------


def written(files: FakeFiles, names: EveryName, *queues: str) -> None:
    """A life in which each queue got a message."""
    scene, peer = restart(files, names)
    for link, queue in enumerate(queues, 1):
        peer.produce(link, queue)
        peer.send(link, 1, [queue.encode()])
    end(scene)


def contents(scene: Scene, peer: Peer, queue: str) -> list[bytes]:
    peer.consume(99, queue, 100, browse=True)
    return peer.messages(99)


def test_after_a_start_queues_go_on_whose_names_are_still_the_same() -> None:
    files, names = FakeFiles(), EveryName()
    written(files, names, "q")
    names.give("q", Policy.parse({"role": "queue", "max_delivery_count": 7}))
    scene, peer = restart(files, names)
    assert contents(scene, peer, "q") == [b"q"]
    queue = scene.engine._queues.find("q")
    assert queue is not None
    assert queue.machine.contents.policy.max_delivery_count == 7
    end(scene)


def test_after_a_start_a_name_made_again_is_empty_and_its_number_is_not_used_again() -> None:
    files, names = FakeFiles(), EveryName()
    written(files, names, "q")
    names.drop("q")
    names.give("q", QUEUE)
    for _ in range(2):
        scene, peer = restart(files, names)
        assert contents(scene, peer, "q") == []
        queue = scene.engine._queues.find("q")
        assert queue is not None
        assert queue.id == 2
        end(scene)


def test_after_a_start_unknown_queues_are_kept_unserved_until_their_name_is_given_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files, names = FakeFiles(), EveryName()
    written(files, names, "q")
    names.drop("q")
    with caplog.at_level(logging.WARNING):
        scene, peer = restart(files, names)
    assert "knows no queue q, which has 1 messages" in caplog.text
    assert "Give the name the role queue" in caplog.text
    assert contents(scene, peer, "q") == []
    assert peer.refusals[0][2].condition == conditions.NOT_FOUND
    end(scene)
    scene, peer = restart(files, names)
    names.give("q", QUEUE)
    assert contents(scene, peer, "q") == [b"q"]
    end(scene)
    scene, peer = restart(files, names)
    assert contents(scene, peer, "q") == [b"q"]
    end(scene)


def test_after_a_start_many_unknown_queues_are_told_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    files, names = FakeFiles(), EveryName()
    queues = [f"q{number}" for number in range(30)]
    written(files, names, *queues)
    for queue in queues:
        names.drop(queue)
    with caplog.at_level(logging.WARNING):
        end(restart(files, names)[0])
    assert len(caplog.records) == 21
    assert "10 further queues" in caplog.text


def test_after_a_start_system_queues_that_nobody_knows_are_gone() -> None:
    files, names = FakeFiles(), EveryName()
    queues = ("r/$subscriptions/a", "$temporary/b", "$temporary/b/$dlq")
    written(files, names, *queues)
    for queue in queues[:2]:
        names.drop(queue)
    scene, _ = restart(files, names)
    assert list(scene.engine._queues.figures("")) == []
    assert scene.store.usage().live_bytes == 0
    end(scene)


def test_a_directory_set_back_to_a_former_copy_takes_no_messages() -> None:
    files, names = FakeFiles(), EveryName()
    for _ in range(3):
        names.drop("q")
        names.give("q", QUEUE)
    written(files, names, "q")
    scene, peer = restart(files, EveryName())
    assert contents(scene, peer, "q") == [b"q"]
    end(scene)


# --- a coordinator that was set back ----------------------------------------------------------------------


SUBSCRIPTION = "r/$subscriptions/a"


def test_in_another_history_nothing_goes_that_is_missing_or_was_made_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files, names = FakeFiles(), EveryName()
    queues = ("same", "missing", "again", SUBSCRIPTION)
    for queue in queues:
        names.give(queue, QUEUE)
    scene, peer = restart(files, names)
    for link, queue in enumerate(queues, 1):
        peer.produce(link, queue)
        peer.send(link, 1, [queue.encode()])
    # An operator had what was lost put back as far as it was known: the rest is missing, or another one.
    names.history = "second"
    for queue in queues:
        names.drop(queue)
    for queue in ("same", "again"):
        names.give(queue, QUEUE)
    scene.refresh()
    scene.settle_down()
    assert [(link, refusal.condition) for link, _, refusal in peer.refusals] == [
        (2, conditions.RESOURCE_DELETED),
        (4, conditions.RESOURCE_DELETED),
    ]
    assert "knows no queue missing, which has 1 messages: it is kept, not served" in caplog.text
    assert contents(scene, peer, "same") == [b"same"]
    looker = scene.peer("frontend-2", boot=20)
    assert contents(scene, looker, "again") == [b"again"]
    # In the new history a deletion is one again.
    names.drop("again")
    scene.refresh()
    assert [(link, each.condition) for link, _, each in looker.refusals] == [
        (99, conditions.RESOURCE_DELETED)
    ]
    names.give("missing", QUEUE)
    assert contents(scene, scene.peer("frontend-3", boot=30), "missing") == [b"missing"]
    end(scene)


def test_after_a_start_in_another_history_nothing_goes() -> None:
    files, names = FakeFiles(), EveryName()
    written(files, names, "missing", "again", SUBSCRIPTION)
    for queue in ("missing", "again", SUBSCRIPTION):
        names.drop(queue)
    names.give("again", QUEUE)
    names.history = "second"
    for _ in range(2):
        scene, peer = restart(files, names)
        assert contents(scene, peer, "again") == [b"again"]
        answer, _ = peer.answers[peer.ask("kept")]
        assert {each["queue"] for each in answer["queues"]} == {"missing", SUBSCRIPTION}
        end(scene)
    # What was served in the new history is comparable with it.
    names.drop("again")
    names.give("again", QUEUE)
    scene, peer = restart(files, names)
    assert contents(scene, peer, "again") == []
    end(scene)


def test_the_history_is_in_the_journal_where_there_is_more_than_one() -> None:
    names = EveryName()
    assert "history" not in json.loads(encode_declared(names.get("q")))
    names.history = "second"
    assert declared_of(encode_declared(names.get("q"))).history == "second"


# --- queues that go with their last consumer -------------------------------------------------------------


def test_a_queue_goes_with_its_last_consumer() -> None:
    scene = Scene()
    names_of(scene).give("q", Policy.parse({"role": "queue", "lifetime": "last_consumer"}))
    peer = scene.peer()
    peer.produce(1, "q")
    scene.tick()
    assert scene.wishes == []
    peer.consume(2, "q")
    peer.consume(3, "q")
    peer.consume(4, "q", browse=True)
    peer.consume(5, "permanent")
    for link in (2, 5):
        peer.close_consumer(link)
    scene.tick()
    assert scene.wishes == []
    peer.close_consumer(3)
    scene.settle_down()
    assert scene.wishes == ["q"]
    names_of(scene).drop("q")
    scene.refresh()
    for _ in range(3):
        peer.ping()
        scene.tick(3_000)
    assert scene.wishes == ["q"]


@pytest.mark.parametrize("is_kept", [False, True])
def test_nothing_is_accepted_between_the_end_of_the_last_consumer_and_the_deletion(is_kept: bool) -> None:
    """What came then would be confirmed, and deleted; frontends send it again when the queue is decided."""
    scene = Scene()
    given = Policy.parse({"role": "queue", "lifetime": "last_consumer"})
    names_of(scene).give("q", given)
    peer = scene.peer()
    peer.produce(1, "q", epoch=1)
    peer.produce(2)
    peer.targets(2, 1, "q")
    peer.consume(3, "q", epoch=1)
    peer.close_consumer(3)
    # At once, not with the next tick.
    peer.send(1, 1, [b"a"])
    peer.route(2, 1, 1, [b"b"])
    peer.consume(4, "q", 1, epoch=1)
    scene.settle_down()
    assert scene.wishes == ["q"]
    assert {each.link for each in peer.take(Kind.MOVED)} == {1, 4}
    assert (peer.accepted(1), peer.accepted(2), peer.messages(4)) == ([], [], [])
    assert [(link, why.condition) for link, _, why in peer.refusals] == [(2, conditions.MOVED)]
    if not is_kept:
        names_of(scene).drop("q")
    names_of(scene).give("q", given)
    scene.refresh()
    peer.produce(1, "q", epoch=1, number=1)
    peer.send(1, 1, [b"a"])
    peer.consume(4, "q", 1, epoch=1)
    scene.settle_down()
    assert (peer.accepted(1), peer.messages(4)) == ([1], [b"a"])
    for _ in range(3):
        peer.ping()
        scene.tick(limits.PEER_SILENCE_MS)
        scene.settle_down()
    assert scene.wishes == ["q"], "it has a consumer"


def test_a_sender_that_attaches_in_the_turn_of_the_last_consumers_end_waits_for_the_deletion() -> None:
    """Its client knows that the consumer has ended, and the link would end with the former queue."""
    scene = Scene()
    given = Policy.parse({"role": "queue", "lifetime": "last_consumer"})
    names_of(scene).give("q", given)
    peer = scene.peer()
    peer.consume(3, "q", epoch=1)
    peer.take()
    peer.late = []
    peer.close_consumer(3)
    peer.produce(1, "q", epoch=1)
    assert [(each.kind, each.link) for each in peer.take(Kind.MOVED, Kind.PRODUCER_READY)] == [
        (Kind.MOVED, 1)
    ]
    scene.settle_down()
    assert scene.wishes == ["q"]


def test_a_queue_without_consumers_goes_on_leaving_after_a_start() -> None:
    """The deletion may be applied late."""
    files, names = FakeFiles(), EveryName()
    given = Policy.parse({"role": "queue", "lifetime": "last_consumer"})
    names.give("q", given)
    scene, peer = restart(files, names)
    peer.consume(1, "q")
    peer.close_consumer(1)
    end(scene)
    scene, peer = restart(files, names)
    peer.produce(2, "q", epoch=1)
    assert len(peer.take(Kind.MOVED)) == 1
    scene.tick()
    assert scene.wishes == ["q"]
    names.give("q", given)
    scene.refresh()
    peer.produce(3, "q", epoch=1)
    assert (peer.take(Kind.MOVED), peer.refusals) == ([], [])
    end(scene)


@pytest.mark.parametrize(
    ("closes_without", "is_closed"),
    [([], False), (["links"], True), (["messages"], False), (["links", "messages"], False)],
)
def test_a_frontend_that_deletes_an_unused_node_lets_no_link_in_meanwhile(
    closes_without: list[str], is_closed: bool
) -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"a"])
    peer.ask("queue", queue="q", closes_without=["links"])
    peer.consume(2, "q")
    peer.close_consumer(2)
    peer.close_producer(1)
    assert peer.refusals == []
    peer.ask("queue", queue="q", closes_without=closes_without)
    peer.consume(3, "q")
    assert [refusal.condition for _, _, refusal in peer.refusals] == is_closed * [conditions.RESOURCE_DELETED]
    # No time opens it: the deletion may have been written, though it seemed lost.
    for _ in range(10):
        peer.ping()
        scene.tick(limits.PEER_SILENCE_MS)
    peer.consume(4, "q")
    assert len(peer.refusals) == 2 * is_closed
    keep(scene, "q")
    peer.consume(5, "q")
    assert len(peer.refusals) == 2 * is_closed


def test_a_node_that_is_deleted_because_it_has_no_messages_accepts_none_meanwhile() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.ask("queue", queue="q", closes_without=["messages"])
    peer.say(batch(1, 1, [b"a"]))
    scene.settle_down()
    assert peer.accepted(1) == []
    number = peer.ask("queue", queue="q", closes_without=["messages"])
    assert peer.answers[number][0]["parked"] == 1, "the frontend counts it as a message"
    for _ in range(10):
        peer.ping()
        scene.tick(limits.PEER_SILENCE_MS)
        scene.settle_down()
    assert peer.accepted(1) == [], "the deletion may still be written"
    keep(scene, "q")
    scene.settle_down()
    assert peer.accepted(1) == [1]
    peer.consume(5, "q", credit=1)
    scene.settle_down()
    assert [bytes(message) for message in peer.messages(5)] == [b"a"]
    assert scene.engine.deadline_ms is None


def test_what_waits_at_a_node_that_is_deleted_is_not_accepted() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.ask("queue", queue="q", closes_without=["messages"])
    peer.say(batch(1, 1, [b"a"]))
    names_of(scene).drop("q")
    scene.refresh()
    scene.settle_down()
    assert peer.accepted(1) == []
    assert [refusal.condition for _, _, refusal in peer.refusals] == [conditions.RESOURCE_DELETED]


def test_a_queue_whose_policy_changes_before_it_is_deleted_is_kept() -> None:
    scene = Scene()
    names_of(scene).give("q", Policy.parse({"role": "queue", "lifetime": "last_consumer"}))
    peer = scene.peer()
    peer.consume(1, "q")
    peer.close_consumer(1)
    scene.settle_down()
    names_of(scene).give("q", Policy.parse({"role": "queue"}))
    scene.refresh()
    peer.produce(2, "q")
    peer.ping()
    scene.tick(limits.PEER_SILENCE_MS)
    assert (peer.refusals, scene.wishes) == ([], ["q"])


def test_a_frontend_that_greets_again_does_not_cost_a_queue_its_life() -> None:
    scene = Scene()
    names_of(scene).give("q", Policy.parse({"role": "queue", "lifetime": "last_consumer"}))
    peer = scene.peer()
    peer.consume(2, "q")
    peer.greet()
    scene.tick()
    peer.consume(2, "q")
    scene.tick(3_000)
    peer.ping()
    scene.tick(3_000)
    assert scene.wishes == []
    peer.close_consumer(2)
    scene.settle_down()
    peer.ping()
    scene.tick(3_000)
    scene.tick(3_000)
    assert scene.wishes == ["q", "q"]


def test_a_queue_lives_as_long_as_a_lock_of_its_last_consumer() -> None:
    scene = Scene()
    names_of(scene).give("q", Policy.parse({"role": "queue", "lifetime": "last_consumer"}))
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, [b"a"])
    peer.consume(2, "q", 1, lock_ms=4_000, lock_key="0" * 32)
    peer.close_consumer(2)
    scene.tick(3_000)
    assert scene.wishes == []
    peer.ping()
    scene.tick(1_000)
    peer.ping()
    scene.tick(1_000)
    scene.settle_down()
    assert scene.wishes == ["q"]


def test_a_shared_subscription_whose_links_do_not_come_back_after_a_restart_goes() -> None:
    files, names = FakeFiles(), EveryName()
    given = Policy.parse({"role": "queue", "lifetime": "last_consumer"})
    kept, gone, own = "r/$subscriptions/kept", "r/$subscriptions/gone", "q"
    for name in (kept, gone, own):
        names.give(name, given)
    scene, peer = restart(files, names)
    for link, name in enumerate((kept, gone, own), 1):
        peer.produce(link, name)
        peer.send(link, 1, [b"m"])
    end(scene)
    scene, peer = restart(files, names)
    peer.consume(1, kept)
    for _ in range(2):
        peer.ping()
        scene.tick(3_000)
    scene.settle_down()
    assert scene.wishes == [gone]
    end(scene)


# --- many of them --------------------------------------------------------------------------------------


START_LINES = 1_150
"""Of Python that the start of a shard executes for each queue with a message."""


def test_queues_start_by_work_that_is_linear_in_their_number_and_idle_without_any() -> None:
    few, few_idle = started_with(2_000)
    many, many_idle = started_with(4_000)
    assert many < 2.2 * few
    assert many - few < 2_000 * START_LINES
    assert many_idle == few_idle


def started_with(queues: int) -> tuple[int, int]:
    """Lines of a restart with so many queues, and of 20 idle turns after it."""
    files, names = FakeFiles(), EveryName()
    scene, peer = restart(files, names)
    for link in range(1, queues + 1):
        peer.scene.receive(
            peer.identity,
            [
                frame(Kind.PRODUCER_OPEN, link=link, body=ProducerOpen(f"q{link}").encode()),
                batch(link, 1, [b"m"], expires_at_ms=scene.now_ms + 1_000_000),
            ],
        )
    scene.turn()
    end(scene)
    again = []
    restarted = work.lines(lambda: again.append(restart(files, names)))
    ((scene, _),) = again
    assert len(scene.engine._queues) == queues

    def idle() -> None:
        for _ in range(20):
            scene.engine.refresh(scene.now_ms)
        scene.tick(1)

    found = restarted, work.lines(idle)
    end(scene)
    return found


@pytest.mark.parametrize(
    ("given", "examines"),
    [
        ({}, False),
        ({"priorities": 10}, False),
        ({"max_length": 3}, False),
        ({"groups": True}, True),
        ({"delay": True}, True),
        ({"order": "sorted", "order_key": "subject"}, True),
        ({"duplicate_window": 60}, True),
    ],
)
def test_frontends_know_which_queues_look_into_messages_as_shards_do(
    given: dict[str, Any], examines: bool
) -> None:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", **given}))
    record = names.get("q")
    assert record.policy.examines is shard_policy(record, 10).examines is examines


def test_policies_of_queues_are_made_once_for_all_that_have_the_same() -> None:
    names = EveryName()
    same = Policy.parse({"role": "queue", "max_length": 3})
    for name in ("a", "b"):
        names.give(name, same)
    names.give("c", Policy.parse({"role": "queue", "max_length": 3, "description": "another"}))
    scene = Scene(names=names)
    peer = scene.peer()
    for link, name in enumerate(("a", "b", "c", "a/$dlq"), 1):
        peer.produce(link, name)
    a, b, c, dead = (scene.queue_contents(name).policy for name in ("a", "b", "c", "a/$dlq"))
    assert a is b
    assert a == c
    assert (a.dead_letter, dead.dead_letter) == (True, False)
    for number in range(limits.EQUAL_VALUES_MAX):
        other = Name("a", Policy.parse({"role": "queue", "max_length": 10 + number}), 1)
        assert scene.engine._queues.policy_of(other).max_length == 10 + number
    assert len(scene.engine._queues._policies) <= limits.EQUAL_VALUES_MAX


def test_a_queue_that_forwards_has_one_consumer_at_a_time_of_as_many_gateways_as_there_are() -> None:
    fields = {"forward_to": "target", "exclusive": True, "max_consumers": 1}
    found = shard_policy(Name("q", Policy.parse({"role": "queue", **fields})), 10)
    assert (found.single_active, found.exclusive, found.max_consumers) == (True, False, None)


def test_dead_letters_of_transfers_follow_the_policy_of_their_source() -> None:
    names = EveryName()
    scene = Scene(names=names)
    letters = "a/$transfer/$dlq"
    scene.peer().produce(1, letters)
    assert not scene.queue_contents(letters).policy.captured
    names.give("a", Policy.parse({"role": "queue", "capture": True}))
    scene.refresh()
    assert scene.queue_contents(letters).policy.captured
    assert scene.has_queue(letters)


@pytest.mark.parametrize("durable", ["default", "always", "never"])
def test_a_message_for_which_a_rule_fails_is_on_disk_as_the_policy_of_its_queue_says(durable: str) -> None:
    # Frontends send it to the dead letters themselves, as durable as its sender made it.
    names = EveryName()
    names.give("a", Policy.parse({"role": "queue", "durable": durable}))
    scene = Scene(names=names)
    peer = scene.peer()
    peer.produce(1, "a/$dlq")
    peer.send(1, 1, [b"transient"], durable=False)
    peer.send(1, 2, [b"durable"], durable=True)
    scene.settle_down()
    kept = [run.batch.durable for run in scene.queue_contents("a/$dlq").ready.runs]
    assert kept == {"default": [False, True], "always": [True, True], "never": [False, False]}[durable]
