"""Copies of a shard's directory, on the machine and with the host name of the original, as processes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.letters import make, receive, send
from tests.support import wait
from tests.support.broker import ROOT, Broker
from tests.support.deploy.cluster import Cluster, Node

WAITS = "waiting whether it lives"
"""What a process logs that waits for the lease of the process with its number."""


def refused(node: Node) -> str:
    """What a shard says that ends by itself; it waits for the lease of who is registered first."""
    node.start()
    assert node.ended(wait.DEADLINE_S) == 1, node.said()
    assert "Traceback" not in node.said()
    return node.said()


def copied(cluster: Cluster, node: Node) -> Node:
    """A shard that is not started yet, on a copy of the directory of one, whatever that does."""
    copy = cluster.shard("--id", "0")
    shutil.copytree(node.data / "shard-0", copy.data / "shard-0")
    return copy


def test_a_copy_neither_takes_the_place_of_its_original_nor_serves_after_it(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard, frontend = cluster.shard(), cluster.frontend()
        cluster.start()
        make(frontend.amqp, "queue")
        send(frontend.amqp, "queue", "consumed", "kept")
        copy = copied(cluster, shard)
        assert receive(frontend.amqp, "queue", 1) == ["consumed"]
        send(frontend.amqp, "queue", "newer")

        said = refused(copy)
        assert WAITS in said
        assert "shards/0 is held by a living process on host" in said
        assert shard.running
        assert "was taken by another process" not in shard.said()

        # Whoever has the lock of the one that was killed is its successor, at once.
        shard.kill()
        shard.start().until_ready()
        assert WAITS not in shard.said(), "it waits for the lease of its predecessor"
        assert receive(frontend.amqp, "queue", 2) == ["kept", "newer"]

        # The copy lacks a start by now; one that was made since lacks the end of its original in order.
        send(frontend.amqp, "queue", "last")
        late = copied(cluster, shard)
        shard.kill()
        assert "has generation 1: an outdated copy or a restored backup" in refused(copy)
        said = refused(late)
        assert "generations/0 says that shard 0 was last started as generation 2" in said
        assert "did not end in order" in said
        assert "lightrail-admin shard accept-disk 0" in said

        # By an operator's word it serves, and its original is behind then.
        done = cluster.admin("shard", "accept-disk", "0")
        assert done.returncode == 0, done.stderr
        late.start().until_ready()
        assert receive(frontend.amqp, "queue", 1) == ["last"]
        said = cluster.admin("shard", "accept-disk", "0").stderr
        assert "shards/0 is held by a living process" in said
        assert late.terminate() == 0
        assert "has generation 2: an outdated copy or a restored backup" in refused(shard)


def test_a_directory_that_moves_after_an_orderly_end_starts_without_a_question(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard, frontend = cluster.shard(), cluster.frontend()
        cluster.start()
        make(frontend.amqp, "queue")
        send(frontend.amqp, "queue", "one")
        early = copied(cluster, shard)
        send(frontend.amqp, "queue", "two")
        assert shard.terminate() == 0
        last = json.loads(cluster.keys("generations/")["generations/0"])
        assert (last["number"], last["closed"]) == (1, True)
        moved = copied(cluster, shard)
        assert "its journal had come to record" in refused(early)
        cluster.start(moved)
        assert receive(frontend.amqp, "queue", 2) == ["one", "two"]
        assert moved.terminate() == 0
        assert "an outdated copy or a restored backup" in refused(shard)


def test_a_volume_that_is_mounted_elsewhere_after_a_crash_starts_after_the_lease(tmp_path: Path) -> None:
    """Its inodes are the same there, the lock beside it is another one."""
    with Cluster(tmp_path) as cluster:
        shard, frontend = cluster.shard(), cluster.frontend()
        cluster.start()
        make(frontend.amqp, "queue")
        send(frontend.amqp, "queue", "one")
        shard.kill()
        elsewhere = cluster.shard()
        elsewhere.data.mkdir()
        (shard.data / "shard-0").rename(elsewhere.data / "shard-0")
        elsewhere.start()
        wait.until(lambda: "waiting whether it lives" in elsewhere.asked("/readyz")[1], "it waits")
        elsewhere.until_ready()
        assert receive(frontend.amqp, "queue", 1) == ["one"]


def test_a_shard_whose_newest_segment_was_deleted_does_not_start(tmp_path: Path) -> None:
    with Cluster(tmp_path, "--segment-bytes", "1MiB") as cluster:
        shard, frontend = cluster.shard(), cluster.frontend()
        cluster.start()
        make(frontend.amqp, "queue")
        send(frontend.amqp, "queue", *(str(number) for number in range(50)))
        shard.kill()
        journal = shard.data / "shard-0"
        for path in journal.glob("*.segment"):
            path.unlink()
        said = refused(shard)
        assert "journal segment 000000000001.segment is damaged" in said
        assert "which were on disk" in said
        # Not even without the file that says so: the cluster knows.
        (journal / "extent").rename(tmp_path / "extent")
        assert "its journal had come to record" in refused(shard)
        (tmp_path / "extent").rename(journal / "extent")
        done = cluster.admin("journal", "repair", str(journal))
        assert done.returncode == 0, done.stderr
        assert "000000000001.segment: 0 bytes at offset 40" in done.stdout
        shard.start().until_ready()
        assert "are lost: a repair removed them" in shard.said()


def test_a_data_directory_of_one_machine_is_copied_as_a_whole_and_not_in_parts(tmp_path: Path) -> None:
    data, whole, part = tmp_path / "data", tmp_path / "whole", tmp_path / "part"

    def admin(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lightrail.cli.admin", "--data", str(data), *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=wait.DEADLINE_S)

    with Broker(data) as broker:
        send(f"amqp://{broker.amqp}", "queue", "old")
        assert broker.terminate() == 0
    shutil.copytree(data / "shard-0", part)
    with Broker(data) as broker:
        send(f"amqp://{broker.amqp}", "queue", "new")
        broker.kill_everything()
    shutil.copytree(data, whole, ignore=shutil.ignore_patterns("*.sock"))
    with Broker(whole) as broker:
        assert receive(f"amqp://{broker.amqp}", "queue", 2) == ["old", "new"]

    shutil.rmtree(data / "shard-0")
    shutil.copytree(part, data / "shard-0")
    refused = Broker(data)
    try:
        assert refused.process.wait(wait.DEADLINE_S) == 1
        assert "has generation 1: an outdated copy or a restored backup" in refused.said()
    finally:
        refused.stop()
    done = admin("shard", "accept-disk", "0")
    assert (done.returncode, done.stderr) == (0, "")
    with Broker(data) as broker:
        assert receive(f"amqp://{broker.amqp}", "queue", 1) == ["old"]
