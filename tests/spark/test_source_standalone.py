"""A standalone Spark with the wheel and nothing else of this tree: an executor that dies costs no row."""

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.standalone import Standalone, environment
from tests.support.spark.archives import JournalOf

DRIVER = """
import os, sys
from pathlib import Path
import lightrail
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
master, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master(master).appName("standalone")
    .config("spark.ui.enabled", "false").config("spark.driver.memory", "512m")
    .config("spark.driver.host", "127.0.0.1").config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1").config("spark.cores.max", "2")
    .getOrCreate()
)
rows = (
    spark.readStream.format("lightrail").option("path", f"{folder}/archive")
    .option("startingOffsets", "earliest").option("decode", "none")
    .option("columns", "lsn,sequence,message").option("minPartitions", "4").load()
)

@udf("long", useArrow=False)
def once(sequence):
    # In the middle of a task this kills the executor that runs it: the parent of its worker's parent.
    import lightrail.spark.source
    assert "zmq" not in sys.modules
    if sequence == 12_345 and not Path(folder, "killed").exists():
        Path(folder, "killed").touch()
        parent = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
        os.kill(int(parent), 9)
    return sequence

query = (
    rows.withColumn("sequence", once("sequence")).writeStream.format("parquet")
    .option("path", f"{folder}/rows").option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
Path(folder, "where").write_text(lightrail.__file__)
spark.stop()
"""


@pytest.mark.timeout(600)
def test_an_executor_that_is_killed_costs_no_row_and_doubles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightrail.journal.index.BLOCK_BYTES", 8_192)
    journal = JournalOf(tmp_path / "journal", segment_bytes=256 * 1024)
    journal.declare("orders")
    messages = [b"\x00Su\xa0\x05" + f"{number:05}".encode() for number in range(20_000)]
    for first in range(0, len(messages), 50):
        journal.send("orders", messages[first : first + 50])
    journal.archive(tmp_path / "archive")
    python = environment(tmp_path / "environment")
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    with Standalone(tmp_path, python) as cluster:
        words = [str(python), str(driver), cluster.master, str(tmp_path)]
        done = subprocess.run(words, cwd=tmp_path, env=cluster.environ, capture_output=True, timeout=500)
    assert done.returncode == 0, done.stderr.decode()[-3_000:]
    assert (tmp_path / "killed").exists()
    assert str(tmp_path) in (tmp_path / "where").read_text()
    assert sorted(sequences(tmp_path / "rows")) == list(range(20_000))


def sequences(folder: Path) -> list[int]:
    """Of the rows in the files that the sink committed: its log has a line of JSON for each."""
    found: list[int] = []
    for log in (folder / "_spark_metadata").iterdir():
        if log.name.isdigit():
            for line in log.read_text().splitlines()[1:]:
                path = json.loads(line)["path"].removeprefix("file://")
                found += pq.read_table(path, columns=["sequence"]).column(0).to_pylist()
    return found
