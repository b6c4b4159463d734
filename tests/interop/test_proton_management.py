"""$management and the control socket as clients of a whole broker see them, by python-qpid-proton."""

from collections.abc import Iterator

import pytest
from proton import Message, uint
from proton.utils import BlockingConnection, SyncRequestResponse

from tests.support.broker import Broker
from tests.support.proton_blocking import connected, received
from tests.support.proton_management import Node


@pytest.fixture
def connection(broker: Broker) -> Iterator[BlockingConnection]:
    with connected(broker.amqp) as made:
        yield made


def test_a_queue_is_made_used_and_deleted(connection: BlockingConnection, queue: str) -> None:
    node = Node(connection)
    entity = {"type": "lightrail.queue", "name": queue}
    made = node.ask({"max_length": uint(10)}, operation="CREATE", **entity)
    assert made.properties["statusCode"] == 201
    assert made.body["max_length"] == 10
    sender = connection.create_sender(queue)
    sender.send(Message(body="one"))
    read = node.ask(operation="READ", **entity)
    assert (read.properties["statusCode"], read.body["name"]) == (200, queue)
    receiver = connection.create_receiver(queue)
    assert [each.body for each in received(receiver, 1)] == ["one"]
    found = node.ask(
        {"attributeNames": ["name", "type"]}, operation="QUERY", entityType="lightrail.queue", count=uint(500)
    )
    assert [queue, "lightrail.queue"] in found.body["results"]
    sender.close()
    receiver.close()
    assert node.ask(operation="DELETE", **entity).properties["statusCode"] == 204
    assert node.ask(operation="READ", **entity).properties["statusCode"] == 404


def test_what_another_frontend_would_answer_is_the_same_at_once(broker: Broker, queue: str) -> None:
    with connected(broker.amqp) as one, connected(broker.amqp) as other:
        made = Node(one).ask({}, operation="CREATE", type="lightrail.router", name=queue)
        assert made.properties["statusCode"] == 201
        read = Node(other).ask(operation="READ", type="lightrail.router", name=queue)
        assert read.body["revision"] == made.body["revision"]


def test_answers_go_to_a_queue_as_well(connection: BlockingConnection, queue: str) -> None:
    receiver = connection.create_receiver(queue, credit=10)
    sender = connection.create_sender("$management")
    for number in range(3):
        request = Message(id=number, reply_to=queue, properties={"operation": "GET-TYPES"})
        sender.send(request)
    answers = received(receiver, 3)
    assert [answer.correlation_id for answer in answers] == [0, 1, 2]
    assert all("lightrail.queue" in answer.body for answer in answers)


def test_request_and_response_by_a_dynamic_reply_queue(connection: BlockingConnection, queue: str) -> None:
    rpc = SyncRequestResponse(connection, "$management")
    for expected in (201, 409):
        request = Message(
            properties={"operation": "CREATE", "type": "lightrail.queue", "name": queue}, body={}
        )
        assert rpc.call(request).properties["statusCode"] == expected


def test_figures_come_from_the_shard(connection: BlockingConnection, queue: str) -> None:
    connection.create_sender(queue).send(Message(body="one"))
    node = Node(connection)
    figures = node.ask(operation="READ", type="lightrail.queue", name=queue).body["figures"]
    assert figures["ready"] == 1
    peeked = node.ask(operation="peek", type="lightrail.queue", name=queue).body["messages"]
    decoded = Message()
    decoded.decode(bytes(peeked[0]["message"]))
    assert decoded.body == "one"
    assert node.ask(operation="purge", type="lightrail.queue", name=queue).body == {"purged": 1}
    assert node.ask(operation="READ", name=queue).body["figures"]["ready"] == 0
