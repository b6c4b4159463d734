"""Ctrl-C: a broker with clients stops in order, and has nothing to warn of."""

import signal
import threading
from pathlib import Path

import pytest
from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http


class Receiver(MessagingHandler):
    """A client that receives, and hears why its connection is closed."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.attached = threading.Event()
        self.why = ""
        self._url = url

    def on_start(self, event: object) -> None:
        connection = event.container.connect(self._url, reconnect=False)  # type: ignore[attr-defined]
        event.container.create_receiver(connection, "q")  # type: ignore[attr-defined]

    def on_link_opened(self, event: object) -> None:
        self.attached.set()

    def on_connection_remote_close(self, event: object) -> None:
        self.why = event.connection.remote_condition.name  # type: ignore[attr-defined]
        event.connection.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_clients_then_frontends_and_gateway_then_shards(tmp_path: Path, number: signal.Signals) -> None:
    with Broker(tmp_path / "data", "--shards", "2", "--frontends", "2") as broker, Http(broker.http) as http:
        assert http("POST", "/q", {"role": "queue"}).status == 201
        assert http("POST", "/r", {"role": "queue"}).status == 201
        client = Receiver(f"amqp://{broker.amqp}")
        running = threading.Thread(target=Container(client).run)
        running.start()
        assert client.attached.wait(wait.DEADLINE_S)
        http.ask("DELETE", "/r/!head?timeout=60")
        with Http(broker.http) as another:
            wait.until(lambda: another("GET", "/r/!figures").json()["consumers"] == 1, "the request waits")
        before = broker.said()
        broker.process.send_signal(number)
        assert broker.process.wait(wait.DEADLINE_S) == 0
        running.join(wait.DEADLINE_S)
        assert not running.is_alive()
        assert client.why == "amqp:connection:forced"
        assert http.answer().status == 204
        lines = broker.said().removeprefix(before).splitlines()
        assert [line for line in lines if "WARNING" in line or "ERROR" in line] == []
        begins = [line for line in lines if "stopping: SIGTERM" in line]
        shards = [index for index, line in enumerate(begins) if " shard-" in line]
        assert len(begins) == 5 + (number == signal.SIGTERM)
        assert shards == [len(begins) - 2, len(begins) - 1], "\n".join(begins)
