"""The brokers that the suite of the client runs against, each started once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from lightrail.cli import admin
from lightrail.client import Message, sync
from lightrail.client.management import ROUTER
from tests.brokers import lacks
from tests.support.amqp.artemis import Artemis
from tests.support.amqp.rabbitmq import RabbitMQ
from tests.support.amqp.returning_broker import ReturningBroker

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
        prefix: before the name of a queue in its address.
        refused: an address that the broker has nothing for.
    """

    prefix = ""
    refused = ""

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self.server = server
        self.url = server.url if "://" in server.url else f"amqp://{USER}:{PASSWORD}@{server.url}"
        self._names = 0

    def queue(self) -> str:
        """The address of a queue that nobody has used."""
        return f"{self.prefix}{self._name()}"

    def kept(self) -> str:
        """The address of a queue that survives a restart."""
        return self._name()

    def topic(self) -> str:
        """An address that nobody has used, whose messages go to each of its receivers."""
        raise NotImplementedError

    def with_dead_letters(self) -> tuple[str, str]:
        """The addresses of a queue, and of that where its rejected messages go."""
        raise NotImplementedError

    def delete(self, address: str) -> None:
        """Deletes a queue that has receivers."""
        raise NotImplementedError

    def _name(self) -> str:
        self._names += 1
        return f"suite-{self._names}"


class OfLightRail(Peer):
    refused = "$nothing/such"

    def topic(self) -> str:
        name = self._name()
        with sync.connect(self.url) as connection, connection.management() as management:
            management.create(ROUTER, name)
        return name

    def with_dead_letters(self) -> tuple[str, str]:
        name = self._name()
        return name, f"{name}/$dlq"

    def delete(self, address: str) -> None:
        with sync.connect(self.url) as connection, connection.management() as management:
            management.delete(address)


class OfArtemis(Peer):
    refused = "nothing/such"

    def topic(self) -> str:
        return f"topic.{self._name()}"

    def with_dead_letters(self) -> tuple[str, str]:
        return self._name(), "DLQ"

    def delete(self, address: str) -> None:
        operation = {"_AMQ_ResourceName": "broker", "_AMQ_OperationName": "destroyQueue"}
        asked = Message(json.dumps([address, True]), properties=operation)
        with sync.connect(self.url) as connection, connection.requester("activemq.management") as requester:
            answer = requester.request(asked)
        assert answer.properties["_AMQ_OperationSucceeded"], answer


class OfRabbitMQ(Peer):
    prefix = "/queue/"
    refused = "/exchange/nothing"
    server: RabbitMQ

    def kept(self) -> str:
        name = self._name()
        self.server.declare(name)
        return f"/amq/queue/{name}"

    def topic(self) -> str:
        return f"/topic/{self._name()}"

    def with_dead_letters(self) -> tuple[str, str]:
        name, dead = self._name(), self._name()
        self.server.declare(dead)
        self.server.declare(name, dead)
        return f"/amq/queue/{name}", f"/amq/queue/{dead}"

    def delete(self, address: str) -> None:
        self.server.delete(address.removeprefix(self.prefix))


def _lightrail(directory: Path) -> Peer:
    data = directory / "data"
    password = directory / "password"
    password.write_text(PASSWORD + "\n")
    assert admin.main(["--data", str(data), "user", "add", USER, "--password-file", str(password)]) == 0
    return OfLightRail("LightRail", ReturningBroker(data))


def _artemis(directory: Path) -> Peer:
    server = Artemis(directory)
    server.start()
    return OfArtemis("Artemis", server)


def _rabbitmq(directory: Path) -> Peer:
    server = RabbitMQ(directory)
    server.start()
    return OfRabbitMQ("RabbitMQ", server)


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
        # Tests of other folders have parameters of this name, too.
        if call is None or call.params.get("peer") not in STARTS:
            continue
        law = item.name.partition("[")[0].removeprefix("test_")
        case = call.params.get("body")
        why = lacks.of(call.params["peer"], law, None if case is None else type(case).__name__)
        if why:
            item.add_marker(pytest.mark.xfail(reason=why, strict=True))
