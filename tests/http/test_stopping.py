"""Ctrl-C: a broker with clients stops in order, and has nothing to warn of."""

import signal
from pathlib import Path

import pytest

from lightrail.client import Event, sync
from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_clients_then_frontends_and_gateway_then_shards(tmp_path: Path, number: signal.Signals) -> None:
    with Broker(tmp_path / "data", "--shards", "2", "--frontends", "2") as broker, Http(broker.http) as http:
        assert http("POST", "/q", {"role": "queue"}).status == 201
        assert http("POST", "/r", {"role": "queue"}).status == 201
        events: list[Event] = []
        client = sync.connect(broker.amqp, on_event=events.append)
        client.receiver("q").opened()
        http.ask("DELETE", "/r/!head?timeout=60")
        with Http(broker.http) as another:
            wait.until(lambda: another("GET", "/r/!figures").json()["consumers"] == 1, "the request waits")
        before = broker.said()
        broker.process.send_signal(number)
        assert broker.process.wait(wait.DEADLINE_S) == 0
        client.close()
        (why,) = [event.reason for event in events if event.kind == "lost"]
        assert "amqp:connection:forced" in why
        assert http.answer().status == 204
        lines = broker.said().removeprefix(before).splitlines()
        assert [line for line in lines if "WARNING" in line or "ERROR" in line] == []
        begins = [line for line in lines if "stopping: SIGTERM" in line]
        shards = [index for index, line in enumerate(begins) if " shard-" in line]
        assert len(begins) == 5 + (number == signal.SIGTERM)
        assert shards == [len(begins) - 2, len(begins) - 1], "\n".join(begins)
