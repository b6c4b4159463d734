"""Messages over HTTP: sent with properties, received and deleted, waited for, looked at, purged."""

import base64
import json
from collections.abc import Iterator
from itertools import product

import pytest
from proton import Message
from proton.utils import BlockingConnection

from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http

AMQP = "application/vnd.lightrail.amqp"


@pytest.fixture
def amqp(broker: Broker) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(f"amqp://{broker.amqp}", timeout=20)
    yield connection
    connection.close()


def queue(http: Http, name: str, **policy: object) -> None:
    assert http("POST", f"/{name}", {"role": "queue", **policy}).status == 201


def test_a_message_is_stored_and_received_with_its_properties(http: Http) -> None:
    queue(http, "there/and/back")
    sent = http(
        "POST",
        "/there/and/back",
        "hällo".encode(),
        {
            "BrokerProperties": json.dumps(
                {"MessageId": "m1", "Label": "greeting", "Priority": 7, "TimeToLive": 60, "SessionId": "s"}
            ),
            "LightRail-Property-Colour": '"red"',
            "LightRail-Property-number": "5",
            "LightRail-Property-plain": "just text",
            "LightRail-Property-with%20space": "true",
        },
    )
    assert sent.status == 201
    # The description has JSON for other answers of this operation, and this one has no body.
    assert (sent.headers["content-type"], sent.body) == ("text/plain", b"")
    assert sent.properties["SequenceNumber"] == 0
    assert sent.headers["location"] == "/there/and/back/!messages/0"
    got = http("DELETE", "/there/and/back/!head?timeout=10")
    assert got.status == 200
    assert got.body.decode() == "hällo"
    assert got.headers["content-type"] == "text/plain"
    properties = got.properties
    assert properties["MessageId"] == "m1"
    assert properties["Subject"] == "greeting"
    assert properties["GroupId"] == "s"
    assert properties["Priority"] == 7
    assert properties["TimeToLive"] == 60
    assert properties["SequenceNumber"] == 0
    assert properties["DeliveryCount"] == 0
    own = {k: v for k, v in got.headers.items() if k.startswith("lightrail-property-")}
    assert own == {
        "lightrail-property-colour": '"red"',
        "lightrail-property-number": "5",
        "lightrail-property-plain": '"just text"',
        "lightrail-property-with%20space": "true",
    }
    assert http("DELETE", "/there/and/back/!head").status == 204


def test_json_is_a_message_when_it_says_so(http: Http) -> None:
    queue(http, "json")
    assert http("POST", "/json", {"a": 1}, {"BrokerProperties": "{}"}).status == 201
    got = http("DELETE", "/json/!head?timeout=10")
    assert got.json() == {"a": 1}
    assert got.headers["content-type"] == "application/json"


def test_an_amqp_client_sees_what_http_sent(http: Http, amqp: BlockingConnection) -> None:
    queue(http, "to/amqp")
    headers = {"BrokerProperties": '{"CorrelationId": "c"}', "LightRail-Property-n": "2"}
    http("POST", "/to/amqp", b"data", headers)
    http("POST", "/to/amqp?body=text", "text")
    receiver = amqp.create_receiver("to/amqp")
    first = receiver.receive(20)
    receiver.accept()
    assert bytes(first.body) == b"data"
    assert first.correlation_id == "c"
    assert first.properties == {"n": 2}
    assert first.durable
    assert first.content_type == "text/plain"
    assert receiver.receive(20).body == "text"
    receiver.accept()


def test_http_sees_what_an_amqp_client_sent(http: Http, amqp: BlockingConnection) -> None:
    queue(http, "from/amqp")
    sender = amqp.create_sender("from/amqp")
    sender.send(Message("text", subject="s", properties={"p": 1.5}))
    sender.send(Message({"a": [1]}))
    got = http("DELETE", "/from/amqp/!head?timeout=10")
    assert (got.body, got.headers["content-type"]) == (b"text", "text/plain; charset=utf-8")
    assert got.headers["lightrail-property-p"] == "1.5"
    assert got.properties["Subject"] == "s"
    other = http("DELETE", "/from/amqp/!head?timeout=10")
    assert other.headers["content-type"] == AMQP
    message = Message()
    message.decode(other.body)
    assert message.body == {"a": [1]}


def test_an_encoded_message_stays_as_it_is(http: Http) -> None:
    queue(http, "raw")
    encoded = bytes(Message("text", id="m", properties={"x": "y"}).encode())
    assert http("POST", "/raw", encoded, {"Content-Type": AMQP}).status == 201
    got = http("DELETE", "/raw/!head?timeout=10", headers={"Accept": AMQP})
    assert got.body == encoded
    assert http("POST", "/raw", b"no message", {"Content-Type": AMQP}).status == 422


def test_a_batch_is_answered_message_by_message(http: Http) -> None:
    queue(http, "batch")
    messages = [{"Body": "one"}, {"Body": {"two": 2}, "UserProperties": {"n": 1}}]
    sent = http("POST", "/batch", messages, {"Content-Type": "application/vnd.lightrail.batch+json"})
    assert sent.status == 201
    assert [each["sequence"] for each in sent.json()["messages"]] == [0, 1]
    assert http("DELETE", "/batch/!head?timeout=10").body == b"one"
    assert http("DELETE", "/batch/!head?timeout=10").json() == {"two": 2}


def test_a_receiver_waits_for_a_message(http: Http, broker: Broker) -> None:
    queue(http, "waited")
    with Http(broker.http) as waiting:
        waiting.ask("DELETE", "/waited/!head?timeout=20")
        wait.until(lambda: http("GET", "/!status").json()["totals"]["receivers_waiting"], "it waits")
        http("POST", "/waited", "late")
        assert waiting.answer().body == b"late"


def test_time_outs_end_waits_in_their_order(http: Http, broker: Broker) -> None:
    queue(http, "timed")
    with Http(broker.http) as longer:
        longer.ask("DELETE", "/timed/!head?timeout=20")
        assert http("DELETE", "/timed/!head?timeout=0.05").status == 204
        assert http("DELETE", "/timed/!head?timeout=0").status == 204
        http("POST", "/timed", "x")
        assert longer.answer().status == 200


def test_who_went_while_waiting_takes_no_message_along(http: Http, broker: Broker) -> None:
    queue(http, "gone")
    leaving = Http(broker.http)
    leaving.ask("DELETE", "/gone/!head?timeout=20")
    wait.until(lambda: http("GET", "/!status").json()["totals"]["receivers_waiting"], "it waits")
    leaving.close()
    wait.until(lambda: not http("GET", "/!status").json()["totals"]["receivers_waiting"], "it was noticed")
    http("POST", "/gone", "kept")
    assert http("DELETE", "/gone/!head?timeout=10").body == b"kept"


def test_messages_are_looked_at_without_being_taken(http: Http) -> None:
    queue(http, "looked")
    for number in range(3):
        http("POST", "/looked", f"m{number}", {"BrokerProperties": '{"Subject": "s"}'})
    found = http("GET", "/looked/!messages?from=1&count=5").json()["messages"]
    assert [each["sequence"] for each in found] == [1, 2]
    assert found[0]["body"]["text"] == "m1"
    assert found[0]["properties"]["subject"] == "s"
    assert http("GET", "/looked/!messages/2").json()["body"]["text"] == "m2"
    assert http("GET", "/looked/!messages/7").status == 404
    figures = http("GET", "/looked/!figures").json()
    assert figures["ready"] == 3
    assert http("DELETE", "/looked/!messages").json() == {"purged": 3}
    assert http("DELETE", "/looked/!head").status == 204


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ('{"Prioritty": 1}', "BrokerProperties.Prioritty"),
        ('{"Priority": 10}', "Priority"),
        ('{"TimeToLive": -1}', "TimeToLive"),
        ('{"ScheduledEnqueueTimeUtc": "tomorrow"}', "ScheduledEnqueueTimeUtc"),
        ('{"MessageId": 7}', "MessageId"),
    ],
)
def test_bad_properties_are_refused_by_name(http: Http, properties: str, field: str) -> None:
    queue_name = "bad-properties"
    http("POST", f"/{queue_name}", {"role": "queue"})
    refused = http("POST", f"/{queue_name}", "x", {"BrokerProperties": properties})
    assert refused.status == 422
    assert refused.json()["field"] == field


def test_properties_that_are_no_json_are_said(http: Http) -> None:
    assert http("POST", "/bad-properties", "x", {"BrokerProperties": "{"}).status == 400


def test_a_message_that_is_too_large_for_its_queue_is_413(http: Http) -> None:
    queue(http, "messages/small", max_message_bytes=100)
    assert http("POST", "/messages/small", b"x" * 200).status == 413
    assert http("POST", "/messages/small", b"x").status == 201


def test_a_body_may_come_in_chunks(http: Http) -> None:
    queue(http, "chunks")
    sent = http("POST", "/chunks", iter([b"a" * 70_000, b"b"]), {"Content-Type": "text/plain"})
    assert sent.status == 201
    assert http("DELETE", "/chunks/!head?timeout=10").body == b"a" * 70_000 + b"b"


def test_a_router_takes_no_receiver(http: Http) -> None:
    http("POST", "/routes", {"role": "router"})
    assert http("DELETE", "/routes/!head").status == 409


def test_bytes_stay_bytes(http: Http) -> None:
    queue(http, "bytes")
    body = bytes(range(256))
    http("POST", "/bytes", body, {"Content-Type": "application/octet-stream"})
    row = http("GET", "/bytes/!messages").json()["messages"][0]
    assert base64.b64decode(row["body"]["base64"]) == body
    assert http("DELETE", "/bytes/!head?timeout=10").body == body


def test_a_dynamic_node_is_for_its_connection_alone_to_receive(http: Http, amqp: BlockingConnection) -> None:
    """Who knows the name looks, where it may manage it, and takes nothing."""
    replies = amqp.create_receiver(None, dynamic=True, credit=0)
    name = replies.link.remote_source.address
    amqp.create_sender(name).send(Message(body="answer"))
    path = f"/{name}"
    for method in ("DELETE", "POST"):
        refused = http(method, f"{path}/!head")
        assert refused.status == 403
        assert "only the AMQP connection that created it" in refused.json()["detail"]
    (seen,) = http("GET", f"{path}/!messages").json()["messages"]
    assert seen["sequence"] >= 0
    assert replies.receive(timeout=20).body == "answer"


def test_json_is_a_message_once_the_name_has_a_role(http: Http) -> None:
    queue(http, "json/q")
    for sent in ({"order": 7}, {"role": "administrator", "user": "x"}, [1, 2], "text", None):
        kind = "application/json; charset=utf-8"
        assert http("POST", "/json/q", json.dumps(sent), {"Content-Type": kind}).status == 201
        got = http("DELETE", "/json/q/!head")
        assert (json.loads(got.body), got.headers["content-type"]) == (sent, kind)
    assert http("POST", "/json/r", {"role": "router"}).status == 201
    assert http("POST", "/json/r/!subscriptions", {"target": "json/q"}).status == 201
    assert http("POST", "/json/r", {"order": 8}).status == 201
    assert http("DELETE", "/json/q/!head").json() == {"order": 8}


def test_a_policy_is_no_message(http: Http) -> None:
    queue(http, "json/policy")
    json_kinds = ("application/json", "application/x-www-form-urlencoded")
    misspelt = ({"role": "queu"}, {"role": "Queue"}, {"role": "quorum", "max_length": 5})
    for policy, kind in product(
        ({"role": "queue"}, {"role": "router", "mistyped": 1}, *misspelt), json_kinds
    ):
        refused = http("POST", "/json/policy", json.dumps(policy), {"Content-Type": kind})
        assert refused.status == 409
        assert "BrokerProperties: {}" in refused.json()["detail"]
    assert http("DELETE", "/json/policy/!head").status == 204
    own = {"Content-Type": "application/vnd.lightrail.policy+json"}
    assert http("POST", "/json/policy", json.dumps({"role": "queue"}), own).status == 409
    assert http("POST", "/json/policy", {"role": "queue"}, {"BrokerProperties": "{}"}).status == 201
    assert http("DELETE", "/json/policy/!head").json() == {"role": "queue"}


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded"])
def test_json_without_a_type_of_its_own_makes_no_queue(broker: Broker, http: Http, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    name = f"json/untyped/{'none' if kind is None else 'form'}"
    for body in (b'{"role": "queue"}', b' {"order": 7}'):
        refused = http("POST", f"/{name}", iter([body]), headers)
        assert refused.status == 400
        assert "Content-Type: application/json" in refused.json()["detail"]
        assert http("GET", f"/{name}").status == 404
    assert http("POST", f"/{name}", iter([b"hello"]), headers).status == 201
    assert http("POST", f"/{name}", iter([b'{"order": 7}']), headers).status == 201
    assert http("POST", f"/{name}", iter([b'{"role": "queue"}']), headers).status == 409


def test_json_for_a_name_without_a_role_says_how_it_is_sent(http: Http) -> None:
    refused = http("POST", "/json/nothing", {"order": 7})
    assert refused.status == 422
    assert refused.json()["field"] == "role"
    assert "to send JSON as a message, add the header BrokerProperties: {}" in refused.json()["detail"]
    assert http("POST", "/json/nothing", {"order": 7}, {"BrokerProperties": "{}"}).status == 201
