"""The examples, run as a reader would: a first message, and a real file through a queue by two clients."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.amqp.proton_blocking import connected, drain
from tests.support.broker import ROOT, Broker

FILES = (
    "/var/log/dpkg.log",
    "/var/log/syslog",
    "/usr/share/common-licenses/GPL-3",
    str(ROOT / "constraints.txt"),
)


@pytest.fixture(scope="module")
def log_lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/log_lines beside the rhea that the tests have installed."""
    directory = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "examples" / "log_lines", directory / "log_lines")
    modules = ROOT / "tests" / "interop" / "node_modules"
    assert (modules / "rhea").is_dir(), "rhea is not installed: run scripts/setup.sh test"
    (directory / "node_modules").symlink_to(modules)
    return directory / "log_lines"


def program(path: Path) -> list[str]:
    return [sys.executable if path.suffix == ".py" else "node", str(path)]


def real_file() -> Path:
    """A log of this machine, or another text that is there."""
    return next(path for path in map(Path, FILES) if path.is_file() and os.access(path, os.R_OK))


def test_a_first_message(broker: Broker, queue: str) -> None:
    url = f"amqp://{broker.amqp}"
    examples = ROOT / "examples"
    send = [*program(examples / "send.py"), "--url", url, queue, "first message", "second: \u00e4"]
    subprocess.run(send, check=True, timeout=60)
    receive = [*program(examples / "receive.py"), "--url", url, queue]
    for expected in ("first message\nsecond: \u00e4\n", ""):
        done = subprocess.run(receive, check=True, timeout=60, capture_output=True, text=True)
        assert done.stdout == expected


@pytest.mark.parametrize("receive", ["receive.py", "receive.mjs"])
@pytest.mark.parametrize("send", ["send.py", "send.mjs"])
def test_a_real_file_arrives_as_it_was_sent(
    broker: Broker, queue: str, log_lines: Path, tmp_path: Path, send: str, receive: str
) -> None:
    content = real_file().read_bytes()
    file, copy = tmp_path / "file", tmp_path / "copy"
    # The log may grow meanwhile; lines that end in other ways, or not at all, arrive as well.
    file.write_bytes(content + b"\r\n\x00\xff no line end")
    where = ["--url", f"amqp://{broker.amqp}", "--queue", queue]
    with copy.open("wb") as output:
        receiver = subprocess.Popen([*program(log_lines / receive), *where], stdout=output)
        try:
            subprocess.run([*program(log_lines / send), *where, str(file)], check=True, timeout=60)
            assert receiver.wait(60) == 0
        finally:
            receiver.kill()
            receiver.wait()
    assert copy.read_bytes() == file.read_bytes()
    with connected(broker.amqp) as connection:
        assert drain(connection, connection.create_receiver(queue)) == []


@pytest.mark.parametrize("name", ["send.py", "receive.py", "send.mjs", "receive.mjs"])
def test_a_broker_that_is_not_there_is_said(log_lines: Path, name: str) -> None:
    done = subprocess.run(
        [*program(log_lines / name), "--url", "amqp://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("no connection to ")


def test_load_balancing(broker: Broker) -> None:
    """Every job is audited, and one of the processors gets it."""
    examples = ROOT / "examples" / "load_balancing"
    gateway, url = f"http://{broker.http}", ["--url", f"amqp://{broker.amqp}"]
    subprocess.run([str(examples / "setup.sh"), gateway], check=True, timeout=60, stdout=subprocess.DEVNULL)
    subprocess.run([*program(examples / "submit.py"), "100", *url], check=True, timeout=60)
    found = {}
    for queue in ("audit", "processors/1", "processors/2"):
        process = [*program(examples / "process.py"), queue, "--wait", "0.5", *url]
        done = subprocess.run(process, check=True, timeout=60, capture_output=True, text=True)
        found[queue] = done.stdout.splitlines()
    jobs = [f"job {number}" for number in range(1, 101)]
    assert found["audit"] == jobs
    assert sorted(found["processors/1"] + found["processors/2"]) == sorted(jobs)
    # A fair choice leaves one of them with fewer than 20 of 100 once in a thousand million times.
    assert min(len(found["processors/1"]), len(found["processors/2"])) >= 20
    one_more = [str(examples / "curl.sh"), "one more job", gateway]
    done = subprocess.run(one_more, check=True, timeout=60, capture_output=True, text=True)
    audit, *processors = done.stdout.splitlines()
    assert audit == "audit: one more job"
    assert sorted(processors) in (
        ["processors/1: ", "processors/2: one more job"],
        ["processors/1: one more job", "processors/2: "],
    )
