"""What Spark reads is what was sent: of every AMQP type, over torn and damaged files, and over a move."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.amqp.composite import write_composite
from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import Header, Properties
from lightrail.journal.record import MOVED, MOVED_REASON, Outcome, Queue, QueueEvent
from lightrail.shard.journal.record import Append
from lightrail.shard.queue.values.runs import batch_of
from tests.support.amqp import strategies as amqp_strategies
from tests.support.spark.archives import JournalOf, damage

COLUMNS = "queue,shard,sequence,lsn,event,message"
BODY = b"\x00Su\xa0\x60"


def load(spark: Any, path: Path, **options: object) -> Any:
    return spark.read.format("lightrail").option("path", str(path)).options(**options).load()


def body(number: int) -> bytes:
    """An encoded message of 101 bytes."""
    return BODY + f"{number:096}".encode()


@pytest.fixture
def journal(tmp_path: Path) -> JournalOf:
    journal = JournalOf(tmp_path / "journal", segment_bytes=64 * 1024)
    journal.declare("orders")
    return journal


def messages_of_every_type() -> list[tuple[bytes, dict[str, Any], bytes | None]]:
    """Encoded messages, their application properties, and the bytes of those that have a body of data."""
    made = []
    ids = st.one_of(*(amqp_strategies.BY_TYPE[kind] for kind in ("ulong", "uuid", "binary", "string")))
    values = st.one_of(amqp_strategies.scalars)
    bodies = st.one_of(
        amqp_strategies.binary.map(lambda data: (data, b"\x00Su" + encode(data))),
        values.map(lambda value: (None, b"\x00Sw" + encode(value))),
        st.lists(values, max_size=3).map(lambda items: (None, b"\x00Sv" + encode(items))),
    )

    @settings(max_examples=150, database=None)
    @given(
        ids,
        st.fixed_dictionaries(dict(amqp_strategies.BY_TYPE)),
        st.dictionaries(amqp_strategies.symbols, values, max_size=3),
        bodies,
    )
    def draw(id: Any, application: Any, annotations: Any, body: tuple[bytes | None, bytes]) -> None:
        properties = Properties()
        properties.message_id = id
        properties.correlation_id = id
        sections = [
            write_composite(Header(durable=True, priority=4)),
            b"\x00Sr" + encode(annotations),
            write_composite(properties),
            b"\x00St" + encode(application),
            body[1],
        ]
        made.append((b"".join(sections), application, body[0]))

    draw()
    return made


def test_messages_of_every_type_are_what_was_sent(spark: Any, journal: JournalOf, tmp_path: Path) -> None:
    sent = messages_of_every_type()
    for encoded, _, _ in sent:
        journal.send("orders", [encoded])
    journal.archive(tmp_path / "archive")
    table = load(
        spark,
        tmp_path / "archive",
        decode="all",
        columns="sequence,message_id,application_properties,body,message",
    )
    rows = table.orderBy("sequence").collect()
    assert [bytes(row.message) for row in rows] == [encoded for encoded, _, _ in sent]
    for row, (_, application, data) in zip(rows, sent, strict=True):
        assert row.message_id is not None
        assert set(row.application_properties) == set(application)
        assert row.application_properties["string"] == application["string"]
        assert row.application_properties["long"] == str(int(application["long"]))
        if data is not None:
            assert bytes(row.body) == data


def test_a_torn_end_is_no_loss(spark: Any, journal: JournalOf, tmp_path: Path) -> None:
    for number in range(0, 200, 10):
        journal.send("orders", [body(each) for each in range(number, number + 10)])
    folder = journal.archive(tmp_path / "archive", index=False)
    last = sorted(folder.glob("*.segment"))[-1]
    data = last.read_bytes()
    last.unlink()
    last.write_bytes(data[:-700])
    rows = load(spark, tmp_path / "archive", columns=COLUMNS, decode="none").orderBy("lsn", "sequence")
    assert [bytes(row.message) for row in rows.collect()] == [body(each) for each in range(190)]


@pytest.mark.parametrize("index", [True, False])
def test_a_damaged_record_is_an_error_that_names_it_or_is_counted(
    spark: Any, journal: JournalOf, tmp_path: Path, index: bool
) -> None:
    for number in range(0, 200, 10):
        journal.send("orders", [body(each) for each in range(number, number + 10)])
    folder = journal.archive(tmp_path / "archive", index=index)
    damage(folder, f"{75:096}".encode())
    with pytest.raises(Exception, match="Damage") as caught:
        load(spark, tmp_path / "archive", columns=COLUMNS, decode="none").collect()
    damaged = 2 + 1 + 7  # The Snapshot, the queue, and seven records before.
    assert f"journal {journal.disk}, segment 1, offset" in str(caught.value)
    assert f"record {damaged}" in str(caught.value)
    losses = tmp_path / "losses"
    table = load(
        spark,
        tmp_path / "archive",
        columns=COLUMNS,
        decode="none",
        failOnDataLoss="false",
        lossPath=str(losses),
    )
    found = [bytes(row.message) for row in table.orderBy("lsn", "sequence").collect()]
    assert found == [body(each) for each in range(200) if not 70 <= each < 80]
    (loss,) = [json.loads(path.read_text()) for path in losses.glob("*.json")]
    assert (loss["journal"], loss["first_lsn"], loss["next_lsn"]) == (journal.disk, damaged, damaged + 1)


def test_a_queue_that_moves_is_enqueued_once_and_settled_once(
    spark: Any, journal: JournalOf, tmp_path: Path
) -> None:
    journal.send("orders", [body(each) for each in range(100)])
    journal.settle("orders", 0, 30)
    target = JournalOf(tmp_path / "target", shard=2)
    target.declare("orders", epoch=2)
    moved = batch_of([body(each) for each in range(30, 100)], durable=True, enqueued_at_ms=journal.now_ms)
    target.append(Append([(1, 30)], 0, 0, moved, 0, 70, 0, MOVED))
    # What the source settles while it is copied is settled in the copy as well.
    journal.settle("orders", 30, 40)
    target.settle("orders", 30, 40, Outcome.ACCEPTED, MOVED_REASON)
    journal.append(Queue(QueueEvent.POLICY, 1, "orders", '{"epoch": 1, "capture": true, "frozen": true}'))
    target.sequences["orders"] = 100
    target.send("orders", [body(each) for each in range(100, 120)])
    target.settle("orders", 40, 120)
    for each in (journal, target):
        each.archive(tmp_path / "archive")
    load(spark, tmp_path / "archive", columns=COLUMNS, decode="none").createOrReplaceTempView("moved")
    counts = spark.sql(
        "select event, shard, count(*) n, count(distinct sequence) d from moved group by event, shard"
    ).collect()
    assert {(row.event, row.shard): (row.n, row.d) for row in counts} == {
        ("enqueued", 1): (100, 100),
        ("accepted", 1): (40, 40),
        ("moved", 2): (70, 70),
        ("enqueued", 2): (20, 20),
        ("accepted", 2): (80, 80),
    }
