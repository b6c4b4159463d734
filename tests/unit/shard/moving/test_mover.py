"""The mover: a queue comes whole, in order, with who holds what; whatever fails, one shard serves it."""

import asyncio
from collections.abc import Awaitable, Callable

from lightrail.wire.frames import Kind
from tests.support.moving_scene import Cluster
from tests.support.shard_scene import Peer

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
        await cluster.until(lambda: [each["result"] for each in cluster.shards[1].mover.shown()] == ["done"])

    run(story)
