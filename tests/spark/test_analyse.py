"""Analyse: its tables equal what is known of every message, also of those that moved or were there before."""

import json
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lightrail.spark.jobs import analyse
from lightrail.spark.main import _parser, main
from tests.spark import observed
from tests.support.spark.archives import JournalOf, damage

Analysed = Callable[..., dict[str, list[dict[str, Any]]]]
TABLES = ("minutes", "dead_letters", "shards", "queues")


@pytest.fixture
def analysed(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Analysed:
    """Rows of the data source to rows of all tables, by the command."""

    def of(rows: pa.Table, *options: str) -> dict[str, list[dict[str, Any]]]:
        pq.write_table(rows, tmp_path / "rows.parquet")
        monkeypatch.setattr(analyse, "events", lambda *_: spark.read.parquet(str(tmp_path / "rows.parquet")))
        args = _parser().parse_args(["analyse", "TABLE", "--to", str(tmp_path / "to"), *options])
        assert analyse.run(args) == 0
        return {
            name: DeltaTable(str(tmp_path / "to" / name)).to_pyarrow_table().to_pylist() for name in TABLES
        }

    return of


def by(rows: list[dict[str, Any]], *keys: str) -> dict[Any, dict[str, Any]]:
    """The rows of a table by its keys, of which there is one each."""
    found = {}
    for row in rows:
        values = {
            name: value.astimezone(UTC) if hasattr(value, "astimezone") else value
            for name, value in row.items()
        }
        key = tuple(values.pop(name) for name in keys)
        assert key not in found
        found[key if len(keys) > 1 else key[0]] = values
    return found


@pytest.mark.timeout(400)
def test_the_tables_equal_what_is_known_of_every_message(analysed: Analysed, tmp_path: Path) -> None:
    messages = observed.story(2, older=40)
    page = tmp_path / "report.html"
    found = analysed(observed.table(messages), "--report", str(page), "--top", "2")
    expected = observed.Expected(messages)
    assert by(found["minutes"], "queue", "minute") == expected.minutes()
    assert by(found["queues"], "queue") == expected.queues()
    assert by(found["shards"], "shard", "minute") == expected.shards()
    dead = by(found["dead_letters"], "queue", "minute", "reason")
    assert {key: (row["messages"], row["bytes"]) for key, row in dead.items()} == expected.dead_letters()
    notes = [DeltaTable(str(tmp_path / "to" / name)).history(1)[0]["lightrail"] for name in TABLES]
    assert len(set(notes)) == 1
    text = page.read_text()
    assert "4 others" in text
    assert "<orders>" not in text


def test_what_is_damaged_ends_it_unless_losses_are_allowed(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = JournalOf(tmp_path / "journal")
    journal.declare("orders")
    for number in range(0, 20, 2):
        journal.send("orders", [f"{each:096}".encode() for each in (number, number + 1)])
    damage(journal.archive(tmp_path / "archive"), f"{13:096}".encode())
    words = ("analyse", "--from", str(tmp_path / "archive"), "--json")
    assert main(words) == 1
    assert "journal" in (said := capsys.readouterr().err)
    assert "--allow-loss" in said
    assert main((*words, "--allow-loss")) == 0
    assert json.loads(capsys.readouterr().out)["queues"][0]["enqueued"] == 18


def test_a_folder_of_tables_keeps_its_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "minutes").mkdir()
    (tmp_path / "minutes" / "part-0.parquet").touch()
    with pytest.raises(SystemExit, match="2"):
        main(["analyse", "TABLE", "--to", str(tmp_path)])
    assert "has tables of --format parquet" in capsys.readouterr().err
    (tmp_path / "minutes" / "_delta_log").mkdir()
    with pytest.raises(SystemExit, match="2"):
        main(["analyse", "TABLE", "--to", str(tmp_path), "--format", "parquet"])
    assert "has tables of --format delta" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["analyse", "TABLE", "--to", "s3://bucket/analysis", "--format", "parquet"])
    assert "expected --format delta" in capsys.readouterr().err
