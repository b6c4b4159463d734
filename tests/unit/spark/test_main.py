"""lightrail-spark: its words, its exit statuses, what it says."""

import argparse
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lightrail.spark import command
from lightrail.spark import main as frame
from lightrail.spark.command import CommandError, UnreachableError, UsageError, source_options
from lightrail.spark.failures import named, user_error
from lightrail.spark.jobs import capture
from lightrail.spark.journals.journal import NoArchiveError, SourceError
from lightrail.spark.lake.stream import Capture
from lightrail.spark.main import main
from lightrail.spark.reading.losses import DataLossError, Loss
from tests.support.spark.session import ROOT

WITHOUT = """
import sys
from importlib.machinery import PathFinder

without = sys.argv[1].split(",")

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in without else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
from lightrail.spark.main import main
sys.exit(main(sys.argv[2:]))
"""
"""lightrail-spark where modules, the first argument, are not installed."""


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
    [(CommandError("it"), 1), (UsageError("it"), 2), (UnreachableError("it"), 3), (KeyboardInterrupt(), 130)],
)
def test_errors_have_exit_statuses(
    error: BaseException, expected: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr("lightrail.spark.jobs.verify.run", run)
    assert status("verify", "x") == expected
    assert capsys.readouterr().err.startswith("lightrail-spark verify: i")


@pytest.mark.parametrize(
    "given", [("verify", "x"), ("capture", "--to", "x"), ("analyse",), ("replay", "--dry-run")]
)
def test_a_missing_archive_ends_with_status_3_before_spark_starts(
    given: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status(*given, "--from", "nowhere") == 3
    said = capsys.readouterr().err
    assert said.startswith(f"lightrail-spark {given[0]}: expected an archive at path 'nowhere'")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def run(*given: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own; what `environment` does not name is as in this one."""
    return subprocess.run(
        [sys.executable, *given], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        *((name, f"missing module {name}") for name in frame.EXTRA),
        ("deltalake,pyspark,numpy", "missing modules pyspark, numpy, deltalake"),
    ],
)
@pytest.mark.parametrize("words", [("--help",), ("verify", "x", "--from", "nowhere")])
def test_without_the_extra_one_line_says_what_is_missing_and_how_to_install_it(
    modules: str, said: str, words: tuple[str, ...]
) -> None:
    done = run("-c", WITHOUT, modules, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"lightrail-spark: {said}: pip install 'lightrail[spark]'\n"


def test_a_module_that_is_missing_by_mistake_is_not_taken_for_one_of_the_extra() -> None:
    done = run("-c", WITHOUT, "lightrail.spark.lake.files", "--help")
    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'lightrail.spark.lake.files'\n")


def test_what_may_be_missing_is_what_the_extra_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = project["optional-dependencies"]["spark"]
    assert {re.split(r"\W", each)[0] for each in needed} == set(frame.EXTRA)


@pytest.mark.parametrize(
    ("java", "home", "said"),
    [
        (None, False, "found no Java on PATH, and JAVA_HOME is not set. "),
        (None, True, "found no Java in JAVA_HOME, {folder}: it has no bin/java. "),
        ('openjdk version "11.0.22" 2024-01-16', False, "found Java 11, {folder}/bin/java. "),
        ('java version "1.8.0_402"', True, "found Java 8, {folder}/bin/java. "),
    ],
)
def test_without_a_java_that_is_new_enough_one_line_says_what_to_do(
    java: str | None, home: bool, said: str, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "archive").mkdir()
    if java is not None:
        program = tmp_path / "bin" / "java"
        program.write_text(f"#!/bin/sh\necho '{java}' >&2\n")
        program.chmod(0o755)
    words = ("-m", "lightrail.spark.main", "analyse", "--from", str(tmp_path / "archive"))
    done = run(*words, PATH=str(tmp_path / "bin"), JAVA_HOME=str(tmp_path) if home else "")
    assert done.returncode == 2
    assert done.stderr == (
        f"lightrail-spark analyse: {said.format(folder=tmp_path)}Spark needs Java 17 or newer. On Debian: "
        "apt-get install openjdk-17-jre-headless; or set JAVA_HOME to the folder of a Java\n"
    )


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
            "Traceback\n  x\nlightrail.spark.reading.losses.DataLossError: journal a: gone\n\tat org",
            CommandError,
            "journal a: gone",
        ),
        ("...\nlightrail.spark.journals.sources.SourceError: nobody at h\n", UnreachableError, "nobody at h"),
        ("..\nlightrail.spark.journals.sources.NoArchiveError: none at h\n X", UnreachableError, "none at h"),
        ("[STREAM_FAILED] Query terminated\nmore", CommandError, "[STREAM_FAILED] Query terminated"),
        ("", CommandError, "Exception"),
    ],
)
def test_what_spark_says_of_an_error_becomes_its_own_words(text: str, kind: type, said: str) -> None:
    found = named(Exception(text))
    assert type(found) is kind
    assert str(found) == said


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SourceError("it"), UnreachableError),
        (NoArchiveError("it"), UnreachableError),
        (DataLossError(Loss("a", 0, 1, 2, "it")), CommandError),
    ],
)
def test_an_error_that_never_was_in_spark_is_of_the_same_kind(error: Exception, kind: type) -> None:
    found = user_error(error)
    assert type(found) is kind
    assert str(found) == str(error)


def test_an_error_that_is_not_meant_for_people_is_a_bug_and_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(args: argparse.Namespace) -> int:
        raise KeyError("it")

    monkeypatch.setattr("lightrail.spark.jobs.verify.run", run)
    with pytest.raises(KeyError):
        main(["verify", "x"])


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
    running: Any = Capture(*[None] * 5)  # type: ignore[arg-type]
    capture._wait(running, lambda: query)  # type: ignore[arg-type,return-value]
    assert query.stopped
    assert running.stopping
    assert signal.getsignal(number) is before


SLOW = "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back"


class SlowQuery:
    """A stream whose Python process starts in time after some starts of the stream."""

    def __init__(self, slow: int) -> None:
        self.slow = slow
        self.starts = 0

    def start(self) -> "SlowQuery":
        self.starts += 1
        return self

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802  # as Spark names it
        if self.starts <= self.slow:
            raise ValueError(SLOW)
        return True


def test_a_capture_whose_python_process_starts_slowly_begins_again_some_times(
    capsys: pytest.CaptureFixture[str],
) -> None:
    running: Any = Capture(*[None] * 5)  # type: ignore[arg-type]
    query = SlowQuery(2)
    capture._wait(running, query.start)  # type: ignore[arg-type]
    assert query.starts == 3
    assert capsys.readouterr().err.count("starting the capture again") == 2
    query = SlowQuery(3)
    with pytest.raises(CommandError, match="took more than 10 s to start"):
        capture._wait(running, query.start)  # type: ignore[arg-type]
    assert query.starts == 3


def test_spark_of_this_machine_listens_here_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    masters = (
        None,
        "local",
        "local[2]",
        "local-cluster[1,1,512]",
        "spark://host:7077",
        "k8s://https://host",
        "yarn",
    )
    assert [each for each in masters if command.is_local(each)] == list(masters[:4])
    defaults = tmp_path / "spark-defaults.conf"
    for text, local in (
        ("spark.app.name x\n# spark.master yarn\n", True),
        ("spark.master  local[4]\n", True),
        ("spark.app.name x\nspark.master=spark://host:7077\n", False),
    ):
        defaults.write_text(text)
        assert command.is_local(None) is local
        assert command.is_local("local")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not command.is_local("local")
