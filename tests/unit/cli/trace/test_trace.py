"""``lightrail trace`` with real processes: its phases, its end, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.cli.trace.recorder import Phase
from tests.support import wait
from tests.support.broker import ROOT

COMMAND = (sys.executable, "-m", "lightrail.cli.main", "trace")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary directory with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="lr-", dir="/tmp") as folder:
        yield Path(folder)


def run(temporary: Path, *flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *flags],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)} | environ,
        capture_output=True,
        text=True,
        timeout=4 * wait.DEADLINE_S,
    )


def processes_of(temporary: Path) -> list[int]:
    """Processes that were started with a variable that names the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and not wait.gone(int(entry.name)):
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue  # it has just ended, or is of another user
            if os.fsencode(temporary) in environ:
                found.append(int(entry.name))
    return found


def test_a_message_passes_the_files_of_session_queue_and_journal_and_nothing_is_left(
    temporary: Path, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    done = run(temporary, "--json", LIGHTRAIL_DATA=str(others), LIGHTRAIL_CONFIG=str(tmp_path / "none.toml"))
    assert (done.returncode, done.stderr) == (0, "")
    value: dict[str, Any] = json.loads(done.stdout)
    passed = {
        each["phase"]: {(one["process"], one["file"]) for one in each["functions"]}
        for each in value["phases"]
    }
    assert list(passed) == list(Phase)
    assert ("frontend", "amqp/connection.py") in passed["send"]
    assert ("frontend", "frontend/links/transfers.py") in passed["send"]
    assert {("shard", "shard/journal/journal.py"), ("shard", "shard/queue/machine.py")} <= passed["store"]
    assert ("shard", "shard/journal/files.py") in passed["store"], "the record is synced"
    assert ("frontend", "amqp/settlement.py") in passed["outcome"]
    assert {("frontend", "amqp/session.py"), ("shard", "shard/queue/machine.py")} <= passed["deliver"]
    assert {("frontend", "amqp/settlement.py"), ("shard", "shard/journal/files.py")} <= passed["settle"]
    assert {"amqp/session.py", "shard/queue/machine.py", "shard/journal/journal.py"} <= set(value["files"])
    assert all((ROOT / "lightrail" / file).is_file() for file in value["files"])
    assert not others.exists()
    assert list(temporary.iterdir()) == []
    assert processes_of(temporary) == []


def test_a_trace_that_is_ended_leaves_nothing(temporary: Path) -> None:
    with subprocess.Popen(
        COMMAND, cwd=ROOT, env=os.environ | {"TMPDIR": str(temporary)}, stdout=subprocess.DEVNULL
    ) as process:
        wait.until(lambda: list(temporary.glob("*/sockets/*")), "a process of the broker has started")
        process.send_signal(signal.SIGTERM)
        assert process.wait(wait.DEADLINE_S) == 128 + signal.SIGTERM
    assert list(temporary.iterdir()) == []
    assert processes_of(temporary) == []


def test_a_temporary_directory_with_too_long_a_path_is_refused(temporary: Path) -> None:
    long = temporary / ("x" * 80)
    long.mkdir()
    done = run(long)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("lightrail trace: expected a path of the temporary directory with ")
    assert done.stderr.endswith(": set TMPDIR to a shorter one\n")
    assert list(long.iterdir()) == []


def test_another_lightrail_in_the_current_directory_is_named(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "lightrail").symlink_to(ROOT / "lightrail")
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "import sys; from lightrail.cli.main import main; sys.exit(main(['trace']))",
        ],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=4 * wait.DEADLINE_S,
    )
    assert done.returncode == 1
    assert f"expected calls of functions in {ROOT / 'lightrail'}, found none" in done.stderr
    assert list(temporary.iterdir()) == []


def test_it_takes_no_directory_or_address_of_another_broker(temporary: Path) -> None:
    for flag in ("--data", "--amqp", "--etcd"):
        done = run(temporary, flag, "x")
        assert done.returncode == 2
        assert f"unrecognized arguments: {flag} x" in done.stderr
