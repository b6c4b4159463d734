"""Metrics: what a scrape shows of the counts, and that every family is well formed."""

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lightrail.shard.archiving.retention import ReaderState
from lightrail.telemetry.archive import ARCHIVE_FAMILIES, ArchiveCounts
from lightrail.telemetry.frontend import FRONTEND_FAMILIES, FrontendCounts
from lightrail.telemetry.metrics import SYNC_SECONDS, Histogram, registry
from lightrail.telemetry.queues import DETAILED_FAMILIES, QUEUE_FIGURES, QueueSelection
from lightrail.telemetry.shard import SHARD_FAMILIES, ShardCounts


def queue(**figures: int) -> Any:
    """Figures of one queue, zero where nothing is said."""
    return SimpleNamespace(**(dict.fromkeys(QUEUE_FIGURES, 0) | figures))


def reading(queues: dict[str, Any]) -> Any:
    """What a shard gives to its counts: the names, and what reads the figures of each."""
    return lambda prefix: [(name, lambda it=it: it) for name, it in queues.items() if name.startswith(prefix)]


def scrape(families: Any, counts: Any) -> dict[tuple[str, tuple[str, ...]], float]:
    """Samples by (name, label values)."""
    if isinstance(counts, ShardCounts):
        list(counts.summing())
    text = generate_latest(registry(families, counts)).decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_attribute_of_the_frontend_is_shown_once() -> None:
    counts = FrontendCounts()
    names = [name for name in FrontendCounts.__slots__ if name != "outcomes"]
    for index, name in enumerate(names, 1):
        setattr(counts, name, 1 << index)
    counts.links_opened, counts.links_closed = 1 << 60, 1 << 59
    values = [int(value) for value in scrape(FRONTEND_FAMILIES, counts).values()]
    for name in names:
        assert getattr(counts, name) in values, f"{name} is in no family"


def test_outcomes() -> None:
    counts = FrontendCounts()
    counts.settled(0, 5)
    counts.settled(3, 2)
    counts.messages_presettled = 7
    samples = scrape(FRONTEND_FAMILIES, counts)
    assert samples["lightrail_messages_settled_total", ("accepted",)] == 5
    assert samples["lightrail_messages_settled_total", ("modified",)] == 2
    assert samples["lightrail_messages_settled_total", ("presettled",)] == 7


def test_open_links_are_those_that_were_not_closed() -> None:
    counts = FrontendCounts()
    counts.links_opened, counts.links_closed = 5, 3
    assert scrape(FRONTEND_FAMILIES, counts)["lightrail_links", ()] == 2


def test_a_shard_sums_its_queues() -> None:
    counts = ShardCounts(memory_mark_bytes=64)
    queues = {
        "a": queue(enqueued=3, ready=2, in_flight=1, bytes=300),
        "b": queue(enqueued=4, ready=4, bytes=400),
    }
    counts.queues = reading(queues)
    samples = scrape(SHARD_FAMILIES, counts)
    assert samples["lightrail_queue_messages_enqueued_total", ()] == 7
    assert samples["lightrail_queue_messages", ("ready",)] == 6
    assert samples["lightrail_queue_messages", ("in_flight",)] == 1
    assert samples["lightrail_queue_bytes", ()] == 700
    assert samples["lightrail_queues", ()] == 2
    assert samples["lightrail_memory_mark_bytes", ()] == 64


def test_counters_do_not_fall_when_a_queue_goes() -> None:
    counts = ShardCounts()
    queues = {"a": queue(enqueued=3, accepted=2), "b": queue(enqueued=4)}
    counts.queues = reading(queues)
    before = scrape(SHARD_FAMILIES, counts)
    counts.retire(queues.pop("a"))
    after = scrape(SHARD_FAMILIES, counts)
    for name in ("enqueued", "accepted"):
        key = (f"lightrail_queue_messages_{name}_total", ())
        assert before[key] == after[key]
    assert after["lightrail_queues", ()] == 1
    assert after["lightrail_queues_deleted_total", ()] == 1


def test_a_queue_that_goes_during_a_scrape_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightrail.telemetry.shard.SUMMED_AT_ONCE", 1)
    counts = ShardCounts()
    queues = {"a": queue(enqueued=1), "b": queue(enqueued=2), "c": queue(enqueued=4)}
    counts.queues = reading(queues)
    seen = set()
    for gone in "abc":
        for turn, _ in enumerate(counts.summing()):
            if turn == 0:
                counts.retire(queues.pop(gone))
        seen.add(counts.totals.figures["enqueued"])
    assert seen == {7}


def test_messages_that_nobody_consumes_are_unattended_and_dead_letters_are_not_meant() -> None:
    counts = ShardCounts()
    queues = {
        "a": queue(ready=5),
        "a/$dlq": queue(ready=7),
        "served": queue(ready=9, consumers=1),
        "empty": queue(in_flight=3),
    }
    counts.queues = reading(queues)
    samples = scrape(SHARD_FAMILIES, counts)
    assert samples["lightrail_queues_unattended", ()] == 1
    assert samples["lightrail_queue_messages_unattended", ()] == 5
    assert samples["lightrail_queue_consumers", ()] == 1


def test_room_on_the_disk_is_shown_where_there_is_one(tmp_path: Path) -> None:
    counts = ShardCounts()
    assert ("lightrail_disk_free_bytes", ()) not in scrape(SHARD_FAMILIES, counts)
    counts.store_directory = str(tmp_path / "not-yet-there")
    assert ("lightrail_disk_free_bytes", ()) not in scrape(SHARD_FAMILIES, counts)
    counts.store_directory = str(tmp_path)
    samples = scrape(SHARD_FAMILIES, counts)
    assert 0 < samples["lightrail_disk_free_bytes", ()] <= samples["lightrail_disk_size_bytes", ()]


def test_dead_letters_by_reason() -> None:
    counts = ShardCounts()
    counts.dead_lettered["expired"] += 2
    samples = scrape(SHARD_FAMILIES, counts)
    assert samples["lightrail_queue_messages_dead_lettered_total", ("expired",)] == 2
    assert samples["lightrail_queue_messages_dead_lettered_total", ("rejected",)] == 0


def test_syncs() -> None:
    counts = ShardCounts()
    counts.synced(100, 0.002)
    counts.synced(7, 0.0002)
    samples = scrape(SHARD_FAMILIES, counts)
    assert samples["lightrail_journal_syncs_total", ()] == 2
    assert samples["lightrail_journal_messages_per_sync_sum", ()] == 107
    assert samples["lightrail_journal_messages_per_sync_bucket", ("10.0",)] == 1
    assert samples["lightrail_journal_sync_seconds_count", ()] == 2
    assert samples["lightrail_journal_sync_seconds_bucket", ("0.00025",)] == 1


def test_detail_per_queue_and_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightrail.telemetry.queues.DETAILED_QUEUES_MAX", 2)
    counts = ShardCounts()
    queues = {'odd"\\\n': queue(ready=1), "a/1": queue(), "a/2": queue(in_flight=5), "a/3": queue()}
    counts.queues = reading(queues)
    samples = scrape(DETAILED_FAMILIES, QueueSelection(counts.queues, "a/"))
    assert samples["lightrail_detailed_messages", ("a/2", "in_flight")] == 5
    assert samples["lightrail_detailed_queues_omitted", ()] == 1
    assert ("lightrail_detailed_bytes", ("a/3",)) not in samples
    assert (
        scrape(DETAILED_FAMILIES, QueueSelection(counts.queues, "odd"))[
            "lightrail_detailed_messages", ('odd"\\\n', "ready")
        ]
        == 1
    )


def test_an_archive_says_how_its_readers_stand() -> None:
    counts = ArchiveCounts()
    samples = scrape(ARCHIVE_FAMILIES, counts)
    assert samples["lightrail_archive_oldest_seconds", ()] == 0
    assert not [name for name, *_ in samples if name.startswith("lightrail_reader")]
    counts.oldest_ms = time.time_ns() // 1_000_000 - 60_000
    counts.linked = 7
    counts.readers = {
        "nightly": ReaderState(behind_ms=2_500, unread_bytes=300, held_bytes=100),
        "other": ReaderState(),
    }
    counts.passed_over["nightly"] = 4
    samples = scrape(ARCHIVE_FAMILIES, counts)
    assert 60 <= samples["lightrail_archive_oldest_seconds", ()] < 90
    assert samples["lightrail_archive_segments_added_total", ("link",)] == 7
    assert samples["lightrail_reader_behind_seconds", ("nightly",)] == 2.5
    assert samples["lightrail_reader_unread_bytes", ("nightly",)] == 300
    assert samples["lightrail_reader_held_bytes", ("nightly",)] == 100
    assert samples["lightrail_reader_segments_missed_total", ("nightly",)] == 4
    assert samples["lightrail_reader_segments_missed_total", ("other",)] == 0


@pytest.mark.parametrize("families", [FRONTEND_FAMILIES, SHARD_FAMILIES, DETAILED_FAMILIES, ARCHIVE_FAMILIES])
def test_names_and_help(families: Any) -> None:
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    for family in families:
        assert re.fullmatch(r"lightrail_[a-z_]+", family.name)
        assert not family.name.endswith("_total"), "the exposition adds it"
        assert family.help.endswith(".")


@given(st.lists(st.floats(0, 10), max_size=50))
def test_a_histogram_counts_what_is_at_most_each_bound(values: list[float]) -> None:
    histogram = Histogram(SYNC_SECONDS)
    for value in values:
        histogram.observe(value)
    buckets = dict(histogram.cumulative())
    assert buckets["+Inf"] == len(values) == histogram.count
    assert histogram.sum == pytest.approx(sum(values))
    for bound in SYNC_SECONDS:
        assert buckets[str(bound)] == sum(value <= bound for value in values)
