"""lightrail-spark: its words, its exit statuses, what it says."""

import argparse
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightrail.spark import main as frame
from lightrail.spark.command import Failed, Unreachable, Usage, source_options
from lightrail.spark.jobs import capture
from lightrail.spark.main import main
from lightrail.spark.output import Progress, show_json, table
from tests.support.spark import ROOT


def words(*given: str) -> argparse.Namespace:
    return frame._parser().parse_args(given)


def status(*given: str) -> int:
    """As a shell sees it."""
    try:
        return main(given)
    except SystemExit as end:
        return int(end.code or 0)


def test_the_file_runs_as_a_script_as_spark_submit_runs_it(tmp_path: Path) -> None:
    # Its own folder has modules that are called as some of Python's are.
    words = [sys.executable, frame.__file__, "verify", str(tmp_path / "none")]
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True
    )
    assert done.returncode == 1, done.stderr
    assert b"expected a Delta table" in done.stderr


@pytest.mark.parametrize("command", ["capture", "verify", "compact"])
def test_every_command_has_help_with_examples_and_exit_statuses(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(command, "--help") == 0
    said = capsys.readouterr().out
    assert f"examples:\n  lightrail-spark {command} " in said
    assert "Exit status: 0 done, 1 failed" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("capture", "--to", "/tmp/x"), "expected --from ARCHIVE or --gateway URL"),
        (("capture", "--to", "/tmp/x", "--from", "a", "--reader", "audit"), "needs the option gateway"),
        (("capture", "--to", "/tmp/x", "--from", "a", "--batch-bytes", "much"), "expected a number of bytes"),
        (("capture", "--to", "/tmp/x", "--from", "a", "--every", "0"), "expected seconds above 0"),
        (
            ("capture", "--to", "/tmp/x", "--from", "a", "--queue-pattern", "("),
            "expected a regular expression",
        ),
        (("compact", "/tmp/x", "--retention", "0"), "expected days, at least 1"),
        (("compact", "/tmp/x", "--vacuum-hours", "1"), "expected at least 24"),
        (("compact", "/tmp/x", "--target-bytes", "0"), "expected bytes, at least 1"),
        (("verify", "/tmp/x", "--gateway", "nonsense"), "expected"),
        (("nothing",), "invalid choice"),
    ],
)
def test_wrong_words_end_with_status_2_and_say_what_was_expected(
    given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*given) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "expected"),
    [(Failed("it"), 1), (Usage("it"), 2), (Unreachable("it"), 3), (KeyboardInterrupt(), 130)],
)
def test_errors_have_exit_statuses(
    error: BaseException, expected: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr("lightrail.spark.jobs.verify.run", run)
    assert status("verify", "x") == expected
    assert capsys.readouterr().err.startswith("lightrail-spark verify: i")


def test_nobody_answers_with_status_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("verify", "x", "--from", str(tmp_path / "nowhere")) == 3
    assert "nowhere" in capsys.readouterr().err


def test_archives_and_gateways_are_options_of_the_source(tmp_path: Path) -> None:
    given = words("verify", "t", "--from", "a", "--from", "b", "--queues", "q")
    assert source_options(given) == {"path": "a,b", "queues": "q"}
    given = words("verify", "t", "--gateway", "http://g", "--user", "u", "--password-file", "f", "--ca", "c")
    assert source_options(given) == {
        "gateway": "http://g",
        "user": "u",
        "passwordFile": "f",
        "caFile": "c",
    }


def test_no_secret_is_an_option() -> None:
    with pytest.raises(SystemExit):
        words("capture", "--to", "t", "--gateway", "http://g", "--password", "secret")


def test_queues_are_the_same_choice_in_whatever_order() -> None:
    assert capture.selection("b, a,", None) == capture.selection("a,b,a", None)
    assert capture.selection(None, "x.*") == {"queues": None, "pattern": "x.*"}


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "Traceback\n  x\nlightrail.spark.reading.losses.DataLoss: journal a: gone\n\tat org",
            Failed,
            "journal a: gone",
        ),
        ("...\nlightrail.spark.places.sources.PlaceError: nobody at h\n", Unreachable, "nobody at h"),
        ("[STREAM_FAILED] Query terminated\nmore", Failed, "[STREAM_FAILED] Query terminated"),
        ("", Failed, "Exception"),
    ],
)
def test_what_spark_says_of_an_error_becomes_its_own_words(text: str, kind: type, said: str) -> None:
    named = capture._named(Exception(text))
    assert type(named) is kind
    assert str(named) == said


def test_progress_is_plain_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("lightrail.spark.output.time.monotonic", lambda: now[0])
    out = io.StringIO()
    progress = Progress(out)
    for second in range(6):
        now[0] = second
        progress.update(f"second {second}\x1b[2J")
    progress.finish()
    assert out.getvalue() == "second 2�[2J\nsecond 4�[2J\n"


def test_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    table([{"queue": "a", "rows": 1200}, {"queue": None, "rows": 3}], ("queue", "rows"))
    assert capsys.readouterr().out == "QUEUE   ROWS\na      1,200\n-          3\n"
    show_json({"rows": 1})
    assert json.loads(capsys.readouterr().out) == {"rows": 1}


class Query:
    """A stream that never ends by itself; a signal comes while it is waited for."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.stopped = False

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802  # as Spark names it
        os.kill(os.getpid(), self._number)
        return False

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_capture_in_order(number: int) -> None:
    before = signal.getsignal(number)
    query = Query(number)
    capture._wait(None, lambda: query)  # type: ignore[arg-type,return-value]
    assert query.stopped
    assert signal.getsignal(number) is before
