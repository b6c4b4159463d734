"""The disk is full: senders are refused with a condition, receivers go on, and it ends by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightrail.model import conditions
from tests.chaos.disk import SmallDisk, mounted
from tests.chaos.ledger import Ledger
from tests.chaos.scene import Scene
from tests.chaos.service import Service
from tests.chaos.traffic import Receiver, Sender
from tests.support import wait

pytestmark = pytest.mark.timeout(150)
FLAGS = ("--segment-bytes", "1MiB")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "data", 32) as small:
        yield small


def fill_until_refused(scene: Scene, disk: SmallDisk) -> None:
    """Takes the space again and again, also what the cleaner frees, until every sender has been refused."""
    before = [sum(sender.rejections.values()) for sender in scene.senders]

    def refused() -> bool:
        disk.fill()
        return all(
            sum(sender.rejections.values()) > known
            for sender, known in zip(scene.senders, before, strict=True)
        )

    wait.until(refused, "senders are refused")


def test_disk_filled_by_others(disk: SmallDisk) -> None:
    """In traffic the space goes, and comes back."""
    with Scene(disk.path, *FLAGS) as scene:
        scene.warm()
        for _ in range(2):
            scene.calm.disturb()
            fill_until_refused(scene, disk)
            # What was accepted still comes out while the disk is full.
            for ledger in scene.ledgers:
                wait.until_with(ledger, lambda ledger: not ledger.lost, "what is stored arrives")
            disk.free()
            scene.recovered()
        scene.finish()
        for sender in scene.senders:
            assert set(sender.rejections) == {conditions.RESOURCE_LIMIT_EXCEEDED}
        for worker in scene.workers:
            assert worker.connections == 1, f"{worker.name}: {dict(worker.losses)}"
        assert scene.service.starts == 1


def test_kill_shard_on_full_disk(disk: SmallDisk) -> None:
    """The shard is killed while there is no space: it starts, delivers, and takes messages when there is."""
    with Scene(disk.path, *FLAGS) as scene:
        scene.warm()
        scene.calm.disturb()
        fill_until_refused(scene, disk)
        scene.service.kill("shard")
        scene.service.find("shard")
        for ledger in scene.ledgers:
            wait.until_with(ledger, lambda ledger: not ledger.lost, "what is stored arrives")
        disk.free()
        scene.recovered()
        scene.finish()


def test_kill_everything_on_full_disk(disk: SmallDisk) -> None:
    """Everything is killed while there is no space, and comes back when there is."""
    with Scene(disk.path, *FLAGS) as scene:
        scene.warm()
        scene.calm.disturb()
        fill_until_refused(scene, disk)
        scene.service.kill_everything()
        starts = scene.service.starts
        wait.until(lambda: scene.service.starts > starts, "the service manager starts it again")
        disk.free()
        scene.recovered()
        scene.finish()


def test_disk_filled_by_messages(disk: SmallDisk) -> None:
    """Nobody receives until senders are refused; then receivers make room, and sending goes on."""
    ledger = Ledger()
    with Service(disk.path, *FLAGS) as service:
        with Sender(service.where, "q", ledger, number=1, size=1_000) as sender:
            wait.until(lambda: sender.rejections or sender.failure, "the sender is refused")
            stored = sender.page.accepted
            assert stored > 10_000, "of 32 MB, much less than a third was used"
            ledger.calm.disturb()
            with Receiver(service.where, "q", ledger) as receiver:
                wait.until(lambda: not ledger.lost, "what is stored arrives")
                sender.until_accepted(stored)
                ledger.calm.settle()
                sender.finish()
                wait.until(lambda: not ledger.lost, "everything arrives")
                receiver.finish()
            print(f"{stored} of 1000 bytes were stored in 32 MB; {ledger.summary()}; {sender.rejections}")
            assert set(sender.rejections) == {conditions.RESOURCE_LIMIT_EXCEEDED}
            assert sender.connections == 1
            ledger.verdict()
        assert "Traceback" not in service.said()
