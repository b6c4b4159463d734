"""The image of the Dockerfile: what is in it, who it runs as, and a whole broker in one container."""

import contextlib
import json
from collections.abc import Iterator

import pytest
from proton import Message

from tests.deploy.conftest import Docker
from tests.support import wait
from tests.support.amqp.proton_blocking import connected
from tests.support.deploy.compose import Compose
from tests.support.ports import free_ports

pytestmark = pytest.mark.timeout(900)
PASSWORD = "a password of the tests"
LOGIN = {"user": "alice", "password": PASSWORD, "allowed_mechs": "PLAIN", "allow_insecure_mechs": True}


@pytest.fixture(scope="module")
def image(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of the image, built of this tree."""
    compose = Compose(docker.engine, docker.program, tmp_path_factory.mktemp("compose"))
    compose("build", "shard", time_s=600)
    docker.engine.docker("network", "create", "tests")
    return str(compose.configuration()["services"]["shard"]["image"])


def test_it_holds_no_compiler_and_runs_as_nobody_special(docker: Docker, image: str) -> None:
    described = json.loads(docker.engine.docker("image", "inspect", image))[0]["Config"]
    assert described["User"] == "10001:10001"
    assert described["Healthcheck"]["Test"][0] == "CMD"
    # Clients wait for a healthy container and connect then, so a live process is not enough.
    assert "HEALTH_URL=http://127.0.0.1:8080/readyz" in described["Env"]
    assert described["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    there = docker.engine.docker(
        "run", "--rm", "--network=none", "--entrypoint=sh", image, "-c",
        "id -u; command -v gcc cc make pip; "
        "ls /opt /opt/lightrail/bin | grep -xE 'pip|compiler|cython|mypyc?'; "
        "ls /opt/lightrail/lib/python3*/site-packages | grep -iE 'mypy|cython|setuptools'; "
        "touch /opt/lightrail/x",
        check=False,
    )  # fmt: skip
    # Its two streams have no order.
    assert "10001" in there.split("\n")
    assert "gcc" not in there
    assert "pip" not in there
    for name in ("compiler", "mypy", "cython", "setuptools"):
        assert name not in there.lower()
    assert "Permission denied" in there


def test_a_broker_alone_wants_a_user_first(docker: Docker, image: str) -> None:
    said = docker.engine.docker("run", "--rm", "--network=none", image, check=False)
    assert "no user is defined: add one" in said


def test_a_broker_in_one_container_ends_in_order_and_keeps_what_it_took(docker: Docker, image: str) -> None:
    run = ("run", "--rm", "--volume", "alone:/var/lib/lightrail")
    password = PASSWORD.encode() + b"\n"
    docker.engine.docker(
        *run,
        "-i",
        "--network=none",
        "--entrypoint=lightrail-admin",
        image,
        "user",
        "add",
        "alice",
        input=password,
    )
    with _served(docker, image) as address, connected(address, **LOGIN) as connection:
        connection.create_sender("orders").send(Message(body="kept", durable=True))
    with _served(docker, image) as address, connected(address, **LOGIN) as connection:
        receiver = connection.create_receiver("orders")
        assert receiver.receive().body == "kept"
        receiver.accept()


@contextlib.contextmanager
def _served(docker: Docker, image: str) -> Iterator[str]:
    """``HOST:PORT`` of a broker in a container; SIGTERM ends it, with the exit status 0."""
    port = free_ports(1)[0]
    name = docker.engine.docker(
        "run", "--detach", "--volume=alone:/var/lib/lightrail", f"--publish=127.0.0.1:{port}:5672",
        "--network=tests", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--health-interval=1s",
        "--env=LIGHTRAIL_PLAIN_WITHOUT_TLS=true", image,
    ).split()[-1]  # fmt: skip
    try:
        health = ("inspect", "--format", "{{.State.Health.Status}}", name)
        wait.until(lambda: docker.engine.docker(*health).strip() == "healthy", "a healthy container", 60)
        yield f"127.0.0.1:{port}"
        docker.engine.docker("stop", "--time=30", name)
        assert docker.engine.docker("wait", name).strip() == "0", docker.engine.docker("logs", name)
    finally:
        docker.engine.docker("rm", "--force", name)
