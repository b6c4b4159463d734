"""A shard that was killed stays the first thing that an operator sees, also when its lease has run out."""

import json
from pathlib import Path

from tests.cluster.test_rebalance import admin, fill, shards
from tests.support import wait
from tests.support.deploy.cluster import Cluster, get
from tests.support.http_client import Http


def test_a_shard_that_was_killed_is_named_with_its_queues_by_everything_that_an_operator_asks(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path) as cluster:
        first, second, gateway = cluster.shard("--id", "0"), cluster.shard("--id", "1"), cluster.gateway()
        cluster.start(first, second, gateway)
        names = fill(gateway, 6, 1)
        assert {each["queues"] for each in shards(gateway).values()} == {3}
        wait.until(lambda: get(f"{gateway.http}/readyz") == (200, "ready\n"), "everybody serves")

        first.kill()
        wait.until(lambda: "shards/0" not in cluster.keys("shards/"), "its lease has run out")
        later = cluster.gateway()
        later.start().until_ready()
        for each in (gateway, later):
            wait.until_with(
                each,
                lambda each: (
                    get(f"{each.http}/readyz") == (503, "shard-0: not registered; 3 queues wait for it\n")
                ),
                "the gateway says who is missing",
            )
            # It serves the queues of the other one, so a load balancer is to go on with it.
            assert get(f"{each.http}/readyz?self") == (200, "ready\n")
            assert each.asked("/readyz")[0] == 200
            metrics = each.asked("/metrics")[1]
            for shard, up in ((0, 0), (1, 1)):
                labels = f'{{shard="{shard}",role="gateway",id="{each.id}"}}'
                assert f"lightrail_placement_serving{labels} {up}.0" in metrics
                assert f"lightrail_placement_queues{labels} 3.0" in metrics

            with Http(each.served) as http:
                status = http("GET", "/!status").json()
                assert status["ready"] is False
                assert [(row["id"], row["serving"], row["placed"]) for row in status["shards"]] == [
                    (0, False, 3),
                    (1, True, 3),
                ]
                # Figures of queues are there, but for those that nobody can tell.
                rows = {row["name"]: row for row in http("GET", "/!queues").json()["queues"]}
                assert {name for name in rows if name in names} == set(names)
                assert sorted(rows[name]["ready"] is None for name in names) == [False] * 3 + [True] * 3
                page = http("GET", "/!ui").body.decode()
                assert "shard-0: not registered; 3 queues wait for it" in page
                assert "no: 3 queues wait" in page
                assert http("GET", "/!ui/queues").status == 200

            said = admin(each, "status")
            assert said.returncode == 1
            assert "not ready: shard-0: not registered; 3 queues wait for it" in said.stdout
            found = {row["id"]: row for row in json.loads(admin(each, "shard", "list", "--json").stdout)}
            assert (found[0]["serving"], found[0]["registered"], found[0]["queues"]) == (False, False, 3)
            said = admin(each, "doctor")
            assert said.returncode == 1, said.stderr
            assert "error: not ready: shard-0: not registered; 3 queues wait for it" in said.stdout
            assert "start it again where its directory is" in said.stdout

        first.start().until_ready()
        for each in (gateway, later):
            wait.until_with(each, lambda each: get(f"{each.http}/readyz") == (200, "ready\n"), "it is back")
            with Http(each.served) as http:
                wait.until_with(
                    http,
                    lambda http: all(
                        row["ready"] is not None for row in http("GET", "/!queues").json()["queues"]
                    ),
                    "and its queues are seen",
                )
