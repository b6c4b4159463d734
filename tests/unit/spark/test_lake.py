"""The lake: what a commit says, what is proved, and what compaction and retention leave."""

import json
import os
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.schema import Field
from deltalake.transaction import RemoveAction

from lightrail.spark.command import CommandError
from lightrail.spark.lake import compaction
from lightrail.spark.lake.files import JOURNAL_TRANSACTION, LAKE_SCHEMA, PARTITIONS, Range
from lightrail.spark.lake.ledger import Ledger
from lightrail.spark.lake.stream import Outline
from lightrail.spark.lake.table import (
    OrderError,
    active_files,
    commit_batch,
    committed,
    open_or_make,
    open_table,
)
from lightrail.spark.lake.verifying import verify
from lightrail.spark.main import main
from lightrail.spark.reading.losses import Loss
from tests.support.spark.lakes import DAY_MS, SELECTION, Lake, covered

SEGMENTS = 3
NO_FILES = 1 << 40


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    for _ in range(SEGMENTS):
        lake.send(200)
        lake.archived()
    return lake


# --- commits -------------------------------------------------------------------------------------------


def test_a_commit_says_how_far_journals_are_covered_and_which_batch_it_is(lake: Lake) -> None:
    assert lake.capture()
    table = open_table(lake.uri)
    assert committed(table, "q", 0)
    assert not committed(table, "q", 1)
    (journal,) = lake.journals().values()
    assert table.transaction_version(JOURNAL_TRANSACTION + lake.journal.disk) == journal.latest
    assert Ledger(table, lake.uri).positions() == {lake.journal.disk: journal.latest}


def test_a_batch_that_was_committed_is_not_committed_again(lake: Lake) -> None:
    table = lake.table()
    files, ranges = lake.written(table)
    assert commit_batch(table, "q", 0, files, covered(ranges))
    again, _ = lake.written(lake.table())
    assert not commit_batch(DeltaTable(lake.uri), "q", 0, again, covered(ranges))
    assert len(lake.content()) == lake.rows


def test_two_captures_that_bring_the_same_records_have_one_commit(lake: Lake) -> None:
    one, other = lake.table(), lake.table()
    files, ranges = lake.written(one)
    more, same = lake.written(other)
    assert commit_batch(one, "q", 0, files, covered(ranges))
    with pytest.raises(OrderError, match="covers journal"):
        commit_batch(other, "another", 0, more, covered(same))
    assert len(lake.content()) == lake.rows


def test_a_batch_must_go_on_where_the_table_ends(lake: Lake) -> None:
    table = lake.table()
    _, ranges = lake.written(table)
    commit_batch(table, "q", 0, [], covered(ranges[:1]))
    with pytest.raises(OrderError):
        commit_batch(table, "q", 1, [], covered(ranges[2:]))
    with pytest.raises(OrderError):
        commit_batch(table, "q", 1, [], covered(ranges))
    assert commit_batch(table, "q", 1, [], covered(ranges[1:]))


def test_rows_are_by_queue_and_hour_with_the_least_and_greatest_of_each_file(lake: Lake) -> None:
    lake.journal.now_ms += 3_600_000
    lake.send(20)
    lake.archived()
    lake.capture()
    files = active_files(DeltaTable(lake.uri))
    assert {each["queue_slug"] for each in files} == {"orders", "a_2fb"}
    assert {each["hour"] for each in files} == {14, 15}
    assert {each["date"] for each in files} == {date(2026, 9, 21)}
    assert sum(each["num_records"] for each in files) == lake.rows
    assert min(each["min_lsn"] for each in files) > 0
    rows = DeltaTable(lake.uri).to_pyarrow_table(columns=["queue", "queue_slug", "event_time", "hour"])
    for row in rows.to_pylist():
        assert row["event_time"].hour == row["hour"]
        assert (row["queue"], row["queue_slug"]) in {("orders", "orders"), ("a/b", "a_2fb")}


# --- the ledger ----------------------------------------------------------------------------------------


def test_a_crash_between_the_table_and_its_ledger_loses_nothing(lake: Lake) -> None:
    def crash() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.capture(then=crash)
    assert not DeltaTable.is_deltatable(f"{lake.uri}/_lightrail/coverage")
    assert lake.kinds() == []
    lake.send(20)
    lake.archived()
    lake.capture()
    assert lake.kinds() == []
    rows = DeltaTable(f"{lake.uri}/_lightrail/coverage").to_pyarrow_table().to_pylist()
    assert {each["version"] for each in rows} == {1, 2}
    assert sum(each["rows"] for each in rows) == lake.rows


def test_a_ledger_is_written_once_however_many_bring_it_up_to_date(lake: Lake) -> None:
    lake.capture()
    for _ in range(3):
        Ledger(DeltaTable(lake.uri), lake.uri).catch_up()
    rows = Ledger(DeltaTable(lake.uri), lake.uri).rows()
    assert sum(rows["rows"].to_pylist()) == lake.rows


def test_a_log_that_was_cleaned_too_early_is_said(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.capture()
    lake.send(20)
    lake.archived()
    with pytest.raises(KeyboardInterrupt):
        lake.capture(then=lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    table = DeltaTable(lake.uri)
    table.create_checkpoint()
    history = DeltaTable.history
    monkeypatch.setattr(DeltaTable, "history", lambda self, limit=None: history(self, limit)[:0])
    with pytest.raises(CommandError, match="cleaned of the versions 2 to 2"):
        Ledger(table, lake.uri).catch_up()


# --- the completeness check ----------------------------------------------------------------------------


def test_what_is_complete_is_said_to_be(lake: Lake) -> None:
    lake.capture()
    lake.send(100)
    lake.archived()
    lake.capture()
    verdict = lake.verify()
    assert verdict.findings == []
    assert verdict.rows == lake.rows
    (journal,) = verdict.journals
    assert journal.next_lsn - journal.first_lsn == journal.records
    assert main(["verify", lake.uri, "--from", str(lake.archive)]) == 0


def test_a_file_that_is_gone_is_found(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    lake.capture()
    path = active_files(DeltaTable(lake.uri))[0]["path"]
    os.remove(f"{lake.uri}/{path}")
    assert lake.kinds() == ["file", "rows"]
    assert main(["verify", lake.uri, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["complete"]
    assert path in json.dumps(said["findings"])


def test_a_file_that_was_taken_out_of_the_table_is_found_by_its_rows(lake: Lake) -> None:
    lake.capture()
    table = DeltaTable(lake.uri)
    lost = active_files(table)[0]
    partition: dict[str, str | None] = {name: str(lost[name]) for name in PARTITIONS}
    action = RemoveAction(lost["path"], True, 0, lost["size_bytes"], partition)
    table.create_write_transaction([action], "append", table.schema(), list(PARTITIONS))
    verdict = lake.verify()
    assert {each.kind for each in verdict.findings} == {"rows"}
    assert verdict.rows == lake.rows - lost["num_records"]


def test_a_range_that_was_never_captured_is_found(lake: Lake) -> None:
    table = lake.table()
    files, ranges = lake.written(table)
    first, second, *others = ranges
    commit_batch(table, "q", 0, files, covered([first, *others]))
    verdict = lake.verify()
    kinds = {each.kind: each for each in verdict.findings}
    assert set(kinds) == {"hole", "stray", "not_captured"}
    assert (kinds["hole"].first_lsn, kinds["hole"].next_lsn) == (second.first_lsn, second.next_lsn)


def test_a_range_that_was_captured_twice_is_found(lake: Lake) -> None:
    table = lake.table()
    files, ranges = lake.written(table)
    commit_batch(table, "q", 0, files, covered(ranges))
    note = {"format": 1, "covered": [ranges[0].plain()]}
    properties = CommitProperties(custom_metadata={"lightrail": json.dumps(note)})
    table.create_write_transaction(
        [], "append", table.schema(), list(PARTITIONS), commit_properties=properties
    )
    assert "overlap" in lake.kinds()


def test_records_that_were_lost_are_said(lake: Lake) -> None:
    from dataclasses import replace

    table = lake.table()
    files, ranges = lake.written(table)
    ranges[1] = replace(ranges[1], records=ranges[1].records - 3)
    commit_batch(table, "q", 0, files, covered(ranges))
    (finding,) = lake.verify().findings
    assert finding.kind == "lost"
    assert finding.text.startswith("3 records between")


def test_records_that_were_never_archived_join_the_others(lake: Lake) -> None:
    table = lake.table()
    _, ranges = lake.written(table)
    first, second, *others = ranges
    bounds = {first.journal: (first.first_lsn, ranges[-1].next_lsn)}
    outline = Outline(bounds, [])
    filled = outline.covered([*others, first])
    assert [(each.first_lsn, each.next_lsn) for each in filled.unwatched] == [
        (second.first_lsn, second.next_lsn)
    ]
    commit_batch(table, "q", 0, [], filled)
    verdict = verify(DeltaTable(lake.uri), lake.uri)
    assert {each.kind for each in verdict.findings} == {"rows"}
    assert verdict.journals[0].unwatched == second.next_lsn - second.first_lsn


def test_what_is_lost_and_what_was_never_archived_fill_the_bounds() -> None:
    bounds = {"a": (10, 100), "b": (5, 6)}
    losses = [Loss("a", 1, 60, 70, "gone"), Loss("a", 1, 5, 12, "gone"), Loss("a", 1, 95, 100, "gone")]
    read = [Range("a", 1, 70, 80, 10, 3, 7), Range("a", 1, 20, 50, 30, 3, 7), Range("b", 2, 5, 6, 1, 0, 0)]
    filled = Outline(bounds, losses).covered(read)
    every = sorted(
        (each.journal, each.first_lsn, each.next_lsn) for each in (*filled.ranges, *filled.unwatched)
    )
    assert every == [
        *(("a", 10, 12), ("a", 12, 20), ("a", 20, 50), ("a", 50, 60), ("a", 60, 70), ("a", 70, 80)),
        *(("a", 80, 95), ("a", 95, 100), ("b", 5, 6)),
    ]
    assert [each.first_lsn for each in filled.unwatched] == [12, 50, 80]
    assert sum(each.records for each in filled.ranges) == 41


def test_what_was_written_after_the_capture_is_behind_and_not_missing(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.capture()
    lake.send(20)
    lake.archived()
    verdict = lake.verify()
    assert (verdict.findings, [each.kind for each in verdict.behind]) == ([], ["behind"])
    assert main(["verify", lake.uri, "--from", str(lake.archive), "--json"]) == 4
    assert not json.loads(capsys.readouterr().out)["complete"]
    assert main(["verify", lake.uri, "--from", str(lake.archive)]) == 4
    assert "BEHIND: up to the last capture" in capsys.readouterr().out
    assert main(["verify", lake.uri]) == 0
    # A missing record is reported as missing, also when other queues are only behind.
    os.remove(f"{lake.uri}/{active_files(DeltaTable(lake.uri))[0]['path']}")
    assert main(["verify", lake.uri, "--from", str(lake.archive)]) == 1
    assert "INCOMPLETE" in capsys.readouterr().out


def test_a_table_that_is_put_back_does_not_agree_with_its_ledger(lake: Lake) -> None:
    lake.capture()
    table = DeltaTable(lake.uri)
    back = CommitProperties(app_transactions=[Transaction(JOURNAL_TRANSACTION + lake.journal.disk, 2)])
    table.create_write_transaction([], "append", table.schema(), list(PARTITIONS), commit_properties=back)
    assert lake.kinds() == ["position"]


# --- compaction, retention, vacuum ---------------------------------------------------------------------


def test_compaction_keeps_every_row(lake: Lake) -> None:
    lake.capture()
    for _ in range(3):
        lake.send(40)
        lake.archived()
        lake.capture()
    before, files = lake.content(), len(active_files(DeltaTable(lake.uri)))
    assert main(["compact", lake.uri]) == 0
    assert len(active_files(DeltaTable(lake.uri))) == 2 < files
    assert lake.content() == before
    assert lake.kinds() == []
    assert list(compaction.crowded(DeltaTable(lake.uri), NO_FILES)) == []


def test_capture_goes_on_while_a_table_is_compacted(lake: Lake) -> None:
    lake.capture()
    lake.send(40)
    lake.archived()
    lake.capture()
    stale = DeltaTable(lake.uri)
    optimize = stale.optimize
    lake.send(40)
    lake.archived()
    lake.capture()
    optimize.compact(target_size=NO_FILES)
    lake.send(40)
    lake.archived()
    lake.capture()
    assert len(lake.content()) == lake.rows
    assert lake.kinds() == []


def test_retention_takes_days_and_the_ledger_still_has_them(lake: Lake) -> None:
    lake.journal.now_ms += 3 * DAY_MS
    lake.send(40)
    lake.archived()
    lake.capture()
    done = compaction.Done()
    table = DeltaTable(lake.uri)
    compaction.retire(table, lake.uri, date(2026, 9, 24), 2, done)
    assert done.days == ["2026-09-21"]
    assert done.retired_rows == lake.rows - 160
    assert len(lake.content()) == 160
    verdict = lake.verify()
    assert verdict.findings == []
    (journal,) = verdict.journals
    assert (journal.rows, journal.retired) == (lake.rows, done.retired_rows)
    compaction.retire(table, lake.uri, date(2026, 9, 24), 2, again := compaction.Done())
    assert again.days == []


def test_retention_counts_again_when_a_compaction_came_between(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.capture()
    lake.send(40)
    lake.archived()
    lake.capture()
    real = compaction._together
    calls: list[int] = []

    def together(files: object) -> list[compaction.Row]:
        if not calls:
            compaction.compact(DeltaTable(lake.uri), NO_FILES, compaction.Done())
        calls.append(1)
        return real(files)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "_together", together)
    done = compaction.Done()
    compaction.retire(DeltaTable(lake.uri), lake.uri, date(2027, 1, 1), 1, done)
    assert len(calls) == 2
    assert (done.retired_files, done.retired_rows) == (2, lake.rows)
    assert lake.content() == []
    assert lake.kinds() == []


def test_a_dry_run_changes_nothing(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    lake.capture()
    lake.send(40)
    lake.archived()
    lake.capture()
    before = open_table(lake.uri).version()
    assert main(["compact", lake.uri, "--retention", "1", "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["small_files"] > 2
    assert open_table(lake.uri).version() == before
    assert len(lake.content()) == lake.rows


def test_vacuum_removes_files_of_lost_tasks_and_leaves_young_ones(lake: Lake) -> None:
    lake.capture()
    before = lake.content()
    left, _ = lake.written(lake.table())
    assert left == []
    lake.send(40)
    lake.archived()
    orphans, _ = lake.written(lake.table())
    old, young = orphans[0], orphans[1]
    os.utime(f"{lake.uri}/{old.path}", (1, 1))
    compaction.vacuum(DeltaTable(lake.uri), 24, False, done := compaction.Done())
    assert done.removed_files == 1
    assert not os.path.exists(f"{lake.uri}/{old.path}")
    assert os.path.exists(f"{lake.uri}/{young.path}")
    assert lake.content() == before
    assert os.path.exists(f"{lake.uri}/_lightrail/coverage")


# --- other versions ------------------------------------------------------------------------------------


def test_columns_that_a_newer_version_has_are_added(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    older = pa.schema([field for field in LAKE_SCHEMA if field.name not in ("consumer", "ttl")])
    monkeypatch.setattr("lightrail.spark.lake.table.LAKE_SCHEMA", older)
    lake.table()
    monkeypatch.undo()
    lake.capture()
    assert set(DeltaTable(lake.uri).to_pyarrow_table().schema.names) == set(LAKE_SCHEMA.names)
    assert len(lake.content()) == lake.rows


def test_columns_that_are_not_known_are_refused(lake: Lake) -> None:
    table = lake.table()
    table.alter.add_columns([Field.from_arrow(pa.field("colour", pa.string()))])
    with pytest.raises(CommandError, match="has the columns colour"):
        lake.table()


def test_a_column_of_another_type_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    other = pa.schema([pa.field("ttl", pa.string()) if f.name == "ttl" else f for f in LAKE_SCHEMA])
    monkeypatch.setattr("lightrail.spark.lake.table.LAKE_SCHEMA", other)
    lake.table()
    monkeypatch.undo()
    with pytest.raises(CommandError, match=r"the column ttl .* is string, expected int64"):
        lake.table()


def test_a_table_of_a_newer_format_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightrail.spark.lake.table._CONFIGURATION", {"lightrail.format": "2"})
    with pytest.raises(CommandError, match="has format 2, this version knows up to 1"):
        lake.table()


def test_another_selection_is_refused(lake: Lake) -> None:
    lake.capture()
    with pytest.raises(CommandError, match="another table"):
        open_or_make(lake.uri, {**SELECTION, "queues": ["orders"]})


def test_what_is_no_table_of_a_capture_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "nothing")]) == 1
    assert "expected a Delta table" in capsys.readouterr().err
    DeltaTable.create(tmp_path / "other", schema=pa.schema([("a", pa.int64())]))
    assert main(["compact", str(tmp_path / "other")]) == 1
    assert "was not made by" in capsys.readouterr().err
