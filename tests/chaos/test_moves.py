"""Queues move between the shards of a running installation while they are sent to and received from."""

import asyncio
import time
from pathlib import Path

from lightrail.cluster import moves
from lightrail.cluster.map import Map
from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from lightrail.namespace.directory import Directory
from lightrail.namespace.service import Service
from lightrail.telemetry.directories import socket_directory
from tests.chaos.wire_frontend import Installation
from tests.support.broker import Broker
from tests.support.shard.moving_scene import Frontend
from tests.support.shard.scene import Peer

BACKLOG = 2_000
MOVES = 4


def test_a_queue_moves_to_and_fro_under_traffic_without_loss_repeat_or_disorder(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--shards", "2"):
        asyncio.run(_to_and_fro(tmp_path / "data"))


async def _to_and_fro(data: Path) -> None:
    coordinator = await SqliteCoordinator.open(str(data / FILE_NAME))
    directory = Directory(coordinator)
    directory.refresh()
    await Service(coordinator, directory).first_use("q")
    await coordinator.place("q")
    map = Map(coordinator)
    map.refresh()
    installation = Installation(coordinator, Path(socket_directory(str(data))), 2)
    frontend = Frontend(installation, "q")
    try:
        frontend.turn()
        for number in range(BACKLOG):
            frontend.send(b"%08d" % number)
        frontend.grant(100)

        def has_some() -> bool:
            frontend.turn()
            return len(frontend.held) >= 50

        await installation.until(has_some, "deliveries")
        number = BACKLOG
        for _ in range(MOVES):
            map.refresh()
            placed = map.placed("q")
            assert placed is not None
            to = 1 - placed.shard
            await moves.begin(coordinator, map, [("q", to)], now_ms=time.time_ns() // 1_000_000)
            map.refresh()
            while "q" in map.moves:
                frontend.send(b"%08d" % number)
                number += 1
                frontend.settle(3)
                frontend.grant(100)
                await asyncio.sleep(0.001)
                map.refresh()
            after = map.placed("q")
            assert after is not None
            assert (after.shard, after.epoch) == (to, placed.epoch + 1)

            def caught_up() -> bool:
                frontend.turn()
                return not frontend.unanswered and not frontend.unsaid

            await installation.until(caught_up, "answers")

        def drained() -> bool:
            frontend.settle(1_000)
            frontend.grant(1_000)
            return len(frontend.settled) >= number

        await installation.until(drained, "the rest")
        assert frontend.accepted == frontend.sent
        assert frontend.taken == frontend.settled == frontend.sent
        shown = Peer(installation.shards[0].scene, "looker", 99)
        shown.greet()
        asked = shown.ask("moves")
        await installation.until(lambda: asked in shown.answers, "how moves went")
        ended = shown.answers[asked][0]["moves"]
        assert [each["result"] for each in ended] == ["done"] * (MOVES // 2)
        assert all(each["pause_ms"] < 5_000 for each in ended)
        print([each["pause_ms"] for each in ended])
    finally:
        installation.close()
        await coordinator.close()
