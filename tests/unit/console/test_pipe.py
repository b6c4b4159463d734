"""A command whose output nobody reads any more ends without a word."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BUS = """
from lightrail.bus import Bus
bus = Bus("amqp://localhost", name="shop")
"""


def run_without_reader(folder: Path, *command: str) -> tuple[int, bytes]:
    """The exit status and standard error of a command whose output is a pipe that was closed."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", *command], stdout=writing, stderr=subprocess.PIPE, cwd=folder, check=False
        )
    finally:
        os.close(writing)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    "command",
    [
        "lightrail.cli.main --help",
        "lightrail.cli.main serve --help",
        "lightrail.cli.main bus errors --help",
        "lightrail.cli.main bus docs shop:bus",
        "lightrail.cli.main bench --help",
        "lightrail.cli.main trace --help",
        "lightrail.cli.admin --help",
        "lightrail.spark.main --help",
    ],
)
def test_a_closed_pipe_is_no_failure(tmp_path: Path, command: str) -> None:
    (tmp_path / "shop.py").write_text(BUS)
    assert run_without_reader(tmp_path, *command.split()) == (0, b"")
