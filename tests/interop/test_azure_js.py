"""@azure/service-bus, Azure's client for JavaScript: one story of a node process (tests/interop/azure)."""

import json
import subprocess
from pathlib import Path

from tests.interop.azure_scene import connection_string, key_of
from tests.support.broker import Broker
from tests.support.namespace import give, subscribe

HERE = Path(__file__).parent


def test_the_client_for_javascript_does_what_azure_md_says(tmp_path: Path) -> None:
    installed = (HERE / "node_modules" / "@azure" / "service-bus").is_dir()
    assert installed, "@azure/service-bus is not installed: run scripts/setup.sh test"
    data = tmp_path / "data"
    key = key_of(data, "shop")
    with Broker(data, "--allow-anonymous", "true") as broker:
        give(data, "q", role="queue", delay=True, lock_duration=30)
        give(data, "sessions", role="queue", groups=True, lock_duration=30)
        give(data, "topic", role="router")
        give(data, "target", role="queue")
        subscribe(data, "topic", "target", id="mine")
        arguments = (connection_string(broker, key), "q", "topic", "mine", "sessions")
        done = subprocess.run(
            ["node", str(HERE / "azure" / "scenario.mjs"), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "are not scheduled in q (any more)" in found.pop("cancelledTwice")
    assert "messages that are deferred in target" in found.pop("deferredTwice")
    assert "locked by another receiver" in found.pop("sessionBusy")
    assert found == {
        "peeked": [[1, "first"], [2, "second"], [3, {"third": 3}], [4, "fourth"]],
        "first": ["first", {"key": "value"}, 36, 0],
        "renewed": True,
        "again": ["second", "2", 1],
        "dead": ["second", "why", "because", "q"],
        "scheduled": [5],
        "subscribed": [{"third": 3}, "fourth"],
        "topic": "for all",
        "session": ["a", ["a1", "a2"], None, "state", True, "b"],
        "deferred": ["for all", "deferred", True],
    }
