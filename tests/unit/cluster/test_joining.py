"""What a process waits for at its start, what it gives up at, and under which address it is known."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from lightrail.cluster import membership
from lightrail.cluster.coordinator import CoordinatorError, CoordinatorRefusedError, Write
from lightrail.cluster.joining import Joining, advertised, patiently, reachable_metrics
from lightrail.cluster.map import FRONTENDS, Member
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.opening import open_coordinator, open_to_strangers
from lightrail.model import limits
from lightrail.model.endpoint import endpoint
from lightrail.model.settings import Settings
from lightrail.telemetry.process import CannotServeError, Process, StoppedError
from tests.support.services import DyingCoordinator

CLUSTER = Settings(etcd=(endpoint("127.0.0.1:1"),))


def process(settings: Settings = CLUSTER) -> Process:
    return Process("shard", None, settings, "/sockets")


class Answers:
    """What the coordinator says, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def __call__(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COORDINATOR_PAUSE_MS", 1)
    monkeypatch.setattr(limits, "COORDINATOR_PAUSE_MS_MAX", 2)


def test_a_coordinator_that_is_away_is_asked_again_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def story() -> None:
        one = process()
        away = [CoordinatorError("nobody there")] * 5
        assert await patiently(one, Answers(*away, "here")) == "here"
        assert one.waiting is None

    asyncio.run(story())
    assert [each.getMessage() for each in caplog.records] == [
        "waiting for etcd at 127.0.0.1:1, cluster lightrail: nobody there",
        "etcd at 127.0.0.1:1, cluster lightrail has answered",
    ]


def test_who_stands_in_for_a_dead_process_waits_while_its_entry_can_not_be_read() -> None:
    async def story() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.write([Write("frontends/2", "no JSON")])
        one = Process("frontend", 2, CLUSTER, "/sockets")
        one.replaces = 5
        task = asyncio.ensure_future(Joining(one, coordinator, None).take_number(FRONTENDS))
        async with asyncio.timeout(10):
            while "frontends/2 can't be read" not in (one.waiting or ""):
                await asyncio.sleep(0)
                assert not task.done()
            await coordinator.write([Write("frontends/2", Member(2, 5).encode())])
            await task
        found = membership.member_of(await coordinator.entry("frontends/2"))
        assert found is not None
        assert found.boot == one.boot

    asyncio.run(story())


def test_a_process_registers_over_the_entry_that_its_dead_predecessor_wrote_meanwhile() -> None:
    async def story() -> None:
        coordinator = DyingCoordinator()
        one = Process("shard", 2, CLUSTER, "/sockets")
        joining = Joining(one, coordinator, None)
        await joining.until_free("shards/2", dead=5)

        async def arrives() -> None:
            await coordinator.write([Write("shards/2", Member(2, 5).encode(), 0)])

        coordinator.meanwhile = arrives
        await joining.register("shards/2", address="tcp://here")
        found = membership.member_of(await coordinator.entry("shards/2"))
        assert found is not None
        assert (found.boot, found.address) == (one.boot, "tcp://here")
        # The process changes its own entry, which it may.
        await joining.register(address="tcp://there")
        assert not one.stopping.is_set()

    asyncio.run(story())


def test_a_process_does_not_register_over_one_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ETCD_LEASE_MS", 0)
    monkeypatch.setattr(membership, "LEASE_MARGIN_MS", 0)

    async def story() -> None:
        coordinator = MemoryCoordinator()
        joining = Joining(Process("shard", 2, CLUSTER, "/sockets"), coordinator, None)
        await joining.until_free("shards/2")
        await coordinator.register("shards/2", Member(2, 5, host="there").encode(), lambda _: None)
        with pytest.raises(CannotServeError, match="held by a living process on host 'there'"):
            await joining.register("shards/2")

    asyncio.run(story())


def test_readyz_says_what_is_waited_for() -> None:
    async def story() -> None:
        one = process()
        seen: list[str | None] = []

        async def work() -> str:
            seen.append(one.not_ready())
            if len(seen) < 2:
                raise CoordinatorError("nobody there")
            return "here"

        await patiently(one, work)
        assert seen == [
            "starting",
            "starting: waiting for etcd at 127.0.0.1:1, cluster lightrail: nobody there",
        ]

    asyncio.run(story())


def test_what_refuses_is_not_asked_again() -> None:
    async def story() -> None:
        with pytest.raises(CannotServeError, match="wrong password"):
            await patiently(process(), Answers(CoordinatorRefusedError("wrong password")))
        # A file does not get better by waiting.
        with pytest.raises(CannotServeError, match="another program's"):
            await patiently(process(Settings()), Answers(CoordinatorError("another program's")))

    asyncio.run(story())


def test_who_waits_stops_when_told_to() -> None:
    async def story() -> None:
        one = process()
        waiting = asyncio.ensure_future(patiently(one, asyncio.Event().wait))
        await asyncio.sleep(0)
        one.stopping.set()
        with pytest.raises(StoppedError):
            await waiting

    asyncio.run(story())


def test_the_address_that_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "name")

    def told(wire: str, advertise: str | None = None) -> str:
        return advertised(Settings(wire=endpoint(wire), advertise=advertise))

    assert told("127.0.0.1:0") == "127.0.0.1"
    assert told("10.0.0.1:5680") == "10.0.0.1"
    assert told("0.0.0.0:5680") == "name"
    assert told("[::]:5680") == "name"
    assert told("0.0.0.0:5680", "shard.example") == "shard.example"


def test_the_address_of_metrics_that_others_are_told() -> None:
    def told(wire: str, bound: str, *, etcd: bool = True) -> str:
        settings = Settings(wire=endpoint(wire), etcd=CLUSTER.etcd if etcd else ())
        return reachable_metrics(settings, endpoint(bound))

    assert told("127.0.0.1:0", "0.0.0.0:9100", etcd=False) == "127.0.0.1:9100"
    assert told("127.0.0.1:0", "0.0.0.0:9100") == "127.0.0.1:9100"
    assert told("10.0.0.1:0", "0.0.0.0:9100") == "10.0.0.1:9100"
    assert told("10.0.0.1:0", "10.0.0.2:9100") == "10.0.0.2:9100"
    assert told("10.0.0.1:0", "127.0.0.1:9100") == "127.0.0.1:9100"


def test_nobody_gets_in_from_outside_without_users_unless_that_is_meant() -> None:
    outside = Settings(amqp=endpoint("0.0.0.0:5672"), data="/data")
    assert open_to_strangers(Settings(), False) is None
    assert open_to_strangers(outside, True) is None
    assert open_to_strangers(Settings(amqp=outside.amqp, insecure_no_users=True), False) is None
    assert "lightrail-admin --data /data user add" in str(open_to_strangers(outside, False))
    cluster = Settings(amqp=outside.amqp, etcd=CLUSTER.etcd, cluster="other")
    assert "lightrail-admin --etcd 127.0.0.1:1 --cluster other user" in str(open_to_strangers(cluster, False))


def test_a_password_file_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "absent")
    settings = Settings(etcd=CLUSTER.etcd, etcd_user="u", etcd_password_file=path)
    with pytest.raises(CoordinatorRefusedError, match="the password file of etcd"):
        asyncio.run(open_coordinator(settings))


def test_a_wire_that_others_reach_is_not_joined_without_a_key() -> None:
    settings = Settings(etcd=CLUSTER.etcd, wire=endpoint("0.0.0.0:5680"))
    with pytest.raises(CannotServeError, match=r"has no key.*lightrail wire-key FILE"):
        asyncio.run(Joining.begin(process(settings)))
