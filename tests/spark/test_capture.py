"""lightrail-spark capture: every row of the journals in the table once, whatever dies."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lightrail.spark.lake import stream
from lightrail.spark.lake.ledger import Ledger
from lightrail.spark.lake.table import active_files, commit_batch
from lightrail.spark.main import main
from tests.spark.killed_work import KilledWork
from tests.support.spark.lakes import Lake
from tests.support.spark.session import ROOT, SETTINGS
from tests.support.wait import until

pytestmark = pytest.mark.timeout(600)  # Most of it waits for Spark, which is slow where others work as well.


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    for _ in range(3):
        lake.send(200)
        lake.archived()
    return lake


def capture(lake: Lake, *more: str) -> int:
    """One run over what there is, in small batches."""
    words = ["capture", "--from", str(lake.archive), "--to", lake.uri, "--available-now"]
    return main([*words, "--batch-bytes", "10k", "--decode", "none", *more])


def checked(lake: Lake) -> None:
    """Every row once, and proved."""
    content = lake.content()
    assert len(content) == len(set(content)) == lake.rows
    assert lake.verify().findings == []


def test_what_is_archived_is_captured_in_several_batches(
    spark: Any, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capture(lake, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["batches"] > 1
    assert said["rows"] == lake.rows
    checked(lake)
    lake.send(40)
    lake.archived()
    assert capture(lake) == 0
    checked(lake)
    version = DeltaTable(lake.uri).version()
    assert capture(lake) == 0
    assert DeltaTable(lake.uri).version() == version


def test_only_queues_that_are_wanted_are_captured_and_decoded_as_far_as_wanted(
    spark: Any, lake: Lake
) -> None:
    assert capture(lake, "--queues", "orders", "--decode", "all") == 0
    assert len(lake.content()) == lake.rows // 2
    assert lake.verify().findings == []
    for row in DeltaTable(lake.uri).to_pyarrow_table(columns=["event", "body", "message"]).to_pylist():
        assert (row["body"] is not None) == (row["message"] is not None) == (row["event"] == "enqueued")
    assert capture(lake, "--queues", "a/b") == 1


# --- crashes -------------------------------------------------------------------------------------------


class CrashError(Exception):
    """What dies."""


def crash_after(real: Callable[..., Any]) -> Callable[..., Any]:
    """`real`, after which everything dies, the second time."""
    calls: list[int] = []

    def called(*args: Any) -> Any:
        result = real(*args)
        calls.append(1)
        if len(calls) == 2:
            raise CrashError
        return result

    return called


@pytest.mark.parametrize("step", ["written", "committed", "in the ledger"])
def test_a_crash_at_any_step_of_the_driver_loses_nothing_and_writes_nothing_twice(
    spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with monkeypatch.context() as patch:
        match step:
            case "written":
                patch.setattr(stream.Capture, "_run", crash_after(stream.Capture._run))
            case "committed":
                patch.setattr(stream, "commit_batch", crash_after(commit_batch))
            case _:
                # The first time is before the stream, the second in the first batch.
                patch.setattr(Ledger, "catch_up", crash_after(Ledger.catch_up))
        assert capture(lake) == 1
    assert len(lake.content()) < lake.rows
    lake.send(40)
    lake.archived()
    assert capture(lake) == 0
    checked(lake)


def test_an_executor_that_is_killed_leaves_files_that_are_in_no_commit(
    spark: Any, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    monkeypatch.setattr(stream, "CaptureTask", partial(KilledWork, marker=str(marker)))
    assert capture(lake) == 1
    assert marker.exists()
    assert capture(lake) == 0
    checked(lake)
    files = {each["path"] for each in active_files(DeltaTable(lake.uri))}
    written = {str(path.relative_to(lake.uri)) for path in Path(lake.uri).glob("queue_slug=*/**/*.parquet")}
    assert files < written


def test_a_checkpoint_may_be_lost_but_not_older_than_the_table(
    spark: Any, lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = str(tmp_path / "old")
    assert capture(lake, "--checkpoint", old) == 0
    lake.send(40)
    lake.archived()
    # This one has none yet, and begins where the table ends.
    assert capture(lake) == 0
    checked(lake)
    assert capture(lake, "--checkpoint", old) == 1
    assert "is that of another table, or older than this one. Remove it" in capsys.readouterr().err
    checked(lake)


def test_a_segment_that_is_gone_stops_a_capture_unless_losses_are_allowed(
    spark: Any, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capture(lake) == 0
    lake.send(40)
    lake.archived()
    gone = sorted(lake.archive.glob("*/*.segment"))[-1]
    lake.send(40)
    lake.archived()
    gone.unlink()
    gone.with_suffix(".index").unlink()
    assert capture(lake) == 1
    assert "can't be read" in capsys.readouterr().err
    assert capture(lake, "--allow-loss") == 0
    assert lake.kinds() == ["lost"]
    assert len(lake.content()) == lake.rows - 160


def test_a_micro_batch_that_fails_ends_the_capture_however_much_it_has_to_say(
    spark: Any, lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark looks through the text with an expression that takes a frame of its stack for each letter."""
    head = "py4j.protocol.Py4JJavaError: An error occurred while calling o1.collect.\n"

    def fail(*_: Any) -> None:
        raise ValueError(head + "\tat org.apache.spark.Somewhere\n" * 10_000)

    with monkeypatch.context() as patch:
        patch.setattr(stream, "commit_batch", fail)
        assert capture(lake) == 1
    said = capsys.readouterr().err
    assert "An error occurred while calling o1.collect" in said
    assert len(said) < 10_000
    assert capture(lake) == 0
    checked(lake)


def test_a_capture_that_is_stopped_in_a_micro_batch_ends_and_goes_on_later(
    spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: begun[-1].stopping, "the query is being stopped")
        raise ValueError("py4j.protocol.Py4JJavaError: An error occurred while calling\n" + "at\n" * 100_000)

    class Running(stream.Capture):
        def __init__(self, *of: Any) -> None:
            super().__init__(*of)
            begun.append(self)

    begun: list[stream.Capture] = []
    with monkeypatch.context() as patch:
        patch.setattr(stream, "commit_batch", cut_off)
        patch.setattr(stream, "Capture", Running)
        assert capture(lake) == 0
    assert spark.streams.active == []
    assert capture(lake) == 0
    checked(lake)


def test_what_was_never_archived_as_nothing_was_captured_is_no_loss(spark: Any, lake: Lake) -> None:
    assert capture(lake) == 0
    captured = lake.rows
    for queue in lake.queues:
        lake.journal.declare(queue, capture=False)
    lake.archived()
    lake.send(40)
    lake.archived()
    left_out = sorted(lake.archive.glob("*/*.segment"))[-1]
    for queue in lake.queues:
        lake.journal.declare(queue)
    lake.archived()
    left_out.unlink()
    left_out.with_suffix(".index").unlink()
    assert capture(lake) == 0
    verdict = lake.verify()
    assert verdict.findings == []
    assert verdict.rows == captured
    assert verdict.journals[0].unwatched > 0


DRIVER = """
import signal, sys
from pathlib import Path
from lightrail.spark.lake import stream
from lightrail.spark.main import main
archive, table, ready, when = sys.argv[1:5]
real, calls = stream.commit_batch, []
def commit_batch(*args):
    calls.append(1)
    done = real(*args) if when == "committed" or len(calls) < 2 else None
    if len(calls) == 2:
        Path(ready).touch()
        signal.pause()
    return done
stream.commit_batch = commit_batch
words = ["capture", "--from", archive, "--to", table, "--available-now", "--batch-bytes", "10k"]
sys.exit(main([*words, "--decode", "none", "--master", "local[2]", *sys.argv[5:]]))
"""


@pytest.mark.parametrize("when", [pytest.param("written", marks=pytest.mark.soak), "committed"])
def test_a_driver_that_is_killed_loses_nothing_and_writes_nothing_twice(
    spark: Any, lake: Lake, tmp_path: Path, spark_environment: dict[str, str], when: str
) -> None:
    script, ready = tmp_path / "driver.py", tmp_path / "ready"
    script.write_text(DRIVER)
    words = [str(lake.archive), lake.uri, str(ready), when]
    for name, value in SETTINGS.items():
        words += ["--conf", f"{name}={value}"]
    process = subprocess.Popen(
        [sys.executable, str(script), *words], cwd=ROOT, env=spark_environment, start_new_session=True
    )
    try:
        until(ready.exists, "a driver in its second batch", 90)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    offsets, commits = (
        {
            path.name
            for path in Path(lake.uri, "_lightrail/checkpoint", name).iterdir()
            if path.name.isdecimal()
        }
        for name in ("offsets", "commits")
    )
    assert commits < offsets
    lake.send(40)
    lake.archived()
    assert capture(lake) == 0
    checked(lake)


PYTHON = """#!/bin/sh
case "$*" in *python_streaming_source_runner*) if mkdir {marker} 2>/dev/null; then exec sleep 60; fi;; esac
exec {python} "$@"
"""
"""The first process that plans micro-batches does not start in time: Spark waits 10 s for it."""


def listening(session: int) -> set[str]:
    """Addresses on which the processes of a session listen, in hexadecimal."""
    sockets = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(process.name)) == session:
                sockets |= {os.readlink(each) for each in (process / "fd").iterdir()}
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return {
        line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets
    }


def test_a_capture_on_a_slow_machine_begins_again_in_few_words_and_listens_on_loopback(
    lake: Lake, tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    marker, python, log = tmp_path / "marker", tmp_path / "python", tmp_path / "log"
    python.write_text(PYTHON.format(marker=marker, python=sys.executable))
    python.chmod(0o755)
    environment = spark_environment | {"PYSPARK_PYTHON": str(python)}
    del environment["SPARK_LOCAL_IP"]
    words = [
        "capture",
        "--from",
        str(lake.archive),
        "--to",
        lake.uri,
        "--available-now",
        "--master",
        "local[2]",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lightrail.spark.main", *words, "--conf", "spark.driver.memory=1g"],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until(lambda: marker.exists() or process.poll() is not None, "the first process is there", 300)
        # 127.0.0.1, as IPv4 and within IPv6.
        assert listening(process.pid) == {"0100007F", "0000000000000000FFFF00000100007F"}
        assert process.wait(300) == 0, log.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    said = log.read_text()
    assert "starting the capture again" in said
    assert "\tat " not in said
    checked(lake)
