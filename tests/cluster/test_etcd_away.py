"""etcd comes late, goes and comes back: processes wait for it at the start, and serve without it later."""

import json
import re
import threading
from pathlib import Path

import pytest
from proton import Message
from proton.utils import BlockingConnection, LinkDetached

from tests.cluster.letters import make, receive, send
from tests.cluster.test_rebalance import admin
from tests.support import wait
from tests.support.broker import ROOT
from tests.support.deploy.cluster import Cluster, Node
from tests.support.deploy.prometheus import Job, Prometheus

AWAY = "LightRailCoordinatorAway"


class Load(threading.Thread):
    """Sends durable messages to a queue, one after the other, until it is told to stop."""

    def __init__(self, amqp: str, queue: str) -> None:
        super().__init__(daemon=True)
        self.taken = 0
        self.error: BaseException | None = None
        self._amqp, self._queue = amqp, queue
        self._told = threading.Event()

    def run(self) -> None:
        try:
            connection = BlockingConnection(self._amqp, timeout=wait.DEADLINE_S)
            sender = connection.create_sender(self._queue)
            while not self._told.is_set():
                sender.send(Message(body=str(self.taken), durable=True))
                self.taken += 1
            connection.close()
        except BaseException as error:
            self.error = error

    def until(self, count: int) -> None:
        """Waits until so many more were taken."""
        wanted = self.taken + count
        wait.until(lambda: self.taken >= wanted or self.error, f"{count} more messages are taken")
        assert self.error is None, self.error

    def end(self) -> int:
        """How many were taken."""
        self._told.set()
        self.join(wait.DEADLINE_S)
        assert self.error is None, self.error
        return self.taken


def test_processes_wait_for_an_etcd_that_comes_late(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.etcd.servers[0].kill()
        nodes = (cluster.shard(), cluster.frontend(), cluster.gateway())
        stopped = cluster.shard()
        for each in (*nodes, stopped):
            each.start()
        for each in (*nodes, stopped):
            wait.until_with(
                each, lambda each: each.asked("/healthz") == (200, "alive\n"), f"{each.name} is alive"
            )
            status, text = each.asked("/readyz")
            assert status == 503
            assert f"starting: waiting for etcd at {cluster.etcd.endpoints[0]}, cluster lightrail" in text
        # Who waits ends in order when it is told to.
        assert stopped.terminate() == 0
        for each in nodes:
            wait.until_with(
                each, lambda each: "does not answer" in each.asked("/readyz")[1], "it says what it has tried"
            )
        cluster.etcd.start()
        for each in nodes:
            each.until_ready()
            assert each.said().count("waiting for etcd") == 1
            wait.until_with(each, lambda each: each.asked("/readyz")[0] == 200, f"{each.name} serves")


def test_etcd_is_started_again_under_load_and_nobody_notices(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shard, frontend, gateway = cluster.shard(), cluster.frontend(), cluster.gateway()
        nodes = (shard, frontend, gateway)
        cluster.start()
        make(frontend.amqp, "queue")
        (etcd,) = cluster.etcd.servers
        pids = [each.pid for each in nodes]
        load = Load(frontend.amqp, "queue")
        load.start()
        load.until(20)
        etcd.kill()
        load.until(20)
        for each in nodes:
            wait.until_with(
                each, lambda each: "not followed now" in each.said(), f"{each.name} notices that etcd is gone"
            )
            assert each.asked("/healthz")[0] == 200
            assert each.asked("/readyz")[0] == 200
        load.until(20)
        # Registrations that are gone with their lease are written again.
        etcd.start()
        cluster.etcd.ready()
        for prefix in ("shards/", "frontends/", "gateways/"):
            cluster.etcd.servers[0].control("del", "--prefix", f"/lightrail/lightrail/{prefix}")
        leases = etcd.control("lease", "list").stdout.split()[1:]
        for lease in leases:
            etcd.control("lease", "revoke", lease.strip(","))
        wait.until(
            lambda: all(len(cluster.keys(each)) == 1 for each in ("shards/", "frontends/", "gateways/")),
            "everybody has registered again",
        )
        load.until(20)
        taken = load.end()
        assert receive(frontend.amqp, "queue", taken) == [str(each) for each in range(taken)]
        assert [each.pid for each in nodes if each.running] == pids
        for each in nodes:
            assert each.said().count("not followed now") == 1, each.said()
            assert "Traceback" not in each.said()
        make(frontend.amqp, "new")


def test_prometheus_says_of_every_process_that_etcd_is_away_until_it_is_back(tmp_path: Path) -> None:
    rules = tmp_path / "lightrail.rules.yml"
    given = (ROOT / "deploy" / "prometheus" / "lightrail.rules.yml").read_text()
    rules.write_text(re.sub(r"^( +)for: .*$", r"\1for: 3s", given, flags=re.MULTILINE))
    with Cluster(tmp_path) as cluster:
        nodes = (cluster.shard(), cluster.frontend(), cluster.gateway())
        cluster.start()
        (etcd,) = cluster.etcd.servers
        everybody = {each.metrics for each in nodes}

        def firing(prometheus: Prometheus) -> set[str]:
            found = prometheus.query(f'ALERTS{{alertname="{AWAY}", alertstate="firing"}}')
            return {each["metric"]["instance"] for each in found}

        with Prometheus(tmp_path / "prometheus", [Job("lightrail", sorted(everybody))], rules) as prometheus:
            up = "lightrail_coordinator_up == 1 and lightrail_coordinator_contact_age_seconds < 5"
            wait.until(lambda: len(prometheus.query(up)) == len(nodes), "everybody hears of etcd")
            assert firing(prometheus) == set()
            etcd.kill()
            wait.until(lambda: firing(prometheus) == everybody, "it fires for everybody")
            cluster.etcd.start()
            wait.until(lambda: len(prometheus.query(up)) == len(nodes), "everybody hears of etcd again")
            wait.until(lambda: not firing(prometheus), "it ends")
            restarts = prometheus.query("lightrail_coordinator_watch_restarts_total >= 1")
            assert {each["metric"]["instance"] for each in restarts} == everybody


def test_processes_wait_for_an_etcd_without_space_and_say_so(tmp_path: Path) -> None:
    with Cluster(tmp_path, etcd_options=("--quota-backend-bytes=1000000",)) as cluster:
        (etcd,) = cluster.etcd.servers
        nodes = _, frontend, _ = cluster.shard(), cluster.frontend(), cluster.gateway()
        cluster.start(*nodes)
        make(frontend.amqp, "queue")
        for number in range(15):
            etcd.control("put", f"/filler/{number}", "x" * 100_000)
        # Who runs serves on, and says what can't be done.
        send(frontend.amqp, "queue", "before")
        for each in nodes:
            each.kill()
            each.start()
        for each in nodes:
            wait.until_with(
                each,
                lambda each: "etcd has no space left" in each.asked("/readyz")[1],
                f"{each.name} says what it waits for",
            )
            assert each.running
            assert "etcd has no space left" in each.said()
        etcd.control("del", "--prefix", "/filler/")
        etcd.compact()
        assert etcd.control("defrag").returncode == 0
        assert etcd.control("alarm", "disarm").returncode == 0
        for each in nodes:
            each.until_ready()
        assert receive(frontend.amqp, "queue", 1) == ["before"]


def test_who_runs_says_that_etcd_has_no_space_serves_on_and_writes_later(tmp_path: Path) -> None:
    with Cluster(tmp_path, etcd_options=("--quota-backend-bytes=1000000",)) as cluster:
        (etcd,) = cluster.etcd.servers
        nodes = shard, frontend, gateway = cluster.shard(), cluster.frontend(), cluster.gateway()
        cluster.start(*nodes)
        make(frontend.amqp, "queue")
        for number in range(15):
            etcd.control("put", f"/filler/{number}", "x" * 100_000)
        pids = [each.pid for each in nodes]

        def reported() -> int:
            """Up to which record etcd knows the shard's journal."""
            return int(json.loads(cluster.keys("generations/")["generations/0"])["next_lsn"])

        def full(node: Node) -> bool:
            (value,) = re.findall(r"^lightrail_coordinator_full\{.*\} (\d)", node.asked("/metrics")[1], re.M)
            return str(value) == "1"

        before = reported()
        send(frontend.amqp, "queue", *map(str, range(20)))
        # The shard has to report by itself how far its journal has come.
        wait.until(lambda: full(shard), "the shard finds out")
        assert shard.said().count("etcd has no space left and takes no writes") == 1
        assert shard.asked("/readyz")[0] == 200
        assert not full(frontend)
        found = admin(gateway, "doctor")
        assert found.returncode == 1
        assert "error: etcd has no space left and takes no writes; found by shard-0" in found.stdout
        # Who asks for something new is told; a client, and a person.
        with pytest.raises(LinkDetached, match=r"amqp:resource-limit-exceeded.*etcd has no space left"):
            send(frontend.amqp, "new")
        refused = admin(gateway, "names", "set", "new", "role=queue")
        assert refused.returncode == 1
        assert "etcd has no space left and takes no writes" in refused.stderr
        assert full(frontend)
        assert full(gateway)
        send(frontend.amqp, "queue", *map(str, range(20, 40)))
        assert receive(frontend.amqp, "queue", 40) == [str(each) for each in range(40)]
        assert reported() == before

        etcd.control("del", "--prefix", "/filler/")
        etcd.compact()
        assert etcd.control("defrag").returncode == 0
        assert etcd.control("alarm", "disarm").returncode == 0
        wait.until(lambda: reported() > before, "what the shard had to write is written")
        for each in nodes:
            wait.until_with(each, lambda each: not full(each), f"{each.name} finds out that there is space")
            assert each.said().count("etcd accepts writes again") == 1
            assert "Traceback" not in each.said()
        make(frontend.amqp, "new")
        assert "no space" not in admin(gateway, "doctor").stdout
        assert [each.pid for each in nodes if each.running] == pids


def test_wrong_credentials_end_a_process(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        (etcd,) = cluster.etcd.servers
        for command in (
            ("user", "add", "root:right"),
            ("user", "grant-role", "root", "root"),
            ("auth", "enable"),
        ):
            done = etcd.control(*command)
            assert done.returncode == 0, done.stderr
        passwords = {}
        for word in ("right", "wrong"):
            passwords[word] = tmp_path / word
            passwords[word].write_text(word + "\n")
        wrong = cluster.shard("--etcd-user", "root", "--etcd-password-file", str(passwords["wrong"]))
        wrong.start()
        assert wrong.ended() == 1
        assert (
            "can't serve: etcd refuses: etcdserver: authentication failed, invalid user ID or password"
            in wrong.said()
        )
        nobody = cluster.frontend()
        nobody.start()
        assert nobody.ended() == 1
        assert "can't serve: etcd refuses" in nobody.said()
        right = cluster.shard("--etcd-user", "root", "--etcd-password-file", str(passwords["right"]))
        cluster.start(right)
        assert b"right" not in Path(f"/proc/{right.pid}/cmdline").read_bytes().split(b"\0")
        assert etcd.control("--user", "root:right", "auth", "disable").returncode == 0
