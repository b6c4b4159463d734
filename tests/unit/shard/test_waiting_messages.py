"""Messages that wait after a failed delivery through the wire: on disk, moved, and in the figures."""

from pathlib import Path

import pytest

from lightrail.model.attempts import waiting
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.sqlite import SqliteStore
from lightrail.shard.journal.store import Store
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.moving import QUEUE
from tests.support.shard.scene import Peer, Scene
from tests.unit.shard.moving.test_importing import Move

FAIL = SettleDetail(delivery_failed=True)
BODIES = [b"m%d" % number for number in range(3)]


def named(**policy: object) -> EveryName:
    names = EveryName()
    names.give("q", Policy.parse({"role": "queue", "retry_delay": 5, **policy}))
    return names


def failing(scene: Scene, *, durable: bool = True) -> Peer:
    """Of three messages the first has failed, and the others are with the consumer."""
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, BODIES, durable=durable)
    scene.settle_down()
    peer.consume(2, "q", 3)
    peer.settle(2, 0, 1, OutcomeCode.MODIFIED, FAIL)
    scene.settle_down()
    return peer


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_the_time_survives_a_crash(kind: str, tmp_path: Path) -> None:
    files = FakeFiles()

    def scene_of(now_ms: int) -> Scene:
        store: Store
        store = Journal(files, "test", 0) if kind == "journal" else SqliteStore(tmp_path / "store", "test", 0)
        return Scene(store, store.recover(1 << 30, 1), names=named(), now_ms=now_ms)

    scene = scene_of(1_000)
    failing(scene)
    failed_ms = scene.now_ms
    if kind == "journal":
        files = files.after_crash(1, "all")
    else:
        scene.store.close()
    scene = scene_of(failed_ms)
    peer = scene.peer()
    peer.consume(2, "q", 10)
    scene.settle_down()
    assert [each.message for each in peer.delivered[2]] == [b"m1", b"m2"]
    scene.tick(4_900)
    assert len(peer.delivered[2]) == 2
    scene.tick(200)
    assert [(each.message, each.attempts) for each in peer.delivered[2]][2:] == [(b"m0", 1)]


def test_the_figures_and_a_peek_show_it_as_delayed_with_its_time() -> None:
    scene = Scene(names=named())
    peer = failing(scene)
    fields, _ = peer.answers[peer.ask("queue", queue="q")]
    assert [fields[key] for key in ("ready", "delayed", "in_flight", "bytes")] == [0, 1, 2, 6]
    figures = scene.engine._queues.find("q").figures()  # type: ignore[union-attr]
    assert (figures.delayed, figures.in_flight, figures.ready) == (1, 2, 0)
    fields, _ = peer.answers[peer.ask("peek", queue="q")]
    first, *others = fields["messages"]
    assert (first["state"], first["attempts"], first["deferred"]) == ("delayed", 1, False)
    assert scene.now_ms < first["due_ms"] <= scene.now_ms + 5_000
    assert [(each["state"], each["due_ms"]) for each in others] == [("locked", None)] * 2


def test_a_purge_removes_what_waits() -> None:
    scene = Scene(names=named())
    peer = failing(scene)
    number = peer.ask("purge", queue="q")
    scene.settle_down()
    assert peer.answers[number][0] == {"purged": 1}
    fields, _ = peer.answers[peer.ask("queue", queue="q")]
    assert (fields["delayed"], fields["in_flight"]) == (0, 2)


def test_it_moves_with_its_queue_and_its_time() -> None:
    move = Move({"retry_delay": 5})
    move.peer.consume(5, QUEUE, 4)
    move.peer.settle(5, 0, 1, OutcomeCode.MODIFIED, FAIL)
    failed_ms = move.source.now_ms
    move.begin()
    move.copy()
    # This one fails when its message is at the destination already.
    move.peer.settle(5, 1, 1, OutcomeCode.MODIFIED, FAIL)
    move.source.settle_down()
    move.finish()
    move.open()
    contents = move.target.engine._queues.find(QUEUE).machine.contents  # type: ignore[union-attr]
    assert move.target.engine._queues.find(QUEUE).view.gauges.delayed == 2  # type: ignore[union-attr]
    assert contents.retries is not None
    expected = [waiting(1, failed_ms + 5_000)]
    assert [run.attempts for run in contents.retries][:1] == expected
    found = Journal(move.files.after_crash(1, "all"), "test", 0).recover(1 << 30)
    (queue,) = [each for each in found.queues if each.name == QUEUE]
    assert [run.attempts for run in queue.runs if run.waits][:1] == expected
