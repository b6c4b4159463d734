"""A row about Spark that reads an archive on one processor."""

import json
import subprocess
import sys
from typing import Final

from tests.benchmarks.load import LoadError
from tests.benchmarks.machine import ROOT
from tests.benchmarks.row import Figures, Limit, Row, Workplace

MESSAGES: Final = 2_000_000
MINUTES: Final = 10


def reading(workplace: Workplace) -> Figures:
    """Messages per second by way to decode."""
    words = ["tests/benchmarks/spark_bench.py", "--directory", workplace.scratch, "--messages", str(MESSAGES)]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=ROOT, timeout=MINUTES * 60
    )
    if done.returncode:
        raise LoadError(f"spark_bench.py ended with {done.returncode}: {done.stderr[-300:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        "none_per_s": found["none"],
        "properties_per_s": found["properties"],
        "workers_mb": round(found["python_bytes"] / 1e6),
    }


def _missing() -> str | None:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "the extra lightrail[spark]"
    return None


ROWS = (
    Row(
        "spark-read",
        "Spark reads a local archive of messages of 200 bytes on one processor: messages per second",
        (f"python tests/benchmarks/spark_bench.py --messages {MESSAGES}",),
        (
            Limit("none_per_s", 300_000, "messages/s", at_least=True),
            Limit("properties_per_s", 60_000, "messages/s", at_least=True),
        ),
        reading,
        _missing,
    ),
)
