"""A frontend and a gateway with fixed numbers get them again after kill -9, whatever etcd does meanwhile."""

import json
from pathlib import Path

from tests.cluster.letters import make, receive, send
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node, get
from tests.support.deploy.etcd import EtcdServer

LEASE_S = 5
"""Of the ten seconds that the registration of a dead process lives: by then half of them are over."""


def _left_s(etcd: EtcdServer, key: str) -> int:
    """Seconds that the lease of an entry still lives."""
    (found,) = json.loads(etcd.control("get", key, "--write-out=json").stdout)["kvs"]
    told = etcd.control("lease", "timetolive", f"{found['lease']:x}", "--write-out=json").stdout
    return int(json.loads(told)["ttl"])


def test_killed_processes_get_their_fixed_numbers_again_while_etcd_is_started_again(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        (etcd,) = cluster.etcd.servers
        shard = cluster.shard()
        frontend, gateway = cluster.frontend("--id", "7"), cluster.gateway("--id", "5")
        fixed: dict[str, Node] = {"frontends/7": frontend, "gateways/5": gateway}
        cluster.start()
        make(frontend.amqp, "queue")
        send(frontend.amqp, "queue", "before")
        before = cluster.keys()
        for each in fixed.values():
            each.kill()
            each.start()
        for key, each in fixed.items():
            wait.until_with(
                (key, each),
                lambda of: f"{of[0]} is registered by a process" in of[1].said(),
                f"{each.name} waits whether the holder of its number lives",
            )
        for key in fixed:
            wait.until_with(
                key,
                lambda key: _left_s(etcd, f"/lightrail/lightrail/{key}") <= LEASE_S,
                f"half of the lease of {key} is over",
            )
        # etcd gives the leases of the dead their whole life once more.
        etcd.kill()
        etcd.start()
        cluster.etcd.ready()
        for key in fixed:
            assert _left_s(etcd, f"/lightrail/lightrail/{key}") > LEASE_S
        for key, each in fixed.items():
            each.until_ready()
            assert f"{key.partition('/')[0]}/{each.id}" == key
            assert "held by a living process" not in each.said()
            mine, its = json.loads(cluster.keys()[key]), json.loads(before[key])
            assert mine["boot"] != its["boot"]
        assert receive(frontend.amqp, "queue", 1) == ["before"]
        wait.until(lambda: get(f"{gateway.http}/readyz") == (200, "ready\n"), "everybody serves")
        assert shard.running


def test_a_process_that_lives_keeps_its_fixed_number_and_another_is_told_who_has_it(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        frontend, another = cluster.frontend("--id", "7"), cluster.frontend("--id", "7")
        cluster.start(frontend)
        another.start()
        assert another.ended() == 1
        assert "frontends/7 is held by a living process on host" in another.said()
        assert "stop that one, or start this one under another number" in another.said()
        assert frontend.running
