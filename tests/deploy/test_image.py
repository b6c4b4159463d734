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
from tests.support.deploy.docker import IMAGE_S
from tests.support.ports import free_ports

pytestmark = pytest.mark.timeout(IMAGE_S + 600)
PASSWORD = "a password of the tests"
LOGIN = {"user": "alice", "password": PASSWORD, "allowed_mechs": "PLAIN", "allow_insecure_mechs": True}


@pytest.fixture(scope="module")
def image(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of the image, built of this tree."""
    compose = Compose(docker.engine, docker.program, tmp_path_factory.mktemp("compose"))
    compose("build", "shard", time_s=IMAGE_S)
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
    assert "compiler" not in there
    assert "mypy" not in there.lower()
    assert "cython" not in there.lower()
    assert "setuptools" not in there
    assert "Permission denied" in there


METRICS = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/metrics').read().decode())"


def test_messages_pass_machine_code(docker: Docker, image: str) -> None:
    password = PASSWORD.encode() + b"\n"
    run = ("run", "--rm", "--volume=compiled:/var/lib/lightrail", "-i", "--network=none")
    docker.engine.docker(*run, "--entrypoint=lightrail-admin", image, "user", "add", "alice", input=password)
    with _served(docker, image, "compiled") as (address, name):
        with connected(address, **LOGIN) as connection:
            connection.create_sender("orders").send(Message(body="kept", durable=True))
        text = docker.engine.docker("exec", name, "python", "-c", METRICS)
        for role in ("frontend", "shard"):
            assert f'lightrail_modules_compiled{{role="{role}",id="0"}} 1.0' in text
        assert "interpreted" not in docker.engine.docker("logs", name)


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
    with _served(docker, image, "alone") as (address, _), connected(address, **LOGIN) as connection:
        connection.create_sender("orders").send(Message(body="kept", durable=True))
    with _served(docker, image, "alone") as (address, _), connected(address, **LOGIN) as connection:
        receiver = connection.create_receiver("orders")
        assert receiver.receive().body == "kept"
        receiver.accept()


@contextlib.contextmanager
def _served(docker: Docker, image: str, volume: str) -> Iterator[tuple[str, str]]:
    """``HOST:PORT`` of a broker in a container, and its name; SIGTERM ends it, with the exit status 0."""
    port = free_ports(1)[0]
    name = docker.engine.docker(
        "run", "--detach", f"--volume={volume}:/var/lib/lightrail", f"--publish=127.0.0.1:{port}:5672",
        "--network=tests", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--health-interval=1s",
        "--env=LIGHTRAIL_PLAIN_WITHOUT_TLS=true", image,
    ).split()[-1]  # fmt: skip
    try:
        health = ("inspect", "--format", "{{.State.Health.Status}}", name)
        wait.until(lambda: docker.engine.docker(*health).strip() == "healthy", "a healthy container", 60)
        yield f"127.0.0.1:{port}", name
        docker.engine.docker("stop", "--time=30", name)
        assert docker.engine.docker("wait", name).strip() == "0", docker.engine.docker("logs", name)
    finally:
        docker.engine.docker("rm", "--force", name)
