"""``lightrail serve --replicas``: all members of a shard, and their etcd, on one machine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import lightrail.client.sync
from lightrail.telemetry.directories import etcd_address
from tests.support import wait
from tests.support.broker import ROOT, Broker
from tests.support.deploy.alerts import check_firing
from tests.support.deploy.cluster import Cluster, Node, get
from tests.support.http_client import Http

FLAGS = ("--shards", "1", "--frontends", "1", "--replicas", "3")
QUEUE = "ledger"


class Ledger(threading.Thread):
    """Sends numbers, each after the one before was accepted; then everything accepted has to be there."""

    def __init__(self, amqp: str) -> None:
        super().__init__(daemon=True)
        self.accepted = 0
        self.error: BaseException | None = None
        self._amqp = amqp
        self._ends = threading.Event()

    def run(self) -> None:
        try:
            with lightrail.client.sync.connect(self._amqp) as connection:
                sender = connection.sender(QUEUE, resume=int(wait.DEADLINE_S))
                while not self._ends.is_set():
                    sender.send({"number": self.accepted})
                    self.accepted += 1
        except BaseException as error:
            self.error = error

    def more(self, count: int = 50) -> None:
        """Waits until so many more were accepted."""
        wanted = self.accepted + count
        wait.until(lambda: self.accepted >= wanted or self.error, f"{count} more messages are accepted")
        assert self.error is None, self.error

    def stop(self) -> None:
        """Ends sending."""
        self._ends.set()
        self.join(wait.DEADLINE_S)
        assert self.error is None, self.error

    def finish(self) -> None:
        """Ends sending, and receives all: what was accepted is there, once, and in order."""
        self.stop()
        with lightrail.client.sync.connect(self._amqp) as connection:
            receiver = connection.receiver(QUEUE, resume=int(wait.DEADLINE_S))
            found: list[int] = []
            while len(found) < self.accepted:
                delivery = next(iter(receiver))
                found.append(delivery.message.body["number"])
                delivery.accept()
        assert found == list(range(self.accepted)), Counter(found) - Counter(range(self.accepted))


def admin(http: str, *arguments: str) -> Any:
    """What a command of ``lightrail-admin`` prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "lightrail.cli.admin", "--url", f"http://{http}", *arguments, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=wait.DEADLINE_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def until_in_sync(http: str, count: int) -> dict[str, Any]:
    """Waits for this number of members in sync, and returns the replicas of shard 0."""
    found: dict[str, Any] = {}

    def enough() -> bool:
        found.update(admin(http, "shard", "replicas", "0"))
        return bool(found["in_sync"] == count)

    wait.until(enough, f"{count} members are in sync")
    return found


def check_metrics(text: str, found: dict[str, Any]) -> None:
    """The owner shows how far the others are, and each of these whether it follows."""
    assert 'lightrail_replica_epoch{role="shard",id="0"} 3.0' in text
    assert "lightrail_placement_replicas_in_sync{" in text
    for member in found["members"]:
        host = member["host"]
        if not member["owns"]:
            assert f'lightrail_replica_follows{{role="follower",id="0/{host}"}} 1.0' in text
            for figure in ("acknowledged_age_seconds", "ahead_bytes", "behind_records"):
                assert f'lightrail_replica_{figure}{{member="{host}",role="shard",id="0"}}' in text


@pytest.mark.timeout(240)
def test_the_owner_is_killed_and_its_directory_removed_and_every_accepted_message_is_there(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with Broker(data, *FLAGS) as broker:
        members = [each for each in broker.ready["processes"] if each["role"] == "shard"]
        assert [(each["id"], each["member"], each["ready"]) for each in members] == [
            (0, 1, True),
            (0, 2, True),
            (0, 3, True),
        ]
        (owner,) = [each for each in members if not each["follows"]]
        ledger = Ledger(f"amqp://{broker.amqp}")
        ledger.start()
        ledger.more()
        until_in_sync(broker.http, 3)
        os.kill(owner["pid"], signal.SIGKILL)
        shutil.rmtree(data / f"replica-{owner['member']}")
        ledger.more()
        # The emptied directory is another member, which gets everything.
        found = until_in_sync(broker.http, 3)
        assert found["epoch"] == 3
        assert {each["host"].rpartition("/")[2] for each in found["members"]} == {"1", "2", "3"}
        assert all(each["running"] for each in found["members"])
        found_by_doctor = " ".join(each["what"] for each in admin(broker.http, "doctor"))
        assert "lie on one file system of one machine" in found_by_doctor
        assert "etcd has 1 member, and shards with replicas depend on it (0)" in found_by_doctor
        assert "clock of" not in found_by_doctor

        def shown() -> str:
            # A member whose disk is late is out of sync for a moment.
            page = get(f"http://{broker.http}/!ui/shard?id=0")[1]
            return page if "3 of 3 members are in sync; the minimum is 2" in page else ""

        page = wait.until(shown, "the page shows three members in sync")
        assert all(each["member"] in page and each["host"] in page for each in found["members"])
        (row,) = admin(broker.http, "shard", "list")
        assert [each["member"] for each in row["replicas"]["members"]] == [
            each["member"] for each in found["members"]
        ]
        check_metrics(get(f"http://{broker.http}/metrics")[1], found)
        ledger.more()
        ledger.stop()
        assert etcd_address(str(data)) is not None
        assert broker.terminate() == 0
        assert etcd_address(str(data)) is None
    with Broker(data, *FLAGS) as broker:
        # Everything is there after a start of all members, too.
        again = Ledger(f"amqp://{broker.amqp}")
        again.accepted = ledger.accepted
        again.start()
        again.more()
        again.finish()


def check_demands(cluster: Cluster, gateway: Node) -> None:
    """Queues that demand replicas are at shard 0, which has two members, and not at another one."""
    cluster.start(cluster.shard("--id", "1"))
    wait.until(lambda: len(admin(gateway.served, "shard", "list")) == 2, "there is a shard without replicas")
    with Http(gateway.served) as http:
        assert http("POST", "/loose", {"role": "queue"}).status == 201
        assert cluster.placed("loose").shard == 1
        wait.until(lambda: http("POST", "/loose", "kept").status == 201, "shard 1 serves")
        refused = http("PUT", "/loose/!policy", {"role": "queue", "replicas": 3})
        assert (refused.status, refused.json()["field"]) == (422, "replicas")
        assert "expected a whole number from 1 to 2: " in refused.json()["detail"]
        assert http("PUT", "/loose/!policy", {"role": "queue", "replicas": 2}).status == 200
        wait.until(lambda: cluster.placed("loose").shard == 0, "it moves to the shard with replicas")
        assert http("DELETE", "/loose/!head").body == b"kept"
        names = ["loose", *(f"demanding/{number}" for number in range(3))]
        for name in names[1:]:
            assert http("POST", f"/{name}", {"role": "queue", "replicas": 2}).status == 201
            assert cluster.placed(name).shard == 0
        # Shard 1 has nothing, and still gets none of them.
        planned = {each["queue"] for each in admin(gateway.served, "rebalance", "--dry-run")["moves"]}
        assert planned <= {QUEUE}
        for name in names:
            assert http("DELETE", f"/{name}/!policy").status == 204


@pytest.mark.timeout(180)
def test_a_shard_gets_replicas_by_a_command_and_keeps_its_messages(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        first = cluster.shard("--id", "0", "--replica-host", "host-0")
        frontend, gateway = cluster.frontend(), cluster.gateway()
        cluster.start()
        ledger = Ledger(frontend.amqp)
        ledger.start()
        ledger.more()
        assert admin(gateway.served, "shard", "replicas", "0") is None
        admin(gateway.served, "shard", "replicas", "0", "--replicas", "2")
        assert first.ended() == 1
        assert "has replicas from now on" in first.said()
        first.start().until_ready()
        ledger.more()
        second = cluster.shard("--id", "0", "--replica-host", "host-1")
        second.start().until_ready()
        until_in_sync(gateway.served, 2)
        ledger.more()
        assert admin(gateway.served, "shard", "replicas", "0", "--min-in-sync", "2")["min_in_sync"] == 2
        ledger.more()
        check_demands(cluster, gateway)
        # The owner is lost with its disk, and what is left is below the minimum: it waits for a word.
        first.kill()
        shutil.rmtree(first.data)

        def metrics() -> str:
            # The gateway takes a member with a host of its own for one of another machine.
            return "".join(get(f"http://{each}/metrics")[1] for each in (gateway.served, second.metrics))

        def is_stopped() -> bool:
            members = admin(gateway.served, "shard", "replicas", "0")["members"]
            return [(each["owns"], each["running"]) for each in members if each["host"] == "host-0"] == [
                (False, False)
            ]

        wait.until(is_stopped, "another member owns, and the registration of the lost one expires")
        age = re.compile(
            r'^lightrail_replica_acknowledged_age_seconds\{member="host-0".*\} (\S+)$', re.MULTILINE
        )
        wait.until(
            lambda: any(float(each) > 10 for each in age.findall(metrics())), "the owner has waited for it"
        )
        accepted = ledger.accepted

        def check_alerts(*alerts: str) -> None:
            check_firing(metrics(), *alerts, directory=tmp_path)

        check_alerts("LightRailReplicaSilent", "LightRailReplicasBelowMinimum")
        assert ledger.accepted == accepted
        # What their runbooks say.
        admin(gateway.served, "shard", "replicas", "0", "--min-in-sync", "1")
        ledger.more()
        ledger.finish()
        until_in_sync(gateway.served, 1)
        check_alerts("LightRailReplicasBelowTarget")
        found = admin(gateway.served, "shard", "remove-member", "0", "host-0")
        assert [each["host"] for each in found["members"]] == ["host-1"]
        admin(gateway.served, "shard", "replicas", "0", "--replicas", "1")
        check_alerts()
