"""The coordinator in etcd while real servers are killed, stopped, started again, and lose their memory."""

import asyncio
import base64
import hmac
import logging
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from lightrail.cluster.coordinator import (
    ConflictError,
    CoordinatorError,
    CoordinatorFullError,
    NotSetBackError,
    Write,
)
from lightrail.cluster.entries import News
from lightrail.cluster.etcd.channels import EtcdChannels, EtcdSettings, EtcdTimes
from lightrail.cluster.etcd.client import EtcdClient
from lightrail.cluster.etcd.coordinator import EtcdCoordinator
from lightrail.frontend.auth import Authenticator
from lightrail.gateway.callers import Callers
from lightrail.model import limits
from lightrail.model.policy import Policy
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import AuthorizationRule, Right
from lightrail.namespace.rights import ANYBODY, RuleKey
from lightrail.namespace.service import Service
from lightrail.namespace.tokens import InvalidTokenError
from lightrail.service_bus import rule_keys, signatures
from lightrail.service_bus.signatures import PREFIX
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.certificates import Authority
from tests.support.deploy.etcd import EtcdCluster, etcd
from tests.support.ports import free_ports
from tests.support.wait import until

TIMES = EtcdTimes(
    call=2.0, attempt=0.5, lease=2.0, behind=1.0, pause=0.05, pause_max=0.3, ping=1.0, ping_answer=0.5
)
ATTEMPTS_MAX = 100
"""Attempts that reach no server while two writes wait for it in vain; without pauses they are thousands."""
PINGS = "--grpc-keepalive-min-time=500ms"
"""Servers of Debian's age take offence at pings more often than every 5 s."""


@pytest.fixture
def one(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd(tmp_path, 1, PINGS) as cluster:
        yield cluster


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd(tmp_path, 3, PINGS) as cluster:
        yield cluster


async def opened(*endpoints: str, times: EtcdTimes = TIMES, **settings: str) -> EtcdCoordinator:
    return await EtcdCoordinator.open(EtcdSettings(endpoints, **settings), times=times)


def goes_on(coordinator: EtcdCoordinator) -> bool:
    return coordinator.set_back is None


def has_everything(coordinator: EtcdCoordinator) -> bool:
    return {"names/q", "names/made", "shards/0"} <= keys(coordinator)


async def eventually(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(until, condition, what, 20)


async def written(coordinator: EtcdCoordinator, key: str, value: str) -> None:
    """Tries until it is there; who does not know whether it was written looks.

    The view may follow later than the answer where the watch is cut meanwhile.
    """
    async with asyncio.timeout(20):
        while True:
            try:
                await coordinator.write([Write(key, value, 0)])
                return
            except ConflictError:
                await eventually(lambda: key in keys(coordinator), f"{key}, which is there, is seen")
                found = await coordinator.entry(key)
                assert found is not None
                assert found.value == value
                return
            except CoordinatorError:
                continue


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_server_that_was_killed_is_followed_again_without_threads_or_haste(
    one: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[Any] = []

    def counted(channels: EtcdChannels, ask: Any, until: float) -> Any:
        attempts.append(ask)
        return attempt(channels, ask, until)

    attempt = EtcdChannels.attempt
    monkeypatch.setattr(EtcdChannels, "attempt", counted)

    async def check() -> None:
        coordinator = await opened(*one.endpoints)
        revision = await coordinator.write([Write("names/a", "1")])
        # One that keeps the lease, or asks for a sign of life, begins with the first third of a lease.
        await eventually(
            lambda: any(each.name.startswith("etcd-lease") for each in threading.enumerate()), "it asks"
        )
        threads = threading.active_count()
        one.servers[0].kill()
        attempts.clear()
        with pytest.raises(CoordinatorError, match="does not answer"):
            await coordinator.write([Write("names/b", "1")])
        assert coordinator.news(revision) is None
        with pytest.raises(CoordinatorError, match=r"does not answer .*nothing was written") as failed:
            await coordinator.write([Write("names/b", "1")])
        assert not failed.value.may_be_written
        assert threading.active_count() <= threads + 2
        assert len(attempts) <= ATTEMPTS_MAX
        one.start()
        await written(coordinator, "names/b", "2")
        await eventually(lambda: coordinator.news(revision), "the change is seen")
        assert [each.key for each in await coordinator.entries("names/")] == ["names/a", "names/b"]
        assert threading.active_count() <= threads + 2
        await coordinator.close()

    before = threading.active_count()
    run(check())
    until(lambda: threading.active_count() <= before, "all threads have ended")


def test_who_finds_no_server_says_where_it_looked(one: EtcdCluster) -> None:
    async def check() -> None:
        one.close()
        with pytest.raises(CoordinatorError, match=f"etcd at {one.endpoints[0]} does not answer"):
            await EtcdCoordinator.open(EtcdSettings(one.endpoints), wait_s=0.5)

    run(check())


def test_a_server_that_hangs_is_left_for_another_one(three: EtcdCluster) -> None:
    async def check() -> None:
        first, *others = three.servers
        follower = await opened(first.endpoint, *(server.endpoint for server in others))
        writer = await opened(*(server.endpoint for server in others))
        await writer.write([Write("names/a", "1")])
        await eventually(lambda: "names/a" in keys(follower), "the follower follows")
        first.stop()
        await written(writer, "names/b", "1")
        # The hanging server goes on only afterwards.
        await eventually(lambda: "names/b" in keys(follower), "it follows another server")
        await written(follower, "names/c", "1")
        first.proceed()
        await writer.close()
        await follower.close()

    run(check())


def keys(coordinator: EtcdCoordinator) -> set[str]:
    news = coordinator.news(0)
    assert news is not None
    return {entry.key for entry in news.entries}


def test_writes_go_on_when_the_leader_is_killed(three: EtcdCluster) -> None:
    async def check() -> None:
        leader = three.leader()
        coordinator = await opened(leader.endpoint, *three.endpoints)
        await coordinator.set_shards(2)
        leader.kill()
        # A call that finds no leader in its time fails.
        for number in range(10):
            await coordinator.place(f"q{number}")
        assert len(await coordinator.placements()) == 10
        await coordinator.close()

    run(check())


def test_while_a_server_hangs_only_writes_and_one_refresh_have_threads(one: EtcdCluster) -> None:
    """More writes than threads for them, and refreshes of the lease, that all run into their time-outs."""

    def threads() -> Counter[str]:
        ours = [each for each in threading.enumerate() if each not in others]
        # gRPC's have the function that they run in their name.
        return Counter(each.name.rpartition("(")[2].strip("0123456789-_)") for each in ours)

    async def main() -> None:
        (server,) = one.servers
        coordinator = await opened(server.endpoint)
        await coordinator.register("shards/0", "here", lambda _: None)
        server.stop()
        most: Counter[str] = Counter()
        refused = 0
        writes: set[asyncio.Task[int]] = set()
        while refused < 4 * limits.ETCD_THREADS:
            while len(writes) < 2 * limits.ETCD_THREADS:
                writes.add(asyncio.create_task(coordinator.write([Write(f"names/{refused}", "", None)])))
            done, writes = await asyncio.wait(writes, timeout=0.01)
            refused += len(done)
            for each in done:
                assert isinstance(each.exception(), CoordinatorError)
            most |= threads()
        server.proceed()
        await asyncio.gather(*writes, return_exceptions=True)
        await coordinator.close()
        assert most.pop("etcd-write") == limits.ETCD_THREADS
        assert most.pop("etcd-watch") == 1
        assert most.pop("etcd-lease") == 1
        streams = 2
        """The watch, and a refresh of the lease."""
        assert 0 < most.total() <= streams * limits.ETCD_STREAM_THREADS, most

    others = set(threading.enumerate())
    run(main())


def test_what_was_compacted_while_a_process_was_away_is_listed_again(three: EtcdCluster) -> None:
    async def check() -> None:
        first, second, _ = three.servers
        follower = await opened(first.endpoint)
        writer = await opened(second.endpoint)
        await writer.write([Write("names/a", "1"), Write("names/b", "1")])
        await eventually(lambda: keys(follower) == {"names/a", "names/b"}, "it follows")
        news = follower.news(0)
        assert news is not None
        first.kill()
        await written(writer, "names/c", "1")
        for number in range(20):
            await writer.write([Write("names/a", None) if number == 19 else Write("names/c", str(number))])
        second.compact()
        first.start()
        await eventually(lambda: follower.news(news.revision), "it listed again")
        later = follower.news(news.revision)
        assert later is not None
        assert not later.whole
        assert {(each.key, each.value) for each in later.entries} == {("names/a", None), ("names/c", "18")}
        await writer.close()
        await follower.close()

    run(check())


def test_a_lease_that_was_lost_is_made_again(one: EtcdCluster) -> None:
    async def check() -> None:
        coordinator = await opened(*one.endpoints)
        displaced: list[str] = []
        await coordinator.register("shards/0", '{"boot":1}', displaced.append)
        server = one.servers[0]
        (lease,) = server.control("lease", "list").stdout.split()[3:]
        assert server.control("lease", "revoke", lease).returncode == 0
        await eventually(lambda: "shards/0" not in keys(coordinator), "it is gone")
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
import asyncio, sys, tests.contracts.test_etcd as t
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


def test_nothing_is_missed_while_servers_come_and_go(three: EtcdCluster) -> None:
    async def check() -> None:
        writer = await opened(*three.endpoints)
        follower = await opened(*reversed(three.endpoints))
        known: dict[str, str] = {}
        revision = 0

        def look() -> None:
            nonlocal revision
            news: News | None = follower.news(revision)
            if news is None:
                return
            if news.whole:
                known.clear()
            for entry in news.entries:
                known.pop(entry.key, None)
                if entry.value is not None:
                    known[entry.key] = entry.value
            revision = news.revision

        follower.on_news(look)
        done = False

        async def faults() -> None:
            while not done:
                for server in three.servers:
                    server.kill()
                    await asyncio.sleep(0.4)
                    server.start()
                    await asyncio.to_thread(three.ready)

        async def write() -> None:
            for number in range(90):
                await written(writer, f"names/{number}", str(number))
                if number % 3 == 0:
                    await deleted(writer, f"names/{number}")
                await asyncio.sleep(0.02)

        task = asyncio.create_task(faults())
        await write()
        done = True
        await task
        there = three.servers[0].control("get", "--prefix", "/lightrail/lightrail/names/").stdout.split()
        expected = {key.removeprefix("/lightrail/lightrail/"): value for key, value in pairs(there)}
        assert len(expected) == 60
        await eventually(lambda: known == expected, "the follower knows what is there")
        await writer.close()
        await follower.close()

    run(check())


async def deleted(coordinator: EtcdCoordinator, key: str) -> None:
    """Tries until etcd answers: the view may not have what was written a moment ago."""
    async with asyncio.timeout(20):
        while True:
            try:
                await coordinator.write([Write(key, None)])
                return
            except CoordinatorError:
                continue


def pairs(lines: list[str]) -> Iterator[tuple[str, str]]:
    return zip(lines[::2], lines[1::2], strict=True)


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


# --- an etcd that was set back -----------------------------------------------------------------------------


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


def test_what_was_lost_is_put_back_and_everybody_goes_on(one: EtcdCluster, tmp_path: Path) -> None:
    async def check() -> None:
        (server,) = one.servers
        first, second = await opened(*one.endpoints), await opened(*one.endpoints)
        displaced: list[str] = []
        await first.set_shards(2)
        await first.write([Write("names/deleted", "1")])
        server.save(tmp_path / "snapshot")
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
        started = await opened(*one.endpoints)
        await started.write([Write("names/made", "2")])
        done = await first.put_back()
        assert [each.key for each in done.writes] == ["names/q", "placement/q"]
        assert (done.kept, sorted(done.again)) == ([], ["names/deleted", "names/made"])
        for each in (first, second, started):
            await eventually(partial(goes_on, each), "it goes on")
            await eventually(partial(has_everything, each), "it has everything")
            assert await each.placement("q") == placed
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


def test_what_can_not_be_read_in_etcd_ends_nothing(one: EtcdCluster) -> None:
    async def check() -> None:
        coordinator = await opened(*one.endpoints)
        await coordinator.set_shards(1)
        before = await coordinator.place("q")
        assert await coordinator.placement("q") == before
        for key, value in (("placement/q", "{"), ("shards/x", "{}"), ("names/\udcff", "\udcff"), ("z", "")):
            assert one.servers[0].control("put", f"/lightrail/lightrail/{key}", value).returncode == 0
        await eventually(lambda: "z" in keys(coordinator), "it follows")
        # Who has read it before stays with that; who has not can't place it anew.
        assert await coordinator.place("q") == before
        again = await opened(*one.endpoints)
        placed = await asyncio.gather(again.place("q"), again.place("r"), return_exceptions=True)
        assert isinstance(placed[0], ConflictError)
        assert placed[1] == await again.placement("r")
        assert placed[1].shard == 0
        await again.close()
        await coordinator.close()

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


def test_tls_with_certificates_and_a_user(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    server = authority.sign("server", "DNS:localhost", "IP:127.0.0.1")
    # etcd takes the common name of a client's certificate for its user, unless it logs in with a password.
    client = authority.sign("client")
    secured = EtcdCluster(tmp_path, 1, PINGS, "--auth-token=simple")
    secured.secure(authority.path, server.certificate, server.key, client.certificate, client.key)

    async def check() -> None:
        files: dict[str, Any] = {"ca": authority.path, "certificate": client.certificate, "key": client.key}
        coordinator = await opened(*secured.endpoints, **files, user="root", password="secret")
        await coordinator.write([Write("names/a", "1")])
        # The server forgets its tokens: it is logged in anew.
        secured.servers[0].kill()
        secured.start()
        await written(coordinator, "names/b", "1")
        await coordinator.close()
        with pytest.raises(CoordinatorError, match="authentication failed"):
            await opened(*secured.endpoints, **files, user="root", password="wrong")
        with pytest.raises(CoordinatorError, match="certificate for etcd can't be read"):
            await opened(*secured.endpoints, ca=str(tmp_path / "absent.pem"))

    try:
        secured.start()
        for command in ("user add root:secret", "user grant-role root root", "auth enable"):
            done = secured.servers[0].control(*command.split())
            assert done.returncode == 0, done.stderr
        for each in secured.servers:
            each.login = "root:secret"
        run(check())
    finally:
        secured.close()


def test_a_renewed_certificate_is_read_when_etcd_refuses_the_former_one(tmp_path: Path) -> None:
    former, renewed = Authority(tmp_path / "former"), Authority(tmp_path / "renewed")
    server = former.sign("server", "DNS:localhost", "IP:127.0.0.1")
    files, other = former.sign("client"), renewed.sign("client")
    secured = EtcdCluster(tmp_path, 1, PINGS)
    secured.secure(former.path, server.certificate, server.key, files.certificate, files.key)

    async def check() -> None:
        coordinator = await opened(
            *secured.endpoints, ca=former.path, certificate=files.certificate, key=files.key
        )
        await coordinator.write([Write("names/a", "1")])
        secured.close()
        secured.secure(former.path, server.certificate, server.key, other.certificate, other.key)
        secured.servers[0].server_files += (f"--trusted-ca-file={renewed.path}",)
        secured.start()
        with pytest.raises(CoordinatorError, match="does not answer"):
            await coordinator.write([Write("names/b", "1")])
        shutil.copy(other.certificate, files.certificate)
        shutil.copy(other.key, files.key)
        await written(coordinator, "names/b", "1")
        await coordinator.close()

    try:
        secured.start()
        run(check())
    finally:
        secured.close()


def signature(name: str, key: str, resource: str) -> str:
    sr = quote_plus(resource)
    digest = hmac.digest(key.encode(), f"{sr}\n99999999999".encode(), "sha256")
    sig = quote_plus(base64.b64encode(digest).decode())
    return f"{PREFIX}sr={sr}&sig={sig}&se=99999999999&skn={name}"


def test_strangers_with_wrong_signatures_make_few_calls_and_a_new_key_is_good_at_once(
    one: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    ranges = EtcdClient.get_all

    def counted(client: EtcdClient, keys: Any, until: float) -> Any:
        calls.append(len(keys))
        return ranges(client, keys, until)

    monkeypatch.setattr(EtcdClient, "get_all", counted)

    async def check() -> None:
        here, there = await opened(*one.endpoints), await opened(*one.endpoints)
        directory, secret = Directory(here), await here.secret()
        service = Service(there, Directory(there))

        async def sign(name: str, resource: str) -> Any:
            found = signatures.read(signature(name, "k" * 44, resource), 0)
            return await signatures.signer(here, directory, secret, found)

        strangers = [
            asyncio.create_task(sign("stranger", f"sb://broker/{name}{number}"))
            for number in range(150)
            for name in ("q", "unknown", "unknown")
        ]
        key = rule_keys.seal(secret, "send", "k" * 44)
        rule = AuthorizationRule("send", frozenset({Right.SEND}), key, key)
        await service.give(ANYBODY, "new", Policy.parse({"role": "router"}), rules=(rule,))
        found = await sign("send", "sb://broker/new")
        assert isinstance(found, RuleKey)
        for each in await asyncio.gather(*strangers, return_exceptions=True):
            assert isinstance(each, InvalidTokenError)
        assert sum(calls) <= 2 * 150 + 1
        assert len(calls) <= 6
        one.servers[0].kill()
        assert isinstance(await sign("send", "sb://broker/new"), RuleKey), "what is known needs no reading"
        with pytest.raises(CoordinatorError, match="does not answer"):
            await sign("other", "sb://broker/new")
        await there.close()
        await here.close()

    run(check())


def test_without_users_clients_of_this_machine_log_in_while_etcd_is_away(one: EtcdCluster) -> None:
    async def check() -> None:
        coordinator = await opened(*one.endpoints)
        authenticator = Authenticator(coordinator, Settings())
        await authenticator.refresh()
        one.servers[0].kill()
        for mechanism, response in (("ANONYMOUS", b""), ("PLAIN", b"\0user\0any password")):
            step = await authenticator.begin_for("127.0.0.1", tls=False).start(mechanism, response)
            assert step.user is not None, step
        callers = Callers(coordinator, Settings())
        await callers.refresh()
        assert not callers.has_users
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
