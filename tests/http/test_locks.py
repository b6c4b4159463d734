"""Peek-lock over HTTP: locked, completed, given back, renewed, run out, as the story of the seed has it."""

import time
from collections.abc import Iterator

import pytest

from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http, Response


def locked(http: Http, name: str, body: bytes = b"message") -> Response:
    got = http("POST", f"/{name}/!head?timeout=20")
    assert got.status == 201
    assert got.body == body
    return got


@pytest.fixture
def other(broker: Broker) -> Iterator[Http]:
    """Another client, who did not take the lock."""
    with Http(broker.http) as client:
        yield client


def queue(http: Http, name: str, **policy: object) -> None:
    assert http("POST", f"/{name}", {"role": "queue", **policy}).status == 201
    assert http("POST", f"/{name}", "message").status == 201


def test_a_locked_message_is_hidden_and_gone_once_it_is_completed(http: Http, other: Http) -> None:
    queue(http, "lock/complete")
    got = locked(http, "lock/complete")
    location = got.headers["location"]
    assert location == f"/lock/complete/!messages/0/{got.properties['LockToken']}"
    assert other("DELETE", "/lock/complete/!head").status == 204
    assert other("GET", "/lock/complete/!messages").json()["messages"][0]["state"] == "locked"
    assert other("DELETE", location).status == 200
    assert other("DELETE", location).status == 410
    assert http("GET", "/lock/complete/!messages").json()["messages"] == []


def test_a_lock_that_runs_out_brings_the_message_back(http: Http) -> None:
    queue(http, "lock/out", lock_duration=1.5)
    started = time.monotonic()
    location = locked(http, "lock/out").headers["location"]
    again = locked(http, "lock/out")
    took = time.monotonic() - started
    assert took >= 1.5
    assert again.properties["DeliveryCount"] == 1
    late = http("DELETE", location)
    assert late.status == 410
    assert "expired" in late.json()["detail"]
    assert http("DELETE", again.headers["location"]).status == 200


def test_a_renewed_lock_lasts_on(http: Http, other: Http) -> None:
    queue(http, "lock/renewed", lock_duration=10)
    got = locked(http, "lock/renewed")
    location = got.headers["location"]
    until = got.properties["LockedUntilUtc"]

    def lasts_longer() -> bool:
        renewed = other("POST", location)
        assert renewed.status == 200
        return bool(renewed.json()["locked_until"] > until)

    # In the same millisecond it lasts as long as it did.
    wait.until(lasts_longer, "the lock is renewed to a later time")
    assert http("DELETE", location).status == 200
    assert http("POST", location).status == 410


@pytest.mark.parametrize(
    ("body", "count"),
    [(None, 0), ({"outcome": "released"}, 0), ({"outcome": "modified"}, 1)],
)
def test_what_is_given_back_comes_again(http: Http, other: Http, body: object, count: int) -> None:
    name = f"lock/back/{count}{body is None}"
    queue(http, name)
    location = locked(http, name).headers["location"]
    assert other("PUT", location, body).status == 200
    assert locked(http, name).properties["DeliveryCount"] == count


def test_what_is_rejected_is_a_dead_letter_with_its_reason(http: Http) -> None:
    queue(http, "lock/rejected")
    location = locked(http, "lock/rejected").headers["location"]
    said = {"outcome": "rejected", "condition": "app:bad", "description": "no such order"}
    assert http("PUT", location, said).status == 200
    dead = http("DELETE", "/lock/rejected/$dlq/!head?timeout=20")
    assert dead.body == b"message"
    annotations = dead.properties["Annotations"]
    assert annotations["x-opt-dead-letter-source"] == "lock/rejected"


@pytest.mark.parametrize(
    "body", [{"outcome": "lost"}, {"outcom": "released"}, {"delivery_failed": 1}, {"annotations": {"a": 1}}]
)
def test_bad_outcomes_are_refused(http: Http, body: object) -> None:
    http("POST", "/lock/bad", {"role": "queue"})
    assert http("PUT", "/lock/bad/!messages/0/x-1", body).status == 422


def test_locks_that_never_were_are_410_or_422(http: Http) -> None:
    http("POST", "/lock/never", {"role": "queue"})
    assert http("DELETE", f"/lock/never/!messages/0/{'0' * 32}-0").status == 410
    assert http("DELETE", "/lock/never/!messages/0/nonsense").status in (410, 422)
    assert http("DELETE", f"/lock/never/!messages/x/{'0' * 32}-0").status == 400


def test_after_too_many_failures_a_message_is_a_dead_letter(http: Http) -> None:
    queue(http, "lock/many", max_delivery_count=2)
    for _ in range(2):
        location = locked(http, "lock/many").headers["location"]
        assert http("PUT", location, {"outcome": "modified"}).status == 200
    dead = http("DELETE", "/lock/many/$dlq/!head?timeout=20")
    assert dead.properties["Annotations"]["x-opt-dead-letter-reason"] == "max-delivery-count"


def test_locks_outlive_the_gateway_that_gave_them(http: Http, broker: Broker) -> None:
    queue(http, "lock/outlives", lock_duration=60)
    location = locked(http, "lock/outlives").headers["location"]
    # Nobody waits at this queue now: after a while the gateway's consumer goes, and the lock stays.
    wait.until(lambda: http("GET", "/lock/outlives/!figures").json()["consumers"] == 0, "it went", 20)
    assert http("DELETE", "/lock/outlives/!head").status == 204
    assert http("DELETE", location).status == 200


def test_a_message_whose_receiver_went_in_the_same_moment_is_not_lost(http: Http, broker: Broker) -> None:
    http("POST", "/lock/race", {"role": "queue"})
    left = 0
    for _ in range(20):
        leaving = Http(broker.http)
        leaving.ask("POST", "/lock/race/!head?timeout=20")
        http("POST", "/lock/race", "message")
        leaving.close()
        left += 1
    figures = http("GET", "/lock/race/!figures").json()
    assert figures["ready"] + figures["in_flight"] == left
