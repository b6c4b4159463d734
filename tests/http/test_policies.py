"""What policies do to HTTP clients: full queues, duplicates, delays, ages, and all of it after a kill -9."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http


def queue(http: Http, name: str, **policy: object) -> None:
    assert http("POST", f"/{name}", {"role": "queue", **policy}).status == 201


def test_a_full_queue_is_503_with_retry_after(http: Http) -> None:
    queue(http, "policies/full", max_length=2)
    assert [http("POST", "/policies/full", "x").status for _ in range(2)] == [201, 201]
    refused = http("POST", "/policies/full", "x")
    assert refused.status == 503
    assert refused.headers["retry-after"]
    assert refused.json()["condition"] == "amqp:resource-limit-exceeded"
    assert http("DELETE", "/policies/full/!head?timeout=10").status == 200
    assert http("POST", "/policies/full", "x").status == 201


def test_a_sender_waits_for_room_as_long_as_the_policy_says(http: Http, broker: Broker) -> None:
    queue(http, "waits", max_length=1, overflow="flow_control", enqueue_timeout=20)
    http("POST", "/waits", "first")
    with Http(broker.http, deadline_s=30) as sender:
        sender.ask("POST", "/waits?body=text")
        assert http("DELETE", "/waits/!head?timeout=10").body == b"first"
        assert sender.answer().status == 201
    queue(http, "gives/up", max_length=1, overflow="flow_control", enqueue_timeout=0.2)
    http("POST", "/gives/up", "first")
    assert http("POST", "/gives/up", "second").status == 503


def test_the_same_message_id_is_stored_once(http: Http) -> None:
    queue(http, "policies/once", duplicate_window=60)
    once = {"BrokerProperties": '{"MessageId": "m"}'}
    assert [http("POST", "/policies/once", "x", once).status for _ in range(3)] == [201, 201, 201]
    assert http("DELETE", "/policies/once/!head?timeout=10").status == 200
    assert http("DELETE", "/policies/once/!head").status == 204


def test_a_scheduled_message_comes_when_it_is_due_or_is_cancelled(http: Http) -> None:
    queue(http, "later", delay=True)
    due = datetime.now(UTC) + timedelta(seconds=0.5)
    scheduled = json.dumps({"ScheduledEnqueueTimeUtc": due.isoformat()})
    http("POST", "/later", "due", {"BrokerProperties": scheduled})
    far = http("POST", "/later", "far", {"BrokerProperties": '{"DeliveryDelay": 3600}'})
    assert http("DELETE", "/later/!head").status == 204
    states = [each["state"] for each in http("GET", "/later/!messages").json()["messages"]]
    assert states == ["delayed", "delayed"]
    got = http("DELETE", "/later/!head?timeout=20")
    assert got.body == b"due"
    assert time.time() >= due.timestamp()
    assert http("DELETE", far.headers["location"]).status == 204
    assert http("DELETE", far.headers["location"]).status == 404


def test_what_is_too_old_is_not_received(http: Http) -> None:
    queue(http, "policies/old", max_age=0.2)
    http("POST", "/policies/old", "x")
    wait.until(lambda: http("GET", "/policies/old/!figures").json()["ready"] == 0, "it expires")
    assert http("DELETE", "/policies/old/!head").status == 204


def test_priorities_and_last_values_decide_what_is_next(http: Http) -> None:
    queue(http, "levels", priorities=10)
    for level in (1, 9, 5):
        http("POST", "/levels", str(level), {"BrokerProperties": json.dumps({"Priority": level})})
    assert [http("DELETE", "/levels/!head?timeout=10").body for _ in range(3)] == [b"9", b"5", b"1"]
    queue(http, "last", order="last_value", order_key="subject")
    for body, subject in (("old", "a"), ("other", "b"), ("new", "a")):
        http("POST", "/last", body, {"BrokerProperties": json.dumps({"Subject": subject})})
    left = {http("DELETE", "/last/!head?timeout=10").body for _ in range(2)}
    assert left == {b"other", b"new"}
    assert http("DELETE", "/last/!head").status == 204


def test_after_kill_9_messages_policies_subscriptions_and_locks_are_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data) as broker:
        with Http(broker.http) as http:
            queue(http, "kept", lock_duration=600)
            http("POST", "/router", {"role": "router"})
            http("POST", "/router/!subscriptions", {"target": "kept"})
            assert http("POST", "/kept", "message").status == 201
            location = http("POST", "/kept/!head?timeout=10").headers["location"]
            assert http("POST", "/kept", "another").status == 201
            # A queue, dead letters, and a queue that receives from a router.
            queue(http, "gone")
            queue(http, "copies")
            http("POST", "/router/!subscriptions", {"target": "copies", "filter": {"subject": "copied"}})
            http("POST", "/gone", "dead")
            rejected = http("POST", "/gone/!head?timeout=10").headers["location"]
            assert http("PUT", rejected, {"outcome": "rejected"}).status == 200
            http("POST", "/gone", "one")
            http("POST", "/router", "two", {"BrokerProperties": json.dumps({"Subject": "copied"})})
            for name, body in {"copies": b"two", "gone/$dlq": b"dead", "gone": b"one"}.items():
                assert http("DELETE", f"/{name}/!head?timeout=10").body == body
        broker.kill_everything()
    with Broker(data) as broker, Http(broker.http) as http:
        assert http("GET", "/kept/!policy").json()["lock_duration"] == 600
        assert http("GET", "/router/!subscriptions").json()["subscriptions"][0]["target"] == "kept"
        assert http("DELETE", "/kept/!head?timeout=20").body == b"another"
        assert http("DELETE", location).status == 200
        assert http("DELETE", location).status == 410
        # What was received is removed on disk before it is answered.
        for name in ("copies", "gone/$dlq", "gone"):
            assert http("GET", f"/{name}/!messages").json()["messages"] == []


def test_a_shard_that_is_started_again_is_found_by_those_who_wait(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, Http(broker.http) as http:
        queue(http, "q")
        http("POST", "/q", "before")
        with Http(broker.http, deadline_s=60) as waiting:
            # Completed, not only received: that is answered when it is on disk, so no kill brings it back.
            taken = http("POST", "/q/!head?timeout=10")
            assert taken.body == b"before"
            assert http("DELETE", taken.headers["location"]).status == 200
            waiting.ask("DELETE", "/q/!head?timeout=50")
            wait.until(lambda: http("GET", "/!status").json()["totals"]["receivers_waiting"], "it waits")
            os.kill(broker.pid("shard"), signal.SIGKILL)
            wait.until(lambda: http("POST", "/q", "after").status == 201, "the shard is back")
            assert waiting.answer().body == b"after"


def test_requests_are_refused_by_the_status_of_a_queue_those_that_wait_too(
    http: Http, broker: Broker
) -> None:
    assert http("POST", "/policies/q", {"role": "queue"}).status == 201
    with ThreadPoolExecutor(1) as pool, Http(broker.http) as other:
        waiting = pool.submit(other, "DELETE", "/policies/q/!head?timeout=30")
        wait.until(lambda: http("GET", "/policies/q/!figures").json()["consumers"] == 1, "the request waits")
        assert http("PUT", "/policies/q/!policy", {"role": "queue", "status": "disabled"}).status == 200
        assert waiting.result(20).status == 409
    refused = http("POST", "/policies/q", "message")
    assert (refused.status, refused.json()["condition"]) == (409, "com.microsoft:entity-disabled")
    assert http("DELETE", "/policies/q/!head").status == 409
    assert http("PUT", "/policies/q/!policy", {"role": "queue"}).status == 200
    assert http("POST", "/policies/q", "message").status == 201
    assert http("DELETE", "/policies/q/!head").body == b"message"


def test_a_disabled_router_routes_no_request(http: Http) -> None:
    assert http("POST", "/status/r", {"role": "router", "status": "send_disabled"}).status == 201
    assert http("POST", "/status/behind", {"role": "queue", "status": "disabled"}).status == 201
    assert http("POST", "/status/r/!subscriptions", {"target": "status/behind"}).status == 201
    assert http("POST", "/status/r", "message").status == 409
    assert http("PUT", "/status/r/!policy", {"role": "router"}).status == 200
    assert http("POST", "/status/r", "message").status == 201
    assert len(http("GET", "/status/behind/!messages").json()["messages"]) == 1
