"""Readers of journals over take-overs: what was read stays, and each event is read once."""

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lightrail.spark.journals.journal import SourceError
from lightrail.spark.reading.options import read_options
from lightrail.spark.reading.stream import StreamReader
from tests.chaos.ledger import ACCEPTED, TRAILER, Page
from tests.cluster.replicated import DEADLINE_S, ReplicaScene
from tests.cluster.test_rebalance import admin
from tests.support import wait
from tests.support.deploy.cluster import Node

COLUMNS = ("queue", "journal", "sequence", "lsn", "event", "body")
KEPT = ("queue", "journal", "sequence", "lsn", "event")
LSN = KEPT.index("lsn")
ROUNDS = 10
READER = "audit"

pytestmark = pytest.mark.timeout(900)


class Reading(threading.Thread):
    """A query in micro-batches by the reader that Spark uses; one that fails is read again, as by Spark."""

    def __init__(self, gateway: str, archive: Path, reader: str | None) -> None:
        super().__init__(daemon=True)
        options = {"gateway": gateway, "path": str(archive), "startingOffsets": "earliest", "decode": "all"}
        if reader is not None:
            options["reader"] = reader
        self._reader = StreamReader(read_options(options, streaming=True), COLUMNS)
        self.rows: list[tuple[Any, ...]] = []
        self.bodies: Counter[bytes] = Counter()
        """Of messages that were enqueued."""
        self.batches = 0
        self.failures: Counter[str] = Counter()
        self.offsets: dict[str, int] = {}
        self.failure: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                if not self.step():
                    self.stopping.wait(0.05)
        except BaseException as error:
            self.failure = error

    def step(self) -> bool:
        """Reads a micro-batch; False where there is none, or it could not be read."""
        try:
            if not self.offsets:
                self.offsets = self._reader.initialOffset()
            end = self._reader.latestOffset(self.offsets, ReadAllAvailable())
            if end == self.offsets:
                return False
            assert all(end[each] >= lsn for each, lsn in self.offsets.items()), (self.offsets, end)
            found = [
                row for part in self._reader.partitions(self.offsets, end) for row in self._reader.read(part)
            ]
        except SourceError as error:
            self.failures[str(error)[:80]] += 1
            return False
        for each in found:
            self._add(each)
        self.offsets = end
        self.batches += 1
        self._reader.commit(end)
        return True

    def _add(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self.rows.append(tuple(row[name] for name in KEPT))
            if row["event"] == "enqueued":
                self.bodies[row["body"]] += 1

    def finish(self) -> None:
        """Reads on to the end of the journals."""
        self.stopping.set()
        if self.is_alive():
            self.join(DEADLINE_S)
        if self.failure is not None:
            raise self.failure
        failures = self.failures.total()

        def is_read() -> bool:
            nonlocal failures
            if self.step():
                return False
            before, failures = failures, self.failures.total()
            return before == failures

        wait.until(is_read, "the journals are read to their ends", DEADLINE_S)


def accepted(page: Page, since: int) -> set[int]:
    return {number for number in range(since, page.sent) if page.state[number] == ACCEPTED}


def captured(scene: ReplicaScene, gateway: Node) -> dict[int, int]:
    """Has the queues captured; the first messages of each sender that certainly are."""
    for sender in scene.senders:
        done = admin(gateway, "names", "set", sender.queue, "role=queue", "capture=true")
        assert done.returncode == 0, done.stderr
    # The policy has arrived when a while has passed in which everybody was at work.
    scene.warm(200)
    return {sender.number: sender.page.sent for sender in scene.senders}


@pytest.mark.soak
@pytest.mark.parametrize("way", ["kill", "terminate"])
def test_each_event_is_read_once_over_ten_take_overs(tmp_path: Path, way: str) -> None:
    archive = tmp_path / "archive"
    flags = ("--segment-bytes", "1MiB", "--archive", str(archive), "--archive-seal", "2s")
    with ReplicaScene(tmp_path, *flags) as scene:
        gateway = scene.cluster.gateway()
        scene.cluster.start(gateway)
        since = captured(scene, gateway)
        reading = Reading(gateway.http, archive, READER)
        reading.start()
        for round in range(ROUNDS):
            scene.members.until_replaceable()
            batches = reading.batches
            wait.until_with(
                batches, lambda each: reading.batches > each or reading.failure, "it reads", DEADLINE_S
            )
            owner = scene.members.owner()
            began = time.monotonic()
            with scene.fault(f"{way} {round}"):
                if way == "kill":
                    scene.members.kill(owner)
                else:
                    scene.members.terminate(owner)
                scene.members.until_taken_over(owner)
                scene.members.revive(owner)
            print(f"{round}: {time.monotonic() - began:.1f} s, {len(reading.rows)} rows", flush=True)
        scene.finish()
        reading.finish()
        print(f"{reading.batches} batches, failures {dict(reading.failures)}")
        twice = [row for row, count in Counter(reading.rows).items() if count > 1]
        assert not twice, twice[:10]
        assert len(reading.offsets) == 1, "the journal has kept its name"
        # Everything accepted was read once; what its sender has no answer for, at most once.
        found: dict[int, Counter[int]] = {}
        for body, count in reading.bodies.items():
            link, _, number = TRAILER.unpack_from(body, len(body) - TRAILER.size)
            found.setdefault(link, Counter())[number] += count
        for ledger in scene.ledgers:
            for link, page in ledger.pages.items():
                assert set(found[link].values()) == {1}
                assert accepted(page, since[link]) <= found[link].keys()
        # Another reader finds what this one has read: no take-over has undone any of it. What came before the
        # queues were captured may have been dropped by now.
        again = Reading(gateway.http, archive, None)
        again.finish()
        first = min(row[LSN] for row in again.rows)
        undone = Counter(row for row in reading.rows if row[LSN] >= first) - Counter(again.rows)
        missed = Counter(again.rows) - Counter(reading.rows)
        assert not undone, (first, list(undone)[:5])
        assert not missed, (first, list(missed)[:5])


@pytest.mark.soak
def test_a_reader_that_is_behind_finds_what_the_former_owner_has_archived(tmp_path: Path) -> None:
    """All members have one archive, on a file system that they share."""
    archive = tmp_path / "archive"
    flags = ("--segment-bytes", "1MiB", "--archive", str(archive), "--archive-seal", "1s")
    with ReplicaScene(tmp_path, *flags) as scene:
        gateway = scene.cluster.gateway()
        scene.cluster.start(gateway)
        since = captured(scene, gateway)
        done = admin(gateway, "reader", "set", READER)
        assert done.returncode == 0, done.stderr
        for _ in range(2):
            scene.members.until_replaceable()
            scene.warm(1_500)
            owner = scene.members.owner()
            with scene.fault("kill"):
                scene.members.kill(owner)
                scene.members.until_taken_over(owner)
                scene.members.revive(owner)
        scene.finish()
        print(admin(gateway, "reader", "list").stdout)
        reading = Reading(gateway.http, archive, None)
        reading.finish()
        found = {TRAILER.unpack_from(body, len(body) - TRAILER.size)[::2] for body in reading.bodies}
        for ledger in scene.ledgers:
            for link, page in ledger.pages.items():
                missing = {each for each in accepted(page, since[link]) if (link, each) not in found}
                assert not missing, (link, len(missing), min(missing), max(missing))
