"""df.write and writeStream of the data source `lightrail`: rows become messages, each exactly once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import texts
from tests.support.broker import Broker
from tests.support.http_client import Http

pytestmark = pytest.mark.timeout(600)  # Most of it waits for Spark, which is slow where others work as well.


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("sink") / "data", "--shards", "2") as running:
        yield running


@pytest.fixture
def http(broker: Broker) -> Iterator[Http]:
    with Http(broker.http) as client:
        yield client


def queue(http: Http, *names: str) -> None:
    for name in names:
        assert http("POST", f"/{name}", {"role": "queue"}).status == 201


def write(table: Any, broker: Broker, **options: object) -> None:
    writer = table.write.format("lightrail").option("gateway", f"http://{broker.http}")
    writer.options(**options).mode("append").save()


def numbers(spark: Any, count: int, partitions: int = 3) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as text")


def test_a_table_is_written_once_however_often_under_the_same_id(
    spark: Any, broker: Broker, http: Http
) -> None:
    queue(http, "table")
    rows = numbers(spark, 1_000).selectExpr("cast(text as binary) as body")
    for _ in range(2):
        write(rows, broker, target="table", id="load-1", batchMessages=70)
    found = texts(http, "table")
    assert sorted(found, key=int) == [str(number) for number in range(1_000)]
    write(rows.limit(10), broker, target="table")
    assert len(texts(http, "table")) == 1_010


def test_rows_of_a_partition_stay_in_order_and_go_where_they_say(
    spark: Any, broker: Broker, http: Http
) -> None:
    queue(http, "even", "odd")
    rows = numbers(spark, 500, 1).selectExpr(
        "cast(text as binary) as body", "if(cast(text as int) % 2 = 0, 'even', 'odd') as queue"
    )
    write(rows, broker, batchMessages=30)
    assert texts(http, "even") == [str(number) for number in range(0, 500, 2)]
    assert texts(http, "odd") == [str(number) for number in range(1, 500, 2)]


def test_columns_become_what_amqp_has_for_them(spark: Any, broker: Broker, http: Http) -> None:
    queue(http, "columns")
    rows = spark.sql(
        "select 'hello' as body, 'm-1' as message_id, 's' as subject, 7 as priority, 60000L as ttl, "
        "map('colour', 'red') as application_properties, "
        "named_struct('x-opt-n', 7L, 'x-opt-ok', true) as message_annotations"
    )
    write(rows, broker, target="columns")
    (found,) = http("GET", "/columns/!messages").json()["messages"]
    assert (found["body"], found["properties"]["message-id"]) == (
        {"kind": "amqp-value", "text": "hello"},
        "m-1",
    )
    assert (found["header"]["priority"], found["header"]["durable"]) == (7, True)
    assert found["application_properties"] == {"colour": "red"}
    assert found["message_annotations"] == {"x-opt-n": 7, "x-opt-ok": True}


@pytest.mark.parametrize(
    ("columns", "mode", "said"),
    [
        ("'a' as body, 1 as colour", "append", "the sink has no use for the column 'colour'"),
        ("'a' as subject", "append", "expected a column message"),
        ("'a' as body", "overwrite", "queues can't be overwritten"),
    ],
)
def test_what_can_not_be_written_is_refused_before_any_task(
    spark: Any, broker: Broker, columns: str, mode: str, said: str
) -> None:
    writer = spark.sql(f"select {columns}").write.format("lightrail").option("target", "never")
    with pytest.raises(Exception, match=said):
        writer.option("gateway", f"http://{broker.http}").mode(mode).save()


def test_a_stream_writes_each_micro_batch_once_also_when_it_is_done_again(
    spark: Any, broker: Broker, http: Http, tmp_path: Path
) -> None:
    queue(http, "stream")
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()

    def run() -> None:
        query = (
            spark.readStream.schema("value string")
            .option("maxFilesPerTrigger", 1)
            .text(str(source))
            .selectExpr("value as body")
            .writeStream.format("lightrail")
            .option("gateway", f"http://{broker.http}")
            .option("target", "stream")
            .option("batchMessages", 7)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None

    for name in range(3):
        (source / f"{name}.txt").write_text("".join(f"{name}-{line:03}\n" for line in range(50)))
    run()
    expected = [f"{name}-{line:03}" for name in range(3) for line in range(50)]
    assert sorted(texts(http, "stream")) == expected
    # As if the driver had died between the last batch and its commit.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    (source / "3.txt").write_text("3-000\n")
    run()
    assert sorted(texts(http, "stream")) == [*expected, "3-000"]
