"""The coordinator in etcd while real servers are killed, stopped and started again, and what they refuse."""

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, Write
from lightrail.cluster.entries import News
from lightrail.cluster.etcd.channels import EtcdChannels, EtcdSettings
from lightrail.cluster.etcd.coordinator import EtcdCoordinator
from lightrail.model import limits
from tests.contracts.etcd_scene import PINGS, eventually, keys, opened, run
from tests.support.certificates import Authority
from tests.support.deploy.etcd import EtcdCluster
from tests.support.wait import until

ATTEMPTS_MAX = 100
"""Attempts that reach no server while two writes wait for it in vain; without pauses they are thousands."""


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
