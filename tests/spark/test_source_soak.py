"""Ten million messages in bounded memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark import ROOT

MESSAGES = 10_000_000
WORKERS_BYTES_MAX = 700_000_000
"""Of all Python workers; the archive has three times as much."""


@pytest.mark.soak
def test_ten_million_messages_are_read_in_bounded_memory(tmp_path: Path) -> None:
    script = "tests/benchmarks/spark_bench.py"
    words = ["--directory", str(tmp_path), "--messages", str(MESSAGES), "--cores", "2", "--runs", "1"]
    done = subprocess.run([sys.executable, script, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["python_bytes"] < WORKERS_BYTES_MAX, found
    assert found["java_bytes"] < 2_500_000_000, found
