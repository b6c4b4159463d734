"""Leases and writes in etcd: registrations that are lost or displaced, and answers that are lost."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from lightrail.cluster.coordinator import CoordinatorError, CoordinatorFullError, Write
from lightrail.model import limits
from tests.contracts.etcd_scene import PINGS, TIMES, eventually, keys, opened, run
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.deploy.etcd import EtcdCluster, etcd
from tests.support.wait import until


def test_a_lease_that_was_lost_is_made_again(one: EtcdCluster) -> None:
    async def check() -> None:
        coordinator = await opened(*one.endpoints)
        displaced: list[str] = []
        await coordinator.register("shards/0", '{"boot":1}', displaced.append)
        server = one.servers[0]
        (lease,) = server.control("lease", "list").stdout.split()[3:]
        assert server.control("lease", "revoke", lease).returncode == 0
        await eventually(lambda: "shards/0" not in keys(coordinator), "the registration has ended")
        await eventually(lambda: "shards/0" in keys(coordinator), "it is there again")
        await coordinator.register("shards/0", '{"boot":1,"http":"x"}', displaced.append)
        found = await coordinator.entry("shards/0")
        assert found is not None
        assert found.value == '{"boot":1,"http":"x"}'
        assert displaced == []
        # It lives for longer than a lease that nobody refreshes.
        revision = found.revision
        await asyncio.sleep(TIMES.lease * 2.5)
        found = await coordinator.entry("shards/0")
        assert found is not None
        assert found.revision == revision
        await coordinator.close()
        assert "shards/0" not in server.control("get", "--prefix", "/lightrail/").stdout

    run(check())


def test_how_long_a_registration_stays_is_asked_of_etcd(one: EtcdCluster) -> None:
    async def check() -> None:
        (server,) = one.servers
        coordinator = await opened(*one.endpoints)
        await coordinator.register("shards/0", "1", print)
        await coordinator.write([Write("names/a", "1")])
        remaining = await coordinator.remaining_ms("shards/0")
        assert remaining is not None
        assert 0 < remaining <= TIMES.lease * 1000
        assert await coordinator.remaining_ms("names/a") is None
        assert await coordinator.remaining_ms("shards/1") == 0
        server.kill()
        with pytest.raises(CoordinatorError, match="does not answer"):
            await coordinator.remaining_ms("shards/0")
        await coordinator.close()

    run(check())


def test_the_members_of_etcd_are_counted(one: EtcdCluster) -> None:
    async def check() -> None:
        coordinator = await opened(*one.endpoints)
        assert await coordinator.members() == len(one.servers) == 1
        one.servers[0].kill()
        with pytest.raises(CoordinatorError, match="does not answer"):
            await coordinator.members()
        await coordinator.close()

    run(check())


def test_an_etcd_without_space_refuses_writes_with_a_word_to_its_operator_and_takes_them_later(
    tmp_path: Path,
) -> None:
    with etcd(tmp_path, 1, PINGS, "--quota-backend-bytes=1000000") as cluster:

        async def check() -> None:
            (server,) = cluster.servers
            coordinator = await opened(*cluster.endpoints)
            await coordinator.register("shards/0", "1", print)

            async def fill() -> None:
                # etcd looks at the size of its file, which grows a little later than what etcd accepts.
                for number in range(100):
                    await coordinator.write([Write(f"names/{number}", "x" * 300_000)])

            with pytest.raises(CoordinatorFullError, match=r"has no space left .*etcdctl alarm disarm"):
                await fill()
            # It answers: what is known is followed, and registrations stay.
            assert coordinator.counts.answers
            assert (coordinator.counts.full, "has no space left" in (coordinator.full or "")) == (1, True)
            await asyncio.sleep(TIMES.lease * 1.5)
            assert "shards/0" in keys(coordinator)
            second = await opened(*cluster.endpoints)
            with pytest.raises(CoordinatorFullError) as failed:
                await second.register("shards/1", "1", print)
            assert not failed.value.may_be_written
            # Names of queues that leave are deleted all the same.
            await second.write([Write("names/0", None)])
            server.control("del", "--prefix", "/lightrail/lightrail/names/")
            server.compact()
            assert server.control("defrag").returncode == 0
            assert server.control("alarm", "disarm").returncode == 0
            await second.register("shards/1", "1", print)
            # Who found out looks by itself whether there is space again.
            await asyncio.to_thread(until, lambda: coordinator.full is None, "it takes writes again")
            assert coordinator.counts.full == 0
            await coordinator.write([Write("names/a", "1")])
            await second.close()
            await coordinator.close()

        run(check())


STANDSTILL = """
import asyncio, sys, tests.contracts.etcd_scene as t
async def main():
    coordinator = await t.opened(sys.argv[1])
    displaced = asyncio.get_running_loop().create_future()
    await coordinator.register("shards/0", "first", displaced.set_result)
    print("displaced by", await displaced, flush=True)
    await coordinator.close()
asyncio.run(main())
"""


def test_who_stood_still_for_longer_than_its_lease_finds_its_successor(one: EtcdCluster) -> None:
    async def check() -> None:
        coordinator = await opened(*one.endpoints)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", STANDSTILL, one.endpoints[0]), stdout=asyncio.subprocess.PIPE
        )
        try:
            await eventually(lambda: "shards/0" in keys(coordinator), "it is registered")
            process.send_signal(signal.SIGSTOP)
            await eventually(lambda: "shards/0" not in keys(coordinator), "its lease has run out")
            await coordinator.register("shards/0", "second", print)
            process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(20):
                assert (await process.communicate())[0] == b"displaced by second\n"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        found = await coordinator.entry("shards/0")
        assert found is not None
        assert found.value == "second"
        await coordinator.close()

    run(check())


def test_who_was_displaced_leaves_the_entry_to_the_other(one: EtcdCluster) -> None:
    async def check() -> None:
        first, second = await opened(*one.endpoints), await opened(*one.endpoints)
        displaced: list[str] = []
        await first.register("shards/0", "first", displaced.append)
        await second.register("shards/0", "second", print)
        await eventually(lambda: displaced, "the first one hears of it")
        assert displaced == ["second"]
        await first.close()
        found = await second.entry("shards/0")
        assert found is not None
        assert found.value == "second"
        await second.close()

    run(check())


@pytest.mark.parametrize("guard", [0, None])
def test_an_answer_that_was_lost_is_found_out(one: EtcdCluster, guard: int | None) -> None:
    async def check() -> None:
        proxy = CuttingProxy(one.servers[0].port)
        coordinator = await opened(f"127.0.0.1:{proxy.port}", one.endpoints[0])
        await coordinator.write([Write("moves/q", "1")])
        proxy.losing.set()
        revision = await coordinator.write([Write("placement/q", "1", guard), Write("moves/q", None)])
        assert proxy.lost.is_set()
        # It was written once, and known to be. The watch was cut as well: on a busy machine it follows again
        # only after the write has stopped waiting for it.
        await eventually(lambda: coordinator.news(revision - 1) is not None, "the watch follows again")
        found = await coordinator.entry("placement/q")
        assert found is not None
        assert (found.created, found.revision) == (revision, revision)
        await coordinator.close()
        proxy.close()

    run(check())


def test_a_write_without_any_answer_is_said_to_be_unknown(one: EtcdCluster) -> None:
    async def check() -> None:
        proxy = CuttingProxy(one.servers[0].port)
        coordinator = await opened(f"127.0.0.1:{proxy.port}")
        await coordinator.write([Write("names/a", "1")])
        proxy.losing.set()
        with pytest.raises(CoordinatorError, match="not known whether this was written") as failed:
            await coordinator.write([Write("names/a", "2")])
        assert failed.value.may_be_written
        await coordinator.close()
        proxy.close()

    run(check())


def test_many_queues_are_placed_at_once(one: EtcdCluster) -> None:
    async def check() -> None:
        coordinator = await opened(*one.endpoints)
        await coordinator.set_shards(4)
        await asyncio.gather(*(coordinator.place(f"q{number}") for number in range(1_000)))
        shards = [placement.shard for placement in (await coordinator.placements()).values()]
        assert [shards.count(shard) for shard in range(4)] == [250] * 4
        await coordinator.close()

    run(check())


def test_at_most_so_many_writes_wait_for_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ETCD_CALLS_WAITING", 3)
    with etcd(tmp_path, 1, PINGS) as cluster:

        async def check() -> None:
            (server,) = cluster.servers
            coordinator = await opened(*cluster.endpoints)
            server.stop()
            writes = [[Write(f"names/{number}", "1")] for number in range(3)]
            waiting = [asyncio.ensure_future(coordinator.write(each)) for each in writes]
            await asyncio.sleep(0)
            with pytest.raises(CoordinatorError, match="3 writes wait for etcd already: nothing was written"):
                await coordinator.write([Write("names/3", "1")])
            server.proceed()
            await asyncio.gather(*waiting)
            await coordinator.write([Write("names/3", "1")])
            assert {f"names/{number}" for number in range(4)} <= set(keys(coordinator))
            await coordinator.close()

        run(check())


def test_a_process_whose_fence_has_fallen_is_not_registered_again(
    one: EtcdCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Its successor may be registered in a moment: until then nobody reaches this process as the owner."""

    async def check() -> None:
        coordinator, other = await opened(*one.endpoints), await opened(*one.endpoints)
        coordinator.fence.set("replicas/0", await other.write([Write("replicas/0", "A")]))
        await coordinator.register("shards/0", "A", print)
        await other.write([Write("replicas/0", "B")])
        server = one.servers[0]
        (lease,) = server.control("lease", "list").stdout.split()[3:]
        assert server.control("lease", "revoke", lease).returncode == 0
        await eventually(lambda: "replicas/0 is not at revision" in caplog.text, "it has tried")
        assert "shards/0" not in keys(other)
        await coordinator.close()
        await other.close()

    run(check())
