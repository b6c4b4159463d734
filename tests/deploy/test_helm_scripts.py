"""The scripts of the chart's Jobs, as its containers get them, against a real broker with TLS."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import ROOT, Broker
from tests.support.deploy import helm
from tests.support.deploy.helm_values import FIXED, merged

USERS = [
    {"name": "admin", "rights": "all", "prefix": "/"},
    {"name": "shop.web", "rights": "send,listen", "prefix": "shop/orders"},
]
RUN_S_MAX = 60


def container(pod: str, name: str, **values: Any) -> helm.Manifest:
    """A container of the chart's pod whose name begins like this."""
    found = helm.pods(helm.render(merged(FIXED, values)))
    (one,) = [each for each in found if each.startswith(pod)]
    (chosen,) = [each for each in helm.containers(found[one]) if each["name"] == name]
    return chosen


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with the commands of the image, of this tree."""
    folder = tmp_path_factory.mktemp("bin")
    for name, words in (("python", ""), ("lightrail-admin", "-m lightrail.cli.admin")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (folder / name).chmod(0o755)
    return str(folder)


def run(
    programs: str, container: helm.Manifest, paths: dict[str, str], environ: dict[str, str], **arguments: str
) -> subprocess.CompletedProcess[str]:
    """Runs a container's command here, with paths and arguments of this machine for those of the pod."""
    command = [*container["command"], *container["args"]]
    for of_pod, here in (paths | arguments).items():
        command = [word.replace(of_pod, here) for word in command]
    variables = {"PATH": f"{programs}:{os.defpath}", "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}
    return subprocess.run(command, env=variables | environ, capture_output=True, text=True, timeout=RUN_S_MAX)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Secret of users, mounted."""
    folder = tmp_path_factory.mktemp("users")
    for user in USERS:
        (folder / user["name"]).write_text(f"password of {user['name']}")
    return folder


@pytest.fixture(scope="module")
def data(programs: str, users: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory in which the Job has defined the users."""
    folder = tmp_path_factory.mktemp("broker") / "data"
    job = container("users/", "users", users={"create": USERS})
    done = subprocess.run(
        [str(Path(programs, "lightrail-admin")), "--data", str(folder), "user", "add", "else"],
        input="else\n",
        env={"PYTHONPATH": str(ROOT)},
        text=True,
        check=True,
        capture_output=True,
    )
    done = run(programs, job, {"/etc/lightrail/users": str(users)}, {"LIGHTRAIL_DATA": str(folder)})
    assert done.returncode == 0, done.stderr
    return folder


def admin(programs: str, *words: str) -> Any:
    done = subprocess.run(
        [str(Path(programs, "lightrail-admin")), *words],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_job_defines_users_with_their_rights(programs: str, data: Path) -> None:
    assert admin(programs, "--data", str(data), "user", "list", "--json") == {
        "users": ["admin", "else", "shop.web"]
    }
    rights = admin(programs, "--data", str(data), "permission", "list", "--json")["permissions"]
    assert {"user": "shop.web", "prefix": "shop/orders", "rights": ["listen", "send"]} in rights


def test_the_job_changes_passwords_only_when_asked(programs: str, data: Path, users: Path) -> None:
    for reset, said in ((False, "stays as it is"), (True, "has a new password")):
        job = container("users/", "users", users={"create": USERS, "resetPasswords": reset})
        environ = {each["name"]: each["value"] for each in job["env"] if each["name"] == "RESET"}
        done = run(
            programs, job, {"/etc/lightrail/users": str(users)}, {"LIGHTRAIL_DATA": str(data), **environ}
        )
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if said not in line] == []


def test_the_job_fails_where_it_can_not_define_a_user(programs: str, users: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "coordinator.sqlite").write_text("no database")
    job = container("users/", "users", users={"create": USERS})
    done = run(programs, job, {"/etc/lightrail/users": str(users)}, {"LIGHTRAIL_DATA": str(tmp_path)})
    assert done.returncode == 1
    assert "lightrail-admin: " in done.stderr


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Secret with the certificate that the chart makes, mounted."""
    folder = tmp_path_factory.mktemp("tls")
    generated = helm.render(merged(FIXED, {"tls": {"source": "generated", "secret": ""}}))
    for name, content in helm.of_kind(generated, "Secret")["rel-lightrail-tls"]["data"].items():
        (folder / name).write_bytes(base64.b64decode(content))
    return folder


@pytest.fixture(scope="module")
def broker(data: Path, tls: Path) -> Iterator[Broker]:
    """With TLS, as the pods have it."""
    ports = ("--amqps", "127.0.0.1:0", "--https", "127.0.0.1:0")
    with Broker(
        data, *ports, "--tls-certificate", str(tls / "tls.crt"), "--tls-key", str(tls / "tls.key")
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def environ(broker: Broker, users: Path, tls: Path) -> dict[str, str]:
    """Who asks whom, as in the pod of the test."""
    return {
        "LIGHTRAIL_URL": f"https://{broker.ready['https']}",
        "LIGHTRAIL_USER": "admin",
        "LIGHTRAIL_PASSWORD_FILE": str(users / "admin"),
        "LIGHTRAIL_CA": str(tls / "ca.crt"),
    }


def test_helm_test_sends_and_receives_by_http(programs: str, environ: dict[str, str], tls: Path) -> None:
    script = container("jobs/rel-lightrail-test", "http")
    paths = {"/etc/lightrail/authority/ca.crt": str(tls / "ca.crt")}
    done = run(programs, script, paths, environ)
    assert done.returncode == 0, done.stderr
    assert "helm test" in done.stdout
    wrong = run(programs, script, paths, environ | {"LIGHTRAIL_USER": "else"})
    assert wrong.returncode != 0


def test_helm_test_sends_and_receives_by_amqp(programs: str, environ: dict[str, str], broker: Broker) -> None:
    script = container("jobs/rel-lightrail-test", "amqp")
    address = {"rel-lightrail-amqp.ns.svc:5671": str(broker.ready["amqps"]).replace("127.0.0.1", "localhost")}
    done = run(programs, script, address, environ)
    assert done.returncode == 0, done.stderr
    assert "sent and received by AMQP in" in done.stdout
    unknown = run(programs, script, address, environ | {"LIGHTRAIL_USER": "nobody"})
    assert unknown.returncode == 1
    assert "Traceback" not in unknown.stderr
    stranger = run(programs, script, address, environ | {"LIGHTRAIL_CA": "/nonexistent"})
    assert stranger.returncode == 1, "the certificate is of no authority that the system knows"


def test_helm_test_without_tls_shows_its_password_in_the_clear_only_where_that_was_said(
    programs: str, environ: dict[str, str], broker: Broker
) -> None:
    values = {"tls": {"source": "none", "secret": ""}, "config": {"plain_without_tls": True}}
    script = container("jobs/rel-lightrail-test", "amqp", **values)
    authority = {each["name"]: each["value"] for each in script["env"]}["LIGHTRAIL_CA"]
    address = {"rel-lightrail-amqp.ns.svc:5672": broker.amqp}
    done = run(programs, script, address, environ | {"LIGHTRAIL_CA": authority})
    assert done.returncode == 0, done.stderr


def test_waiting_for_shards_ends_when_all_are_ready(programs: str) -> None:
    answers = iter([503, 200, 200])

    class Shard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(next(answers))
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Shard)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        script = container(
            "jobs/rel-lightrail-rebalance",
            "wait",
            shards={"replicas": 2},
            rebalance={"afterUpgrade": {"enabled": True}},
        )
        shard = "http://rel-lightrail-shard-{}.rel-lightrail-shard.ns.svc:9464"
        here = f"http://127.0.0.1:{server.server_port}"
        done = run(programs, script, {shard.format(0): here, shard.format(1): here}, {})
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "waiting for 1 of 2 shards\n"


def test_waiting_for_shards_ends_in_time(programs: str) -> None:
    script = container(
        "jobs/rel-lightrail-rebalance",
        "wait",
        shards={"replicas": 1},
        rebalance={"afterUpgrade": {"enabled": True}},
        jobs={"timeoutSeconds": 10},
    )
    script["args"][1] = "0"
    url = "http://rel-lightrail-shard-0.rel-lightrail-shard.ns.svc:9464"
    done = run(programs, script, {url: "http://127.0.0.1:9"}, {})
    assert done.returncode == 1
    assert "not ready in time: http://127.0.0.1:9/readyz" in done.stderr
