"""The image in the place of the emulator's, started as Testcontainers and Aspire start that one."""

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from lightrail.cli.emulator import HINT, UP
from lightrail.service_bus.development import CONFIG_OF_IMAGE, KEY, KEY_NAME
from tests.deploy.conftest import Docker
from tests.support import wait
from tests.support.broker import ROOT
from tests.support.ports import free_ports

pytestmark = pytest.mark.timeout(900)
TAG = "lightrail-emulator:tests"
CONFIG = f"--volume={ROOT}/examples/emulator/Config.json:{CONFIG_OF_IMAGE}:ro"
VARIABLES = (
    *("--env=ACCEPT_EULA=Y", "--env=SQL_SERVER=database-container", "--env=MSSQL_SA_PASSWORD=a password"),
    "--env=SQL_WAIT_INTERVAL=0",
)


@pytest.fixture(scope="module")
def image(docker: Docker) -> str:
    """The name of the image, built of this tree."""
    docker.engine.run(
        *("docker", "build", "--network=host", "--target=emulator", f"--tag={TAG}", "."),
        time_s=600,
        directory=ROOT,
    )
    docker.engine.docker("network", "create", "emulator")
    return TAG


@contextlib.contextmanager
def started(docker: Docker, image: str, *options: str, http: int = 5300) -> Iterator[tuple[str, int, int]]:
    """The name of a container, and its published ports of AMQP and HTTP, when /health says that it serves."""
    amqp_port, http_port = free_ports(2)
    name = docker.engine.docker(
        *("run", "--detach", "--network=emulator", f"--publish=127.0.0.1:{amqp_port}:5672"),
        *(f"--publish=127.0.0.1:{http_port}:{http}", *options, image),
    ).split()[-1]

    def healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/health", timeout=5) as answer:
                return b'"status":"healthy"' in answer.read()
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        wait.until(healthy, "the emulator's health", 60)
        yield name, amqp_port, http_port
    except AssertionError as error:
        raise AssertionError(f"{error}\n{docker.engine.docker('logs', name)}") from None
    finally:
        docker.engine.docker("rm", "--force", "--volumes", name)


def client(port: int) -> ServiceBusClient:
    by_key = f"SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};UseDevelopmentEmulator=true"
    return ServiceBusClient.from_connection_string(f"Endpoint=sb://127.0.0.1:{port};{by_key}", retry_total=0)


def test_what_starts_the_emulator_starts_this_image(docker: Docker, image: str) -> None:
    with started(docker, image, *VARIABLES, CONFIG) as (name, port, _), client(port) as programs:
        with programs.get_queue_sender("queue.1") as sender:
            sender.send_messages(ServiceBusMessage("first"))
        with programs.get_queue_receiver("queue.1") as receiver:
            assert [str(each) for each in receiver.receive_messages(1, max_wait_time=10)] == ["first"]
        log = docker.engine.docker("logs", name)
        assert UP in log
        assert "can be reached from outside: every client has all rights" in log


def test_http_is_at_the_port_of_the_variable_and_a_file_is_not_needed(docker: Docker, image: str) -> None:
    with started(docker, image, *VARIABLES, "--env=EMULATOR_HTTP_PORT=5301", http=5301) as (name, _, _):
        status = ("inspect", "--format", "{{.State.Health.Status}}", name)
        wait.until(lambda: docker.engine.docker(*status).strip() == "healthy", "a healthy container", 60)


def test_without_the_choice_nobody_is_let_in(docker: Docker, image: str) -> None:
    said = docker.engine.docker("run", "--rm", "--network=none", image, check=False)
    assert "no user is defined" in said
    assert HINT in said
