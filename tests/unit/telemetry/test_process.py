"""The process helper: what a role's process does when told to stop, alone and under a supervisor."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from lightrail.model.settings import Settings
from lightrail.telemetry.channel import Channel
from tests.support import wait
from tests.support.broker import ROOT

ALONE = """
import sys
from lightrail.model.settings import Settings
from lightrail.telemetry import process
from tests.support.roles.stand_in import serve
sys.exit(process.alone("shard", 3, Settings(data=sys.argv[1]), serve))
"""


def supervised(data: Path) -> tuple[subprocess.Popen[bytes], Channel]:
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.roles.shard", "--supervisor-fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            stderr=subprocess.PIPE,
        )
    ours.settimeout(wait.DEADLINE_S)
    channel = Channel(ours)
    settings = Settings(data=str(data)).to_json()
    channel.send({"role": "shard", "id": 5, "settings": settings, "sockets": "/s"})
    return child, channel


def test_it_reports_and_obeys_sigterm(tmp_path: Path) -> None:
    child, channel = supervised(tmp_path)
    with child:
        (message,) = channel.receive()
        assert isinstance(message.pop("boot"), int)
        assert message == {"ready": True, "pid": child.pid, "id": 5, "metrics": "127.0.0.1:9"}
        child.send_signal(signal.SIGINT)  # the terminal's Ctrl-C is the supervisor's business
        child.send_signal(signal.SIGTERM)
        _, log = child.communicate(timeout=wait.DEADLINE_S)
        assert child.returncode == 0
        assert b"shard-5 stopping: SIGTERM" in log
        assert b"SIGINT" not in log
    channel.close()


def test_it_ends_when_the_supervisor_is_gone(tmp_path: Path) -> None:
    child, channel = supervised(tmp_path)
    with child:
        channel.receive()
        channel.close()
        _, log = child.communicate(timeout=wait.DEADLINE_S)
        assert child.returncode == 0
        assert b"the supervisor has ended" in log


def test_an_error_ends_it_with_status_1_and_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "shard-5.fail").touch()
    child, channel = supervised(tmp_path)
    with child:
        _, log = child.communicate(timeout=wait.DEADLINE_S)
        assert child.returncode == 1
        assert b"RuntimeError: asked to fail" in log
    channel.close()


def test_alone_it_obeys_sigint(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ALONE, str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, bufsize=0
    ) as child:
        assert child.stderr is not None
        assert b"shard-3 ready" in wait.line(child.stderr)
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(wait.DEADLINE_S) == 0
        assert (tmp_path / "run").is_dir()


REFUSED = """
import errno, sys
from lightrail.model.settings import Settings
from lightrail.telemetry import process


async def serve(_):
    raise OSError(errno.EADDRINUSE, "can't listen at 127.0.0.1:5672: Address already in use")


sys.exit(process.alone("frontend", 0, Settings(data=sys.argv[1]), serve))
"""


def test_what_the_system_refuses_at_the_start_is_one_line(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", REFUSED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert found.returncode == 1
    assert len(found.stderr.splitlines()) == 1
    assert "can't serve" in found.stderr
    assert "127.0.0.1:5672: Address already in use" in found.stderr
