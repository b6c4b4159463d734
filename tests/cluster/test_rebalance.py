"""Rebalancing a cluster with its command: interrupted and taken up again; a shard that is lost for good."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support import wait
from tests.support.broker import ROOT
from tests.support.deploy.cluster import Cluster, Node
from tests.support.http_client import Http

QUEUES = 100
MESSAGES = 4
BODY = "x" * 40_000


def admin(gateway: Node, *words: str) -> subprocess.CompletedProcess[str]:
    """lightrail-admin with this gateway."""
    return subprocess.run(
        command(gateway, *words),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def command(gateway: Node, *words: str) -> list[str]:
    return [sys.executable, "-m", "lightrail.cli.admin", "--url", gateway.http, *words]


def fill(gateway: Node, count: int, messages: int) -> list[str]:
    names = [f"q{i:03}" for i in range(count)]
    batch = {"Content-Type": "application/vnd.lightrail.batch+json"}
    with Http(gateway.served) as http:
        for name in names:
            assert http("POST", f"/{name}", {"role": "queue"}).status == 201
            wait.until_with(
                name,
                lambda name: http("POST", f"/{name}", [{"Body": BODY}] * messages, batch).status == 201,
                f"{name} takes messages",
            )
    return names


def shards(gateway: Node) -> dict[int, Any]:
    found = json.loads(admin(gateway, "shard", "list", "--json").stdout)
    return {each["id"]: each for each in found}


def test_a_rebalance_goes_on_without_its_command_and_its_gateway_and_is_taken_up_again(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path) as cluster:
        first = cluster.shard()
        gateway, other = cluster.gateway(), cluster.gateway()
        cluster.start(first, gateway, other)
        names = fill(gateway, QUEUES, MESSAGES)
        cluster.start(cluster.shard())
        wait.until(lambda: shards(gateway).get(1, {}).get("serving"), "the new shard serves")

        # Each copy takes a second; fifty of them, eight at a time.
        words = ("rebalance", "--sample", "0", "--throttle", str(MESSAGES * len(BODY)))
        running = subprocess.Popen(
            command(gateway, *words), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            wait.until(lambda: shards(other)[1]["queues"] >= 3, "some queues have moved")
        finally:
            running.kill()
            running.communicate()
        gateway.kill()
        seen = shards(other)[1]
        assert seen["moving_in"] > 0
        wait.until(lambda: shards(other)[1]["queues"] > seen["queues"], "they go on without anybody")

        # The command shows what is under way, asks for nothing more, and ends when that has.
        again = admin(other, "rebalance", "--sample", "0")
        assert again.returncode == 0, again.stderr
        assert "nothing to move" in again.stdout
        assert "queues moved; the longest pause was" in again.stdout
        assert max(each["queues"] for each in shards(other).values()) <= 1.1 * QUEUES / 2
        assert admin(other, "rebalance", "--verify").returncode == 0
        assert "nothing to move" in admin(other, "rebalance", "--sample", "0", "--dry-run").stdout
        with Http(other.served) as http:
            for name in names:
                assert http("GET", f"/{name}/!figures").json()["ready"] == MESSAGES


def test_a_shard_whose_disk_is_lost_is_given_up_with_its_queues(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard, lost, gateway = cluster.shard("--id", "0"), cluster.shard("--id", "1"), cluster.gateway()
        cluster.start(shard, lost, gateway)
        names = fill(gateway, 6, 1)
        gone = json.loads(cluster.keys("placement/q000")["placement/q000"])["shard"]
        assert len(shards(gateway)) == 2
        lost.kill()
        shutil.rmtree(lost.data)
        words = ("shard", "remove", "1", "--lose-queues")
        assert "still runs" in admin(gateway, *words, "--yes").stderr
        wait.until(lambda: not shards(gateway)[1]["registered"], "its lease has run out")

        drained = admin(gateway, "shard", "drain", "1")
        assert drained.returncode == 1
        assert "it does not answer" in drained.stderr
        refused = admin(gateway, "shard", "remove", "1")
        assert "has 3 queues" in refused.stderr
        assert "--lose-queues" in refused.stderr
        shown = admin(gateway, *words)
        assert shown.returncode == 1
        assert len(shown.stdout.splitlines()) == 3
        assert "3 queues of shard 1 would lose all messages, for good" in shown.stderr
        assert shards(gateway)[1]["queues"] == 3
        done = admin(gateway, *words, "--yes")
        assert done.returncode == 0, done.stderr
        assert "shard 1 is removed" in done.stdout
        assert list(shards(gateway)) == [0]

        # What was on the other shard is there; the rest is empty, and takes messages again.
        there = [name for name in names if name not in shown.stdout.splitlines()]
        assert ("q000" in there) == (gone == 0)
        with Http(gateway.served) as http:
            for name in names:
                taken = http("DELETE", f"/{name}/!head")
                assert taken.status == (200 if name in there else 204), (name, taken.body)
                wait.until_with(
                    name, lambda name: http("POST", f"/{name}", "again").status == 201, f"{name} takes it"
                )
        assert shards(gateway)[0]["queues"] == 6
        verified = admin(gateway, "rebalance", "--verify")
        assert verified.returncode == 0, verified.stdout

        # Another one may be number 1, and starts empty.
        cluster.start(cluster.shard("--id", "1"))
        assert shards(gateway)[1]["queues"] == 0
        began_s = time.monotonic()
        assert admin(gateway, "rebalance", "--sample", "0").returncode == 0
        assert time.monotonic() - began_s < 60
        assert {id: each["queues"] for id, each in shards(gateway).items()} == {0: 3, 1: 3}
