"""Every command of scaling.md and backup.md, and of cluster.md for a lost disk, on a real cluster."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.cluster.test_rebalance import admin, fill, shards
from tests.support import wait
from tests.support.broker import ROOT
from tests.support.deploy.cluster import Cluster, Node
from tests.support.documented import commands
from tests.support.http_client import Http

MESSAGES = 2
PROGRAM = "lightrail-admin "


def run(gateway: Node, line: str, status: int = 0) -> str:
    """A line of a page that is a command of lightrail-admin; what it says."""
    assert line.startswith(PROGRAM), line
    done = admin(gateway, *shlex.split(line, comments=True)[1:])
    assert done.returncode == status, (line, done.stdout, done.stderr)
    return done.stdout + done.stderr


def kept(gateway: Node, names: list[str]) -> list[int]:
    """How many messages each queue has."""
    with Http(gateway.served) as http:
        return [http("GET", f"/{name}/!figures").json()["ready"] for name in names]


def lose(gateway: Node, shard: Node) -> None:
    """A process dies and its disk with it."""
    shard.kill()
    shutil.rmtree(shard.data)
    wait.until(lambda: not shards(gateway)[shard.id]["registered"], "its lease has run out")


def test_scaling_out_and_in_as_the_page_says(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        gateway = cluster.gateway()
        cluster.start(*(cluster.shard("--id", str(id)) for id in range(3)), gateway)
        names = fill(gateway, 12, MESSAGES)
        last = cluster.shard("--id", "3")
        cluster.start(last)
        lines = commands("scaling.md")
        assert len(lines) >= 5
        for line in lines:
            if "shard remove 3" in line:
                assert "still runs" in run(gateway, line, 1)
                assert last.terminate() == 0
            said = run(gateway, line)
            if line.endswith("rebalance"):
                assert {each["queues"] for each in shards(gateway).values()} == {3}, said
        assert sorted(shards(gateway)) == [0, 1, 2]
        assert kept(gateway, names) == [MESSAGES] * len(names)
        assert "each is served once, by its owner" in run(gateway, "lightrail-admin rebalance --verify")


def test_a_lost_disk_is_given_up_as_the_page_says(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        gateway, shard = cluster.gateway(), cluster.shard("--id", "3")
        cluster.start(cluster.shard("--id", "0"), shard, gateway)
        names = fill(gateway, 6, MESSAGES)
        forget, show, remove = commands("cluster.md", "A disk that is lost for good")

        lose(gateway, shard)
        assert shard.start().ended() == 1
        assert "empty disk under an old name" in shard.said()
        run(gateway, forget)
        cluster.start(shard)
        assert shards(gateway)[3]["queues"] == 3
        wait.until(lambda: shards(gateway)[3]["serving"], "the gateway has found it")
        assert sorted(kept(gateway, names)) == [0] * 3 + [MESSAGES] * 3

        lose(gateway, shard)
        assert "3 queues of shard 3 would lose all messages" in run(gateway, show, 1)
        run(gateway, remove)
        assert sorted(shards(gateway)) == [0]
        assert sum(each == MESSAGES for each in held(gateway, names)) == 3


def held(gateway: Node, names: list[str]) -> list[int]:
    """As `kept`, of queues that may be nowhere now."""
    with Http(gateway.served) as http:
        answers = [http("GET", f"/{name}/!figures") for name in names]
    return [answer.json().get("ready", 0) if answer.status == 200 else 0 for answer in answers]


def test_a_cluster_is_backed_up_and_restored_as_the_page_says(tmp_path: Path) -> None:
    backups = tmp_path / "backup"
    backups.mkdir()
    with Cluster(tmp_path) as cluster:
        etcd = cluster.etcd.servers[0]
        nodes = [cluster.shard("--id", "0"), cluster.shard("--id", "1")]
        gateway = cluster.gateway()
        cluster.start(*nodes, gateway)
        names = fill(gateway, 6, MESSAGES)
        epochs = {name: cluster.placed(name).epoch for name in names}

        def shell(line: str, node: Node | None = None) -> None:
            line = line.replace("10.0.0.1:2379", etcd.endpoint).replace(
                "/var/lib/etcd", str(etcd.directory / "data")
            )
            line = line.replace("/backup", str(backups))
            if node is not None:
                line = line.replace("/var/lib/lightrail", str(node.data))
                line = line.replace("lightrail.tar", f"{node.name}.tar")
            done = subprocess.run(
                ["bash", "-c", line], cwd=ROOT, env=os.environ, capture_output=True, text=True
            )
            assert done.returncode == 0, (line, done.stderr)

        check, tar, snapshot = commands("backup.md", "Backup")
        run(gateway, check)
        for node in nodes:
            assert node.terminate() == 0
            shell(tar, node)
            node.start().until_ready()
        shell(snapshot)
        # What comes later is not in it: a message, and a queue.
        with Http(gateway.served) as http:
            wait.until(lambda: http("POST", f"/{names[0]}", "later").status == 201, "it takes messages")
            assert http("POST", "/later", {"role": "queue"}).status == 201
            status = http("GET", "/!definitions").json()
        assert "later" in status["names"]

        for node in (*nodes, gateway):
            node.kill()
        etcd.kill()
        shutil.rmtree(etcd.directory / "data")
        for node in nodes:
            shutil.rmtree(node.data)
            node.data.mkdir()
        restore, untar, accept, verify, doctor = commands("backup.md", "Restore")
        shell(restore)
        cluster.etcd.start()
        for node in nodes:
            shell(untar, node)
        # They were copied before their last start.
        assert nodes[0].start().ended() == 1
        assert "an outdated copy or a restored backup" in nodes[0].said()
        # It is told to etcd: there is no gateway yet.
        done = cluster.admin(*shlex.split(accept.replace("10.0.0.1:2379", etcd.endpoint))[3:])
        assert done.returncode == 0, (accept, done.stderr)
        cluster.start(*nodes, gateway)
        wait.until(lambda: all(each["serving"] for each in shards(gateway).values()), "everybody serves")
        assert kept(gateway, names) == [MESSAGES] * len(names)
        run(gateway, verify)
        assert "no role" not in admin(gateway, *shlex.split(doctor)[1:]).stdout
        with Http(gateway.served) as http:
            assert "later" not in http("GET", "/!definitions").json()["names"]
        assert sum(each["queues"] for each in shards(gateway).values()) == len(names)
        assert {name: cluster.placed(name).epoch for name in names} == epochs


def test_copies_of_different_times_lose_what_the_page_says(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        etcd = cluster.etcd.servers[0]
        nodes = [cluster.shard("--id", "0"), cluster.shard("--id", "1")]
        gateway = cluster.gateway()
        everybody = (*nodes, gateway)
        cluster.start(*everybody)
        names = fill(gateway, 2, MESSAGES)
        (moved,) = [name for name in names if shard_of(cluster, name) == 0]
        (other,) = [name for name in names if name != moved]

        def copy(to: Path) -> None:
            for node in nodes:
                assert node.terminate() == 0
                shutil.copytree(node.data, to / node.name)
            assert etcd.control("snapshot", "save", str(to / "etcd.db")).returncode == 0
            cluster.start(*nodes)

        def restore(etcd_of: Path, shards_of: Path) -> None:
            for node in everybody:
                node.kill()
            etcd.kill()
            shutil.rmtree(etcd.directory / "data")
            done = etcd.control(
                *("snapshot", "restore", str(etcd_of / "etcd.db"), "--data-dir", str(etcd.directory / "data"))
            )
            assert done.returncode == 0, done.stderr
            cluster.etcd.start()
            for node in nodes:
                shutil.rmtree(node.data)
                shutil.copytree(shards_of / node.name, node.data)
            assert cluster.admin("shard", "accept-disk", "0", "1").returncode == 0
            cluster.start(*everybody)
            wait.until(lambda: all(each["serving"] for each in shards(gateway).values()), "all serve")

        before, after = tmp_path / "before", tmp_path / "after"
        copy(before)
        wait.until(lambda: all(each["serving"] for each in shards(gateway).values()), "all serve")
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"moves": [{"queue": moved, "to": 1}]}))
        run(gateway, f"lightrail-admin rebalance --plan {plan}")
        assert shard_of(cluster, moved) == 1
        copy(after)

        # etcd from before a move, the shards from after it: kept, and not served.
        restore(before, after)
        assert kept(gateway, [moved, other]) == [0, MESSAGES]
        assert f"queue {moved}, which has 2 messages, has no placement at this shard" in nodes[1].said()
        # The shards from before it, etcd from after it: kept, and not served.
        restore(after, before)
        assert kept(gateway, [moved, other]) == [0, MESSAGES]
        said = f"shard 0 keeps 2 messages of {moved}, which is at shard 1 now without them"
        wait.until(lambda: said in admin(gateway, "doctor").stdout, "the doctor names it")
        # Both from after it.
        restore(after, after)
        assert kept(gateway, [moved, other]) == [MESSAGES, MESSAGES]


def shard_of(cluster: Cluster, queue: str) -> int:
    return int(json.loads(cluster.keys("placement/")[f"placement/{queue}"])["shard"])
