"""Analyse: its tables equal what is known of every message, also of those that moved or were there before."""

from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import StorageLevel

from lightrail.spark.analysis.history import history
from lightrail.spark.analysis.tables import Tables, tables
from tests.spark import observed

Analysed = Callable[[pa.Table], Tables]


@pytest.fixture
def analysed(spark: Any, tmp_path: Path) -> Analysed:
    def of(events: pa.Table) -> Tables:
        pq.write_table(events, tmp_path / "events.parquet")
        rows = history(spark.read.parquet(str(tmp_path / "events.parquet")))
        return tables(rows.persist(StorageLevel.DISK_ONLY))

    return of


def by(frame: Any, *keys: str) -> dict[Any, dict[str, Any]]:
    """The rows of a table by its keys; there must be one of each."""
    rows = {}
    for row in frame.toArrow().to_pylist():
        row = {
            name: value.astimezone(UTC) if hasattr(value, "astimezone") else value
            for name, value in row.items()
        }
        key = tuple(row.pop(name) for name in keys)
        assert key not in rows
        rows[key if len(keys) > 1 else key[0]] = row
    return rows


def test_the_tables_equal_what_is_known_of_every_message(analysed: Analysed) -> None:
    messages = observed.story(2, older=40)
    found, expected = analysed(observed.table(messages)), observed.Expected(messages)
    assert by(found.minutes, "queue", "minute") == expected.minutes()
    assert by(found.queues, "queue") == expected.queues()
    assert by(found.shards, "shard", "minute") == expected.shards()
    dead = by(found.dead_letters, "queue", "minute", "reason")
    assert {key: (row["messages"], row["bytes"]) for key, row in dead.items()} == expected.dead_letters()
