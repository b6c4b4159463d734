"""The sink without Spark: chunks, their numbers, what is sent, what an attempt after another one sends."""

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.spark.http import Access, GatewayClient
from lightrail.spark.writing import encoding
from lightrail.spark.writing.encoding import Chunk, Chunks
from lightrail.spark.writing.sink import (
    Sent,
    SinkError,
    SinkOptions,
    batch_number,
    producer_name,
    send,
    send_rests,
    stream_number,
)
from tests.support.fake_gateway import FakeGateway

Rows = list[tuple[str, bytes]]


def chunks_of(rows: Rows, messages_max: int, bytes_max: int) -> list[Chunk]:
    chunks = Chunks(messages_max, bytes_max)
    found = [chunk for target, message in rows for chunk in chunks.add(target, message)]
    return [*found, *chunks.rest()]


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.binary(max_size=40)), max_size=60)


@given(ROWS, st.integers(1, 9), st.integers(1, 100))
def test_chunks_hold_every_message_of_a_target_in_order(rows: Rows, messages: int, size: int) -> None:
    chunks = chunks_of(rows, messages, size)
    for target in "abc":
        mine = [chunk for chunk in chunks if chunk.target == target]
        assert [chunk.position for chunk in mine] == list(range(len(mine)))
        assert [each for chunk in mine for each in chunk.messages] == [m for t, m in rows if t == target]
    for chunk in chunks:
        assert 1 <= len(chunk.messages) <= messages
        assert len(chunk.messages) == 1 or sum(map(len, chunk.messages)) <= size


@given(ROWS, st.integers(0, 60))
def test_an_attempt_that_stops_early_has_made_the_chunks_of_the_next_one(rows: Rows, stop: int) -> None:
    chunks = Chunks(3, 50)
    begun = [chunk for target, message in rows[:stop] for chunk in chunks.add(target, message)]
    assert begun == chunks_of(rows, 3, 50)[: len(begun)]


def test_what_gathers_for_many_targets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "SPARK_SINK_TARGETS", 5)
    monkeypatch.setattr(encoding, "SPARK_SINK_BYTES", 100)
    chunks = Chunks(1_000, 1_000)
    for index in range(50):
        list(chunks.add(f"q{index}", b"x" * 30))
        assert len(chunks._gathering) <= 5
        assert chunks._bytes <= 100


def test_a_chunk_is_count_ends_messages() -> None:
    assert Chunk("q", 0, [b"ab", b"", b"c"]).body() == struct.pack("<4I", 3, 2, 2, 3) + b"abc"


def options(url: str, **more: str) -> SinkOptions:
    return SinkOptions.of({"gateway": url, "target": "q", "batchMessages": "2", **more})


def bodies(count: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"body": pa.array([str(index).encode()])}) for index in range(count)]


def numbers(gateway: FakeGateway) -> list[str]:
    return [headers["LightRail-Batch"] for _, _, _, headers in gateway.asked]


def test_a_task_sends_chunks_under_its_name_with_rising_numbers() -> None:
    with FakeGateway() as gateway:
        gateway.answers["POST", "/q/!batch"] = [
            (200, {}, {"stored": 0, "duplicate": True}),
            (200, {}, {"stored": 2, "duplicate": False}),
            (200, {}, {"stored": 1, "duplicate": False}),
        ]
        sent = send(options(gateway.url), bodies(5), producer_name("job", 3), batch_number)
        assert (sent.messages, sent.stored, sent.batches, sent.duplicates) == (4, 2, 2, 1)
        assert numbers(gateway) == ["0", "1"]
        send_rests(options(gateway.url), [None, sent, Sent()])
        assert numbers(gateway) == ["0", "1", "2"]
        assert {headers["LightRail-Producer"] for _, _, _, headers in gateway.asked} == {"spark/job/3"}


def test_rows_go_where_their_column_says() -> None:
    rows = pa.record_batch({"body": pa.array([b"1", b"2", b"3"]), "queue": pa.array(["a/b", "c d", "a/b"])})
    with FakeGateway() as gateway:
        gateway.answers["POST", "/a/b/!batch"] = (200, {}, {"stored": 2, "duplicate": False})
        gateway.answers["POST", "/c%20d/!batch"] = (200, {}, {"stored": 1, "duplicate": False})
        sent = send(options(gateway.url, target=""), [rows], "p", batch_number)
        send_rests(options(gateway.url, target=""), [sent])
        assert [(path, headers["LightRail-Batch"]) for _, path, _, headers in gateway.asked] == [
            ("/a/b/!batch", "0"),
            ("/c%20d/!batch", "0"),
        ]


def test_what_ends_in_the_middle_of_a_chunk_is_sent_only_when_the_task_is_known_to_have_had_all() -> None:
    """A worker whose JVM was killed sees an end. The next attempt has the same number for a whole chunk."""
    with FakeGateway() as gateway:
        gateway.answers["POST", "/q/!batch"] = (200, {}, {"stored": 2, "duplicate": False})
        send(options(gateway.url), bodies(3), "p", batch_number)
        assert numbers(gateway) == ["0"]
        send(options(gateway.url), bodies(4), "p", batch_number)
        assert numbers(gateway) == ["0", "0", "1"]


def test_numbers_of_a_stream_rise_from_batch_to_batch() -> None:
    assert stream_number(7 << 20, 0) > stream_number(6 << 20, (1 << 20) - 1)
    with pytest.raises(SinkError, match="raise batchMessages"):
        stream_number(0, 1 << 20)


def test_a_refusal_says_which_batch_and_what_stays() -> None:
    with FakeGateway() as gateway:
        gateway.answers["POST", "/q/!batch"] = [
            (200, {}, {"stored": 2, "duplicate": False}),
            (413, {}, {"detail": "message 0 has 70 bytes"}),
        ]
        with pytest.raises(
            SinkError, match=r"batch 1 of spark/j/0 .*message 0 has 70 bytes.*are not stored again"
        ):
            send(options(gateway.url), bodies(4), producer_name("j", 0), batch_number)


def test_a_queue_that_stays_full_fails_the_task_after_a_while() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with FakeGateway() as gateway:
        gateway.answers["POST", "/q/!batch"] = (503, {"Retry-After": "1"}, {"detail": "q is full"})
        access = Access((gateway.url,))
        client = GatewayClient(access, retry_ms=20_000, monotonic=lambda: now[0], sleep=sleep)
        with pytest.raises(SinkError, match="q is full; tried for 20 s"):
            send(options(gateway.url), bodies(2), "p", batch_number, client=client)
        assert len(gateway.asked) > 4


def test_a_rate_is_kept() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with FakeGateway() as gateway:
        gateway.answers["POST", "/q/!batch"] = (200, {}, {"stored": 2, "duplicate": False})
        wanted = options(gateway.url, messagesPerSecond="10")
        send(wanted, bodies(40), "p", batch_number, monotonic=lambda: now[0], sleep=sleep)
    assert now[0] == pytest.approx(4.0)


def test_a_row_that_is_no_message_is_named_by_its_index() -> None:
    rows = pa.record_batch({"body": pa.array([b"1", None])})
    with pytest.raises(
        SinkError, match="row 1 of this partition is no message: expected a message, or a body"
    ):
        send(options("http://127.0.0.1:1"), [rows], "p", batch_number)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "expected the option gateway"),
        ({"gateway": "http://a", "batchMessages": "0"}, "batchMessages is '0'; expected a number from 1"),
        ({"gateway": "http://a", "batchBytes": "1GB"}, "batchBytes is '1GB'"),
        ({"gateway": "http://a", "id": "a\nb"}, "id is"),
        ({"gateway": "http://a", "id": "i" * 201}, "up to 200 characters of ASCII"),
        ({"gateway": "http://a", "password": "hush"}, "use passwordFile"),
    ],
)
def test_options_that_can_not_be_used_say_what_was_expected(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SinkError, match=said):
        SinkOptions.of(given)
