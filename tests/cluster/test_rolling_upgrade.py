"""A cluster is upgraded from the last release one process at a time, in either order, while clients go on.

Afterwards a shard that the last release has made gets a replica, which takes over.

The last release is the newest tag, or the commit below while there is none, from the repository's history.
"""

import asyncio
import json
import subprocess
import threading
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

import lightrail.client
from lightrail.client import ClientError
from tests.support import wait
from tests.support.broker import ROOT
from tests.support.deploy.cluster import Cluster

WITHOUT_TAG = "3471169b"
QUEUES = ("a", "b", "c", "d")
MORE = 20
"""Messages that go through each queue after each step."""
ATTEMPT_S = 5.0
"""How long a client waits for an answer before it connects again."""


def last_release() -> str:
    found = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0"], cwd=ROOT, capture_output=True, text=True
    )
    return found.stdout.strip() or WITHOUT_TAG


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of the last release."""
    folder = tmp_path_factory.mktemp("former")
    archive = subprocess.run(["git", "archive", last_release(), "lightrail"], cwd=ROOT, capture_output=True)
    assert archive.returncode == 0, f"expected a clone with its history: {archive.stderr.decode()}"
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    return folder


class Load:
    """A sender and a receiver of each queue, on a thread; each connects again wherever it can."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._ending = threading.Event()
        self.accepted: dict[str, set[str]] = {queue: set() for queue in QUEUES}
        self.received: dict[str, set[str]] = {queue: set() for queue in QUEUES}
        self.failures: list[str] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()

    def goes_on(self, after: str) -> None:
        """Waits until every queue has accepted and delivered MORE messages."""
        before = {queue: (len(self.accepted[queue]), len(self.received[queue])) for queue in QUEUES}

        def gone() -> bool:
            return all(
                len(self.accepted[queue]) >= sent + MORE and len(self.received[queue]) >= got + MORE
                for queue, (sent, got) in before.items()
            )

        wait.until(gone, f"messages go through every queue after {after}: {self.failures[-5:]}", 60.0)

    def drained(self) -> bool:
        return all(self.accepted[queue] <= self.received[queue] for queue in QUEUES)

    async def _run(self) -> None:
        receiving = [asyncio.create_task(self._receive(queue)) for queue in QUEUES]
        await asyncio.gather(*(self._send(queue) for queue in QUEUES))
        # Everything that was accepted is received; the test says what is missing.
        for _ in range(int(wait.DEADLINE_S / wait.POLL_S)):
            if self.drained():
                break
            await asyncio.sleep(wait.POLL_S)
        for task in receiving:
            task.cancel()
        await asyncio.gather(*receiving, return_exceptions=True)

    async def _send(self, queue: str) -> None:
        number = 0
        while not self._ending.is_set():
            try:
                async with asyncio.timeout(ATTEMPT_S):
                    connection = await lightrail.client.connect(*self._addresses)
                sender = connection.sender(queue)
                try:
                    while not self._ending.is_set():
                        number += 1
                        async with asyncio.timeout(ATTEMPT_S):
                            await sender.send(str(number), durable=True)
                        self.accepted[queue].add(str(number))
                        await asyncio.sleep(0.005)
                finally:
                    async with asyncio.timeout(ATTEMPT_S):
                        await connection.close()
            except (ClientError, TimeoutError, OSError) as error:
                self.failures.append(f"{queue} send: {error!r}")

    async def _receive(self, queue: str) -> None:
        while True:
            try:
                async with asyncio.timeout(ATTEMPT_S):
                    connection = await lightrail.client.connect(*self._addresses)
                try:
                    async with connection.receiver(queue) as receiver:
                        async for delivery in receiver:
                            await delivery.accept()
                            self.received[queue].add(str(delivery.message.body))
                finally:
                    async with asyncio.timeout(ATTEMPT_S):
                        await connection.close()
            except (ClientError, TimeoutError, OSError) as error:
                self.failures.append(f"{queue} receive: {error!r}")


def get_a_replica(cluster: Cluster, load: Load) -> None:
    """Shard 0, which the last release has made, gets a second member, and loses the first one."""
    founder = next(node for node in cluster.nodes if node.role == "shard" and node.id == 0)
    (gateway,) = [node for node in cluster.nodes if node.role == "gateway"]
    wanted = json.dumps({"replicas": 2}).encode()
    request = urllib.request.Request(f"{gateway.http}/!shards/0/replicas", wanted, method="PUT")
    with urllib.request.urlopen(request, timeout=wait.DEADLINE_S):
        assert founder.ended() == 1, "it starts again as the only member"
    founder.start().until_ready()
    load.goes_on("the entry of replicas")
    second = cluster.node("shard", "--id", "0", "--replica-host", "second")
    cluster.start(second)

    def entry() -> dict[str, Any]:
        return dict(json.loads(cluster.keys("replicas/")["replicas/0"]))

    wait.until(lambda: len(entry()["in_sync"]) == 2, "both members are in sync")
    owner = entry()["owner"]
    founder.kill()
    wait.until(lambda: entry()["owner"] != owner, "the second member takes over")
    load.goes_on("the loss of the first member")


@pytest.mark.parametrize("order", [("shard", "frontend", "gateway"), ("frontend", "gateway", "shard")])
def test_an_upgrade_of_one_process_after_the_other_loses_nothing(
    tmp_path: Path, former: Path, order: tuple[str, ...]
) -> None:
    with Cluster(tmp_path) as cluster:
        nodes = [cluster.node(role) for role in ("shard", "shard", "frontend", "frontend", "gateway")]
        for node in nodes:
            node.source = former
        cluster.start()
        addresses = [node.amqp for node in nodes if node.role == "frontend"]
        with Load(addresses) as load:
            load.goes_on("the start of the last release")
            for role in order:
                for node in [node for node in nodes if node.role == role]:
                    node.source = ROOT
                    node.restart()
                    load.goes_on(f"the upgrade of {node.name}")
            if order[0] == "shard":
                get_a_replica(cluster, load)
        lost = {queue: sorted(load.accepted[queue] - load.received[queue]) for queue in QUEUES}
        assert lost == {queue: [] for queue in QUEUES}, load.failures[-10:]
        shards = {cluster.placed(queue).shard for queue in QUEUES}
        assert shards == {0, 1}
