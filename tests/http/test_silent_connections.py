"""Connections that say nothing: they take neither the descriptors of a process nor others' slots."""

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http

DESCRIPTORS = 256
SILENT = 1_500
LIMITED = (
    "import resource, sys; from lightrail.cli.main import main; "
    f"resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS})); "
    "sys.exit(main(['serve', *sys.argv[1:]]))"
)


@pytest.fixture
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * SILENT), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def silent(address: str) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    return [socket.create_connection((host, int(port)), timeout=20) for _ in range(SILENT)]


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("role", ["gateway", "shard", "frontend"])
def test_they_leave_descriptors_and_slots_to_others(tmp_path: Path, role: str) -> None:
    with Broker(tmp_path / "data", "--shards", "1", "--frontends", "1", command=("-c", LIMITED)) as broker:
        (of_role,) = [each for each in broker.ready["processes"] if each["role"] == role]
        at = broker.http if role == "gateway" else of_role["metrics"]
        with Http(broker.http) as waiting, Http(broker.http) as http:
            assert http("POST", "/q", {"role": "queue"}).status == 201
            waiting.ask("DELETE", "/q/!head?timeout=30")
            connections = silent(at)
            try:
                assert len(os.listdir(f"/proc/{of_role['pid']}/fd")) < DESCRIPTORS * 3 // 4
                with Http(at) as another:
                    # A gateway asks the other processes, which may be late on a busy machine.
                    wait.until_with(
                        another, lambda asked: asked("GET", "/readyz").body == b"ready\n", "it serves"
                    )
                with Http(broker.http) as sender:
                    assert sender("POST", "/q", "hello").status == 201
                assert waiting.answer().body == b"hello"
            finally:
                for connection in connections:
                    connection.close()
        assert "Too many open files" not in broker.said()
