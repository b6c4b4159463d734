"""The mover: a queue comes whole, in order, with who holds what; whatever fails, one shard serves it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lightrail.cluster import moves
from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.cluster.map import Map, unplacing
from lightrail.model.policy import Policy
from lightrail.shard.journal.store import StoreError
from lightrail.shard.moving.copier import MOVE_THROTTLE_LOOK_S
from lightrail.shard.moving.importing import ImportFailedError
from lightrail.shard.moving.mover import MOVES_AT_ONCE, MOVES_SHOWN_MS
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.frames import Kind, OutcomeCode
from tests.support.shard.moving_scene import Cluster
from tests.support.shard.scene import Peer

BOOT = 7


def run(story: Callable[[Cluster], Awaitable[None]], shards: int = 2) -> None:
    async def told() -> None:
        cluster = Cluster(shards)
        cluster.start()
        try:
            await story(cluster)
        finally:
            cluster.close()

    asyncio.run(told())


def frontend(cluster: Cluster, shard: int) -> Peer:
    peer = Peer(cluster.shards[shard].scene, "frontend-0", BOOT)
    peer.greet()
    return peer


def contents(cluster: Cluster, shard: int, queue: str) -> list[bytes]:
    peer = Peer(cluster.shards[shard].scene, "looker", 99)
    peer.greet()
    peer.consume(1, queue, 10_000, browse=True)
    return peer.messages(1)


def test_a_queue_moves_with_everything_that_is_in_it() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.place("q")
        peer = frontend(cluster, 0)
        peer.produce(1, "q", epoch=1)
        for number in range(1, 101):
            peer.send(1, number, [b"%d" % number])
        cluster.shards[0].settle_down()
        await cluster.moved("q", 1)
        assert cluster.placed("q") == (1, 2)
        assert contents(cluster, 1, "q") == [b"%d" % number for number in range(1, 101)]
        assert cluster.shards[0].scene.engine._queues.find("q") is None
        assert len(peer.take(Kind.MOVED)) == 1
        mover = cluster.shards[1].mover
        await cluster.until(lambda: [each["result"] for each in mover.describe()] == ["done"])

    run(story)


def test_consumers_come_along_and_their_settlements_find_them() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.place("q")
        there = frontend(cluster, 0)
        there.produce(1, "q", epoch=1)
        there.send(1, 1, [b"a", b"b", b"c"])
        there.consume(2, "q", 2, epoch=1)
        there.consume(3, "q", 1, epoch=1)
        await cluster.moved("q", 1)
        here = frontend(cluster, 1)
        assert cluster.shards[1].scene.queue("q") == {"ready": 0, "in_flight": 3}
        here.settle(3, 0, 1)
        here.consume(2, "q", epoch=2, first=2, resume=True)
        here.settle(2, 0, 2)
        here.credit(2, 5)
        here.produce(1, "q", epoch=2)
        here.send(1, 1, [b"a", b"b", b"c"])
        here.send(1, 2, [b"d"])
        cluster.shards[1].settle_down()
        assert here.accepted(1) == [1, 2]
        assert [(each.number, each.message) for each in here.delivered[2]] == [(2, b"d")]

    run(story)


def test_dead_letters_move_with_their_queue_even_the_first_that_comes_during_the_move() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.place("q")
        peer = frontend(cluster, 0)
        peer.produce(1, "q", epoch=1)
        peer.send(1, 1, [b"a", b"b"])
        peer.consume(2, "q", 1, epoch=1)
        cluster.shards[0].settle_down()

        def stepped(_: int, step: str) -> None:
            if step == "ask freeze":
                peer.settle(2, 0, 1, OutcomeCode.REJECTED)

        cluster.on_step = stepped
        await cluster.moved("q", 1)
        assert [each[-1:] for each in contents(cluster, 1, "q/$dlq")] == [b"a"]
        assert contents(cluster, 1, "q") == [b"b"]
        assert cluster.shards[0].scene.engine._queues.find("q/$dlq") is None

    run(story)


def test_moves_begin_in_their_order_and_only_so_many_at_once() -> None:
    async def story(cluster: Cluster) -> None:
        queues = [f"q{number:02}" for number in range(MOVES_AT_ONCE + 3)]
        for queue in queues:
            await cluster.place(queue)
        cluster.cut = True
        map = Map(cluster.coordinator)
        map.refresh()
        await moves.begin(cluster.coordinator, map, [(queue, 1) for queue in reversed(queues)], now_ms=1)
        cluster.look()
        mover = cluster.shards[1].mover
        assert sorted(mover._tasks) == queues[3:]
        waiting = [each["queue"] for each in mover.describe() if each["phase"] == "waiting"]
        assert set(queues[:3]) <= set(waiting)
        cluster.cut = False
        await cluster.until(lambda: all(cluster.placed(queue) == (1, 2) for queue in queues))
        await cluster.until(lambda: len(mover.describe()) == len(queues) and not mover._tasks)
        assert {each["result"] for each in mover.describe()} == {"done"}
        assert cluster.shards[1].scene.counts.moves_in == len(queues)
        assert cluster.shards[0].scene.counts.moves_out == len(queues)

    run(story)


def test_a_move_that_is_cancelled_while_it_copies_leaves_nothing() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.place("q")
        peer = frontend(cluster, 0)
        peer.produce(1, "q", epoch=1)
        peer.send(1, 1, [b"a"])
        cancelled: list[asyncio.Task[int]] = []

        def stepped(_: int, step: str) -> None:
            if step == "answer export" and not cancelled:
                write = cluster.coordinator.write([Write("moves/q", None)])
                cancelled.append(asyncio.get_running_loop().create_task(write))

        cluster.on_step = stepped
        await cluster.begin("q", 1)
        shown = cluster.shards[1].mover.describe
        await cluster.until(lambda: [each["result"] for each in shown()] == ["cancelled"])
        assert cluster.placed("q") == (0, 1)
        assert cluster.shards[1].scene.engine._queues.copying == []
        assert cluster.shards[1].scene.counts.queues_copying == 0
        assert contents(cluster, 0, "q") == [b"a"]
        queue = cluster.shards[0].scene.engine._queues.find("q")
        assert queue is not None
        assert queue not in cluster.shards[0].scene.engine._performer.exports

    run(story)


def test_a_queue_that_is_dropped_while_it_moves_is_gone_everywhere_and_its_move_with_it() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.place("q")
        peer = frontend(cluster, 0)
        peer.produce(1, "q", epoch=1)
        peer.send(1, 1, [b"a"])

        def stepped(_: int, step: str) -> None:
            if step == "answer export":
                cluster.names.drop("q")

        cluster.on_step = stepped
        await cluster.begin("q", 1)
        await cluster.until(lambda: cluster.shards[0].scene.engine._queues.find("q") is None)
        await cluster.coordinator.write(unplacing(["q"]))
        await cluster.until(lambda: not cluster.shards[1].mover._tasks and not cluster.is_moving("q"))
        assert not cluster.shards[1].scene.engine._queues.copying

    run(story)


def test_a_destination_that_does_not_come_back_loses_the_queue_to_its_source() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.place("q")
        peer = frontend(cluster, 0)
        peer.produce(1, "q", epoch=1)
        peer.send(1, 1, [b"a", b"b"])
        peer.consume(2, "q", 1, epoch=1)

        def stepped(_: int, step: str) -> None:
            if step == "answer freeze" and cluster.shards[1].alive:
                cluster.shards[1].die()

        cluster.on_step = stepped
        await cluster.begin("q", 1)
        await cluster.until(lambda: cluster.placed("q") == (0, 3), step_ms=500)
        await cluster.until(lambda: bool(cluster.shards[0].scene.queue("q")))
        peer.consume(2, "q", epoch=3, first=1, resume=True)
        peer.settle(2, 0, 1)
        peer.credit(2, 2)
        assert peer.messages(2) == [b"a", b"b"]
        cluster.shards[1].start()
        cluster.look()
        assert cluster.shards[1].scene.engine._queues.copying == []
        assert cluster.shards[1].scene.engine._queues.find("q") is None
        assert not cluster.is_moving("q")

    run(story)


def test_a_connection_point_moves_without_a_copy() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.names.give("p", Policy.parse({"role": "connection-point"}))
        await cluster.place("p")
        peer = frontend(cluster, 0)
        peer.produce(1, "p", epoch=1, relay=True)
        await cluster.moved("p", 1)
        assert len(peer.take(Kind.MOVED)) == 1
        assert "ask export" not in cluster.steps
        here = frontend(cluster, 1)
        here.produce(1, "p", epoch=2, relay=True)
        assert len(here.take(Kind.PRODUCER_READY)) == 1

    run(story)


def test_a_throttled_copy_takes_its_time() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.place("q")
        peer = frontend(cluster, 0)
        peer.produce(1, "q", epoch=1)
        peer.send(1, 1, [b"x" * 10_000])
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            cluster.pass_time(round(seconds * 1000))
            await asyncio.sleep(0)

        cluster.shards[1].mover._copier._sleep = sleep
        await cluster.begin("q", 1, throttle=1_000)
        await cluster.until(lambda: cluster.placed("q") == (1, 2))
        assert 10 <= sum(pauses) <= 11
        # It looks now and then whether it is still wanted.
        assert max(pauses) <= MOVE_THROTTLE_LOOK_S

    run(story)


def test_settlements_that_come_before_the_queue_is_open_wait_for_it() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.place("q")
        there = frontend(cluster, 0)
        there.produce(1, "q", epoch=1)
        there.send(1, 1, [b"a", b"b"])
        there.consume(2, "q", 2, epoch=1)
        here = frontend(cluster, 1)

        def stepped(_: int, step: str) -> None:
            # The frontend has heard of the new placement before its new owner has.
            if step == "written" and cluster.steps.count("written") == 4:
                here.settle(2, 0, 1)

        cluster.on_step = stepped
        await cluster.moved("q", 1)
        assert cluster.steps.count("written") == 4
        await cluster.until(lambda: cluster.shards[1].scene.engine._queues.find("q") is not None)
        assert cluster.shards[1].scene.queue("q") == {"ready": 0, "in_flight": 1}
        assert here.bounced == []

    run(story)


@pytest.mark.parametrize(
    ("error", "pauses_ms", "copies_dropped"),
    [
        (ShardDownError("it is away"), [100, 200, 250, 250], 0),
        (ShardRefusedError("c", "not now"), [100, 200, 400, 800], 0),
        (CoordinatorError("it is away"), [100, 200, 400, 800], 0),
        (ImportFailedError("another export"), [100, 200, 400, 800], 4),
        (StoreError("no room"), [100, 200, 400, 800], 4),
        (RuntimeError("an error of this program"), [2_000, 2_000, 2_000, 2_000], 4),
    ],
)
def test_after_a_failed_step_the_copy_stays_or_begins_again_and_the_move_is_made_whole(
    error: Exception, pauses_ms: list[int], copies_dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.place("q")
        peer = frontend(cluster, 0)
        peer.produce(1, "q", epoch=1)
        peer.send(1, 1, [b"a", b"b"])
        mover = cluster.shards[1].mover
        pauses: list[float] = []
        finish = mover._copier.finish

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            assert mover.describe()[0]["phase"] == "freeze"
            assert mover.describe()[0]["error"] in (str(error), "internal error; see the shard's log")
            await asyncio.sleep(0)

        async def failing(*arguments: Any) -> None:
            if len(pauses) < len(pauses_ms):
                raise error
            await finish(*arguments)

        mover._sleep = sleep
        monkeypatch.setattr(mover._copier, "finish", failing)
        await cluster.moved("q", 1)
        assert [round(1000 * pause) for pause in pauses] == pauses_ms
        assert cluster.shards[1].scene.counts.moves_failed == copies_dropped
        assert contents(cluster, 1, "q") == [b"a", b"b"]

    run(story)


def test_people_see_how_a_move_went() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.place("q")
        peer = frontend(cluster, 0)
        peer.produce(1, "q", epoch=1)
        peer.send(1, 1, [b"abc", b"de"])
        await cluster.moved("q", 1)
        await cluster.until(lambda: cluster.shards[1].mover.describe()[0]["result"] == "done")
        asking = frontend(cluster, 1)
        (shown,) = asking.answers[asking.ask("moves")][0]["moves"]
        assert (shown["queue"], shown["source"], shown["to"]) == ("q", 0, 1)
        assert (shown["phase"], shown["messages"], shown["messages_total"]) == ("switch", 2, 2)
        assert (shown["error"], shown["result"], shown["ended_ms"]) == ("", "done", cluster.now_ms)
        assert shown["bytes"] > 5
        cluster.now_ms += MOVES_SHOWN_MS + 1
        assert cluster.shards[1].mover.describe() == []

    run(story)
