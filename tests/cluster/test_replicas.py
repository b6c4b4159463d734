"""Shards with replicas as processes: a disk or a machine is lost, and nothing else is."""

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import lightrail.client.sync
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node

QUEUE = "ledger"
MEMBERS = 3


class Ledger(threading.Thread):
    """Sends numbers, each after the one before was accepted; then everything accepted has to be there."""

    def __init__(self, amqp: str) -> None:
        super().__init__(daemon=True)
        self.accepted = 0
        self.error: BaseException | None = None
        self._amqp = amqp
        self._ends = threading.Event()

    def run(self) -> None:
        try:
            with lightrail.client.sync.connect(self._amqp) as connection:
                sender = connection.sender(QUEUE, resume=int(wait.DEADLINE_S))
                while not self._ends.is_set():
                    sender.send({"number": self.accepted})
                    self.accepted += 1
        except BaseException as error:
            self.error = error

    def more(self, count: int = 50) -> None:
        """Waits until so many more were accepted."""
        wanted = self.accepted + count
        wait.until(lambda: self.accepted >= wanted or self.error, f"{count} more messages are accepted")
        assert self.error is None, self.error

    def stop(self) -> None:
        """Ends sending."""
        self._ends.set()
        self.join(wait.DEADLINE_S)
        assert self.error is None, self.error

    def finish(self) -> None:
        """Ends sending, and receives all: what was accepted is there, once, and in order."""
        self.stop()
        with lightrail.client.sync.connect(self._amqp) as connection:
            receiver = connection.receiver(QUEUE, resume=int(wait.DEADLINE_S))
            found: list[int] = []
            while len(found) < self.accepted:
                delivery = next(iter(receiver))
                found.append(delivery.message.body["number"])
                delivery.accept()
        assert found == list(range(self.accepted)), Counter(found) - Counter(range(self.accepted))


class Shard:
    """A shard with three members, each a process with a directory of its own."""

    def __init__(self, cluster: Cluster, *inside: tuple[str, ...]) -> None:
        self.cluster = cluster
        places = [*inside, *[()] * (MEMBERS - len(inside))]
        self.nodes = [
            cluster.shard(
                "--id", "0", "--replicas", str(MEMBERS), "--replica-host", f"host-{index}", inside=place
            )
            for index, place in enumerate(places)
        ]

    def entry(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster.keys("replicas/")["replicas/0"])
        return found

    def until_in_sync(self, count: int = MEMBERS) -> None:
        wait.until(lambda: len(self.entry()["in_sync"]) == count, f"{count} members are in sync")

    def owner(self) -> Node:
        entry = self.entry()
        return self.nodes[int(entry["members"][entry["owner"]]["host"].rpartition("-")[2])]


@pytest.mark.timeout(180)
def test_owners_are_killed_and_their_disks_removed_and_nothing_is_lost(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard = Shard(cluster)
        frontend = cluster.frontend()
        cluster.start()
        shard.until_in_sync()
        ledger = Ledger(frontend.amqp)
        ledger.start()
        ledger.more()
        for _ in range(MEMBERS):
            owner = shard.owner()
            owner.kill()
            shutil.rmtree(owner.data)
            ledger.more()
            owner.start()
            shard.until_in_sync()
        ledger.more()
        ledger.finish()
        assert shard.entry()["epoch"] >= 1 + MEMBERS


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_an_owner_that_stands_still_is_replaced_and_follows_when_it_goes_on(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard = Shard(cluster)
        frontend = cluster.frontend()
        cluster.start()
        shard.until_in_sync()
        ledger = Ledger(frontend.amqp)
        ledger.start()
        ledger.more()
        owner = shard.owner()
        owner.stop()
        ledger.more()
        assert shard.owner() is not owner
        owner.proceed()
        assert owner.ended() == 1
        ledger.more()
        owner.start()
        shard.until_in_sync()
        ledger.finish()


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_a_member_that_ends_in_order_disturbs_nobody(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard = Shard(cluster)
        frontend = cluster.frontend()
        cluster.start()
        shard.until_in_sync()
        ledger = Ledger(frontend.amqp)
        ledger.start()
        ledger.more()
        for node in shard.nodes:
            node.restart()
            ledger.more()
            shard.until_in_sync()
        ledger.finish()
