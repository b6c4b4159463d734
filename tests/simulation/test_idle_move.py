"""The move of an idle queue takes no detour: one attempt, one request for each step, one opening per link."""

import asyncio
from collections import Counter

import pytest

from lightrail.shard.moving.copier import Placing
from lightrail.wire.bodies import decode_request
from lightrail.wire.frames import HEADER, Kind
from tests.support.sim.cluster import Cluster
from tests.support.sim.scripts import Script
from tests.support.sim.shard import Life

LATENCY_S = 0.005
SEEDS = range(1, 6)


class IdleCluster(Cluster):
    """Two shards, one frontend with a sender and a receiver of one queue, and no messages.

    Every message and every news takes as long as every other, so that nothing is overtaken.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, shards=2, frontends=1, queues=1)
        self.network.latency_s = lambda: LATENCY_S  # type: ignore[method-assign]
        self.etcd.latency_s = lambda: LATENCY_S  # type: ignore[method-assign]

    async def _work(self) -> None:
        """Nothing is sent."""
        await asyncio.Event().wait()


class OneMove(Script):
    """Moves the queue when everything has been opened."""

    async def run(self) -> None:
        await asyncio.sleep(1.0)
        seen.clear()
        await self.cluster.ask_move("q0")
        await asyncio.sleep(1.0)


seen: list[tuple[int, str]] = []
"""The shard and the name of each frame, request or attempt of a move, in order."""


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    receive, begin = Life._receive, Placing.begin

    def received(life: Life, parts: list[bytes]) -> None:
        for part in parts[1:]:
            kind = Kind(HEADER.unpack_from(part)[0])
            is_request = kind is Kind.REQUEST
            name = decode_request(part[HEADER.size :])[0]["op"] if is_request else kind.name
            seen.append((life.shard.id, name))
        receive(life, parts)

    def begun(placing: Placing, queue: str) -> object:
        seen.append((placing._shard, "attempt"))
        return begin(placing, queue)

    monkeypatch.setattr(Life, "_receive", received)
    monkeypatch.setattr(Placing, "begin", begun)


def moved(seed: int) -> tuple[Counter[str], Counter[str]]:
    """What the source and the destination of a move got."""
    cluster = IdleCluster(seed)
    cluster.run(OneMove)
    to = next(shard for shard, name in seen if name == "attempt")
    return (
        Counter(name for shard, name in seen if shard != to),
        Counter(name for shard, name in seen if shard == to),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_move_of_an_idle_queue_asks_its_source_once_for_each_step(seed: int) -> None:
    source, destination = moved(seed)
    assert destination["attempt"] == 1, "no attempt failed"
    # The queue and its absent dead-letter queue; nothing is left to copy after the freeze.
    assert (source["HELLO"], source["export"], source["freeze"]) == (1, 2, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_link_of_a_moved_queue_is_opened_once_and_at_its_new_owner(seed: int) -> None:
    source, destination = moved(seed)
    assert (source["PRODUCER_OPEN"], source["CONSUMER_OPEN"], source["CREDIT"]) == (0, 0, 0)
    assert (destination["PRODUCER_OPEN"], destination["CONSUMER_OPEN"], destination["CREDIT"]) == (1, 1, 1)
