"""What ``lightrail serve`` decides before it starts anything, and what it says when it is ready."""

import json
import os
import re
import shlex
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from lightrail import native
from lightrail.cli import serve
from lightrail.model.endpoint import Endpoint
from lightrail.model.settings import Settings

LOOPBACK = Settings(amqp=Endpoint("127.0.0.1", 1), http=Endpoint("::1", 2), data="/d")


def test_without_users_only_loopback_is_served() -> None:
    serve.refuse_without_users(LOOPBACK, False)
    everywhere = Endpoint("0.0.0.0", 5)
    for name, outside in {
        "amqp": replace(LOOPBACK, amqp=everywhere),
        "amqps": replace(LOOPBACK, amqps=everywhere),
        "http": replace(LOOPBACK, http=everywhere),
        "https": replace(LOOPBACK, https=everywhere),
    }.items():
        with pytest.raises(serve.ServeError, match=f"{name} 0.0.0.0:5 can be reached .*--insecure-no-users"):
            serve.refuse_without_users(outside, False)
        serve.refuse_without_users(outside, True)
        serve.refuse_without_users(replace(outside, insecure_no_users=True), False)


def test_a_reserved_port_can_be_shared_by_frontends_and_by_nobody_else() -> None:
    held, bound = serve.reserve(Endpoint("127.0.0.1", 0), "amqp")
    with held, socket.socket() as frontend, socket.socket() as client:
        assert bound.port > 0
        with pytest.raises(ConnectionRefusedError):
            client.connect(bound)
        frontend.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        frontend.bind(bound)
        frontend.listen()
        with pytest.raises(serve.ServeError, match=rf"amqp can't be served on {bound}: .*--amqp HOST:PORT"):
            serve.reserve(bound, "amqp")


def test_a_host_that_is_not_ours() -> None:
    with pytest.raises(serve.ServeError, match=r"http can't be served on 192\.0\.2\.1:80"):
        serve.reserve(Endpoint("192.0.2.1", 80), "http")


def test_the_data_directory_is_held_once(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1\n")  # held by nobody: what is written there does not matter
    lock = serve.lock_data_directory(str(tmp_path))
    assert (tmp_path / "lock").read_text().strip().isdigit()
    os.close(lock)
    os.close(serve.lock_data_directory(str(tmp_path)))


def test_the_line_for_programs() -> None:
    line = serve.as_line(replace(LOOPBACK, amqp=Endpoint("0.0.0.0", 1)), [{"role": "shard", "id": 0}])
    assert "\n" not in line
    said = json.loads(line)
    assert said["ready"] is True
    assert (said["amqp"], said["http"]) == ("127.0.0.1:1", "[::1]:2")
    assert said["metrics"] == "http://[::1]:2/metrics"
    assert said["processes"] == [{"role": "shard", "id": 0}]


@pytest.mark.parametrize("users", [False, True])
def test_the_greeting_has_three_lines_for_a_shell(users: bool) -> None:
    text = serve.greeting(LOOPBACK, users)
    assert "amqp://127.0.0.1:1" in text
    assert "http://[::1]:2/metrics" in text
    lines = [line for line in text.splitlines() if re.match(r"(URL=|/)", line)]
    assert len(lines) == 3
    assert lines[0] == f"URL=amqp://{'NAME:PASSWORD@' if users else ''}127.0.0.1:1"
    for line in lines[1:]:
        python, flag, program = shlex.split(line)
        assert python.startswith("/")
        assert flag == "-c"
        compile(program, "line", "exec")


@pytest.mark.parametrize("optimised", [False, True])
def test_a_python_without_optimisations_is_one_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], optimised: bool
) -> None:
    # A file in place of the directory ends the start after the warning.
    (tmp_path / "data").write_text("no directory")
    assert serve.serve(replace(LOOPBACK, data=str(tmp_path / "data")), optimised=optimised) == 1
    assert capfd.readouterr().err.count("built without optimisations") == (0 if optimised else 1)


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (native.MachineCode(""), None),
        (native.MachineCode("`make compiled` makes machine code"), None),
        (native.MachineCode("a source has changed: run `make compiled`", is_wrong=True), "warning"),
    ],
)
def test_machine_code_that_does_not_fit_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], found: native.MachineCode, level: str | None
) -> None:
    (tmp_path / "data").write_text("no directory")
    settings = replace(LOOPBACK, data=str(tmp_path / "data"))
    assert serve.serve(settings, optimised=True, compiled=found) == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if "interpreted" in line]
    assert len(lines) == (level is not None)
    if level is not None:
        assert f" {level} " in lines[0]
        assert lines[0].endswith(found.why_not)
