"""Joining: settings that allow no replicas are refused, and nothing is served without them in silence."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightrail.cluster.membership import MemberRefusedError
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model.endpoint import Endpoint
from lightrail.model.settings import Settings
from lightrail.shard.replication import joining
from lightrail.shard.startup import data_directory

ETCD = (Endpoint("e", 2379),)
WITH_ETCD = Settings(etcd=ETCD, replicas=3)


def settled(tmp_path: Path, settings: Settings, coordinator: MemoryCoordinator | None = None) -> Any:
    tmp_path.mkdir(exist_ok=True)
    directory = data_directory.hold(str(tmp_path), 0)
    assert directory is not None
    try:
        found = joining.settle(coordinator or MemoryCoordinator(), settings, directory, "h", "c")
        return asyncio.run(found)
    finally:
        directory.leave()


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (Settings(replicas=3), "etcd not set"),
        (Settings(etcd=ETCD, replicas=3, store="sqlite"), "the store sqlite"),
    ],
)
def test_replicas_without_etcd_or_a_journal_are_refused(
    tmp_path: Path, settings: Settings, found: str
) -> None:
    with pytest.raises(MemberRefusedError, match=f"replicas is 3; expected etcd.*{found}"):
        settled(tmp_path, settings)


def test_a_shard_has_no_replicas_unless_it_is_asked_for_them(tmp_path: Path) -> None:
    assert settled(tmp_path, replace(WITH_ETCD, replicas=1)) is None


def test_the_first_directory_makes_the_entry_and_further_ones_find_it(tmp_path: Path) -> None:
    coordinator = MemoryCoordinator()
    first = settled(tmp_path / "1", WITH_ETCD, coordinator)
    assert (first.epoch, len(first.members), first.replicas, first.min_in_sync) == (1, 1, 3, 2)
    again = settled(tmp_path / "1", WITH_ETCD, coordinator)
    other = settled(tmp_path / "2", replace(WITH_ETCD, replicas=1), coordinator)
    assert (again, other) == (first, first), "an entry counts, and not the setting of a later process"


def test_directories_that_start_at_once_get_places_of_their_own() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        hosts = {f"{letter}{number}": letter for number in range(3) for letter in "abc"}
        found = await asyncio.gather(
            *(joining.allocate(coordinator, WITH_ETCD, member, host) for member, host in hosts.items())
        )
        sets = [await joining.replica_set(coordinator, shard) for shard in range(3)]
        for each in sets:
            assert each is not None
            assert sorted(hosts[member] for member in each.members) == ["a", "b", "c"]
        assert sorted(is_first for _, is_first in found) == [False] * 6 + [True] * 3
        # A start again finds the same place.
        assert await joining.allocate(coordinator, WITH_ETCD, "b1", "b") == found[[*hosts].index("b1")]

    asyncio.run(story())
