"""Tenancy: a shard serves what its placement says that it owns, in that epoch, and nothing else."""

import logging
from typing import Any

import pytest

from lightrail.journal.record import Queue
from lightrail.model import conditions
from lightrail.model.policy import QUEUE, Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import declared_of
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.scene import Peer, Scene, SmallStore
from tests.unit.shard.fake_map import FakeMap

POINT = Policy.parse({"role": "connection-point"})


# --- openings --------------------------------------------------------------------------------------------


@pytest.fixture(params=["producer", "consumer"])
def opening(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def say(peer: Peer, opening: str, queue: str, epoch: int, **options: bool) -> list[Kind]:
    peer.take()
    if opening == "producer":
        peer.produce(1, queue, epoch=epoch, **options)
    else:
        peer.consume(1, queue, epoch=epoch, **options)
    return [answer.kind for answer in peer.take()]


READY = {"producer": Kind.PRODUCER_READY, "consumer": Kind.CONSUMER_READY}


def test_a_link_is_opened_where_the_queue_is_and_in_its_epoch(opening: str) -> None:
    map = FakeMap(q=(0, 3), elsewhere=(1, 1))
    peer = Scene(map=map).peer()
    assert say(peer, opening, "q", 3) == [READY[opening]]
    assert say(peer, opening, "q", 0) == [READY[opening]]
    assert say(peer, opening, "q", 2) == [Kind.MOVED]
    assert say(peer, opening, "q", 4) == [Kind.MOVED]
    assert say(peer, opening, "elsewhere", 1) == [Kind.MOVED]
    assert say(peer, opening, "q/$dlq", 3) == [READY[opening]]
    assert say(peer, opening, "elsewhere/$dlq", 1) == [Kind.MOVED]
    assert peer.refusals == []


def test_epochs_beyond_the_bits_of_a_header_are_told_apart(opening: str) -> None:
    """They are revisions of the coordinator, and those have 64 bits."""
    beyond = (1 << 32) + 7
    peer = Scene(map=FakeMap(q=(0, beyond))).peer()
    assert say(peer, opening, "q", beyond) == [READY[opening]]
    assert say(peer, opening, "q", beyond - 1) == [Kind.MOVED]
    assert say(peer, opening, "q", beyond + 1) == [Kind.MOVED]


def test_a_link_that_knows_more_than_the_shard_is_not_turned_away_for_good(opening: str) -> None:
    map, names = FakeMap(), EveryName()
    names.drop("q")
    peer = Scene(map=map, names=names).peer()
    assert say(peer, opening, "q", 1) == [Kind.MOVED]
    map.give("q", 0, 1)
    names.give("q", QUEUE)
    assert say(peer, opening, "q", 1) == [READY[opening]]


def test_a_name_that_is_here_and_no_queue_is_said_to_be_none(opening: str) -> None:
    map, names = FakeMap(q=(0, 1)), EveryName()
    names.drop("q")
    peer = Scene(map=map, names=names).peer()
    assert say(peer, opening, "q", 1) == [Kind.GONE]
    names.give("r", Policy.parse({"role": "router"}))
    assert say(peer, opening, "r", 1) == [Kind.GONE]
    assert {refusal.condition for _, _, refusal in peer.refusals} == {conditions.NOT_FOUND}


def test_a_queue_is_written_down_with_its_epoch_and_so_is_its_dead_letter_queue() -> None:
    scene = Scene(map=FakeMap(q=(0, 7)))
    peer = scene.peer()
    peer.produce(1, "q", epoch=7)
    peer.send(1, 1, [b"bad"])
    peer.consume(2, "q", 1, epoch=7)
    peer.settle(2, 0, 1, OutcomeCode.REJECTED)
    assert isinstance(scene.store, SmallStore)
    declared = [each for each in scene.store.records if isinstance(each, Queue)]
    assert [(each.name, declared_of(each.policy).epoch) for each in declared] == [("q", 7), ("q/$dlq", 7)]


def test_requests_and_sets_for_a_queue_elsewhere_are_told_so() -> None:
    peer = Scene(map=FakeMap(q=(0, 1), elsewhere=(1, 1))).peer()
    for queue, condition in (("elsewhere", conditions.MOVED), ("unknown", conditions.MOVED)):
        answer, _ = peer.answers[peer.ask("queue", queue=queue)]
        assert answer["error"]["condition"] == condition
    assert "error" not in peer.answers[peer.ask("queue", queue="q")][0]
    peer.produce(1)
    peer.targets(1, 1, "q", "elsewhere")
    peer.route(1, 1, 1, [b"x"])
    ((_, number, refusal),) = peer.refusals
    assert (number, refusal.condition) == (1, conditions.MOVED)


# --- connection points -----------------------------------------------------------------------------------


def test_links_of_a_connection_point_go_where_it_goes_and_what_has_no_outcome_is_released() -> None:
    map, names = FakeMap(p=(0, 1)), EveryName()
    names.give("p", POINT)
    scene = Scene(map=map, names=names)
    sender, listener = scene.peer(), scene.peer("frontend-1", boot=8)
    listener.consume(2, "p", 5, epoch=1, relay=True)
    sender.produce(1, "p", epoch=1, relay=True)
    sender.send(1, 1, [b"a", b"b"])
    listener.settle(2, 0, 1)
    map.give("p", 1, 2)
    scene.refresh()
    assert [(each.first, each.code) for each in sender.outcomes] == [
        (0, OutcomeCode.ACCEPTED),
        (1, OutcomeCode.RELEASED),
    ]
    assert len(sender.take(Kind.MOVED)) == len(listener.take(Kind.MOVED)) == 1
    sender.produce(1, "p", epoch=1, relay=True)
    assert len(sender.take(Kind.MOVED)) == 1
    listener.settle(2, 1, 1)
    assert listener.bounced == []


# --- after a start ---------------------------------------------------------------------------------------


def restart(files: FakeFiles, map: FakeMap, names: EveryName) -> Scene:
    journal = Journal(files, "test", 0)
    scene = Scene(journal, journal.recover(1 << 30, 1), map=map, names=names)
    scene.settle_down()
    return scene


def written(files: FakeFiles, names: EveryName, *, freeze: bool = False) -> None:
    """A life in which q got a message, in epoch 3."""
    scene = restart(files, FakeMap(q=(0, 3)), names)
    peer = scene.peer()
    peer.produce(1, "q", epoch=3)
    peer.send(1, 1, [b"x"])
    if freeze:
        peer.ask("freeze", queue="q", epoch=3)
    scene.settle_down()
    scene.store.close()


def ready(scene: Scene, epoch: int) -> list[bytes] | None:
    """What a consumer gets that opens the queue in that epoch; None when it is sent away."""
    peer = scene.peer("looker", boot=99)
    peer.consume(1, "q", 10, epoch=epoch, browse=True)
    moved = bool(peer.take(Kind.MOVED))
    assert peer.refusals == []
    return None if moved else peer.messages(1)


def kept(scene: Scene) -> list[dict[str, Any]]:
    """What a gateway hears of queues that nobody serves."""
    peer = scene.peer("gateway", boot=98)
    answer, _ = peer.answers[peer.ask("kept")]
    assert answer["count"] == len(answer["queues"])
    return list(answer["queues"])


@pytest.mark.parametrize("epoch", [3, 5])
def test_after_a_start_a_queue_is_served_in_the_epoch_of_its_placement(epoch: int) -> None:
    files, names = FakeFiles(), EveryName()
    written(files, names)
    for _ in range(2):
        scene = restart(files, FakeMap(q=(0, epoch)), names)
        assert ready(scene, epoch) == [b"x"]
        queue = scene.engine._queues.find("q")
        assert queue is not None
        assert queue.epoch == epoch
        scene.store.close()


def test_after_a_start_a_queue_that_has_moved_away_is_gone() -> None:
    files, names = FakeFiles(), EveryName()
    written(files, names, freeze=True)
    map = FakeMap(q=(1, 4))
    scene = restart(files, map, names)
    assert ready(scene, 4) is None
    assert scene.engine._queues.find("q") is None
    assert scene.store.usage().live_bytes == 0
    scene.store.close()
    scene = restart(files, FakeMap(), names)
    assert scene.engine._queues.find("q") is None


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("running", [False, True])
def test_a_queue_that_was_given_up_and_not_moved_is_kept_and_reported(
    freeze: bool, running: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files, names = FakeFiles(), EveryName()
    written(files, names, freeze=freeze)
    map = FakeMap(q=(0, 3)) if running else FakeMap()
    if not running:
        map.lose("q", 1, 4)
        map.refresh()
    scene = restart(files, map, names)
    if running:
        map.lose("q", 1, 4)
        scene.refresh()
    assert ready(scene, 4) is None
    assert "it is kept, not served" in caplog.text
    assert kept(scene) == [{"queue": "q", "messages": 1}]
    scene.store.close()
    # Where it gets its queue back it serves it again.
    scene = restart(files, FakeMap(q=(0, 5)), names)
    assert ready(scene, 5) == [b"x"]
    assert kept(scene) == []


def test_after_a_start_a_frozen_queue_stays_frozen_until_its_placement_names_another_epoch() -> None:
    files, names = FakeFiles(), EveryName()
    written(files, names, freeze=True)
    map = FakeMap(q=(0, 3))
    scene = restart(files, map, names)
    assert ready(scene, 3) is None
    answer = scene.peer("shard-1", boot=50)
    number = answer.ask("freeze", queue="q", epoch=3)
    scene.settle_down()
    assert [each["queue"] for each in answer.answers[number][0]["states"]] == ["q"]
    map.give("q", 0, 5)
    assert ready(scene, 5) == [b"x"]


def test_after_a_start_without_any_placement_a_queue_is_kept_and_served_when_one_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files, names = FakeFiles(), EveryName()
    written(files, names)
    map = FakeMap()
    with caplog.at_level(logging.WARNING):
        scene = restart(files, map, names)
    assert "has no placement at this shard" in caplog.text
    assert ready(scene, 3) is None
    map.give("q", 0, 3)
    assert ready(scene, 3) == [b"x"]


def test_a_coordinator_that_was_set_back_does_not_make_two_owners(caplog: pytest.LogCaptureFixture) -> None:
    files, names = FakeFiles(), EveryName()
    written(files, names)
    map = FakeMap(q=(0, 3))
    scene = restart(files, map, names)
    peer = scene.peer()
    peer.produce(1, "q", epoch=3)
    map.give("q", 1, 2)
    scene.refresh()
    assert len(peer.take(Kind.MOVED)) == 1
    assert "it is kept, not served" in caplog.text
    assert ready(scene, 2) is None
    map.give("q", 0, 4)
    assert ready(scene, 4) == [b"x"]


@pytest.mark.parametrize("again", [False, True])
def test_a_queue_that_was_deleted_is_not_kept_when_its_new_placement_is_known_first(
    again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files, names = FakeFiles(), EveryName()
    written(files, names)
    map = FakeMap(q=(0, 3))
    scene = restart(files, map, names)
    names.drop("q")
    if again:
        names.give("q", Policy.parse({"role": "queue"}))
    map.give("q", 1, 1)
    scene.refresh()
    assert "it is kept, not served" not in caplog.text
    assert scene.engine._queues.find("q") is None
    assert kept(scene) == []
