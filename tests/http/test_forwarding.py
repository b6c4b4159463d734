"""Dead letters to another name, through a broker: on another shard, and while policies change."""

from typing import Any

from proton import Delivery, Message
from proton.utils import BlockingConnection

from tests.support.broker import Broker
from tests.support.http_client import Http


def put(http: Http, name: str, **policy: Any) -> None:
    assert http("POST", f"/{name}", {"role": "queue"} | policy).status == 201


def test_dead_letters_of_many_queues_get_to_one_name(broker: Broker, http: Http) -> None:
    put(http, "graves")
    names = [f"forwarded/q{number}" for number in range(6)]
    amqp = BlockingConnection(f"amqp://{broker.amqp}", timeout=20)
    for name in names:
        # Placed in turn, so that some of them are not on the shard of their target.
        put(http, name, dead_letter="graves")
        sender = amqp.create_sender(name)
        receiver = amqp.create_receiver(name, credit=10)
        for number in range(10):
            sender.send(Message(body=[name, number], durable=True))
        for _ in range(10):
            receiver.receive(20)
            receiver.settle(Delivery.REJECTED)
        receiver.close()
        sender.close()
    receiver = amqp.create_receiver("graves", credit=100)
    found = []
    for _ in range(60):
        message = receiver.receive(20)
        receiver.accept()
        found.append(tuple(message.body))
        assert message.annotations["x-opt-dead-letter-source"] == message.body[0]
        assert message.annotations["x-opt-dead-letter-reason"] == "rejected"
    assert sorted(found) == [(name, number) for name in names for number in range(10)]
    amqp.close()


def test_forwarding_is_in_the_metrics(http: Http) -> None:
    text = http("GET", "/metrics").body.decode()
    assert 'lightrail_transfers_started_total{role="gateway",id="0"}' in text
    assert 'lightrail_dead_letters_forwarded_total{role="gateway",id="0"}' in text
