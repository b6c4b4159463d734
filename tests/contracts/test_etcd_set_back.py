"""An etcd that was replaced or set back: it is not believed, and what it has lost is put back."""

import logging
import shutil
from functools import partial
from pathlib import Path

import pytest

from lightrail.cluster.coordinator import CoordinatorError, NotSetBackError, Write
from lightrail.cluster.etcd.coordinator import EtcdCoordinator
from tests.contracts.etcd_scene import eventually, keys, opened, run, values
from tests.support.deploy.etcd import EtcdCluster
from tests.support.ports import free_ports


def goes_on(coordinator: EtcdCoordinator) -> bool:
    return coordinator.set_back is None


def has_everything(coordinator: EtcdCoordinator) -> bool:
    return {"names/q", "names/made", "shards/0"} <= keys(coordinator)


def has_a_living_shard(coordinator: EtcdCoordinator) -> bool:
    return '{"boot":1}' in values(coordinator)


def test_another_cluster_in_its_place_is_not_believed(
    one: EtcdCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        coordinator = await opened(*one.endpoints)
        await coordinator.set_shards(1)
        await coordinator.place("q")
        one.servers[0].kill()
        shutil.rmtree(one.servers[0].directory)
        one.start()
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: "holds another cluster" in caplog.text, "it says so")
        assert set(await coordinator.placements()) == {"q"}
        await coordinator.close()

    run(check())


async def is_set_back(coordinator: EtcdCoordinator) -> None:
    await eventually(lambda: coordinator.set_back, "it notices that etcd was set back")


@pytest.mark.parametrize("later", [0, 12])
@pytest.mark.parametrize("compacted", [False, True])
def test_what_an_etcd_has_lost_that_was_set_back_is_not_taken_for_deleted(
    one: EtcdCluster, tmp_path: Path, later: int, compacted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`later` revisions are written to it before the process lists again: then its number is no sign."""

    async def check() -> None:
        (server,) = one.servers
        coordinator = await opened(*one.endpoints)
        await coordinator.write([Write("names/old", "1")])
        server.save(tmp_path / "snapshot")
        for number in range(3):
            await coordinator.write([Write(f"names/{number}", "1"), Write("names/old", f"{number}")])
        news = coordinator.news(0)
        assert news is not None
        server.restore(tmp_path / "snapshot")
        # First where only others reach it.
        port, server.port = server.port, free_ports(1)[0]
        one.start()
        for number in range(later):
            server.control("put", "/lightrail/lightrail/names/new", str(number))
        if compacted:
            server.compact()
        server.kill()
        server.port = port
        one.start()
        await is_set_back(coordinator)
        assert coordinator.news(news.revision) is None
        assert keys(coordinator) == {"names/old", "names/0", "names/1", "names/2"}
        assert coordinator.counts.set_back == 1
        assert "lightrail-admin coordinator put-back" in caplog.text
        with pytest.raises(CoordinatorError, match="nothing was written: etcd was set back"):
            await coordinator.write([Write("names/another", "1")])
        await coordinator.close()

    run(check())


def test_the_etcd_that_has_everything_is_believed_again(one: EtcdCluster, tmp_path: Path) -> None:
    async def check() -> None:
        (server,) = one.servers
        coordinator = await opened(*one.endpoints)
        server.save(tmp_path / "old")
        await coordinator.write([Write("names/a", "1")])
        server.save(tmp_path / "new")
        news = coordinator.news(0)
        assert news is not None
        server.restore(tmp_path / "old")
        one.start()
        await is_set_back(coordinator)
        server.restore(tmp_path / "new")
        one.start()
        await eventually(lambda: coordinator.set_back is None, "it is believed again")
        assert coordinator.news(news.revision) is None
        await coordinator.write([Write("names/b", "1")])
        assert keys(coordinator) == {"names/a", "names/b"}
        await coordinator.close()

    run(check())


def test_what_was_lost_is_put_back_and_everybody_goes_on(
    one: EtcdCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        (server,) = one.servers
        first, second = await opened(*one.endpoints), await opened(*one.endpoints)
        displaced: list[str] = []
        await first.set_shards(2)
        await first.write([Write("names/deleted", "1")])
        # A former process of shard 0, whose registration is there again afterwards.
        await second.register("shards/0", '{"boot":0}', displaced.append)
        server.save(tmp_path / "snapshot")
        await second.unregister("shards/0")
        await first.write([Write("names/deleted", None)])
        await first.write([Write("names/q", '{"policy":{"role":"queue"}}')])
        placed = await first.place("q")
        await first.register("shards/0", '{"boot":1}', displaced.append)
        # Who has not seen what is lost has no reason to doubt an etcd without it.
        await eventually(lambda: "shards/0" in keys(second), "the second one has seen everything")
        known = second.news(0)
        with pytest.raises(NotSetBackError):
            await first.put_back()
        server.restore(tmp_path / "snapshot")
        one.start()
        for each in (first, second):
            await is_set_back(each)
        # The lease is lost as well, and the process tries to register.
        await eventually(lambda: "it registers again" in caplog.text, "the lease is lost")
        started = await opened(*one.endpoints)
        await started.write([Write("names/made", "2")])
        done = await first.put_back()
        assert [each.key for each in done.writes] == ["names/q", "placement/q"]
        assert (done.kept, sorted(done.again)) == ([], ["names/deleted", "names/made"])
        for each in (first, second, started):
            await eventually(partial(goes_on, each), "it goes on")
            await eventually(partial(has_everything, each), "it has everything")
            assert await each.placement("q") == placed
        for each in (first, second, started):
            await eventually(partial(has_a_living_shard, each), "the process is registered")
        assert displaced == []
        # Followers read everything: no revision of theirs is taken for one of the new history.
        assert known is not None
        news = second.news(known.revision)
        assert news is not None
        assert news.whole
        await second.write([Write("names/last", "1")])
        await eventually(lambda: "names/last" in keys(first), "they follow each other")
        for each in (first, second, started):
            await each.close()

    run(check())
