"""etcd is set back to an older snapshot while shards run: no accepted message goes, and an operator
decides.
"""

from pathlib import Path

import pytest

from tests.cluster.letters import make, receive
from tests.cluster.test_etcd_away import Load
from tests.cluster.test_rebalance import admin
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node


def set_back(cluster: Cluster, snapshot: Path, nodes: tuple[Node, ...]) -> None:
    (etcd,) = cluster.etcd.servers
    etcd.restore(snapshot)
    cluster.etcd.start()
    for each in nodes:
        wait.until_with(each, lambda each: "etcd was set back" in each.said(), f"{each.name} notices it")


def test_what_was_accepted_stays_and_etcd_is_given_back_what_it_lost(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        nodes = shard, other, frontend, gateway = (
            cluster.shard(),
            cluster.shard(),
            cluster.frontend(),
            cluster.gateway(),
        )
        cluster.start(*nodes)
        make(frontend.amqp, "old")
        cluster.etcd.servers[0].save(tmp_path / "snapshot")
        # Of these queues the snapshot knows nothing.
        queues = [f"orders{number}" for number in range(4)]
        loads = [Load(frontend.amqp, queue) for queue in queues]
        for queue, load in zip(queues, loads, strict=True):
            make(frontend.amqp, queue)
            load.start()
            load.until(10)
        placements = cluster.keys("placement/")
        pids = [each.pid for each in nodes]
        set_back(cluster, tmp_path / "snapshot", nodes)
        assert not cluster.keys("names/orders")
        # They go on as if etcd were away, say so, and change nothing.
        for load in loads:
            load.until(20)
        for each in nodes:
            assert "lightrail_coordinator_set_back" in each.asked("/metrics")[1]
            assert each.asked("/readyz")[0] == 200
        found = admin(gateway, "doctor")
        assert found.returncode == 1
        assert "error: etcd was set back to revision" in found.stdout
        refused = admin(gateway, "names", "set", "new", "role=queue")
        assert refused.returncode == 1
        assert "nothing was written: etcd was set back" in refused.stderr

        done = admin(gateway, "coordinator", "put-back")
        assert done.returncode == 0, done.stderr
        assert "names/orders0" in done.stdout
        for each in nodes:
            wait.until_with(
                each, lambda each: "etcd is followed again" in each.said(), f"{each.name} goes on with it"
            )
        assert cluster.keys("placement/").keys() == placements.keys()
        assert admin(gateway, "names", "set", "new", "role=queue").returncode == 0
        for load in loads:
            load.until(20)
        wait.until(lambda: len(cluster.keys("shards/")) == 2, "the shards are registered again")
        # A shard that starts now finds its queues: their names are others for etcd, and the same for it.
        for each in (shard, other):
            each.kill()
            each.start().until_ready()
        taken = [load.end() for load in loads]
        for queue, count in zip(queues, taken, strict=True):
            assert receive(frontend.amqp, queue, count) == [str(each) for each in range(count)]
        assert [each.pid for each in (frontend, gateway)] == pids[2:]
        assert admin(gateway, "coordinator", "show").returncode == 0


@pytest.mark.parametrize("passed", [False, True])
def test_a_shard_that_starts_with_an_etcd_that_was_set_back_deletes_nothing(
    tmp_path: Path, passed: bool
) -> None:
    """`passed`: others start first, and their writes bring etcd past all that the journal knows."""
    with Cluster(tmp_path) as cluster:
        nodes = shard, frontend, gateway = cluster.shard(), cluster.frontend(), cluster.gateway()
        cluster.start(*nodes)
        cluster.etcd.servers[0].save(tmp_path / "snapshot")
        load = Load(frontend.amqp, "orders")
        make(frontend.amqp, "orders")
        load.start()
        load.until(10)
        count = load.end()
        for each in nodes:
            each.kill()
        cluster.etcd.servers[0].restore(tmp_path / "snapshot")
        cluster.etcd.start()
        shard.start().until_ready()
        assert "the coordinator was set back: it is at revision" in shard.said()
        cluster.start(frontend, gateway)
        if passed:
            for number in range(20):
                cluster.etcd.servers[0].control("put", "/lightrail/lightrail/other", str(number))
        wait.until(
            lambda: f"shard 0 keeps {count} messages of orders" in admin(gateway, "doctor").stdout,
            "the doctor names what is kept",
        )
        # The name is made again, as by a client that uses it, and has its messages.
        make(frontend.amqp, "orders")
        assert receive(frontend.amqp, "orders", count) == [str(each) for each in range(count)]
