"""$management and the control socket as clients of a whole broker see them, by python-qpid-proton."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import pytest
from proton import Delivery, Message, uint
from proton.utils import BlockingConnection, ConnectionClosed, LinkDetached, SyncRequestResponse

from tests.interop.proton_management import Node
from tests.interop.test_proton_security import admin
from tests.support import wait
from tests.support.amqp.proton_blocking import connected, received
from tests.support.broker import Broker
from tests.support.namespace import permit


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


# --- connections -----------------------------------------------------------------------------------------


def test_connections_are_listed_shown_and_closed_over_http(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--frontends", "2") as broker, connected(broker.amqp) as connection:
        connection.create_sender("a queue")
        container = connection.container.container_id
        found = get(broker, f"/!connections?container={quote(container)}")
        (listed,) = found["connections"]
        assert (listed["container"], listed["sessions"], listed["links"]) == (container, 1, 1)
        assert (found["next"], found["away"]) == (None, [])
        whole = get(broker, f"/!connections/{listed['id']}")
        (link,) = whole["session_list"][0]["links"]
        assert (link["role"], link["address"], link["state"]) == ("sender", "a queue", "attached")
        assert get(broker, "/!connections?user=nobody")["connections"] == []
        request = Request(
            f"http://{broker.http}/!connections/{listed['id']}?text=maintenance", method="DELETE"
        )
        with urlopen(request) as response:
            assert response.status == 204
        with pytest.raises(ConnectionClosed) as closed:
            connection.wait(lambda: False, timeout=20)
        condition = closed.value.args[0] if closed.value.args else ""
        assert "maintenance" in str(closed.value) or "maintenance" in str(condition)
        wait.until(lambda: not get(broker, "/!connections")["connections"], "the connection is gone")


def get(broker: Broker, path: str) -> Any:
    """The JSON of a GET."""
    with urlopen(f"http://{broker.http}{path}") as response:
        return json.load(response)


# --- tokens ----------------------------------------------------------------------------------------------


def test_a_token_opens_links_for_who_came_without_a_name(tmp_path: Path) -> None:
    data = tmp_path / "data"
    admin(data, "user", "add", "ann", password="a password")
    permit(data, "ann", "a", "send", "listen")
    with Broker(data, "--allow-anonymous", "true") as broker:
        with connected(broker.amqp) as connection, pytest.raises(LinkDetached, match="unauthorized-access"):
            connection.create_sender("a/q")
        token = token_of(broker, "ann", "a password", ttl=3)
        with connected(broker.amqp) as connection:
            node = Node(connection, "$cbs")
            answer = node.ask(token, operation="put-token", type="jwt", name="amqp://broker/a")
            assert answer.properties["status-code"] == 202
            sender = connection.create_sender("a/q")
            assert sender.send(Message(body=1)).remote_state == Delivery.ACCEPTED
            bad = node.ask("nonsense", operation="put-token", type="jwt", name="a")
            assert bad.properties["status-code"] == 401
            with pytest.raises(LinkDetached, match="unauthorized-access"):
                connection.wait(lambda: False, timeout=20)


def token_of(broker: Broker, user: str, password: str, ttl: int) -> str:
    """From POST /!tokens."""
    secret = base64.b64encode(f"{user}:{password}".encode()).decode()
    request = Request(
        f"http://{broker.http}/!tokens",
        json.dumps({"ttl": ttl}).encode(),
        {"Authorization": f"Basic {secret}", "Content-Type": "application/json"},
    )
    with urlopen(request) as response:
        return str(json.load(response)["token"])


def test_the_page_of_connections_shows_and_closes_them(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, connected(broker.amqp) as connection:
        connection.create_sender("a queue")
        (listed,) = get(broker, "/!connections")["connections"]
        assert listed["id"] in page(broker, "/!ui/connections")
        assert "a queue" in page(broker, f"/!ui/connection?id={listed['id']}")
        form = urlencode({"id": listed["id"], "sure": "yes"}).encode()
        headers = {"Origin": f"http://{broker.http}", "Sec-Fetch-Site": "same-origin"}
        with urlopen(Request(f"http://{broker.http}/!ui/close", form, headers)) as response:
            assert response.status == 200
        with pytest.raises(ConnectionClosed):
            connection.wait(lambda: False, timeout=20)


def page(broker: Broker, path: str) -> str:
    """The HTML of a page."""
    with urlopen(f"http://{broker.http}{path}") as response:
        return str(response.read().decode())


def test_a_queue_that_is_made_for_a_connection_goes_with_it(broker: Broker, queue: str) -> None:
    with connected(broker.amqp) as maker, connected(broker.amqp) as other:
        create = {"operation": "CREATE", "type": "lightrail.queue", "name": queue}
        node = Node(maker)
        refused = node.ask({"lifetime": "link"}, **create).properties
        assert refused["statusCode"] == 400
        assert "permanent or last_consumer" in refused["statusDescription"]
        assert node.ask({"lifetime": "connection"}, **create).properties["statusCode"] == 201
        read, watcher = create | {"operation": "READ"}, Node(other)
        assert watcher.ask(**read).properties["statusCode"] == 200
        maker.close()
        wait.until(lambda: watcher.ask(**read).properties["statusCode"] == 404, "it goes")
