"""The brokers that the suite of the client runs against, each started once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from lightrail.cli import admin
from tests.brokers import lacks
from tests.support.artemis import Artemis
from tests.support.rabbitmq import RabbitMQ
from tests.support.returning_broker import ReturningBroker

USER = "app"
PASSWORD = "pencil"


class Server(Protocol):
    """What is started, killed and started again at the same address with the same data."""

    url: str

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...


class Peer:
    """A running broker, and how its addresses look.

    Attributes:
        refused: an address that the broker has nothing for.
    """

    def __init__(
        self, name: str, server: Server, prefix: str, refused: str, kept: Callable[[str], str] = str
    ) -> None:
        self.name = name
        self.server = server
        self.kept = kept
        """Makes a queue that survives a restart, and returns its address."""
        self.url = server.url if "://" in server.url else f"amqp://{USER}:{PASSWORD}@{server.url}"
        self.refused = refused
        self._prefix = prefix
        self._queues = 0

    def queue(self) -> str:
        """The address of a queue that nobody has used."""
        self._queues += 1
        return f"{self._prefix}suite-{self._queues}"


def _lightrail(directory: Path) -> Peer:
    data = directory / "data"
    password = directory / "password"
    password.write_text(PASSWORD + "\n")
    assert admin.main(["--data", str(data), "user", "add", USER, "--password-file", str(password)]) == 0
    return Peer("LightRail", ReturningBroker(data), "", "$nothing/such")


def _artemis(directory: Path) -> Peer:
    server = Artemis(directory)
    server.start()
    return Peer("Artemis", server, "", "nothing/such")


def _rabbitmq(directory: Path) -> Peer:
    server = RabbitMQ(directory)
    server.start()

    def kept(name: str) -> str:
        server.declare(name)
        return f"/amq/queue/{name}"

    return Peer("RabbitMQ", server, "/queue/", "/exchange/nothing", kept)


STARTS = {"LightRail": _lightrail, "Artemis": _artemis, "RabbitMQ": _rabbitmq}


@pytest.fixture(scope="session", params=STARTS)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    found = STARTS[request.param](tmp_path_factory.mktemp(request.param.lower()))
    yield found
    found.server.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a broker lacks has to fail: a table that says too much is wrong as well."""
    for item in items:
        call = getattr(item, "callspec", None)
        if call is None or "peer" not in call.params:
            continue
        law = item.name.partition("[")[0].removeprefix("test_")
        case = call.params.get("body")
        why = lacks.of(call.params["peer"], law, None if case is None else type(case).__name__)
        if why:
            item.add_marker(pytest.mark.xfail(reason=why, strict=True))
