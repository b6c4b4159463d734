"""lightrail-admin: users come, change and go, and every refusal says why."""

import argparse
import asyncio
import io
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lightrail.amqp.sasl import verify_plain
from lightrail.cli import admin, files
from lightrail.cluster.sqlite import FILE_NAME, SqliteCoordinator
from lightrail.cluster.users import UserRecord
from lightrail.model.endpoint import Endpoint


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def run(data: Path, *arguments: str) -> int:
    return admin.main(["--data", str(data), *arguments])


def user(data: Path, name: str) -> UserRecord | None:
    async def read() -> UserRecord | None:
        coordinator = await SqliteCoordinator.open(str(data / FILE_NAME))
        try:
            return await coordinator.user(name)
        finally:
            await coordinator.close()

    return asyncio.run(read())


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_user_from_stdin(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "secret with spaces \nsecond line\n")
    assert run(data, "user", "add", "alice") == 0
    assert capsys.readouterr().out == "user alice is defined and may manage, send, listen on everything\n"
    record = user(data, "alice")
    assert record is not None
    assert verify_plain(record.sha256, "secret with spaces ")
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_user_from_a_file(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\r\n")
    assert run(data, "user", "add", "alice", "--password-file", str(file)) == 0
    record = user(data, "alice")
    assert record is not None
    assert verify_plain(record.sha512, "secret")


def test_a_user_from_a_terminal(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    answers = iter(["secret", "other", "secret", "secret"])
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(answers))
    assert run(data, "user", "add", "alice") == 1
    assert "the two passwords differ" in capsys.readouterr().err
    assert run(data, "user", "add", "alice") == 0


def test_list_password_and_remove(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bob", "alice"):
        type_in(monkeypatch, "old\n")
        assert run(data, "user", "add", name) == 0
    capsys.readouterr()
    assert run(data, "user", "list") == 0
    assert capsys.readouterr().out == "alice\nbob\n"
    assert run(data, "user", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"users": ["alice", "bob"]}
    type_in(monkeypatch, "new\n")
    assert run(data, "user", "password", "alice") == 0
    record = user(data, "alice")
    assert record is not None
    assert verify_plain(record.sha256, "new")
    assert run(data, "user", "remove", "alice") == 0
    assert user(data, "alice") is None
    assert run(data, "user", "remove", "bob") == 0
    assert "no user is left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("user", "add", "alice"), "exists already"),
        (("user", "remove", "carol"), "no user 'carol'"),
        (("user", "password", "carol"), "no user 'carol'"),
        (("user", "add", "a\nb"), "without control characters"),
        (("user", "add", "bob", "--password-file", "/absent"), "/absent can't be read"),
        (("user", "add", "bob", "--rights", "read"), "expected manage, send, listen"),
        (("user", "add", "bob", "--prefix", "a//b"), "empty segment"),
        (("permission", "set", "bob", "q", "read"), "expected manage, send, listen"),
        (("permission", "set", "bob", "$x", "send"), "is the system's"),
        (("permission", "clear", "bob"), "no rights; see"),
        (("permission", "clear", "alice", "q"), "no rights at q"),
        (("journal", "repair", "/absent"), ""),
    ],
)
def test_refusals(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    type_in(monkeypatch, "secret\n")
    assert run(data, "user", "add", "alice") == 0
    type_in(monkeypatch, "secret\n")
    assert run(data, *arguments) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("lightrail-admin: ")
    assert "Traceback" not in error


def permissions(data: Path, capsys: pytest.CaptureFixture[str], *users: str) -> list[tuple[str, str, str]]:
    capsys.readouterr()
    assert run(data, "permission", "list", *users, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["permissions"]
    return [(row["user"], row["prefix"], ",".join(row["rights"])) for row in rows]


def test_rights_come_with_the_user_and_go_with_it(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    adding = {
        "alice": (),
        "bob": ("--rights", "send,listen", "--prefix", "myapp/in"),
        "carol": ("--no-rights",),
    }
    for name, flags in adding.items():
        type_in(monkeypatch, "secret\n")
        assert run(data, "user", "add", name, *flags) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == [
        "user bob is defined and may send, listen on myapp/in and below",
        "user carol is defined and may do nothing yet; see `permission set`",
    ]
    both = [("alice", "", "listen,manage,send"), ("bob", "myapp/in", "listen,send")]
    assert permissions(data, capsys) == both
    assert run(data, "user", "remove", "alice") == 0
    assert permissions(data, capsys) == both[1:]


def test_permissions_are_set_listed_and_cleared(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "secret\n")
    assert run(data, "user", "add", "alice", "--no-rights") == 0
    capsys.readouterr()
    assert run(data, "permission", "set", "alice", "/a/b", "listen, send") == 0
    assert capsys.readouterr() == ("user alice may send, listen on a/b and below\n", "")
    assert run(data, "permission", "set", "alice", "/", "all") == 0
    assert run(data, "permission", "set", "CN of a certificate", "c", "send") == 0
    assert "no user CN of a certificate is defined" in capsys.readouterr().err
    assert run(data, "permission", "list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "CN of a certificate\tc\tsend",
        "alice\t/\tlisten,manage,send",
        "alice\ta/b\tlisten,send",
    ]
    assert run(data, "permission", "clear", "alice", "/") == 0
    assert permissions(data, capsys, "alice") == [("alice", "a/b", "listen,send")]
    assert run(data, "permission", "clear", "alice") == 0
    assert permissions(data, capsys, "alice") == []


def test_an_empty_password_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "")
    assert run(data, "user", "add", "alice") == 1
    assert "1 to 1024 bytes" in capsys.readouterr().err


def test_a_directory_that_is_not_there_is_not_made(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(data, "user", "list") == 1
    assert "no broker has used" in capsys.readouterr().err
    assert not data.exists()


def test_users_of_a_broker_with_replicas_are_in_its_etcd(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "etcd").mkdir(parents=True)
    assert run(data, "user", "list") == 1
    assert "expected a running `lightrail serve --replicas`" in capsys.readouterr().err
    (data / "etcd.address").write_text("127.0.0.1:2379\n")
    parsed = argparse.Namespace(data=str(data))
    assert files._settings(parsed).etcd == (Endpoint("127.0.0.1", 2379),)


@pytest.mark.parametrize(
    "arguments", [[], ["user"], ["user", "add"], ["user", "add", "a", "--password", "never here"]]
)
def test_wrong_use(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        admin.main(arguments)
    assert error.value.code == 2


def test_a_command_that_asks_the_gateway_loads_nothing_that_works_on_files() -> None:
    code = "import sys, lightrail.cli.admin; print({'asyncio', 'lightrail.shard'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
