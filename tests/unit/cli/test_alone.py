"""Single processes: a shard, a frontend and a gateway started by hand are one broker."""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from proton import Message
from proton.utils import BlockingConnection

from lightrail import native
from lightrail.amqp.values import Symbol
from lightrail.cli import alone
from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from lightrail.model.settings import Settings
from tests.support import wait
from tests.support.amqp.frame_peer import Peer
from tests.support.broker import ROOT


@contextmanager
def running(role: str, data: Path, *flags: str, killed: bool = False) -> Iterator[dict[str, str]]:
    """Start a process, which the test may kill; yields its pid, and what its ready line says."""
    command = [sys.executable, "-m", "lightrail.cli.main", role, "--data", str(data), *flags]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LIGHTRAIL_")}
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, bufsize=0, env=environ) as child:
        assert child.stderr is not None
        line = b"."
        while line and b" ready: " not in line:
            line = wait.line(child.stderr)
        said = line.decode().strip().partition(" ready: ")[2]
        try:
            yield {"pid": str(child.pid)} | dict(part.split(" ", 1) for part in said.split(", "))
        finally:
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=wait.DEADLINE_S)
            assert child.returncode == (-signal.SIGKILL if killed else 0)


def test_a_broker_of_processes_that_were_started_by_hand(tmp_path: Path) -> None:
    with (
        running("shard", tmp_path),
        running("shard", tmp_path, "--id", "1"),
        running("frontend", tmp_path, "--amqp", "127.0.0.1:0") as frontend,
        running("gateway", tmp_path, "--http", "127.0.0.1:0") as gateway,
    ):
        connection = BlockingConnection(f"amqp://{frontend['amqp']}", timeout=wait.DEADLINE_S)
        for queue in ("a", "b"):
            connection.create_sender(queue).send(Message(body=queue))
        for queue in ("a", "b"):
            receiver = connection.create_receiver(queue)
            assert receiver.receive(wait.DEADLINE_S).body == queue
            receiver.accept()
        connection.close()
        with urllib.request.urlopen(f"http://{gateway['http']}/readyz") as response:
            assert response.read() == b"ready\n"


def sole(address: str) -> tuple[Peer, bool]:
    """A connection that is to be its container's only one, and whether it was accepted."""
    peer = Peer(address)
    opened = peer.open(container_id="sole", desired_capabilities=[Symbol("sole-connection-for-container")])
    return peer, Symbol("amqp:connection-establishment-failed") not in (opened.properties or {})


def test_what_a_killed_frontend_had_is_free_though_it_never_starts_again(tmp_path: Path) -> None:
    """No etcd ends its lease, and no supervisor starts its successor: its registration stays in the file."""
    at = ("--amqp", "127.0.0.1:0")
    with (
        running("shard", tmp_path),
        running("frontend", tmp_path, "--id", "0", *at) as first,
        running("frontend", tmp_path, "--id", "1", *at, killed=True) as second,
    ):
        peer, accepted = sole(second["amqp"])
        with peer:
            assert accepted
            refused, accepted = sole(first["amqp"])
            with refused:
                assert not accepted
            os.kill(int(second["pid"]), signal.SIGKILL)
            peer.expect_end()

        def again() -> bool:
            peer, accepted = sole(first["amqp"])
            with peer:
                return accepted

        wait.until(again, "the container is free")
        key = "frontends/1"
        assert key in keys(tmp_path)
        with running("gateway", tmp_path, "--http", "127.0.0.1:0"):
            wait.until(lambda: key not in keys(tmp_path), "its registration is deleted")
            assert "frontends/0" in keys(tmp_path)


def keys(data: Path) -> set[str]:
    """The registered frontends."""

    async def read() -> set[str]:
        coordinator = await SqliteCoordinator.open(str(data / FILE_NAME))
        try:
            return {each.key for each in await coordinator.entries("frontends/")}
        finally:
            await coordinator.close()

    return asyncio.run(read())


def test_a_frontend_alone_is_refused_outside_of_loopback_without_users(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightrail.cli.main", "frontend", "--data", str(tmp_path)]
    done = subprocess.run(
        [*command, "--amqp", "0.0.0.0:0"], cwd=ROOT, capture_output=True, timeout=wait.DEADLINE_S, check=False
    )
    assert done.returncode == 1
    assert b"no user is defined" in done.stderr


@pytest.mark.parametrize("optimised", [False, True])
def test_a_python_without_optimisations_is_one_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], optimised: bool
) -> None:
    # A file in place of the directory ends the start after the warning.
    (tmp_path / "data").write_text("no directory")
    assert alone.run("shard", 0, Settings(data=str(tmp_path / "data")), optimised=optimised) == 1
    assert capfd.readouterr().err.count("built without optimisations") == (0 if optimised else 1)


@pytest.mark.parametrize(("role", "lines"), [("shard", 1), ("frontend", 1), ("gateway", 0)])
def test_a_process_that_messages_pass_says_once_that_its_machine_code_does_not_fit(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], role: str, lines: int
) -> None:
    (tmp_path / "data").write_text("no directory")
    found = native.MachineCode("a source has changed: run `make compiled`", is_wrong=True)
    assert alone.run(role, 0, Settings(data=str(tmp_path / "data")), optimised=True, compiled=found) == 1
    assert capfd.readouterr().err.count("interpreted") == lines
