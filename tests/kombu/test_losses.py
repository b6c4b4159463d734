"""A lost connection: `drain_events` raises the loss, and consumers are made on another connection."""

from collections.abc import Iterator

import pytest
from kombu import Connection, Consumer, Exchange, Message, Queue

from tests.support import wait
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.broker import Broker

DEADLINE_S = 20.0
QUEUE = Queue("queue", Exchange("exchange"), "key")


@pytest.fixture
def proxy(broker: Broker) -> Iterator[CuttingProxy]:
    between = CuttingProxy(int(broker.amqp.rpartition(":")[2]))
    yield between
    between.close()


def lose(connection: Connection, proxy: CuttingProxy) -> None:
    """Ends its socket, and returns when it has noticed that. The broker is there all the time."""
    lost = connection.connection
    proxy.cut()
    wait.until(lambda: not lost.connected, "the loss is noticed")


def test_who_drains_learns_of_a_loss_before_there_is_another_connection(proxy: CuttingProxy) -> None:
    found: list[Message] = []
    with Connection(f"lightrail://{proxy.url}/drains") as connection:
        for _ in range(2):

            def consumer() -> Consumer:
                return Consumer(connection, [QUEUE], callbacks=[lambda _, message: found.append(message)])

            with consumer():
                lose(connection, proxy)
                with pytest.raises(connection.connection_errors, match="was lost"):
                    connection.drain_events(timeout=DEADLINE_S)
        with consumer():
            connection.Producer().publish("x", exchange=QUEUE.exchange, routing_key="key", declare=[QUEUE])
            connection.drain_events(timeout=DEADLINE_S)
        assert [message.payload for message in found] == ["x"]
        found[0].ack()


def test_where_nobody_consumes_a_lost_connection_is_replaced_at_its_next_use(proxy: CuttingProxy) -> None:
    with Connection(f"lightrail://{proxy.url}/sends") as connection:
        for _ in range(2):
            QUEUE(connection.default_channel).declare()
            lose(connection, proxy)
        assert QUEUE(connection.default_channel).queue_declare(passive=True).message_count == 0
