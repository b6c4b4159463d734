"""Processes that are started one by one, on what could be different machines, are one broker."""

import json
import os
import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.letters import make, receive, send
from tests.support import wait
from tests.support.broker import Broker
from tests.support.deploy.cluster import Cluster, get

QUEUES = ("a", "b", "c", "d")


def test_they_start_in_any_order_and_leave_nothing_behind(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        gateway, frontend, other = cluster.gateway(), cluster.frontend(), cluster.frontend()
        for each in (gateway, frontend, other):
            each.start()
        shards = [cluster.shard(), cluster.shard("--zone", "z")]
        cluster.start(*shards)
        for each in (gateway, frontend, other):
            each.until_ready()
            wait.until_with(each, lambda each: each.asked("/readyz")[0] == 200, f"{each.name} is ready")
        assert sorted(each.id for each in shards) == [0, 1]
        assert sorted(each.id for each in (frontend, other)) == [0, 1]

        make(frontend.amqp, *QUEUES)
        for queue in QUEUES:
            send(frontend.amqp, queue, f"to {queue}")
        assert [receive(other.amqp, queue, 1) for queue in QUEUES] == [[f"to {queue}"] for queue in QUEUES]
        assert {json.loads(each)["shard"] for each in cluster.keys("placement/").values()} == {0, 1}

        entry = json.loads(cluster.keys("shards/")[f"shards/{shards[1].id}"])
        assert entry["zone"] == "z"
        assert entry["metrics"] == shards[1].metrics
        assert entry["address"].startswith("tcp://127.0.0.1:")
        assert entry["disk"] == json.loads(cluster.keys("shardsets/")[f"shardsets/{shards[1].id}"])["disk"]

        # The gateway finds everybody by what they have registered.
        wait.until(lambda: get(f"{gateway.http}/readyz") == (200, "ready\n"), "everybody serves")
        metrics = get(f"{gateway.http}/metrics")[1]
        for of, number in (("shard", 0), ("shard", 1), ("frontend", 0), ("frontend", 1)):
            assert f'lightrail_process_ready{{number="{number}",of="{of}"' in metrics
        assert "lightrail_queue_depth{" in metrics or "lightrail_queues" in metrics
        status, text = get(f"{gateway.http}/!connections")
        assert (status, json.loads(text)["away"]) == (200, [])

        for each in (gateway, frontend, other, *shards):
            assert each.terminate() == 0, each.said()
        members = [
            key for prefix in ("shards", "frontends", "gateways") for key in cluster.keys(f"{prefix}/")
        ]
        assert members == []
        assert len(cluster.keys("shardsets/")) == 2


def killed_shard(tmp_path: Path) -> float:
    """Seconds from being ready again to the last of its messages having come."""
    with Cluster(tmp_path) as cluster:
        shard, frontend = cluster.shard(), cluster.frontend()
        cluster.start(shard, frontend)
        make(frontend.amqp, "queue")
        send(frontend.amqp, "queue", *map(str, range(50)))
        before = json.loads(cluster.keys("shards/")["shards/0"])
        shard.kill()
        began = time.monotonic()
        shard.start().until_ready()
        ready = time.monotonic()
        assert receive(frontend.amqp, "queue", 50) == [str(each) for each in range(50)]
        served = time.monotonic()
        after = json.loads(cluster.keys("shards/")["shards/0"])
        assert (after["disk"], shard.id) == (before["disk"], 0)
        assert after["boot"] != before["boot"]
        assert after["address"] != before["address"]
        assert frontend.running
        print(f"ready after {ready - began:.1f} s, served after {served - began:.1f} s")
        return served - ready


def test_a_killed_shard_serves_again_wherever_it_listens(tmp_path: Path) -> None:
    killed_shard(tmp_path)


@pytest.mark.soak
def test_a_killed_shard_serves_again_within_three_seconds(tmp_path: Path) -> None:
    assert killed_shard(tmp_path) < 3.0


def test_numbers_of_processes_that_are_gone_are_given_again(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard, frontend = cluster.shard(), cluster.frontend()
        cluster.start(shard, frontend)
        # A second shard on the same machine finds the first directory held, and makes one of its own.
        second = cluster.shard(data=shard.data)
        third = cluster.frontend(data=frontend.data)
        cluster.start(second, third)
        assert (second.id, third.id) == (1, 1)
        # What a directory of sockets is called depends on the length of its path.
        directories = sorted(each.name for each in shard.data.glob("shard-*") if each.is_dir())
        assert directories == ["shard-0", "shard-1"]
        assert frontend.terminate() == 0
        assert shard.terminate() == 0
        cluster.start(frontend, shard)
        assert (frontend.id, shard.id) == (0, 0)
        fourth = cluster.frontend("--id", "7")
        cluster.start(fourth)
        assert fourth.id == 7


def test_users_are_defined_in_etcd_before_anything_is_served(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        open_to_all = cluster.frontend("--amqp", "0.0.0.0:0")
        open_to_all.start()
        assert open_to_all.ended() == 1
        assert "no user is defined: add one with `lightrail-admin --etcd" in open_to_all.said()
        secret = tmp_path / "password"
        secret.write_text("secret\n")
        done = cluster.admin("user", "add", "alice", "--password-file", str(secret))
        assert (done.returncode, done.stdout) == (
            0,
            "user alice is defined and may manage, send, listen on everything\n",
        )
        assert cluster.admin("user", "list").stdout == "alice\n"
        assert cluster.admin("permission", "list").stdout == "alice\t/\tlisten,manage,send\n"
        cluster.start(open_to_all)
        assert cluster.admin("user", "remove", "alice").returncode == 0


def test_serve_on_two_machines_is_one_cluster(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        flags = (*cluster.flags, "--shards", "2", "--frontends", "1")
        with ExitStack() as machines:
            one, two = (Broker(tmp_path / name, *flags) for name in ("one", "two"))
            for each in (one, two):
                machines.callback(each.stop)
            for each in (one, two):
                each.until_ready(2 * wait.DEADLINE_S)  # nine processes on few cores
            assert sorted(cluster.keys("shards/")) == [f"shards/{id}" for id in range(4)]
            assert sorted(cluster.keys("frontends/")) == ["frontends/0", "frontends/1"]
            numbers = {each["id"] for each in [*one.ready["processes"], *two.ready["processes"]]}
            assert numbers == {0, 1, 2, 3}
            make(f"amqp://{one.amqp}", *QUEUES)
            send(f"amqp://{one.amqp}", "a", "hello")
            assert receive(f"amqp://{two.amqp}", "a", 1) == ["hello"]
            (gateway,) = [each["id"] for each in one.ready["processes"] if each["role"] == "gateway"]
            # What the other gateway says of everybody is among its metrics, under its own number.
            ready = re.compile(rf'^lightrail_process_ready{{(.*,)?id="{gateway}"', re.MULTILINE)
            wait.until(
                lambda: len(ready.findall(get(f"http://{one.http}/metrics")[1])) == 4 + 2 + 1,
                "the gateway knows the other machine's processes: 4 shards, 2 frontends, 1 gateway",
            )

            # A frontend that is killed is replaced under its number, at once.
            (frontend,) = [each for each in one.ready["processes"] if each["role"] == "frontend"]
            boot = json.loads(cluster.keys("frontends/")[f"frontends/{frontend['id']}"])["boot"]
            os.kill(frontend["pid"], signal.SIGKILL)

            def replaced() -> bool:
                entry = json.loads(cluster.keys("frontends/")[f"frontends/{frontend['id']}"])
                return bool(entry["boot"] != boot and entry["address"])

            wait.until(replaced, "another process has its number", 8.0)
            assert len(cluster.keys("frontends/")) == 2
