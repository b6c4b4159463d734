"""Object stores: what is read from and written to a real S3 server is the same as on a disk."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lightrail.spark.columns import SCHEMA
from lightrail.spark.lake import opening
from lightrail.spark.lake.replacing import replace
from lightrail.spark.lake.table import OrderError, commit_batch, open_table
from lightrail.spark.main import main
from lightrail.spark.stores import delta_options
from tests.spark.s3_server import BUCKET, SECRET, S3Server
from tests.support.spark.lakes import Lake, covered

COLUMNS = ["journal", "lsn", "queue", "sequence", "event", "message"]

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, store_socket: socket.socket, spark_environment: dict[str, str]
) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "asked", store_socket) as server:
        yield server


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    for _ in range(3):
        lake.send(60)
        lake.archived()
    return lake


def content(uri: str) -> list[tuple[Any, ...]]:
    """What rows of a table are told apart by, and their messages."""
    table = DeltaTable(uri, storage_options=delta_options(uri)).to_pyarrow_table(columns=COLUMNS)
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_an_archive_that_was_copied_to_a_store_has_the_rows_that_it_has_on_disk(
    spark: Any, server: S3Server, lake: Lake
) -> None:
    uri = server.copy(lake.archive, "copied")
    expected = sorted(map(tuple, spark.read.format("lightrail").load(str(lake.archive)).collect()), key=repr)
    assert len(expected) == lake.rows
    for path in (uri, f"s3a://{BUCKET}/cop?ed/shard-*"):
        frame = spark.read.format("lightrail").load(path)
        assert sorted(map(tuple, frame.collect()), key=repr) == expected
        assert SECRET not in frame._jdf.queryExecution().toString()


def test_a_table_in_a_store_has_every_row_once_and_is_proved(
    spark: Any,
    server: S3Server,
    lake: Lake,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What others may allow themselves: commits that overwrite one another.
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    archive, table = server.copy(lake.archive, "archive"), f"s3://{BUCKET}/lake"
    words = ["capture", "--from", archive, "--to", table, "--available-now", "--decode", "none"]
    assert main([*words, "--batch-bytes", "4k", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["batches"] > 1
    assert said["rows"] == lake.rows
    lake.send(40)
    lake.archived()
    server.copy(lake.archive, "archive")
    # Its checkpoint was its own: the table says where to go on.
    assert main([*words, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["rows"] == 160
    rows = content(table)
    assert len(rows) == len(set(rows)) == lake.rows
    frame = opening.frame(spark, open_table(table), table, SCHEMA.names)
    read = frame.select(*COLUMNS).collect()
    assert sorted(tuple(_bytes(value) for value in row) for row in read) == rows
    computed = f"s3://{BUCKET}/computed"
    for _ in range(2):
        replace(frame.groupBy("queue").count(), computed, "run")
    counts = DeltaTable(computed, storage_options=delta_options(computed)).to_pyarrow_table().to_pylist()
    assert sorted((each["queue"], each["count"]) for each in counts) == [
        (queue, lake.rows // 2) for queue in sorted(lake.queues)
    ]
    assert main(["compact", table, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["large_files"] > 0
    assert content(table) == rows
    assert main(["verify", table, "--from", archive]) == 0
    commits = [line.split() for line in server.asked() if line.startswith("PUT") and "_delta_log/0" in line]
    assert len(commits) > 5
    assert {condition for _, _, condition, _ in commits} == {"*"}
    assert [name for name in server.names("lake") if name.endswith("/")] == []
    output = capfd.readouterr()
    assert SECRET not in output.out + output.err


def test_of_two_commits_at_the_same_time_one_is_refused(server: S3Server, spark: Any, lake: Lake) -> None:
    lake.uri = f"s3://{BUCKET}/raced"
    one, other = lake.table(), lake.table()
    files, ranges = lake.written(one)
    assert commit_batch(one, "q", 0, files, covered(ranges))
    more, same = lake.written(other)
    with pytest.raises(OrderError, match="covers journal"):
        commit_batch(other, "another", 0, more, covered(same))
    assert len(content(lake.uri)) == lake.rows


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["verify", "s3://not-there/lake"], 3, "can't be reached: .*NoSuchBucket"),
        (["verify", f"s3://{BUCKET}/nothing"], 1, "expected a Delta table at s3://lightrail/nothing"),
        (
            ["verify", f"s3://{BUCKET}/lake", "--from", f"s3://{BUCKET}/none"],
            3,
            "expected an archive at path",
        ),
        (["compact", f"s3://me:{SECRET}@{BUCKET}/lake"], 1, "expected a URI without credentials"),
    ],
)
def test_a_store_that_does_not_have_it_is_an_error_in_a_line(
    spark: Any,
    server: S3Server,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    status: int,
    text: str,
) -> None:
    assert main(words) == status
    said = capfd.readouterr().err
    assert re.search(text, said), said
    assert said.count("\n") == 1
    assert SECRET not in said


def _bytes(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value
