"""The client over WebSocket at a broker of others: ActiveMQ Artemis speaks it at its port of AMQP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.client import ReconnectPolicy, sync
from tests.support.amqp.artemis import Artemis

SOON = ReconnectPolicy(first=0.05, longest=0.5)
TIMEOUT_S = 60.0


@pytest.fixture
def artemis(tmp_path: Path) -> Iterator[Artemis]:
    server = Artemis(tmp_path)
    server.start()
    yield server
    server.stop()


def test_messages_are_sent_and_received_over_a_kill_of_the_broker(artemis: Artemis) -> None:
    url = artemis.url.replace("amqp://", "ws://")
    bodies = [b"x" * size for size in (1, 70_000, 1_000_000)]
    with (
        sync.connect(url, reconnect=SOON) as connection,
        connection.sender("websocket") as sender,
        connection.receiver("websocket") as receiver,
    ):
        assert connection.product == "apache-activemq-artemis"
        found: list[Any] = []
        for body in bodies:
            assert sender.send(body).accepted
        while len(found) < len(bodies):
            for delivery in receiver.receive(10, timeout=TIMEOUT_S):
                found.append(delivery.body)
                delivery.accept()
        assert found == bodies
        artemis.kill()
        artemis.start()
        assert sender.send("after").accepted
        # Those whose settlement the broker had not stored come again.
        while found[-1] != "after":
            for delivery in receiver.receive(10, timeout=TIMEOUT_S):
                found.append(delivery.body)
                delivery.accept()
