"""Transfers through a broker: moves, copies and redrives as lightrail-admin asks for them."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Delivery, Message
from proton.utils import BlockingConnection

from lightrail.cli.administration.client import AnswerError, Client
from lightrail.cli.administration.messages import transfer
from tests.support.broker import Broker
from tests.support.http_client import Http

numbers = itertools.count(1)


def queue(http: Http, **policy: Any) -> str:
    """A queue of its own; two in a row are on different shards."""
    name = f"transfers/q{next(numbers)}"
    assert http("POST", f"/{name}", {"role": "queue"} | policy).status == 201
    return name


def moved(broker: Broker, **asked: Any) -> int:
    """As lightrail-admin does it; its exit status."""
    client = Client(f"http://{broker.http}")
    try:
        return transfer(client, {"count": None, "filter": None} | asked, True, lambda _: None)
    finally:
        client.close()


@pytest.fixture
def amqp(broker: Broker) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(f"amqp://{broker.amqp}", timeout=20)
    yield connection
    connection.close()


def fill(amqp: BlockingConnection, name: str, count: int) -> None:
    sender = amqp.create_sender(name)
    for number in range(count):
        sender.send(Message(body=number, subject="ab"[number % 2], durable=True, priority=6))
    sender.close()


def bodies(amqp: BlockingConnection, name: str, count: int) -> list[Any]:
    """So many messages, taken; and then there are no more."""
    receiver = amqp.create_receiver(name, credit=count + 1)
    found = []
    for _ in range(count):
        found.append(receiver.receive(20).body)
        receiver.accept()
    receiver.close()
    return found


def test_a_move_to_another_shard(broker: Broker, http: Http, amqp: BlockingConnection) -> None:
    source, target = queue(http), queue(http)
    fill(amqp, source, 300)
    assert moved(broker, **{"from": source, "to": target, "mode": "move", "count": 100}) == 0
    assert moved(broker, **{"from": source, "to": target, "mode": "move"}) == 0
    assert bodies(amqp, target, 300) == list(range(300))
    assert http("GET", f"/{source}/!messages").json()["messages"] == []


def test_a_copy_and_a_filter(broker: Broker, http: Http, amqp: BlockingConnection) -> None:
    source, copy, half = queue(http), queue(http), queue(http)
    fill(amqp, source, 50)
    assert moved(broker, **{"from": source, "to": copy, "mode": "copy"}) == 0
    asked = {"from": source, "to": half, "mode": "move", "filter": {"properties": {"subject": "a"}}}
    assert moved(broker, **asked) == 0
    assert bodies(amqp, copy, 50) == list(range(50))
    assert bodies(amqp, half, 25) == list(range(0, 50, 2))
    assert bodies(amqp, source, 25) == list(range(1, 50, 2))


def test_dead_letters_go_back_where_they_came_from(
    broker: Broker, http: Http, amqp: BlockingConnection
) -> None:
    source = queue(http)
    fill(amqp, source, 20)
    receiver = amqp.create_receiver(source, credit=20)
    for _ in range(20):
        receiver.receive(20)
        receiver.settle(Delivery.REJECTED)
    receiver.close()
    assert moved(broker, **{"from": f"{source}/$dlq", "to": None, "mode": "redrive", "count": 5}) == 0
    assert moved(broker, **{"from": f"{source}/$dlq", "to": None, "mode": "redrive"}) == 0
    receiver = amqp.create_receiver(source, credit=20)
    for number in range(20):
        message = receiver.receive(20)
        receiver.accept()
        assert (message.body, message.delivery_count, message.priority) == (number, 0, 6)
        assert message.annotations == {"x-opt-dead-letter-count": 1}
    receiver.close()


def test_what_the_target_does_not_take_stays_and_the_command_says_why(
    broker: Broker, http: Http, amqp: BlockingConnection
) -> None:
    source, target = queue(http), queue(http, max_message_bytes=100)
    sender = amqp.create_sender(source)
    for number in range(10):
        sender.send(Message(body="x" * 200 if number in (3, 8) else str(number)))
    sender.close()
    with pytest.raises(
        AnswerError, match=r"2 messages could not be sent and stay in .*: 2 x amqp:link:message-size"
    ):
        moved(broker, **{"from": source, "to": target, "mode": "move"})
    assert bodies(amqp, target, 8) == ["0", "1", "2", "4", "5", "6", "7", "9"]
    assert bodies(amqp, source, 2) == ["x" * 200] * 2


def test_transfers_are_listed_read_and_cancelled(http: Http) -> None:
    source, target = queue(http), queue(http)
    began = http("POST", "/!transfers", {"from": source, "to": target})
    assert began.status == 202
    path = began.headers["location"]
    assert path == f"/!transfers/{began.json()['id']}"
    assert http("DELETE", path).json()["state"] in ("done", "cancelled")
    assert http("GET", path).json()["from"] == source
    assert began.json()["id"] in [each["id"] for each in http("GET", "/!transfers").json()["transfers"]]
    assert http("GET", "/!transfers/nothing").status == 404
    refused = http("POST", "/!transfers", {"from": source, "to": source})
    assert (refused.status, refused.headers["content-type"]) == (
        422,
        "application/problem+json; charset=utf-8",
    )
    assert "expected two names" in refused.json()["detail"]


def test_messages_move_to_a_router_as_if_they_were_sent_there(
    broker: Broker, http: Http, amqp: BlockingConnection
) -> None:
    source, one, two = queue(http), queue(http), queue(http)
    router = f"transfers/r{next(numbers)}"
    assert http("POST", f"/{router}", {"role": "router"}).status == 201
    for target, subject in ((one, "a"), (two, "b")):
        wanted = {"target": target, "filter": {"properties": {"subject": subject}}}
        assert http("POST", f"/{router}/!subscriptions", wanted).status == 201
    fill(amqp, source, 20)
    assert moved(broker, **{"from": source, "to": router, "mode": "move"}) == 0
    assert sorted(bodies(amqp, one, 10)) == list(range(0, 20, 2))
    assert sorted(bodies(amqp, two, 10)) == list(range(1, 20, 2))
