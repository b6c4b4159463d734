"""A running broker read by Spark: live and from its archive, over a move and the death of a shard."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http

BATCH = {"Content-Type": "application/vnd.lightrail.batch+json"}
COLUMNS = "queue,shard,sequence,lsn,event,message_id,body"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("live")
    flags = ("--shards", "2", "--archive-seal", "1s", "--archive", str(folder / "archive"))
    with Broker(folder / "data", *flags) as running:
        yield running


def send(http: Http, name: str, first: int, last: int) -> None:
    body = [
        {"Body": f"{number}", "BrokerProperties": {"MessageId": f"m{number}"}}
        for number in range(first, last)
    ]
    assert http("POST", f"/{name}", body, BATCH).status == 201


def where(http: Http, name: str) -> int:
    for shard in http("GET", "/!shards").json()["shards"]:
        if name in http("GET", f"/!shards/{shard['id']}").json()["queue_names"]:
            return int(shard["id"])
    raise AssertionError(f"{name} is nowhere")


class Stream:
    """What a query over the gateway and the archive has read so far."""

    def __init__(self, spark: Any, broker: Broker, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._options = {
            "gateway": f"http://{broker.http}",
            "path": str(broker.data.parent / "archive"),
            "startingOffsets": "earliest",
            "columns": COLUMNS,
            "decode": "all",
            "queues": "orders",
            "reader": "audit",
        }

    def run(self) -> list[Any]:
        """Reads what there is, and gives all rows so far."""
        query = (
            self._spark.readStream.format("lightrail")
            .options(**self._options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(self._folder / "rows"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        rows: list[Any] = self._spark.read.parquet(str(self._folder / "rows")).collect()
        return rows


def test_nothing_is_missed_and_nothing_read_twice_over_a_move_and_the_death_of_a_shard(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    stream = Stream(spark, broker, tmp_path)
    with Http(broker.http) as http:
        assert http("POST", "/orders", {"role": "queue", "capture": True}).status == 201
        assert http("POST", "/aside", {"role": "queue"}).status == 201
        send(http, "aside", 0, 10)
        send(http, "orders", 0, 60)
        for _ in range(20):
            assert http("DELETE", "/orders/!head?timeout=10").status == 200
    rows = stream.run()
    assert sorted(row.message_id for row in rows if row.event == "enqueued") == names(0, 60)
    assert sorted(row.sequence for row in rows if row.event == "accepted") == list(range(20))
    assert {row.queue for row in rows} == {"orders"}

    with Http(broker.http) as http:
        target = 1 - where(http, "orders")
        assert http("POST", "/!moves", {"moves": [{"queue": "orders", "to": target}]}).status == 202
        wait.until(lambda: where(http, "orders") == target, "the queue is at the other shard")
        send(http, "orders", 60, 100)
        os.kill(broker.pid("shard", target), signal.SIGKILL)
        body = b"120"
        properties = {"BrokerProperties": json.dumps({"MessageId": "m120"})}
        wait.until(lambda: http("POST", "/orders", body, properties).status == 201, "the shard is back")
        send(http, "orders", 100, 120)
    rows = stream.run()
    enqueued = [row for row in rows if row.event == "enqueued"]
    # The one that was said again until it was answered may have been stored before.
    assert sorted(row.message_id for row in enqueued if row.message_id != "m120") == names(0, 120)
    assert "m120" in {row.message_id for row in enqueued}
    assert all(bytes(row.body) == row.message_id[1:].encode() for row in enqueued)
    moved = [row for row in rows if row.event == "moved"]
    assert sorted(row.sequence for row in moved) == list(range(20, 60))
    assert {row.shard for row in moved} == {target}
    with Http(broker.http) as http:
        # The reader's pin is there: nothing that it has not read goes.
        (reader,) = http("GET", "/!readers").json()["readers"]
        assert reader["name"] == "audit"
        assert reader["positions"]

    # The archive, which has what was sealed, comes to the same.
    archive = broker.data.parent / "archive"

    def archived() -> int:
        table = spark.read.format("lightrail").option("columns", "event").option("queues", "orders")
        return int(table.load(str(archive)).where("event = 'enqueued'").count())

    wait.until(lambda: any(archive.rglob("*.segment")), "a segment is archived")
    wait.until(lambda: archived() == len(enqueued), "all is archived", 60)


def names(first: int, last: int) -> list[str]:
    return sorted(f"m{number}" for number in range(first, last))
