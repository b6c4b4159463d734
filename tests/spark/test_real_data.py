"""A known data set goes the whole way: sent into queues, received, captured, analysed; equal to itself."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from lightrail.spark.main import main
from tests.spark.flights import Arrivals, Departures, Flight, flights
from tests.spark.observed import nearest_rank
from tests.support.broker import Broker
from tests.support.http_client import Http

pytestmark = pytest.mark.timeout(900)

COUNT = 12_000
READY_S = 200.0
CONSUMED = ("flights/EWR", "flights/JFK")
"""What lands at LaGuardia stays in its queue."""
TABLES = ("minutes", "dead_letters", "shards", "queues")


@dataclass
class Whole:
    """The data, and what came of it."""

    sent: list[Flight]
    captured: pa.Table
    tables: dict[str, list[dict[str, Any]]]
    page: str


@pytest.fixture(scope="module")
def whole(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("flights")
    sent = flights(COUNT)
    with running(folder) as broker:
        through(broker, sent)
    # It ended in order: all that happened is on disk, and committed when it is there again.
    with running(folder) as broker:
        lake = folder / "lake"
        words = [
            "--gateway",
            f"http://{broker.http}",
            "--to",
            str(lake),
            "--available-now",
            "--decode",
            "all",
        ]
        assert main(["capture", *words]) == 0
    page = folder / "report.html"
    assert main(["analyse", str(lake), "--to", str(folder / "to"), "--report", str(page)]) == 0
    tables = {name: DeltaTable(str(folder / "to" / name)).to_pyarrow_table().to_pylist() for name in TABLES}
    return Whole(sent, pa.table(DeltaTable(lake).to_pyarrow_table()), tables, page.read_text())


@contextmanager
def running(folder: Path) -> Iterator[Broker]:
    """Two shards; with patience, since Spark is beside it."""
    broker = Broker(folder / "data", "--shards", "2")
    try:
        yield broker.until_ready(READY_S)
    finally:
        broker.stop()


def through(broker: Broker, sent: list[Flight]) -> None:
    """All flights into their queues, and out of those that are consumed."""
    with Http(broker.http) as http:
        for queue in sorted({flight.queue for flight in sent}):
            assert http("POST", f"/{queue}", {"role": "queue", "capture": True}).status == 201
    Departures(broker.amqp, sent).run()
    for queue in CONSUMED:
        Arrivals(broker.amqp, queue, sum(flight.queue == queue for flight in sent)).run()


def of(whole: Whole, queue: str) -> list[Flight]:
    return [flight for flight in whole.sent if flight.queue == queue]


def rows(whole: Whole, event: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = whole.captured.filter(pc.field("event") == event).to_pylist()
    return found


def test_what_was_captured_is_what_was_sent(whole: Whole) -> None:
    enqueued = [row for row in rows(whole, "enqueued") if not row["queue"].endswith("/$dlq")]
    assert sorted(
        (int(row["message_id"]), row["queue"], row["subject"], dict(row["application_properties"]))
        for row in enqueued
    ) == [
        (
            flight.number,
            flight.queue,
            flight.carrier,
            {"destination": flight.destination, "cancelled": str(flight.cancelled).lower()},
        )
        for flight in whole.sent
    ]
    assert {int(row["message_id"]): row["body"].decode() for row in enqueued} == {
        flight.number: flight.line for flight in whole.sent
    }
    assert [
        row["message_id"] for row in sorted(enqueued, key=lambda row: (row["queue"], row["sequence"]))
    ] == [
        str(flight.number) for flight in sorted(whole.sent, key=lambda flight: (flight.queue, flight.number))
    ]


def test_the_analysis_equals_the_same_counts_of_the_data(whole: Whole) -> None:
    found = {row["queue"]: row for row in whole.tables["queues"]}
    assert sum(row["enqueued"] for row in found.values() if "$dlq" not in row["queue"]) == COUNT
    for queue in ("flights/EWR", "flights/JFK", "flights/LGA"):
        flights_there = of(whole, queue)
        consumed = queue in CONSUMED
        cancelled = sum(flight.cancelled for flight in flights_there) if consumed else 0
        late = sum(flight.late for flight in flights_there) if consumed else 0
        count = len(flights_there)
        row = found[queue]
        assert {name: row[name] for name in ("enqueued", "accepted", "released", "dead_lettered")} == {
            "enqueued": count,
            "accepted": count - cancelled if consumed else 0,
            "released": late,
            "dead_lettered": cancelled,
        }
        assert (row["delivered"], row["redelivered"]) == ((count + late, late) if consumed else (0, 0))
        assert (row["depth_first"], row["depth_last"]) == (0, 0 if consumed else count)
        assert row["depth_max"] <= count
        assert (row["depth_known"], row["producers"], row["consumers"]) == (True, 1, int(consumed))
        assert row["bytes_in"] == sum(len(flight.message().encode()) for flight in flights_there)
        assert row["bytes_out"] == (row["bytes_in"] if consumed else None)
        dead = found.get(f"{queue}/$dlq", {"enqueued": 0})
        assert dead["enqueued"] == cancelled
    reasons = Counter[str]()
    for row in whole.tables["dead_letters"]:
        reasons[row["reason"]] += row["messages"]
    assert reasons == {"rejected": sum(each.cancelled for each in whole.sent if each.queue in CONSUMED)}


def test_times_in_queue_equal_those_of_the_captured_rows(whole: Whole) -> None:
    came = {(row["queue"], row["sequence"]): row["enqueued_at"] for row in rows(whole, "enqueued")}
    waits: dict[str, list[int]] = {}
    by_minute: dict[tuple[str, Any], list[int]] = {}
    for event in ("accepted", "dead_lettered"):
        for row in rows(whole, event):
            waited = row["event_time"] - came[row["queue"], row["sequence"]]
            waited_ms = round(waited.total_seconds() * 1000)
            waits.setdefault(row["queue"], []).append(waited_ms)
            minute = row["event_time"].astimezone(UTC).replace(second=0, microsecond=0)
            by_minute.setdefault((row["queue"], minute), []).append(waited_ms)
    for row in whole.tables["queues"]:
        there = waits.get(row["queue"], [])
        assert (row["waits"] or 0, row["p50_ms"], row["p99_ms"]) == (
            len(there),
            nearest_rank(there, 50),
            nearest_rank(there, 99),
        )
    for row in whole.tables["minutes"]:
        there = by_minute.get((row["queue"], row["minute"].astimezone(UTC)), [])
        assert (row["waits"] or 0, row["p50_ms"], row["p99_ms"]) == (
            len(there),
            nearest_rank(there, 50),
            nearest_rank(there, 99),
        )


def test_shards_and_minutes_add_up_to_the_queues_and_the_report_names_them(whole: Whole) -> None:
    queues, minutes, shards = (whole.tables[name] for name in ("queues", "minutes", "shards"))
    for name in ("enqueued", "ended", "delivered", "redelivered", "released"):
        assert sum(row[name] for row in minutes) == sum(row[name] for row in queues)
    for shard_column, column in (
        ("messages_in", "enqueued"),
        ("messages_out", "ended"),
        ("bytes_in", "bytes_in"),
    ):
        assert sum(row[shard_column] or 0 for row in shards) == sum(row[column] or 0 for row in queues)
    for queue in ("flights/EWR", "flights/JFK", "flights/LGA"):
        assert queue in whole.page
