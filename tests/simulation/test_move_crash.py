"""A queue moves under traffic while shards die, the coordinator fails and ways are cut, at every single step.

In memory, and the same each time: one step is a request or answer between shards, or a write of the
coordinator.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.model import limits
from tests.support.shard.moving_scene import Cluster, Frontend
from tests.support.shard.scene import Peer

BACKLOG = 40


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a move has many steps."""
    monkeypatch.setattr(limits, "MOVE_CHUNK_MESSAGES", PIECE)


PIECE = 15
Fault = Callable[[Cluster, str], None]


async def story(cluster: Cluster, fault: Fault | None, at: int) -> Frontend:
    """One move under traffic; `fault` happens at step `at` of it."""
    cluster.start()
    await cluster.place("q")
    frontend = Frontend(cluster, "q")
    frontend.turn()
    for number in range(BACKLOG):
        frontend.send(b"%05d" % number)
    frontend.grant(10)
    frontend.settle(3)
    frontend.reject()
    dead: list[int] = []
    await cluster.begin("q", 1)
    first = len(cluster.steps)

    def stepped(number: int, step: str) -> None:
        if fault is not None and number - first == at:
            fault(cluster, step)

    cluster.on_step = stepped
    number = BACKLOG
    for round in range(600):
        await asyncio.sleep(0)
        if round % 3 == 0 and number < BACKLOG + 60:
            frontend.send(b"%05d" % number)
            number += 1
        if round % 5 == 0:
            frontend.grant(10)
            frontend.settle(2)
        if round % 25 == 7:
            frontend.reject()
        cluster.look()
        frontend.turn()
        dead = [shard.id for shard in cluster.shards if not shard.alive]
        if dead and round % 20 == 19:
            for id in dead:
                cluster.shards[id].start()
        if round % 20 == 10:
            cluster.cut = False
            cluster.pass_time(600)
        if number == BACKLOG + 60 and not dead and round > 300 and not cluster.is_moving("q"):
            break
    cluster.on_step = lambda _number, _step: None
    await cluster.until(lambda: not cluster.is_moving("q"), step_ms=500)
    for _ in range(20):
        await asyncio.sleep(0)
        cluster.look()
        frontend.turn()
    return frontend


def check(cluster: Cluster, frontend: Frontend, *, died: bool) -> None:
    """Nothing is lost, nothing is there twice, the order is kept, and one shard has it."""
    assert not frontend.unanswered
    assert frontend.accepted == frontend.sent, "answered in another order, or not at all"
    shard, _ = cluster.placed("q")
    others = [each for each in cluster.shards if each.id != shard]
    assert all(each.scene.engine._queues.find(name) is None for each in others for name in ("q", "q/$dlq"))
    assert not any(each.scene.engine._queues.copying for each in cluster.shards)
    assert not any(len(each.scene.engine._links.receiving) for each in cluster.shards)
    if not died:
        assert frontend.taken == sorted(set(frontend.taken)), "delivered twice, or out of order"
    # What it holds is given back: then everything is to be seen.
    peer = frontend.peers[shard][1]
    peer.close_consumer(frontend.TAKES)
    looker = Peer(cluster.shards[shard].scene, "looker", 99)
    looker.greet()
    looker.consume(1, "q", 10_000, browse=True)
    looker.consume(2, "q/$dlq", 10_000, browse=True)
    there = looker.messages(1)
    dead = [each[-5:] for each in looker.messages(2)]
    assert there == sorted(set(there)), "stored twice, or out of order"
    assert len(set(dead)) == len(dead), "a dead letter twice"
    assert not set(dead) & set(there), "in both queues"
    done = {*frontend.settled, *frontend.rejected}
    assert not set(frontend.accepted) - set(there) - done, "lost"
    assert not set(frontend.rejected) - set(there) - set(dead) - set(frontend.settled), (
        "a dead letter is lost"
    )
    if not died:
        assert not set(there) & done, "settled, and here again"
        assert set(dead) == set(frontend.rejected)


def told(act: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        cluster = Cluster()
        try:
            await act(cluster)
        finally:
            cluster.close()

    asyncio.run(run())


STEPS = range(1, 41)
"""More than there are, as `test_a_queue_moves_under_traffic` says."""


def test_a_queue_moves_under_traffic() -> None:
    async def act(cluster: Cluster) -> None:
        frontend = await story(cluster, None, 0)
        check(cluster, frontend, died=False)
        assert cluster.placed("q") == (1, 2)
        assert frontend.settled
        moving = cluster.steps[cluster.steps.index("ask export") :]
        assert moving.count("ask export") > 6
        assert len(moving) < STEPS.stop

    told(act)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("at", STEPS)
def test_a_shard_dies_at_a_step(victim: int, at: int) -> None:
    def die(cluster: Cluster, _: str) -> None:
        cluster.shards[victim].die(at)

    async def act(cluster: Cluster) -> None:
        check(cluster, await story(cluster, die, at), died=True)

    told(act)


@pytest.mark.parametrize("later", range(16))
def test_a_commit_arrives_when_its_process_has_died(later: int) -> None:
    """`later` is the number of steps after its death; the successor restarts in between."""
    arriving: list[asyncio.Task[None]] = []

    def die(cluster: Cluster, _: str) -> None:
        commit = cluster.coordinator.latest
        assert len(commit) == 2, "the placement and the move"
        died = len(cluster.steps)
        cluster.shards[1].die()

        def stepped(number: int, _: str) -> None:
            if number == died + later:
                arriving.append(asyncio.create_task(cluster.coordinator.arrive(commit)))

        cluster.on_step = stepped
        stepped(died, "")

    async def act(cluster: Cluster) -> None:
        calm = Cluster()
        await story(calm, None, 0)
        calm.close()
        moving = calm.steps[calm.steps.index("ask export") - 1 :]
        commit = len(moving) - 1 - moving[::-1].index("write")
        check(cluster, await story(cluster, die, commit), died=True)
        assert len(arriving) == 1

    told(act)


@pytest.mark.parametrize("at", STEPS)
def test_both_shards_die_at_a_step(at: int) -> None:
    def die(cluster: Cluster, _: str) -> None:
        for shard in cluster.shards:
            shard.die(at)

    async def act(cluster: Cluster) -> None:
        check(cluster, await story(cluster, die, at), died=True)

    told(act)


@pytest.mark.parametrize("at", STEPS)
def test_shards_do_not_hear_each_other_for_a_while(at: int) -> None:
    def cut(cluster: Cluster, _: str) -> None:
        cluster.cut = True

    async def act(cluster: Cluster) -> None:
        check(cluster, await story(cluster, cut, at), died=False)

    told(act)


@pytest.mark.parametrize("at", STEPS)
def test_a_write_fails_or_its_answer_is_lost(at: int) -> None:
    def fail(_: Cluster, step: str) -> None:
        if step in ("write", "written"):
            raise CoordinatorError("it is away")

    async def act(cluster: Cluster) -> None:
        check(cluster, await story(cluster, fail, at), died=False)

    told(act)
