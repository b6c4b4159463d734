"""Routers over HTTP: subscribed to and sent to as curl would do it."""

import json
import threading

from tests.support.broker import Broker
from tests.support.http_client import Http


def feed(http: Http, router: str, *queues: str, **fields: object) -> None:
    for queue in queues:
        assert http("POST", f"/{queue}", {"role": "queue"}).status == 201
        assert http("POST", f"/{router}/!subscriptions", {"target": queue, **fields}).status == 201


def bodies(http: Http, queue: str) -> list[str]:
    """What is in a queue; it is empty afterwards."""
    found = []
    while (got := http("DELETE", f"/{queue}/!head?timeout=0")).status == 200:
        found.append(got.body.decode())
    return found


def test_a_message_reaches_every_queue_that_subscribed(http: Http) -> None:
    http("POST", "/fan", {"role": "router"})
    queues = [f"fan/q{number}" for number in range(6)]
    feed(http, "fan", *queues)
    for text in ("one", "two"):
        sent = http("POST", "/fan", text)
        assert sent.status == 201
        assert "location" not in sent.headers
    for queue in queues:
        assert bodies(http, queue) == ["one", "two"]


def test_filters_and_actions_hold_for_what_http_sends(http: Http) -> None:
    http("POST", "/sorted", {"role": "router"})
    feed(http, "sorted", "sorted/red", filter={"properties": {"application-properties.colour": "red"}})
    feed(http, "sorted", "sorted/all", action={"set": {"subject": "seen"}})
    for colour in ("red", "blue"):
        http("POST", "/sorted", colour, {"LightRail-Property-colour": colour})
    assert bodies(http, "sorted/red") == ["red"]
    assert http("DELETE", "/sorted/all/!head?timeout=5").properties["Subject"] == "seen"


def test_what_nobody_gets_is_refused_or_dropped(http: Http) -> None:
    http("POST", "/strict", {"role": "router"})
    http("POST", "/lax", {"role": "router", "unroutable": "drop"})
    got = http("POST", "/strict", "x")
    assert got.status == 404
    assert "nobody subscribes to strict" in got.json()["detail"]
    assert http("POST", "/lax", "x").status == 201


def test_a_request_may_wait_for_a_first_subscriber(http: Http, broker: Broker) -> None:
    http("POST", "/patient", {"role": "router", "buffer_timeout": 60})
    answers = []

    def send() -> None:
        with Http(broker.http) as other:
            answers.append(other("POST", "/patient", "x").status)

    sending = threading.Thread(target=send)
    sending.start()
    feed(http, "patient", "patient/q")
    sending.join(30)
    assert answers == [201]
    assert bodies(http, "patient/q") == ["x"]


def test_a_batch_to_a_router_keeps_its_order(http: Http) -> None:
    http("POST", "/batched", {"role": "router"})
    feed(http, "batched", "batched/a", "batched/b")
    batch = [{"Body": str(number)} for number in range(20)]
    sent = http(
        "POST", "/batched", json.dumps(batch), {"Content-Type": "application/vnd.lightrail.batch+json"}
    )
    assert sent.status == 201, sent.body
    for queue in ("batched/a", "batched/b"):
        assert bodies(http, queue) == [str(number) for number in range(20)]


def test_a_queue_that_is_made_again_gets_messages_again(http: Http) -> None:
    http("POST", "/again", {"role": "router"})
    feed(http, "again", "again/a", "again/b")
    assert http("POST", "/again", "1").status == 201
    assert http("DELETE", "/again/b/!policy").status == 204
    assert http("POST", "/again", "2").status == 201
    feed(http, "again", "again/b")
    assert http("POST", "/again", "3").status == 201
    assert bodies(http, "again/a") == ["1", "2", "3"]
    assert bodies(http, "again/b") == ["3"]


def test_a_subscription_may_have_an_id_of_its_own(http: Http) -> None:
    http("POST", "/identified", {"role": "router"})
    http("POST", "/identified/a", {"role": "queue"})
    wanted = {"target": "identified/a", "id": "billing"}
    made = http("POST", "/identified/!subscriptions", wanted)
    assert (made.status, made.json()["id"]) == (201, "billing")
    assert http("POST", "/identified/!subscriptions", wanted).status == 409
    for bad in ("a/b", "", "$a", 7, "x" * 2000):
        refused = http("POST", "/identified/!subscriptions", {"target": "identified/a", "id": bad})
        assert (refused.status, refused.json()["field"]) == (422, "id")
    assert http("PUT", "/identified/!subscriptions/billing", wanted).status == 422


def test_a_subscription_may_have_rules_by_name(http: Http) -> None:
    http("POST", "/ruled", {"role": "router"})
    rules = {
        "red": {"filter": {"properties": {"application-properties.colour": "red"}}},
        "large": {"filter": {"sql": "size > 9"}, "action": {"set": {"subject": "large"}}},
    }
    assert http("POST", "/ruled/q", {"role": "queue"}).status == 201
    made = http("POST", "/ruled/!subscriptions", {"target": "ruled/q", "id": "some", "rules": rules})
    assert made.status == 201
    assert made.json()["rules"] == rules
    http("POST", "/ruled", "small", {"LightRail-Property-colour": "red", "LightRail-Property-size": "1"})
    http("POST", "/ruled", "large", {"LightRail-Property-colour": "red", "LightRail-Property-size": "10"})
    assert sorted(bodies(http, "ruled/q")) == ["large", "large", "small"]
    document = http("GET", "/!definitions?prefix=ruled").json()
    assert document["subscriptions"][0]["rules"] == rules
    assert http("POST", "/!definitions", document).json()["unchanged"] == 3
    refused = http("PUT", "/ruled/!subscriptions/some", {"target": "ruled/q", "rules": {"a": {"else": 1}}})
    assert refused.status == 422
    assert "no other keys than filter, action and created_at_ms" in refused.json()["detail"]
    plain = http("PUT", "/ruled/!subscriptions/some", {"target": "ruled/q"})
    assert "rules" not in plain.json()
