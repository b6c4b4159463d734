"""Counts of the coordinator and of the map, as a scrape shows them."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.cluster.counts import COORDINATOR_FAMILIES
from lightrail.cluster.map import GATEWAYS, SHARDS, Map, Member, Move, Placed, ShardRecord
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.placement_metrics import PLACEMENT_FAMILIES
from lightrail.cluster.sqlite import SqliteCoordinator
from lightrail.telemetry.metrics import registry


def scrape(families: Any, counts: Any) -> dict[tuple[str, ...], float]:
    """Samples by name and values of labels."""
    text = generate_latest(registry(families, counts)).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_coordinator_is_up_until_a_contact_fails_and_again_after_one_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        coordinator = await SqliteCoordinator.open(str(tmp_path / "file"))
        counts = coordinator.counts
        try:
            await coordinator.write([Write("names/a", "{}")])
            samples = scrape(COORDINATOR_FAMILIES, counts)
            assert samples["lightrail_coordinator_up",] == 1
            assert samples["lightrail_coordinator_write_seconds_count",] == 1
            assert samples["lightrail_coordinator_contact_age_seconds",] < 60

            def fails() -> None:
                raise sqlite3.OperationalError("disk I/O error")

            with pytest.raises(CoordinatorError):
                await coordinator._call(fails)
            samples = scrape(COORDINATOR_FAMILIES, counts)
            assert samples["lightrail_coordinator_up",] == 0
            assert samples["lightrail_coordinator_failures_total",] == 1
            assert samples["lightrail_coordinator_watch_restarts_total",] == 0
            coordinator.news(0)
            assert scrape(COORDINATOR_FAMILIES, counts)["lightrail_coordinator_up",] == 1
        finally:
            await coordinator.close()

    asyncio.run(check())


def test_the_map_shows_where_queues_are_and_which_move() -> None:
    async def check() -> None:
        coordinator = MemoryCoordinator()
        move = Move(queue="a", source=0, to=1, epoch=1, phase="frozen")
        await coordinator.write(
            [
                Write("placement/a", Placed.encode(0, 1)),
                Write("placement/b", Placed.encode(0, 1)),
                Write("shardsets/0", ShardRecord(0).encode()),
                Write("shardsets/1", ShardRecord(1, state="draining").encode()),
                Write(SHARDS + "0", Member(0, 5).encode()),
                Write(GATEWAYS + "0", Member(0, 5).encode()),
                Write(move.key, move.encode()),
            ]
        )
        map = Map(coordinator)
        map.refresh()
        samples = scrape(PLACEMENT_FAMILIES, map)
        assert samples["lightrail_placement_queues", "0"] == 2
        assert samples["lightrail_placement_queues", "1"] == 0
        assert samples["lightrail_placement_moves", "frozen"] == 1
        assert samples["lightrail_placement_moves", "waiting"] == 0
        assert samples["lightrail_placement_members", "shard"] == 1
        assert samples["lightrail_placement_members", "frontend"] == 0
        assert samples["lightrail_placement_shards", "draining"] == 1

    asyncio.run(check())
