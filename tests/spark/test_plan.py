"""Plan: from the journals of two shards that serve, moves that part hot queues, carried out as well."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.spark.main import main
from tests.support.broker import ROOT, Broker
from tests.support.http_client import Http

pytestmark = pytest.mark.timeout(400)

QUEUES = [f"team/q{number}" for number in range(8)]
BATCH = 1_000
BATCHES = 10
"""Of a hot queue. A plan weighs rates, and each queue counts something: with few messages a slow machine had
rates so low that the number of the other queues mattered."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", "--shards", "2") as running:
        yield running


def admin(broker: Broker, *words: str) -> dict[str, Any]:
    """lightrail-admin as it is called; its JSON."""
    environ = {**os.environ, "LIGHTRAIL_URL": f"http://{broker.http}"}
    done = subprocess.run(
        [sys.executable, "-m", "lightrail.cli.admin", *words, "--json"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def placed(http: Http, shard: int) -> set[str]:
    return set(http("GET", f"/!shards/{shard}").json()["queue_names"])


def planned(broker: Broker, file: Path) -> dict[str, Any]:
    assert main(["plan", "--gateway", f"http://{broker.http}", "--out", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_hot_queues_of_one_shard_are_parted_and_a_second_plan_proposes_nothing(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    with Http(broker.http) as http:
        for name in QUEUES:
            assert http("POST", f"/{name}", {"role": "queue", "capture": True}).status == 201
        assert http("POST", "/quiet", {"role": "queue"}).status == 201
        hot = sorted(placed(http, 0) & set(QUEUES))[:2]
        assert len(hot) == 2
        for name in QUEUES:
            for _ in range(BATCHES if name in hot else 0):
                batch = [{"Body": "x" * 100}] * BATCH
                sent = http(
                    "POST", f"/{name}", batch, {"Content-Type": "application/vnd.lightrail.batch+json"}
                )
                assert sent.status == 201
            assert http("POST", f"/{name}", "x" * 100).status == 201
        plan = planned(broker, tmp_path / "plan.json")
        assert (plan["format"], plan["kind"], plan["silent"]) == (1, "lightrail-plan", [])
        (move,) = [each for each in plan["moves"] if each["queue"] in hot]
        assert (move["from"], move["to"]) == (0, 1)
        assert "quiet" not in {each["queue"] for each in plan["moves"]}
        done = admin(broker, "rebalance", "--plan", str(tmp_path / "plan.json"))
        assert done, "it says what it did"
        assert {shard for shard in (0, 1) for name in hot if name in placed(http, shard)} == {0, 1}
        assert planned(broker, tmp_path / "second.json")["moves"] == []
        # What was planned for where queues were is refused now.
        assert http("POST", "/!moves", plan).status == 409
