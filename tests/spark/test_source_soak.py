"""Memory does not grow with what is read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark.session import ROOT

FEW, MANY = 2_000_000, 10_000_000
CORE_BYTES_MAX = 1 << 30
"""Of Python for each core, as docs/operate/spark-cluster.md says; the archive has three times as much."""
NOISE = 1.15
JAVA_BYTES_MAX = 1_500_000_000
"""A heap of 1 GiB, and what the JVM itself takes: how much of a heap is in use is up to its collector."""


def measured(folder: Path, messages: int) -> dict[str, float]:
    """The largest memory of Java and of all Python workers while so many messages are read."""
    script = "tests/benchmarks/spark_bench.py"
    words = ["--directory", str(folder), "--messages", str(messages), "--cores", "2", "--runs", "1"]
    done = subprocess.run([sys.executable, script, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.soak
def test_ten_million_messages_are_read_in_the_memory_that_two_million_take(tmp_path: Path) -> None:
    few, many = measured(tmp_path, FEW), measured(tmp_path, MANY)
    assert many["python_bytes"] < NOISE * few["python_bytes"], (few, many)
    assert many["java_bytes"] < JAVA_BYTES_MAX, many
    assert many["python_bytes"] < 2 * CORE_BYTES_MAX, many
