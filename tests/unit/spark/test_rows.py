"""Rows out of segments: every event, groups, torn ends, damage, parts; as the plain way reads them."""

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.amqp.sections import Header, encode_header
from lightrail.journal.layout import HEADER_SIZE
from lightrail.journal.record import (
    CONTINUED,
    DEFERRED_REASON,
    MOVED,
    MOVED_REASON,
    REWRITTEN,
    SPILLED,
    Delivered,
    Outcome,
    Queue,
    QueueEvent,
    Settle,
)
from lightrail.journal.segment_header import SEGMENT_HEADER_SIZE
from lightrail.model.attempts import DEFERRED, waiting
from lightrail.model.orders import PRIORITY_MIXED
from lightrail.shard.journal.journal import Journal
from lightrail.spark.columns import Decode
from lightrail.spark.decoding import windows
from lightrail.spark.decoding.rows import record_batches
from lightrail.spark.decoding.wanted import Wanted
from tests.unit.spark.journal_rows import (
    PLAIN,
    Bytes,
    append,
    declared,
    journal_of,
    moment,
    plain_rows,
    rows_of,
    some_records,
    written,
)

ALL = Wanted(columns=PLAIN, captured_only=False)
CAPTURED = Wanted(columns=PLAIN)


def some(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


# --- equality with the plain way ---------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), segment_bytes=st.sampled_from((3_000, 20_000, 1 << 20)))
@settings(max_examples=10, deadline=None)
def test_rows_are_those_of_reading_record_by_record(seed: int, segment_bytes: int) -> None:
    for segment in journal_of(some_records(seed, 120), segment_bytes):
        assert rows_of(segment, ALL) == plain_rows(segment, captured_only=False)
        assert rows_of(segment, CAPTURED) == plain_rows(segment)


@given(seed=st.integers(0, 2**32), rows=st.integers(1, 50), size=st.integers(1, 900))
@settings(max_examples=10, deadline=None)
def test_rows_are_the_same_in_batches_of_any_size(seed: int, rows: int, size: int) -> None:
    wanted = Wanted(columns=PLAIN, captured_only=False, batch_rows=rows, batch_bytes=size)
    (segment,) = journal_of(some_records(seed, 30))
    assert rows_of(segment, wanted) == plain_rows(segment, captured_only=False)


@pytest.mark.parametrize("window", [200, 1_000, 5_000])
def test_rows_are_the_same_in_windows_of_any_size(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "SPARK_WINDOW_BYTES", window)
    for segment in journal_of(some_records(5, 300), 30_000):
        assert rows_of(segment, ALL) == plain_rows(segment, captured_only=False)


def test_parts_split_at_every_record_give_the_rows_of_the_whole() -> None:
    for segment in journal_of(some_records(11, 60), 6_000):
        whole = plain_rows(segment, captured_only=False)
        index = segment.index
        for lsn in range(index.first_lsn, index.next_lsn + 1):
            head = rows_of(segment, ALL, segment.part(None, lsn))
            tail = rows_of(segment, ALL, segment.part(lsn, None))
            assert head + tail == whole
        single = [
            row
            for lsn in range(index.first_lsn, index.next_lsn)
            for row in rows_of(segment, ALL, segment.part(lsn, lsn + 1))
        ]
        assert single == whole


def test_parts_begin_at_a_block_and_read_nothing_of_the_others() -> None:
    def write(journal: Journal) -> None:
        journal.append(declared(1), 1)
        for number in range(60):
            journal.append(append([bytes(100_000)], (1, number)), number)
            if number == 30:
                journal.append(Queue(QueueEvent.POLICY, 1, "renamed", declared(1).policy), number)

    (segment,) = journal_of(write, 16 << 20)
    assert len(segment.index.blocks) > 4
    reads: list[tuple[int, int]] = []

    class Watched(Bytes):
        def read(self, offset: int, length: int) -> bytes:
            reads.append((offset, length))
            return super().read(offset, length)

    block, after = segment.index.blocks[-2:]
    file = Watched(segment.file.data)
    batches = list(record_batches(segment.part(block.lsn, after.lsn), file, CAPTURED))
    assert {name for batch in batches for name in batch.column("queue").to_pylist()} == {"renamed"}
    assert reads.pop() == (block.offset, after.offset - block.offset)
    assert [offset for offset, _ in reads] == [0, SEGMENT_HEADER_SIZE, segment.index.queues[1]]
    assert max(length for _, length in reads) <= 65_536


@pytest.mark.parametrize("targets", [1, 2])
def test_records_of_one_message_each_are_read_by_the_thousand(targets: int) -> None:
    def write(journal: Journal) -> None:
        for queue in range(1, targets + 1):
            journal.append(declared(queue), 1)
        for number in range(2_500):
            starts = [(queue, number) for queue in range(1, targets + 1)]
            journal.append(append([b"message %d" % number], *starts), number)
            if number % 7 == 0:
                journal.append(Settle(1, [(number, number + 1)], Outcome.ACCEPTED), number)

    (segment,) = journal_of(write)
    assert rows_of(segment, CAPTURED) == plain_rows(segment)


# --- events ---------------------------------------------------------------------------------------------


def test_an_append_gives_a_row_for_each_target_and_message() -> None:
    segment = written(
        declared(1),
        declared(2, epoch=4),
        append([b"a", b"bc"], (1, 0), (2, 7), durable=True, priority=9, expires_at_ms=1_400),
    )
    rows = rows_of(segment, CAPTURED)
    assert some(rows, "queue", "epoch", "sequence", "event", "message") == [
        ("q1", 1, 0, "enqueued", b"a"),
        ("q1", 1, 1, "enqueued", b"bc"),
        ("q2", 4, 7, "enqueued", b"a"),
        ("q2", 4, 8, "enqueued", b"bc"),
    ]
    assert set(some(rows, "durable", "priority", "ttl", "delivery_count", "producer", "consumer")) == {
        (True, 9, 500, 0, "00000003-5", None)
    }
    assert set(some(rows, "enqueued_at", "event_time", "shard", "journal", "reason")) == {
        (moment(900), moment(1_000), 3, "5eed", None)
    }


@pytest.mark.parametrize("columns", [PLAIN, ("priority", "sequence")], ids=["all", "these"])
def test_where_a_record_leaves_priorities_to_the_headers_each_message_has_its_own(
    columns: tuple[str, ...],
) -> None:
    messages = [encode_header(Header(priority=each)) + b"\x00Su\xa0\x01x" for each in (0, 255, 9)]
    segment = written(
        declared(1),
        append([b"a", b"b"], (1, 0), priority=7),
        append([*messages, b"\x00Su\xa0\x00", b"?"], (1, 2), priority=PRIORITY_MIXED),
        Settle(1, [(0, 1)], Outcome.ACCEPTED),
    )
    rows = rows_of(segment, Wanted(columns=columns))
    assert some(rows, "sequence", "priority") == [
        *((0, 7), (1, 7)),
        *((2, 0), (3, 255), (4, 9), (5, 4), (6, None)),
        (0, None),
    ]


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_settle_gives_a_row_for_each_sequence(outcome: Outcome) -> None:
    rows = rows_of(written(declared(1), Settle(1, [(3, 5), (8, 9)], outcome, "why", 2)), CAPTURED)
    assert [row["sequence"] for row in rows] == [3, 4, 8]
    returned = outcome in (Outcome.RELEASED, Outcome.MODIFIED)
    assert set(some(rows, "event", "reason", "delivery_count", "message", "durable")) == {
        (outcome.name.lower(), "why", 2 if returned else None, None, None)
    }


def test_a_deferral_is_no_failed_delivery() -> None:
    segment = written(
        declared(1),
        Settle(1, [(0, 1)], Outcome.MODIFIED, DEFERRED_REASON, DEFERRED + 2),
        replace(append([b"a"], (1, 5), flags=MOVED), attempts=DEFERRED + 3),
    )
    assert some(rows_of(segment, CAPTURED), "event", "reason", "delivery_count") == [
        ("modified", "deferred", 2),
        ("moved", None, 3),
    ]


def test_a_failed_delivery_after_which_messages_wait_is_an_event_like_others() -> None:
    segment = written(
        declared(1),
        Settle(1, [(0, 2), (4, 5)], Outcome.MODIFIED, "", waiting(2, 1 << 41)),
        Settle(1, [(0, 1)], Outcome.MODIFIED, "why", waiting(3, 70_000)),
        replace(append([b"a"], (1, 5), flags=MOVED), attempts=waiting(4, 70_000)),
    )
    assert some(rows_of(segment, CAPTURED), "event", "reason", "delivery_count") == [
        *[("modified", None, 2)] * 3,
        ("modified", "why", 3),
        ("moved", None, 4),
    ]


def test_what_a_copy_does_to_follow_its_source_is_no_event() -> None:
    segment = written(
        declared(1),
        Settle(1, [(0, 1)], Outcome.MODIFIED, MOVED_REASON, waiting(1, 70_000)),
        append([b"a"], (1, 0), flags=MOVED),
        Settle(1, [(0, 1)], Outcome.ACCEPTED, MOVED_REASON),
        Settle(1, [(0, 1)], Outcome.ACCEPTED, "paced"),
    )
    assert some(rows_of(segment, CAPTURED), "event", "reason") == [("moved", None), ("accepted", "paced")]


def test_what_is_written_again_is_no_event_and_what_is_spilled_is_one() -> None:
    segment = written(
        declared(1),
        append([b"a"], (1, 0), flags=REWRITTEN),
        append([b"b"], (1, 0), flags=REWRITTEN | SPILLED),
        append([b"c"], (1, 0), flags=SPILLED),
    )
    assert some(rows_of(segment, CAPTURED), "event", "message") == [("enqueued", b"c")]


def test_deliveries_name_their_consumer() -> None:
    rows = rows_of(written(declared(1), Delivered(1, 0xAB << 32 | 4, [(0, 2), (4, 5)])), CAPTURED)
    assert some(rows, "event", "sequence", "consumer", "producer") == [
        ("delivered", 0, "000000ab-4", None),
        ("delivered", 1, "000000ab-4", None),
        ("delivered", 4, "000000ab-4", None),
    ]


def test_only_queues_with_capture_at_that_record_give_rows() -> None:
    segment = written(
        declared(1, capture=False),
        append([b"before"], (1, 0)),
        Queue(QueueEvent.POLICY, 1, "q1", declared(1).policy),
        append([b"during"], (1, 1)),
        Queue(QueueEvent.POLICY, 1, "q1", "{}"),
        append([b"after"], (1, 2)),
    )
    assert some(rows_of(segment, CAPTURED), "message") == [(b"during",)]
    assert some(rows_of(segment, ALL), "message") == [(b"before",), (b"during",), (b"after",)]


def test_queues_are_chosen_by_name_and_by_pattern() -> None:
    segment = written(*(declared(number) for number in (1, 2, 12)), append([b""], (1, 0), (2, 0), (12, 0)))
    for wanted, names in (
        (Wanted(queues=frozenset({"q2", "other"})), ["q2"]),
        (Wanted(pattern="q[0-9]"), ["q1", "q2"]),
        (Wanted(pattern="q1.*", queues=frozenset({"q2", "q12"})), ["q12"]),
    ):
        assert [row["queue"] for row in rows_of(segment, wanted)] == names


def test_rows_are_chosen_by_the_time_of_their_record() -> None:
    def write(journal: Journal) -> None:
        journal.append(declared(1), 1)
        for number in range(6):
            journal.append(append([b"x"], (1, number)), 10 * number)

    (segment,) = journal_of(write)
    rows = rows_of(segment, Wanted(columns=PLAIN, first_ms=20, before_ms=40))
    assert [row["sequence"] for row in rows] == [2, 3]


def test_without_bodies_messages_are_null() -> None:
    segment = written(declared(1), append([b"abc"], (1, 0)))
    (row,) = rows_of(segment, Wanted(include_body=False))
    assert row["message"] is None
    assert row["sequence"] == 0


def test_all_columns_are_there_and_those_that_take_decoding_are_null() -> None:
    (row,) = rows_of(written(declared(1), append([b"abc"], (1, 0))), Wanted())
    assert row["message"] == b"abc"
    assert row["application_properties"] is row["message_id"] is row["body"] is None


def test_a_part_without_rows_gives_no_batch() -> None:
    assert list(record_batches(written(declared(1)).part(), Bytes(written(declared(1)).file.data), ALL)) == []


def test_a_settle_of_a_million_messages_comes_in_batches() -> None:
    segment = written(declared(1), Settle(1, [(0, 1_000_000)], Outcome.PURGED))
    wanted = Wanted(columns=("sequence",))
    sizes = [batch.num_rows for batch in record_batches(segment.part(), segment.file, wanted)]
    assert sum(sizes) == 1_000_000
    assert max(sizes) == wanted.batch_rows


def test_a_message_larger_than_a_batch_and_a_window_is_a_batch_of_its_own() -> None:
    large = bytes(20 << 20)

    def write(journal: Journal) -> None:
        journal.append(declared(1), 1)
        journal.append(append([b"a", large, b"b"], (1, 0)), 1)
        journal.append(append([large], (1, 3)), 1)

    (segment,) = journal_of(write, 64 << 20)
    batches = list(record_batches(segment.part(), segment.file, Wanted(columns=("sequence", "message"))))
    assert [len(each) for batch in batches for each in batch.column("message").to_pylist()] == [
        *(1, 20 << 20, 1, 20 << 20)
    ]
    assert max(batch.nbytes for batch in batches) < 21 << 20


def test_memory_is_that_of_a_window_and_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "SPARK_WINDOW_BYTES", 1 << 20)
    count, size = 40, 400_000
    message = b"\x00\x53\x75\xa0\xc3" + bytes(195)

    def write(journal: Journal) -> None:
        journal.append(declared(1), 1)
        for number in range(count):
            journal.append(append([message] * (size // 200), (1, number * (size // 200))), 1)

    (segment,) = journal_of(write, 32 << 20)
    wanted = Wanted(decode=Decode.ALL, batch_bytes=1 << 20)
    rows = 0
    tracemalloc.start()
    try:
        for batch in record_batches(segment.part(), segment.file, wanted):
            rows += batch.num_rows
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows * 200 == count * size
    assert peak < 12 << 20


# --- groups ---------------------------------------------------------------------------------------------


def test_a_group_that_nothing_ends_gives_no_rows() -> None:
    segment = written(
        declared(1),
        append([b"a"], (1, 0)),
        append([b"b"], (1, 1), flags=CONTINUED),
        Settle(1, [(0, 1)], Outcome.ACCEPTED, flags=CONTINUED),
    )
    assert some(rows_of(segment, CAPTURED), "message") == [(b"a",)]
    for lsn in range(segment.index.first_lsn, segment.index.next_lsn):
        head = rows_of(segment, CAPTURED, segment.part(None, lsn))
        assert head + rows_of(segment, CAPTURED, segment.part(lsn)) == plain_rows(segment)


@pytest.mark.parametrize("window", [150, 300, 8 << 20])
def test_a_group_larger_than_a_window_is_whole_or_nothing(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "SPARK_WINDOW_BYTES", window)
    group = [append([bytes(100)], (1, number), flags=CONTINUED) for number in range(9)]
    torn = written(declared(1), append([b"a"], (1, 9)), *group)
    assert some(rows_of(torn, CAPTURED), "sequence") == [(9,)]
    whole = written(declared(1), *group, append([b"a"], (1, 9)))
    assert len(rows_of(whole, CAPTURED)) == 10


def test_a_group_that_goes_on_in_the_next_segment_is_in_both() -> None:
    def write(journal: Journal) -> None:
        journal.append(declared(1), 1)
        for number in range(40):
            journal.append(append([bytes(60)], (1, number), flags=CONTINUED), 1)
        journal.append(append([bytes(60)], (1, 40)), 1)

    found = journal_of(write, 2_000)
    assert len(found) > 2
    assert [row["sequence"] for each in found for row in rows_of(each, CAPTURED)] == list(range(41))


def test_the_records_of_a_journal_without_messages_are_passed_over() -> None:
    segment = written()
    assert segment.records()[0].length > HEADER_SIZE
    assert rows_of(segment, ALL) == []
