"""spark.readStream.format("lightrail"): the journal as micro-batches."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.spark.archives import JournalOf
from tests.support.spark.session import ROOT, SETTINGS
from tests.support.wait import until

BODY = b"\x00Su\xa0\x05"


def body(number: int) -> bytes:
    """An encoded message."""
    return BODY + f"{number:05}".encode()


def number_of(message: bytes) -> int:
    return int(message[-5:])


class Stream:
    """A query over an archive, and the numbers of the messages in each micro-batch."""

    def __init__(self, spark: Any, archive: Path, checkpoint: Path, **options: object) -> None:
        self._spark = spark
        self._archive = archive
        self._checkpoint = checkpoint
        self._options = {"decode": "none", "columns": "message", "startingOffsets": "earliest", **options}
        self.batches: list[list[int]] = []

    def _take(self, table: Any, batch: int) -> None:
        rows = table.where("message is not null").collect()
        self.batches.append(sorted(number_of(row.message) for row in rows))

    def run(self) -> Any:
        """Reads what is there, and ends."""
        reader = self._spark.readStream.format("lightrail").option("path", str(self._archive))
        query = (
            reader.options(**self._options)
            .load()
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
        return query

    @property
    def numbers(self) -> list[int]:
        return sorted(number for batch in self.batches for number in batch)


@pytest.fixture
def journal(tmp_path: Path) -> JournalOf:
    journal = JournalOf(tmp_path / "journal", segment_bytes=256 * 1024)
    journal.declare("orders")
    return journal


def send(journal: JournalOf, first: int, last: int) -> None:
    for start in range(first, last, 20):
        journal.send("orders", [body(number) for number in range(start, min(start + 20, last))])
        journal.now_ms += 10


def test_a_query_goes_on_where_it_was_and_takes_what_was_there_when_it_began(
    spark: Any, journal: JournalOf, tmp_path: Path
) -> None:
    send(journal, 0, 1_000)
    journal.archive(tmp_path / "archive")
    stream = Stream(spark, tmp_path / "archive", tmp_path / "checkpoint")
    stream.run()
    assert stream.numbers == list(range(1_000))
    send(journal, 1_000, 1_500)
    journal.archive(tmp_path / "archive")
    # Another shard, or this one on an empty disk: it begins at its earliest record.
    other = JournalOf(tmp_path / "other", shard=2)
    other.declare("orders")
    send(other, 1_500, 2_000)
    other.archive(tmp_path / "archive")
    query = stream.run()
    assert stream.numbers == list(range(2_000))
    offsets = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert set(offsets) == {journal.disk, other.disk}
    stream.run()
    assert stream.numbers == list(range(2_000))


def test_micro_batches_are_as_large_as_the_option_says_and_come_in_order_of_time(
    spark: Any, journal: JournalOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightrail.journal.index.BLOCK_BYTES", 8_192)
    send(journal, 0, 3_000)
    journal.archive(tmp_path / "archive")
    other = JournalOf(tmp_path / "other", shard=2)
    other.declare("orders")
    other.now_ms = journal.now_ms
    send(other, 3_000, 4_000)
    other.archive(tmp_path / "archive")
    stream = Stream(spark, tmp_path / "archive", tmp_path / "checkpoint", maxMessagesPerTrigger=1_100)
    stream.run()
    assert stream.numbers == list(range(4_000))
    assert 4 <= len(stream.batches) <= 6
    assert all(len(batch) <= 1_100 for batch in stream.batches)
    assert stream.batches == sorted(stream.batches)


def test_a_journal_that_is_gone_stays_in_the_offsets_and_is_no_loss_when_it_was_read(
    spark: Any, journal: JournalOf, tmp_path: Path
) -> None:
    send(journal, 0, 100)
    folder = journal.archive(tmp_path / "archive")
    stream = Stream(spark, tmp_path / "archive", tmp_path / "checkpoint")
    stream.run()
    folder.rename(tmp_path / "away")
    other = JournalOf(tmp_path / "other", shard=2)
    other.declare("orders")
    send(other, 100, 200)
    other.archive(tmp_path / "archive")
    query = stream.run()
    assert stream.numbers == list(range(200))
    assert journal.disk in json.loads(query.lastProgress["sources"][0]["endOffset"])
    (tmp_path / "away").rename(folder)
    stream.run()
    assert stream.numbers == list(range(200))


def test_segments_that_went_before_they_were_read_are_an_error_or_are_passed_over(
    spark: Any, journal: JournalOf, tmp_path: Path
) -> None:
    send(journal, 0, 100)
    journal.archive(tmp_path / "archive")
    stream = Stream(spark, tmp_path / "archive", tmp_path / "checkpoint")
    stream.run()
    send(journal, 100, 20_000)
    folder = journal.archive(tmp_path / "archive")
    first, second, *_ = sorted(folder.glob("*.segment"))
    for gone in (first, second):
        gone.unlink()
        gone.with_suffix(".index").unlink()
    with pytest.raises(Exception, match=f"journal {journal.disk} of shard 1: records"):
        stream.run()
    losses = tmp_path / "losses"
    going_on = Stream(
        spark,
        tmp_path / "archive",
        tmp_path / "checkpoint",
        failOnDataLoss="false",
        lossPath=str(losses),
    )
    going_on.run()
    assert going_on.numbers == list(range(going_on.numbers[0], 20_000))
    (loss,) = [json.loads(path.read_text()) for path in losses.glob("*.json")]
    assert 20 * (loss["next_lsn"] - loss["first_lsn"] - 1) == going_on.numbers[0] - 100


DRIVER = """
import signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
archive, checkpoint, out, hang, settings = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").appName("killed")
for name, value in eval(settings).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
def take(table, batch):
    where = Path(out) / f"{batch}"
    attempt = len(list(where.glob("*.parquet"))) if where.exists() else 0
    table.write.mode("overwrite").parquet(f"{out}/{batch}/{attempt}.parquet")
    if hang == "hang" and batch == 1:
        Path(out, "ready").touch()
        signal.pause()
reader = spark.readStream.format("lightrail").option("path", archive).option("startingOffsets", "earliest")
reader = reader.option("decode", "none").option("columns", "journal,lsn,sequence,message")
query = (
    reader.option("maxMessagesPerTrigger", "2000").load().writeStream.foreachBatch(take)
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination()
"""


@pytest.fixture
def driver(tmp_path: Path, spark_environment: dict[str, str]) -> Callable[[str], subprocess.Popen[bytes]]:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    (tmp_path / "out").mkdir()

    def start(hang: str) -> subprocess.Popen[bytes]:
        folders = [str(tmp_path / name) for name in ("archive", "checkpoint", "out")]
        return subprocess.Popen(
            [sys.executable, str(script), *folders, hang, repr(SETTINGS)],
            cwd=ROOT,
            env=spark_environment,
            start_new_session=True,
        )

    return start


def test_a_driver_that_was_killed_between_offset_log_and_commit_reads_the_same_rows_again(
    spark: Any,
    journal: JournalOf,
    tmp_path: Path,
    driver: Callable[[str], subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lightrail.journal.index.BLOCK_BYTES", 8_192)
    send(journal, 0, 5_000)
    journal.archive(tmp_path / "archive")
    process = driver("hang")
    try:
        until((tmp_path / "out" / "ready").exists, "a driver in its second micro-batch", 90)
    finally:
        killed_group(process)
    assert (tmp_path / "checkpoint" / "offsets" / "1").exists()
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    # What comes in between belongs to later batches.
    send(journal, 5_000, 6_000)
    journal.archive(tmp_path / "archive")
    again = driver("end")
    try:
        assert again.wait(90) == 0
    finally:
        killed_group(again)
    out = tmp_path / "out"
    key = ["journal", "lsn", "sequence", "message"]
    first, second = (
        [tuple(row) for row in spark.read.parquet(f"{out}/1/{attempt}.parquet").orderBy(*key).collect()]
        for attempt in (0, 1)
    )
    assert first == second
    assert first
    last = [sorted(folder.glob("*.parquet"))[-1] for folder in out.iterdir() if folder.is_dir()]
    rows = spark.read.parquet(*map(str, last)).collect()
    assert sorted(number_of(row.message) for row in rows) == list(range(6_000))


def killed_group(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of a driver with its JVM and workers, as a machine that goes takes them all."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
