"""The sink whose tasks fail, run twice at a time, whose driver is killed: every row arrives once."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import texts
from tests.support.broker import Broker
from tests.support.http_client import Http
from tests.support.spark.session import ROOT
from tests.support.wait import until

pytestmark = pytest.mark.timeout(600)  # Most of it waits for Spark, which is slow where others work as well.

ROWS = 3_000
PAD = "." * 200

DRIVER = """
import collections, os, signal, sys
from proton.reactor import Copy
from proton.utils import BlockingConnection
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

amqp, gateway, folder, rows = *sys.argv[1:4], int(sys.argv[4])
# Four attempts for a task; small batches, so that the writer gets rows while more are made.
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m")
    .config("spark.log.level", "OFF")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    .config("spark.sql.execution.pythonUDF.arrow.enabled", "false")
    .getOrCreate()
)

def until_some_are_stored(queue):
    # Who browses is sent the first message as soon as there is one, and takes nothing away.
    connection = BlockingConnection(f"amqp://{amqp}")
    connection.create_receiver(queue, options=Copy()).receive(timeout=90)
    connection.close()

passed = collections.Counter()

def at_row(number):
    # Whether this attempt of this task has come so far.
    attempt = TaskContext.get().taskAttemptId()
    passed[attempt] += 1
    return passed[attempt] == number

@udf("string")
def fails_once(text):
    if TaskContext.get().attemptNumber() == 0 and at_row(1_000):
        until_some_are_stored("retried")
        raise RuntimeError("this attempt dies in the middle")
    return text

@udf("string")
def hangs(text):
    if at_row(1_500):
        until_some_are_stored("killed")
        open(os.path.join(folder, "ready"), "w").close()
        signal.pause()
    return text

def to(writer, target):
    return writer.format("lightrail").option("gateway", f"http://{gateway}").option("target", target).option(
        "batchMessages", 50
    )

table = spark.range(0, rows, 1, 2).selectExpr(f"concat(cast(id as string), '{'.' * 200}') as body")
to(table.select(fails_once("body").alias("body")).write, "retried").mode("append").save()
lines = spark.readStream.schema("body string").text(os.path.join(folder, "source"))
writer = to(lines.select(hangs("body").alias("body")).writeStream, "killed")
writer = writer.option("checkpointLocation", os.path.join(folder, "checkpoint")).trigger(availableNow=True)
writer.start().awaitTermination()
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("crashes") / "data", "--shards", "2") as running:
        yield running


def queue(http: Http, *names: str) -> None:
    for name in names:
        assert http("POST", f"/{name}", {"role": "queue"}).status == 201


def numbers(http: Http, name: str) -> list[int]:
    return [int(text.rstrip(".")) for text in texts(http, name)]


def test_attempts_that_die_and_a_driver_that_is_killed_leave_every_row_there_once(
    spark: Any, broker: Broker, tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "lines.txt").write_text("".join(f"{number}{PAD}\n" for number in range(ROWS)))
    with Http(broker.http) as http:
        queue(http, "retried", "killed")
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, broker.amqp, broker.http, str(tmp_path), str(ROWS)],
        cwd=ROOT,
        env=spark_environment,
        start_new_session=True,
    )
    try:
        ready = tmp_path / "ready"
        until(lambda: ready.exists() or process.poll() is not None, "a driver in its micro-batch", 240)
        assert ready.exists(), "the driver ended by itself"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with Http(broker.http) as http:
        # Two partitions, each in its order.
        found = numbers(http, "retried")
        assert sorted(found) == list(range(ROWS))
        for half in (range(ROWS // 2), range(ROWS // 2, ROWS)):
            assert [number for number in found if number in half] == list(half)
        before = numbers(http, "killed")
        assert 0 < len(before) < ROWS
    lines = spark.readStream.schema("body string").text(str(source))
    writer = lines.writeStream.format("lightrail").option("gateway", f"http://{broker.http}")
    query = (
        writer.option("target", "killed")
        .option("batchMessages", 50)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    with Http(broker.http) as http:
        assert numbers(http, "killed") == list(range(ROWS))


def test_two_attempts_of_each_task_at_a_time_store_every_row_once(spark: Any, broker: Broker) -> None:
    with Http(broker.http) as http:
        queue(http, "twice")
    table = spark.range(0, ROWS, 1, 2).selectExpr(f"concat(cast(id as string), '{PAD}') as body")
    problems: list[Exception] = []

    def write() -> None:
        try:
            # In a thread of ours Spark finds no source in Python before it has a session there.
            spark._jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
            writer = table.write.format("lightrail").option("gateway", f"http://{broker.http}")
            # Attempts of a task have the same name and the same numbers; so have two writes with one id.
            writer.option("target", "twice").option("id", "same").option("batchMessages", 40).mode(
                "append"
            ).save()
        except Exception as error:  # told by the test's own thread
            problems.append(error)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, [
        str(each.java_exception)[:3000] if hasattr(each, "java_exception") else each for each in problems
    ]
    with Http(broker.http) as http:
        found = numbers(http, "twice")
    assert sorted(found) == list(range(ROWS))
    for half in (range(ROWS // 2), range(ROWS // 2, ROWS)):
        assert [number for number in found if number in half] == list(half)
