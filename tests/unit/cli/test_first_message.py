"""The first minutes of a new user: serve, paste the three lines, look at metrics, define a user."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightrail.cli import admin
from tests.support import wait
from tests.support.broker import ROOT


@contextmanager
def served(data: Path) -> Iterator[list[str]]:
    """Run ``lightrail serve``; yields what it printed until it was ready."""
    command = [sys.executable, "-m", "lightrail.cli.main", "serve", "--data", str(data)]
    flags = ["--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--frontends", "1"]
    with subprocess.Popen([*command, *flags], cwd=ROOT, stdout=subprocess.PIPE, bufsize=0) as serve:
        assert serve.stdout is not None
        lines: list[str] = []
        while not lines or "create_receiver" not in lines[-1]:
            line = wait.line(serve.stdout)
            assert line, "it ended before it was ready"
            lines.append(line.decode())
        try:
            yield lines
        finally:
            serve.terminate()
            assert serve.wait(wait.DEADLINE_S) == 0


def pasted(lines: list[str]) -> str:
    """What the three lines print in a shell."""
    done = subprocess.run(
        ["sh", "-c", "".join(lines)], capture_output=True, text=True, timeout=wait.DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_three_lines_work(tmp_path: Path) -> None:
    with served(tmp_path / "data") as lines:
        assert pasted(lines[-3:]) == "Hello\n"
        (metrics,) = [line.split()[1] for line in lines if line.startswith("  metrics")]
        with urllib.request.urlopen(metrics) as response:
            text = response.read().decode()
        assert 'lightrail_messages_accepted_total{role="frontend",id="0"} 1.0' in text


def test_with_a_user_they_need_the_password(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    password = tmp_path / "password"
    password.write_text("secret\n")
    assert admin.main(["--data", str(data), "user", "add", "alice", "--password-file", str(password)]) == 0
    with served(data) as lines:
        address = lines[-3]
        assert "NAME:PASSWORD@" in address
        known = address.replace("NAME:PASSWORD", "alice:secret")
        assert pasted([known, *lines[-2:]]) == "Hello\n"
        for stranger in ("alice:wrong@", "bob:secret@", ""):
            with pytest.raises(AssertionError, match=r"amqp:unauthorized-access|Authentication"):
                pasted([address.replace("NAME:PASSWORD@", stranger), *lines[-2:]])
