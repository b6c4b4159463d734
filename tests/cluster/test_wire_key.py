"""The wire between processes with a key: who has it is served, a stranger hears nothing."""

import subprocess
import sys
from pathlib import Path

from tests.cluster.letters import make, receive, send
from tests.support import wait
from tests.support.broker import ROOT
from tests.support.deploy.cluster import Cluster, get


def new_key(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lightrail.cli.main", "wire-key", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=wait.DEADLINE_S,
    )


def test_only_who_has_the_key_is_served(tmp_path: Path) -> None:
    key, another = tmp_path / "wire.key", tmp_path / "another.key"
    for path in (key, another):
        assert new_key(path).returncode == 0
    again = new_key(key)
    assert again.returncode == 1
    assert "exists already" in again.stderr
    with Cluster(tmp_path) as cluster:
        mine, theirs = ("--wire-key", str(key)), ("--wire-key", str(another))
        cluster.shard("--wire", "0.0.0.0:0", "--advertise", "127.0.0.1", *mine)
        frontend, gateway = cluster.frontend(*mine), cluster.gateway(*mine)
        stranger, other = cluster.frontend(), cluster.frontend(*theirs)
        cluster.start()
        make(frontend.amqp, "queue")
        send(frontend.amqp, "queue", "secret")
        assert receive(frontend.amqp, "queue", 1) == ["secret"]
        status, text = get(f"{gateway.http}/!connections")
        assert (status, text.count("frontend-")) == (200, 2), (
            "the gateway hears of the strangers, and nothing from them"
        )
        for each in (stranger, other):
            assert "shard 0 is at tcp://127.0.0.1:" in each.said(), (
                "it knows where the shard is, and greets it"
            )
            assert " serves (boot" not in each.said()
        assert " serves (boot" in frontend.said()
        secret = key.read_text().split()[-1]
        for each in cluster.nodes:
            assert secret not in each.said()
            assert secret.encode() not in Path(f"/proc/{each.pid}/cmdline").read_bytes()
        assert secret not in str(cluster.keys())
