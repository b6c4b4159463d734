"""Which data directories `lightrail serve --replicas` uses, and which processes it starts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from lightrail.cli import local_replicas, serve
from lightrail.cli.local_replicas import LocalReplicasError
from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import SHARD_SETS
from lightrail.cluster.membership import shard_records
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.replica_sets import first, key_of
from lightrail.model.endpoint import Endpoint
from lightrail.model.setting_values import SettingsError
from lightrail.model.settings import Settings


def settings(data: Path, *, replicas: int = 3, shards: int = 1) -> Settings:
    return Settings(
        data=str(data),
        replicas=replicas,
        shards=shards,
        frontends=1,
        replica_host="here",
        etcd=(Endpoint("127.0.0.1", 2379),),
    )


def made(data: Path, *members: int, shard: int = 0) -> None:
    for member in members:
        (data / f"replica-{member}" / f"shard-{shard}").mkdir(parents=True)


def test_a_directory_without_replicas_is_refused_with_them(tmp_path: Path) -> None:
    local_replicas.check(settings(tmp_path))
    (tmp_path / "shard-0").mkdir()
    with pytest.raises(LocalReplicasError, match=r"without replicas \(shards 0\).*Start without --replicas"):
        local_replicas.check(settings(tmp_path))
    local_replicas.check(settings(tmp_path, replicas=1))


def test_a_directory_with_replicas_is_refused_with_fewer(tmp_path: Path) -> None:
    made(tmp_path, 1, 2, 3)
    local_replicas.check(settings(tmp_path))
    local_replicas.check(settings(tmp_path, replicas=4))
    with pytest.raises(LocalReplicasError, match=r"found .*replica-3: start with --replicas 3"):
        local_replicas.check(settings(tmp_path, replicas=2))
    with pytest.raises(LocalReplicasError, match=r"found .*replica-3.*not be served.*--replicas 3"):
        local_replicas.check(settings(tmp_path, replicas=1))


def test_only_journals_have_replicas(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="store is 'sqlite'; expected store journal"):
        local_replicas.check(replace(settings(tmp_path), store="sqlite"))


def test_members_of_a_shard_are_processes_with_directories_and_hosts_of_their_own(tmp_path: Path) -> None:
    made(tmp_path, 1, shard=4)
    found = [each for each in serve.plans(settings(tmp_path), serve.MODULES) if each.role == "shard"]
    assert [(each.name, each.auto) for each in found] == [
        ("shard-4/1", False),
        ("shard-4/2", False),
        ("shard-4/3", False),
    ]
    own = [each.settings for each in found]
    assert [(each.data, each.replica_host) for each in own if each] == [
        (f"{tmp_path}/replica-{member}", f"here/{member}") for member in (1, 2, 3)
    ]


def test_new_shards_get_numbers_that_no_other_machine_has(tmp_path: Path) -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.write([Write(f"{SHARD_SETS}0", '{"disk":"elsewhere"}')])
        await local_replicas.reserve_shards(settings(tmp_path, shards=2), coordinator)
        assert local_replicas.known(str(tmp_path)) == [1, 2]
        assert {id: each.disk for id, each in (await shard_records(coordinator)).items()} == {
            0: "elsewhere",
            1: "",
            2: "",
        }
        await local_replicas.reserve_shards(settings(tmp_path, shards=2), coordinator)
        assert local_replicas.known(str(tmp_path)) == [1, 2]

    asyncio.run(story())


def test_the_number_of_replicas_is_changed_by_a_command(tmp_path: Path) -> None:
    async def story() -> None:
        made(tmp_path, 1, 2)
        coordinator = MemoryCoordinator()
        entry = first(0, "a", "here/1", replicas=2, min_in_sync=1)
        await coordinator.write([Write(key_of(0), entry.encode())])
        await local_replicas.reserve_shards(settings(tmp_path, replicas=2), coordinator)
        with pytest.raises(
            LocalReplicasError, match=r"--replicas 3: start with --replicas 2.*shard replicas 0"
        ):
            await local_replicas.reserve_shards(settings(tmp_path), coordinator)

    asyncio.run(story())
