"""Hours of what applications send: memory stays where it is, with the compiled scanner and without it."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.broker import ROOT, Broker

SOAK_S = float(os.environ.get("LIGHTRAIL_SOAK_SECONDS", "3600"))
LOADS = (
    ("--durable", "--application", "--rate", "4000"),
    ("--durable", "--application", "--list32", "--rate", "4000"),
    ("--application", "--ttl", "1h", "--jms", "--rate", "4000"),
    ("--durable", "--application", "--priorities", "10", "--rate", "4000"),
    ("--durable", "--receivers", "10", "--credit", "1", "--rate", "2000"),
    ("--durable", "--senders", "40", "--unsettled", "1", "--rate", "2000"),
    ("--size", "300000", "--durable", "--rate", "50"),
    ("--durable", "--application", "--backlog", "20000"),
)
"""One after the other, each at a queue of its own; the last one as fast as it goes."""
ROUND_S = 2.0
"""Of each load."""
GIVEN_BACK = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Freed memory goes back to the kernel: what is resident is what is used (`keep_freed_memory`)."""
ROUNDS_MIN = 4
GROWTH_BYTES_MAX = 12_000_000
"""Of all processes, from the second quarter of the rounds to the last. A byte kept of each message of half an
hour is twice that."""


def load(broker: Broker, number: int, seconds: float) -> None:
    """Sends and receives; the load generator fails where a message is lost, doubled or out of order."""
    url = f"amqp://{broker.amqp}/steady-{number}"
    command = [sys.executable, "-m", "lightrail.cli.main", "bench", "--quiet", "--json", "--url", url]
    command += ["--warm-up", "0s", "--duration", f"{seconds}s", *LOADS[number]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(LOADS[number])}: {done.stdout} {done.stderr}"


def resident_bytes(broker: Broker) -> int:
    """Of all processes."""
    pids = [each["pid"] for each in broker.ready["processes"]]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * resource.getpagesize()


def memory_stays(data: Path, seconds: float, each_s: float, environ: dict[str, str]) -> None:
    """Rounds of all loads: the last quarter of them finds no more in memory than the second one did."""
    with Broker(data, "--frontends", "1", "--shards", "1", environ=environ | GIVEN_BACK) as broker:
        ended: list[int] = []
        until = time.monotonic() + seconds
        while len(ended) < ROUNDS_MIN or time.monotonic() < until:
            for number in range(len(LOADS)):
                load(broker, number, each_s)
            ended.append(resident_bytes(broker))
            print(f"round {len(ended)}: {ended[-1] / 1e6:.1f} MB", flush=True)
        quarter = len(ended) // 4
        growth = max(ended[-quarter:]) - max(ended[quarter : 2 * quarter])
        assert growth < GROWTH_BYTES_MAX, f"{growth} bytes in {len(ended)} rounds: {ended}"


@pytest.mark.parametrize("interpreted", ["", "1"])
def test_what_applications_send_leaves_nothing_behind(tmp_path: Path, interpreted: str) -> None:
    memory_stays(tmp_path / "data", 0, 0.4, {"LIGHTRAIL_INTERPRETED": interpreted})


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_an_hour_of_what_applications_send_leaves_nothing_behind(tmp_path: Path) -> None:
    memory_stays(tmp_path / "data", SOAK_S, ROUND_S, {})
