"""A replay without Spark: what its file says, who may go on with it, how messages are marked."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lightrail.amqp.decoder import read_value
from lightrail.amqp.sections import Header, decode_annotations, decode_header, scan, with_header
from lightrail.amqp.values import Timestamp, ULong
from lightrail.spark.command import CommandError, UsageError
from lightrail.spark.journals.listing import Listing
from lightrail.spark.reading.options import read_options
from lightrail.spark.reading.planning import resolve
from lightrail.spark.writing.encoding import BadRowError
from lightrail.spark.writing.replaying import load, new_run, pinned_options, save, state_file
from lightrail.spark.writing.sink import SinkOptions, batch_number, marked, marked_rows, send, send_rests
from tests.support.batches import message
from tests.support.fake_gateway import FakeGateway
from tests.support.spark.archives import JournalOf

ASKED: dict[str, Any] = {"where": "priority > 4", "to": "again"}


def test_a_run_is_found_again_as_it_was_with_its_producer(tmp_path: Path) -> None:
    path = state_file(str(tmp_path), "friday")
    run = new_run("friday", ASKED, {"endingOffsets": '{"d": 7}'}, tasks=2, rate=500, began_ms=1_000)
    assert load(path, ASKED) is None
    save(path, run)
    again = load(path, ASKED)
    assert again == run
    assert again is not None
    assert again.producer == run.producer
    assert new_run("friday", ASKED, {}, 2, 500, 1_000).producer != run.producer


@pytest.mark.parametrize(("rate", "tasks", "expected"), [(1_000, 2, 500), (1, 1, 1), (100_000, 4, 1_000)])
def test_a_batch_is_a_second_s_worth_at_most(rate: float, tasks: int, expected: int) -> None:
    assert new_run("a", {}, {}, tasks, rate, 0).batch_messages == expected


def test_a_run_goes_on_only_with_what_it_began_with(tmp_path: Path) -> None:
    path = state_file(str(tmp_path), "friday")
    save(path, new_run("friday", ASKED, {}, 2, 500, 1_000))
    with pytest.raises(UsageError, match="began with where 'priority > 4', now it is None"):
        load(path, {**ASKED, "where": None})


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 9}', '{"format": 1}'])
def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, text: str) -> None:
    path = state_file(str(tmp_path), "friday")
    path.write_text(text)
    with pytest.raises(CommandError, match=r"friday\.replay\.json"):
        load(path, ASKED)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = state_file(str(tmp_path / "none"), "friday")
    with pytest.raises(CommandError, match="name a permanent folder by --state"):
        save(path, new_run("friday", ASKED, {}, 2, 500, 1_000))


@pytest.mark.parametrize("id", ["", "../x", "a b", ".hidden", "x" * 101, "é"])
def test_an_id_makes_a_file_name(id: str) -> None:
    with pytest.raises(UsageError, match="--id"):
        state_file(".", id)


def enqueued(sent: bytes, *, durable: bool) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "queue": ["q"],
            "sequence": [7],
            "message": pa.array([sent], pa.binary()),
            "durable": pa.array([durable], pa.bool_()),
        }
    )


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("stored", [True, False])
def test_what_was_on_disk_is_durable_whatever_its_sender_wrote(durable: bool, stored: bool) -> None:
    sent = with_header(message("hello"), Header(durable=durable, priority=9, ttl=1_000))
    ((_, found),) = marked_rows(enqueued(sent, durable=stored), 1)
    header = decode_header(found)
    assert (header.durable, header.priority, header.ttl) == (durable or stored, 9, 1_000)


def test_a_marked_message_says_where_it_was_and_is_else_the_same() -> None:
    sent = message("hello", priority=9, ttl_ms=1_000)
    ((queue, found),) = marked_rows(enqueued(sent, durable=False), 1_790_000_000_000)
    annotations = decode_annotations(found)
    assert (queue, annotations) == (
        "q",
        {
            "x-opt-lightrail-replayed": 1_790_000_000_000,
            "x-opt-lightrail-replayed-queue": "q",
            "x-opt-lightrail-replayed-sequence": 7,
        },
    )
    assert type(annotations["x-opt-lightrail-replayed"]) is Timestamp
    assert type(annotations["x-opt-lightrail-replayed-sequence"]) is ULong
    area, before = scan(found).body, scan(sent).body
    assert area is not None
    assert before is not None
    assert read_value(found, *area, 0)[0] == read_value(sent, *before, 0)[0]


def test_a_message_that_is_none_says_how_to_leave_it_out() -> None:
    with pytest.raises(BadRowError, match=r"--where \"not \(queue = 'q' and sequence = 7\)\""):
        marked(b"\x01\x02", "q", 7, 0, durable=True)


def test_what_is_read_is_pinned_when_a_run_begins(tmp_path: Path) -> None:
    journal = JournalOf(tmp_path / "journal")
    journal.declare("q")
    journal.send("q", [message("a")])
    journal.archive(tmp_path / "archive")
    options = {"path": str(tmp_path / "archive"), "queues": "q", "startingTimestamp": "2026-09-21"}
    pinned = pinned_options(options)
    assert pinned.keys() == {"path", "queues", "startingOffsets", "endingOffsets"}
    (end,) = json.loads(pinned["endingOffsets"]).values()
    journal.send("q", [message("b")])
    journal.archive(tmp_path / "archive")
    (later,) = json.loads(pinned_options(options)["endingOffsets"]).values()
    assert later > end
    assert resolve(read_options(pinned), Listing((options["path"],), None).journals())[1] == json.loads(
        pinned["endingOffsets"]
    )


def test_the_sink_marks_what_it_is_told_to() -> None:
    rows = pa.record_batch(
        {
            "queue": ["a", "b"],
            "epoch": [1, 1],
            "sequence": [3, 4],
            "message": pa.array([message("x"), message("y")], pa.binary()),
            "durable": [True, True],
        }
    )
    with FakeGateway() as gateway:
        for name in ("a", "b"):
            gateway.answers["POST", f"/{name}/!batch"] = (200, {}, {"stored": 1, "duplicate": False})
        options = SinkOptions.of({"gateway": gateway.url, "replayedAt": "1790000000000"})
        send_rests(options, [send(options, [rows], "p", batch_number)])
        assert [path for _, path, _, _ in gateway.asked] == ["/a/!batch", "/b/!batch"]
        assert decode_annotations(gateway.asked[1][2][8:])["x-opt-lightrail-replayed-sequence"] == 4
