"""Object stores: what is read from and written to a real S3 server is the same as on a disk."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lightrail.spark.main import main
from lightrail.spark.stores import delta_options
from tests.support.lakes import Lake
from tests.support.s3_server import BUCKET, SECRET, S3Server

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, store_place: socket.socket, spark_environment: dict[str, str]
) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "asked", store_place) as server:
        yield server


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    for _ in range(3):
        lake.send(200)
        lake.archived()
    return lake


def content(uri: str) -> list[tuple[Any, ...]]:
    """What rows of a table are told apart by, and their messages."""
    table = DeltaTable(uri, storage_options=delta_options(uri)).to_pyarrow_table(
        columns=["journal", "lsn", "queue", "sequence", "event", "message"]
    )
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_an_archive_that_was_copied_to_a_store_has_the_rows_that_it_has_on_disk(
    spark: Any, server: S3Server, lake: Lake
) -> None:
    uri = server.copy(lake.archive, "copied")
    expected = sorted(map(tuple, spark.read.format("lightrail").load(str(lake.archive)).collect()), key=repr)
    assert len(expected) == lake.rows
    for path in (uri, uri.replace("s3://", "s3a://"), f"{uri}/shard-*", f"s3://{BUCKET}/cop?ed"):
        frame = spark.read.format("lightrail").load(path)
        assert sorted(map(tuple, frame.collect()), key=repr) == expected
        assert SECRET not in frame._jdf.queryExecution().toString()


def test_a_table_in_a_store_has_every_row_once_and_is_proved(
    spark: Any, server: S3Server, lake: Lake, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    archive, table = server.copy(lake.archive, "archive"), f"s3://{BUCKET}/lake"
    words = ["capture", "--from", archive, "--to", table, "--available-now", "--decode", "none"]
    assert main([*words, "--batch-bytes", "10k", "--json"]) == 0
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
    assert main(["verify", table, "--from", archive]) == 0
    assert capfd.readouterr()

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
