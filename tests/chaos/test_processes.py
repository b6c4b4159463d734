"""Processes are killed and stopped under full load: nothing accepted is lost, and all goes on by itself."""

import os
import signal
import time
from pathlib import Path

import pytest

from lightrail.model import conditions
from tests.chaos.scene import Scene, hold
from tests.support import wait

FREEZE_S = 10.0

pytestmark = pytest.mark.timeout(150)


def test_kill_shard(tmp_path: Path) -> None:
    """The frontends keep what has no answer and say it again: no client loses its connection."""
    with Scene(tmp_path / "data") as scene:
        scene.warm()
        for _ in range(2):
            scene.calm.disturb()
            scene.service.kill("shard")
            scene.recovered()
        scene.finish()
        for worker in scene.workers:
            assert worker.connections == 1, f"{worker.name}: {dict(worker.losses)}"
        for ledger in scene.ledgers:
            assert not ledger.in_doubt


def test_kill_frontend(tmp_path: Path) -> None:
    """Clients lose their connection, connect again and go on."""
    with Scene(tmp_path / "data") as scene:
        scene.warm()
        for _ in range(2):
            scene.calm.disturb()
            scene.service.kill("frontend")
            scene.recovered()
        scene.finish()


def test_kill_one_frontend_of_two(tmp_path: Path) -> None:
    """Clients of the other frontend do not notice, with queues on two shards."""
    with Scene(tmp_path / "data", "--frontends", "2", "--shards", "2", pairs=4, strict=False) as scene:
        scene.warm()
        for number in (0, 1):
            scene.calm.disturb()
            scene.service.kill("frontend", number)
            scene.recovered()
        scene.finish()


def test_kill_one_shard_of_two(tmp_path: Path) -> None:
    """Queues of the other shard go on meanwhile."""
    with Scene(tmp_path / "data", "--shards", "2", pairs=4) as scene:
        scene.warm()
        scene.calm.disturb()
        scene.service.kill("shard", 1)
        scene.recovered()
        scene.finish()
        for worker in scene.workers:
            assert worker.connections == 1, f"{worker.name}: {dict(worker.losses)}"


def test_kill_gateway(tmp_path: Path) -> None:
    """Nobody who sends or receives notices."""
    with Scene(tmp_path / "data") as scene:
        scene.warm()
        scene.service.kill("gateway")
        scene.recovered()
        scene.service.find("gateway")
        scene.finish()
        for ledger in scene.ledgers:
            assert not ledger.again


def test_kill_supervisor(tmp_path: Path) -> None:
    """Its children notice, tell their clients and end; the service manager starts it on the same data."""
    with Scene(tmp_path / "data") as scene:
        scene.warm()
        children = scene.service.everyone()[1:]
        scene.calm.disturb()
        scene.service.kill("supervisor")
        scene.recovered()
        for pid in children:
            assert wait.gone(pid), "a process of the former instance still runs"
        scene.finish()
        for worker in scene.workers:
            assert conditions.CONNECTION_FORCED in worker.conditions, f"{worker.name}: {dict(worker.losses)}"


def test_kill_everything(tmp_path: Path) -> None:
    """All processes at once, as when the machine fails."""
    with Scene(tmp_path / "data") as scene:
        scene.warm()
        for _ in range(2):
            scene.calm.disturb()
            scene.service.kill_everything()
            scene.recovered()
        scene.finish()


@pytest.mark.parametrize("role", ["shard", "frontend"])
def test_freeze(tmp_path: Path, role: str) -> None:
    """A process stands still for 10 s and goes on: no client loses its connection, no message is lost."""
    with Scene(tmp_path / "data") as scene:
        scene.warm()
        scene.calm.disturb()
        with scene.service.frozen(role):
            hold(FREEZE_S)
        scene.recovered()
        scene.finish()
        for worker in scene.workers:
            assert worker.connections == 1, f"{worker.name}: {dict(worker.losses)}"
        assert scene.service.starts == 1


def test_freeze_longer_than_the_idle_time_out(tmp_path: Path) -> None:
    """It was the frontend that stood still, not its clients: what they said waits in their sockets."""
    with Scene(tmp_path / "data", "--idle-timeout", "2s", rate=5_000) as scene:
        scene.warm()
        scene.calm.disturb()
        with scene.service.frozen("frontend"):
            hold(3.0)
        scene.recovered()
        scene.finish()
        for worker in scene.workers:
            assert worker.connections == 1, f"{worker.name}: {dict(worker.losses)}"


def test_freeze_one_frontend_of_two(tmp_path: Path) -> None:
    """What the frozen frontend's receivers held goes to others; what they settle afterwards does no harm."""
    with Scene(tmp_path / "data", "--frontends", "2", pairs=4, rate=10_000, strict=False) as scene:
        scene.warm()
        scene.calm.disturb()
        with scene.service.frozen("frontend", 1):
            hold(FREEZE_S)
        scene.recovered()
        scene.finish()


def terminated(tmp_path: Path) -> float:
    """SIGTERM: connections close with amqp:connection:forced, the status is 0, a new start finds everything.

    Nothing counts as a failed delivery: all of it would become a dead letter and not arrive.

    Returns:
        The longest time from the signal to the end of the broker, in seconds.
    """
    slowest = 0.0
    with Scene(tmp_path / "data", "--max-delivery-count", "1") as scene:
        scene.warm()
        for _ in range(2):
            scene.calm.disturb()
            begun = time.monotonic()
            ended = len(scene.service.exits)
            os.kill(scene.service.supervisor, signal.SIGTERM)
            wait.until_with(ended, lambda ended: len(scene.service.exits) > ended, "the broker ends")
            slowest = max(slowest, time.monotonic() - begun)
            scene.recovered()
        scene.finish()
        for ledger in scene.ledgers:
            assert not ledger.unmarked, f"what came again is not marked: {ledger.summary()}"
        assert scene.service.exits[:2] == [0, 0]
        for worker in scene.workers:
            assert worker.conditions[conditions.CONNECTION_FORCED] == 2, (
                f"{worker.name}: {dict(worker.losses)}"
            )
    return slowest


def test_terminate_in_traffic(tmp_path: Path) -> None:
    terminated(tmp_path)


@pytest.mark.soak
def test_an_orderly_end_in_traffic_takes_less_than_five_seconds(tmp_path: Path) -> None:
    assert terminated(tmp_path) < 5.0


def test_terminate_with_frozen_shard(tmp_path: Path) -> None:
    """A shard that does not answer holds up the end, but clients are still told."""
    with Scene(tmp_path / "data") as scene:
        scene.warm()
        scene.calm.disturb()
        with scene.service.frozen("shard"):
            os.kill(scene.service.supervisor, signal.SIGTERM)
            for worker in scene.workers:
                wait.until_with(
                    worker,
                    lambda worker: worker.conditions[conditions.CONNECTION_FORCED],
                    f"{worker.name} is told",
                )
        scene.recovered()
        scene.finish()
        assert scene.service.exits[0] == 0
