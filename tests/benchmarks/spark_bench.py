"""What Spark takes for reading a local archive: messages per second, and memory of its processes.

    python tests/benchmarks/spark_bench.py [--directory DIR] [--messages N] [--cores N] [--runs N]

Messages of about 200 bytes with header, properties and application properties, 200 in a record. The session
is bound to so many processors with everything that it starts. Prints one line of JSON: the median of the runs
for each way to decode, after one run that nobody counts, and the largest memory of Java and of all Python
workers together.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lightrail.bench.kernel import tree  # noqa: E402
from tests.benchmarks.arrow_bench import message  # noqa: E402
from tests.support.spark.archives import JournalOf  # noqa: E402

GROUP = 200
"""Messages in a record."""
DISTINCT = 20_000
"""Messages that are made; they are sent again and again."""
SEGMENT_BYTES = 64 * 1024 * 1024


def write(folder: Path, messages: int) -> Path:
    """An archive with so many messages in one queue."""
    journal = JournalOf(folder / "journal", segment_bytes=SEGMENT_BYTES)
    journal.declare("orders")
    batches = [
        [message(first + index) for index in range(GROUP)]
        for first in range(0, min(messages, DISTINCT), GROUP)
    ]
    for number in range(messages // GROUP):
        journal.send("orders", batches[number % len(batches)], producer=1 << 32 | 7, number=number + 1)
        if number % 50 == 0:
            journal.commit()
            journal.now_ms += 10
    journal.archive(folder / "archive")
    journal.close()
    return folder / "archive"


def session(cores: int, folder: Path) -> Any:
    """A Spark of that many processors."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("spark_bench")
    return (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )


def read(spark: Any, archive: Path, decode: str) -> float:
    """Seconds for all of it, every column made and thrown away."""
    began = time.monotonic()
    rows = spark.read.format("lightrail").option("decode", decode).load(str(archive))
    rows.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


class Memory:
    """Looks at the processes below this one until it is stopped."""

    def __init__(self) -> None:
        self.java = self.python = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopped.wait(0.2):
            java = python = 0
            for pid, usage in tree((os.getpid(),)).items():
                if pid == os.getpid():
                    continue
                size = _resident(pid)
                if "java" in usage.name:
                    java += size
                else:
                    python += size
            self.java, self.python = max(self.java, java), max(self.python, python)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def _resident(pid: int) -> int:
    """Bytes, of shared ones the share: workers are forked from one another. 0 for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def measure(folder: Path, messages: int, cores: int, runs: int, ways: list[str]) -> dict[str, float]:
    """Messages per second by way, and bytes."""
    archive = write(folder, messages)
    spark = session(cores, folder)
    try:
        read(spark, archive, ways[0])
        memory = Memory()
        found: dict[str, float] = {}
        for way in ways:
            found[way] = round(messages / statistics.median(read(spark, archive, way) for _ in range(runs)))
        memory.stop()
        return found | {"java_bytes": memory.java, "python_bytes": memory.python}
    finally:
        spark.stop()


def main() -> None:
    """Prints the figures."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--messages", type=int, default=2_000_000)
    options.add_argument("--cores", type=int, default=1)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--decode", action="append", choices=("none", "properties", "all"))
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.directory))
    try:
        ways = given.decode or ["none", "properties"]
        print(json.dumps(measure(folder, given.messages, given.cores, given.runs, ways)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
