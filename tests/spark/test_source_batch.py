"""spark.read.format("lightrail"): archive folders as a table."""

from pathlib import Path
from typing import Any

import pytest

from lightrail.amqp.encoder import encode
from tests.support.spark.archives import JournalOf

COLUMNS = "queue,shard,sequence,lsn,event,reason,producer,message"
BODY = b"\x00Su\xa0\x05"


def body(text: str) -> bytes:
    """An encoded message with five bytes of data."""
    assert len(text) == 5
    return BODY + text.encode()


@pytest.fixture
def journal(tmp_path: Path) -> JournalOf:
    return JournalOf(tmp_path / "journal", segment_bytes=64 * 1024)


def load(spark: Any, path: Path | str, **options: object) -> Any:
    reader = spark.read.format("lightrail").option("path", str(path))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_what_was_sent_and_settled_is_there_in_the_order_of_the_journal(
    spark: Any, journal: JournalOf, tmp_path: Path
) -> None:
    journal.declare("orders")
    journal.declare("private", capture=False)
    journal.send("private", [body("aside")])
    sent = [body(f"{number:05}") for number in range(3_000)]
    for first in range(0, 3_000, 10):
        journal.send("orders", sent[first : first + 10], producer=(7 << 32) | 3, number=first + 1)
    journal.settle("orders", 0, 2_000)
    journal.settle("orders", 2_000, 2_001, 1, "no such customer")
    journal.archive(tmp_path / "archive")
    table = load(spark, tmp_path / "archive", decode="none", columns=COLUMNS)
    rows = table.orderBy("lsn", "sequence").collect()
    assert [bytes(row.message) for row in rows[:3_000]] == sent
    assert [row.sequence for row in rows[:3_000]] == list(range(3_000))
    assert {(row.queue, row.event, row.producer, row.shard) for row in rows[:3_000]} == {
        ("orders", "enqueued", "00000007-3", 1)
    }
    assert [(row.event, row.sequence, row.reason) for row in rows[4_999:]] == [
        ("accepted", 1_999, None),
        ("rejected", 2_000, "no such customer"),
    ]
    assert len(rows) == 5_001


def test_a_path_may_be_an_archive_or_one_journal_or_have_stars_or_be_a_uri(
    spark: Any, journal: JournalOf, tmp_path: Path
) -> None:
    journal.declare("orders")
    journal.send("orders", [body("first")])
    folder = journal.archive(tmp_path / "a" / "archive")
    other = JournalOf(tmp_path / "other", shard=2)
    other.declare("orders")
    other.send("orders", [body("secnd")] * 2)
    other.archive(tmp_path / "b" / "archive", index=False)
    found = {
        str(path): load(spark, path, columns="shard").count()
        for path in (
            tmp_path / "a" / "archive",
            folder,
            tmp_path / "*" / "archive",
            f"{tmp_path}/a/archive,{tmp_path}/b/archive",
            f"file://{tmp_path}/b/archive",
            tmp_path / "a" / "archive" / "shard-*",
        )
    }
    assert list(found.values()) == [1, 1, 3, 3, 2, 1]


def test_the_columns_are_those_that_were_asked_for(spark: Any, journal: JournalOf, tmp_path: Path) -> None:
    journal.declare("orders")
    journal.send("orders", [body("first")])
    journal.archive(tmp_path / "archive")
    table = load(spark, tmp_path / "archive", columns="message,queue,sequence", decode="none")
    assert table.columns == ["message", "queue", "sequence"]
    assert [tuple(row) for row in table.collect()] == [(bytearray(body("first")), "orders", 0)]
    named = spark.read.format("lightrail").schema("lsn bigint, queue string").load(str(tmp_path / "archive"))
    assert [row.queue for row in named.collect()] == ["orders"]


def test_offsets_cut_a_batch(spark: Any, journal: JournalOf, tmp_path: Path) -> None:
    journal.declare("orders")
    for number in range(100):
        journal.send("orders", [body(f"{number:05}")] * 50)
        journal.now_ms += 1_000
    journal.archive(tmp_path / "archive")
    start, end = f'{{"{journal.disk}": 20}}', f'{{"{journal.disk}": 40}}'
    table = load(spark, tmp_path / "archive", startingOffsets=start, endingOffsets=end)
    lsns = sorted({row.lsn for row in table.select("lsn").collect()})
    assert (lsns[0], lsns[-1], len(lsns)) == (20, 39, 20)
    since = load(spark, tmp_path / "archive", startingTimestamp=journal.now_ms - 10_000, minPartitions=3)
    assert since.count() == 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode": "some"}, "decode: expected one of none, properties, all, found 'some'"),
        ({"column": "queue"}, "did you mean columns?"),
        ({"password": "x"}, "would show a secret in Spark's plans"),
        ({"path": "/nowhere/at/all"}, "expected an archive at path '/nowhere/at/all', found no such folder"),
    ],
)
def test_an_option_that_is_not_understood_is_said(
    spark: Any, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    reader = spark.read.format("lightrail").option("path", str(tmp_path))
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE") as caught:
        reader.options(**options).load().collect()
    assert message in str(caught.value)


def test_a_range_that_is_gone_is_an_error_that_names_it_or_is_counted(
    spark: Any, journal: JournalOf, tmp_path: Path
) -> None:
    journal.declare("orders")
    for number in range(300):
        journal.send("orders", [body(f"{number:05}")] * 50)
    folder = journal.archive(tmp_path / "archive")
    everything = load(spark, tmp_path / "archive").count()
    assert everything == 15_000
    gone = sorted(folder.glob("*.segment"))[2]
    gone.unlink()
    gone.with_suffix(".index").unlink()
    with pytest.raises(Exception, match=f"journal {journal.disk} of shard 1: records") as caught:
        load(spark, tmp_path / "archive").count()
    assert "failOnDataLoss=false" in str(caught.value)
    rest = load(
        spark, tmp_path / "archive", failOnDataLoss="false", lossPath=str(tmp_path / "losses")
    ).count()
    assert 0 < rest < everything
    (loss,) = spark.read.json(str(tmp_path / "losses")).collect()
    assert loss.journal == journal.disk
    assert (loss.next_lsn - loss.first_lsn - 1) * 50 == everything - rest


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filters_give_the_same_rows_pushed_down_or_not(
    spark: Any, journal: JournalOf, tmp_path: Path, pushed: str
) -> None:
    journal.declare("orders")
    journal.declare("bills")
    for number in range(200):
        journal.send("orders" if number % 2 else "bills", [body(f"{number:05}")] * 50)
        journal.now_ms += 60_000
    journal.archive(tmp_path / "archive")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    try:
        table = load(spark, tmp_path / "archive", decode="none")
        assert table.where("queue = 'orders'").count() == 5_000
        assert table.where("queue in ('orders', 'none')").count() == 5_000
        assert table.where("lsn >= 10 and lsn < 12").select("lsn").distinct().count() == 2
        assert table.where("shard = 2").count() == 0
        assert table.where("event_time < timestamp'2026-09-21 14:14:20Z'").count() == 50
        assert table.where("event_time >= timestamp'2026-09-21 17:32:20Z'").count() == 50
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_nothing_secret_is_in_a_plan(spark: Any, journal: JournalOf, tmp_path: Path) -> None:
    journal.declare("orders")
    journal.archive(tmp_path / "archive")
    table = load(spark, tmp_path / "archive")
    assert encode("secret") not in table._jdf.queryExecution().toString().encode()
