"""Pushes through a broker, to a web hook on this machine."""

import itertools
from typing import Any

from proton import Message
from proton.utils import BlockingConnection

from tests.support import wait
from tests.support.broker import Broker
from tests.support.documented import is_genuine
from tests.support.hook import Answer, Got, Hook
from tests.support.http_client import Http

numbers = itertools.count(1)


def subscribed(http: Http, hook: Hook, **policy: Any) -> tuple[str, dict[str, Any]]:
    """A router of its own, pushed to the hook."""
    router = f"pushed/r{next(numbers)}"
    assert http("POST", f"/{router}", {"role": "router", "push_backoff": 0.01} | policy).status == 201
    made = http("POST", f"/{router}/!subscriptions", {"target": f"{hook.url}/hook"})
    assert made.status == 201
    return router, made.json()


def send(broker: Broker, router: str, *bodies: str) -> None:
    amqp = BlockingConnection(f"amqp://{broker.amqp}", timeout=20)
    sender = amqp.create_sender(router)
    for body in bodies:
        sender.send(Message(body=body, id=body, properties={"n": 1}, durable=True))
    amqp.close()


def test_an_endpoint_that_fails_at_first_gets_every_message(broker: Broker, http: Http) -> None:
    seen: dict[bytes, int] = {}

    def answer(got: Got) -> Answer:
        seen[got.body] = seen.get(got.body, 0) + 1
        return (200 if seen[got.body] > 2 else 500), {}, b""

    with Hook(answer) as hook:
        router, made = subscribed(http, hook)
        send(broker, router, *(f"m{number}" for number in range(30)))
        wait.until(lambda: len(hook.got) == 90, "every message is there three times")
        queue = f"{router}/$subscriptions/{made['id']}"
        wait.until(
            lambda: not http("GET", f"/{queue}/!figures").json()["in_flight"], "the last one is settled"
        )
    assert sorted(seen) == sorted(b"m%d" % number for number in range(30))
    assert (
        sorted(got.headers["lightrail-delivery"] for got in hook.got) == ["1"] * 30 + ["2"] * 30 + ["3"] * 30
    )
    for got in hook.got:
        assert is_genuine(got.headers["lightrail-signature"], made["secret"], got.body)
        assert got.headers["content-type"] == "text/plain; charset=utf-8"
        assert got.headers["lightrail-property-n"] == "1"
        assert got.headers["lightrail-subscription"] == f"/{router}/!subscriptions/{made['id']}"


def test_what_fails_to_the_end_is_a_dead_letter_that_says_why(broker: Broker, http: Http) -> None:
    with Hook(lambda got: (200 if got.body == b"good" else 500, {}, b"")) as hook:
        router, made = subscribed(http, hook, push_retries=2)
        send(broker, router, "bad", "good")
        dead = f"/{router}/$subscriptions/{made['id']}/$dlq/!messages"
        (letter,) = wait.until(lambda: http("GET", dead).json()["messages"], "it is a dead letter")
        assert len(hook.got) == 4
    notes = letter["message_annotations"]
    assert notes["x-opt-dead-letter-condition"] == "lightrail:push-failed"
    assert notes["x-opt-dead-letter-description"] == f"{hook.url}/hook: the answer was: status 500"
    assert letter["body"]["text"] == "bad"


def test_410_ends_the_subscription(broker: Broker, http: Http) -> None:
    with Hook(lambda _: (410, {}, b"")) as hook:
        router, made = subscribed(http, hook)
        send(broker, router, "x")
        path = f"/{router}/!subscriptions/{made['id']}"
        wait.until(lambda: http("GET", path).status == 404, "the subscription is gone")
        assert http("GET", f"/{router}/$subscriptions/{made['id']}/!policy").status == 404
    assert len(hook.got) == 1


def test_a_url_elsewhere_is_refused_with_the_name_of_the_setting(http: Http) -> None:
    http("POST", "/pushed/away", {"role": "router"})
    refused = http("POST", "/pushed/away/!subscriptions", {"target": "https://example.org/hook"})
    assert refused.status == 422
    assert "push_allow" in refused.json()["detail"]
