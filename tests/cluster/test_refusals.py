"""Who may not serve is told why, by the processes themselves and a real etcd."""

import json
import shutil
from pathlib import Path

from tests.cluster.letters import make, receive, send
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node

PREFIX = "/lightrail/lightrail/"


def refused(node: Node, deadline_s: float = wait.DEADLINE_S) -> str:
    """What a process says that is started and ends by itself."""
    if node.process is None:
        node.start()
    assert node.ended(deadline_s) == 1, node.said()
    assert "Traceback" not in node.said()
    return node.said()


def put(cluster: Cluster, key: str, value: object) -> None:
    """Writes an entry without a lease, past every process."""
    done = cluster.etcd.servers[0].control("put", PREFIX + key, json.dumps(value))
    assert done.returncode == 0, done.stderr


def test_a_shard_is_refused_under_a_number_that_is_not_its_own(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard, frontend = cluster.shard(), cluster.frontend()
        cluster.start(shard, frontend)
        make(frontend.amqp, "queue")
        send(frontend.amqp, "queue", "kept")
        disk = json.loads(cluster.keys("shards/")["shards/0"])["disk"]

        said = refused(cluster.shard("--id", "0", data=shard.data))
        assert f"{shard.data}/shard-0 is locked by another process, which serves shard 0" in said

        said = refused(cluster.shard("--id", "0"))
        assert f"shardsets/0 was made by disk {disk}, this directory" in said
        assert "is empty: an empty disk under an old name" in said
        assert "lightrail-admin shard forget-disk 0" in said

        # The right number and the wrong disk: the messages of somebody else.
        other = cluster.shard()
        cluster.start(other)
        assert other.id == 1
        assert other.terminate() == 0
        foreign = cluster.shard("--id", "0")
        shutil.copytree(other.data / "shard-1", foreign.data / "shard-0")
        assert f"shardsets/0 was made by disk {disk}" in refused(foreign)

        # Of all these nothing has reached the shard that serves.
        assert receive(frontend.amqp, "queue", 1) == ["kept"]
        assert shard.running


def test_a_disk_that_is_lost_is_given_up_by_word_alone(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard, frontend, gateway = cluster.shard(), cluster.frontend(), cluster.gateway()
        cluster.start()
        make(frontend.amqp, "queue")
        send(frontend.amqp, "queue", "lost")

        def forget() -> tuple[int, str]:
            done = cluster.admin("--url", gateway.http, "shard", "forget-disk", "0")
            return done.returncode, done.stdout + done.stderr

        status, said = forget()
        assert (status, "shard 0 still runs" in said) == (1, True)
        assert shard.terminate() == 0
        shutil.rmtree(shard.data)
        new = cluster.shard("--id", "0")
        assert "an empty disk under an old name" in refused(new)
        status, said = forget()
        assert (status, said) == (
            0,
            "shard 0 has no disk now: start one with --id 0, its queues will be empty\n",
        )
        cluster.start(new)
        send(frontend.amqp, "queue", "new")
        assert receive(frontend.amqp, "queue", 1) == ["new"]


def test_a_data_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard = cluster.shard()
        cluster.start(shard)
        assert shard.terminate() == 0
        stranger = cluster.shard("--cluster", "another", data=shard.data)
        said = refused(stranger)
        assert "expected the journal of shard 0 of cluster" in said
        assert "give this shard its own directory" in said
        cluster.start(shard)


def test_a_registration_of_another_host_is_waited_for_and_then_respected(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard, frontend = cluster.shard(), cluster.frontend("--id", "3")
        cluster.start(shard)
        entry = json.loads(cluster.keys("shards/")["shards/0"])
        assert shard.terminate() == 0
        # Entries without a lease stay, as those of processes that live do.
        put(cluster, "shards/0", entry | {"boot": 1, "host": "elsewhere"})
        put(cluster, "frontends/3", entry | {"boot": 2, "host": "elsewhere", "disk": ""})
        shard.start()
        frontend.start()
        wait.until(
            lambda: "waiting whether it lives" in shard.asked("/readyz")[1],
            "the shard says what it waits for",
        )
        assert shard.asked("/healthz") == (200, "alive\n")
        assert "shards/0 is held by a living process on host 'elsewhere' (boot 00000001" in refused(shard)
        assert "frontends/3 is held by a living process on host 'elsewhere'" in refused(frontend)
        # The other one dies: its entry goes, and we are let in.
        shard.start()
        wait.until(lambda: "waiting whether it lives" in shard.asked("/readyz")[1], "the shard waits again")
        assert cluster.etcd.servers[0].control("del", f"{PREFIX}shards/0").returncode == 0
        shard.until_ready()


def test_a_process_whose_number_was_taken_ends_itself(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard, frontend = cluster.shard(), cluster.frontend()
        cluster.start(shard, frontend)
        for node, key in ((shard, "shards/0"), (frontend, "frontends/0")):
            entry = json.loads(cluster.keys(key)[key])
            put(cluster, key, entry | {"boot": 0xABC, "host": "elsewhere"})
            said = refused(node)
            assert f"{key} was taken by another process, on host 'elsewhere' (boot 00000abc)" in said
            # The entry is the other one's: it is left alone.
            assert json.loads(cluster.keys(key)[key])["boot"] == 0xABC
