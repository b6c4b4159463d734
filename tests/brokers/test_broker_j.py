"""Apache Qpid Broker-J as `make bench-peers` starts it: it stores messages, also over a kill -9."""

from pathlib import Path

from lightrail.client import Message, sync
from tests.support.amqp.broker_j import BrokerJ

TIMEOUT_S = 30.0


def test_a_durable_message_that_was_accepted_is_received_after_a_kill(tmp_path: Path) -> None:
    with BrokerJ(tmp_path) as broker:
        with sync.connect(broker.url) as connection, connection.sender("bench") as sender:
            sender.send(Message("kept", durable=True))
        broker.kill()
        broker.start()
        with sync.connect(broker.url) as connection, connection.receiver("bench") as receiver:
            (delivery,) = receiver.receive(1, timeout=TIMEOUT_S)
            assert delivery.message.body == "kept"
            delivery.accept()
