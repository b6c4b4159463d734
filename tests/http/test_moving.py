"""Queues move to another shard while HTTP clients send to them, wait at them, and hold locks of them."""

import threading
from pathlib import Path

from tests.support.broker import Broker
from tests.support.http_client import Http
from tests.support.moves import move

MOVES = 3


def test_requests_hear_nothing_of_a_move(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--shards", "2", "--frontends", "1") as broker:
        with Http(broker.http) as http:
            assert http("POST", "/q", {"role": "queue"}).status == 201
            assert http("POST", "/r", {"role": "router"}).status == 201
            assert http("POST", "/r/!subscriptions", {"target": "q"}).status == 201
        received: list[str] = []
        sent: list[str] = []
        problems: list[object] = []
        over = threading.Event()

        def send(path: str) -> None:
            with Http(broker.http) as http:
                number = 0
                while not over.is_set():
                    body = f"{path} {number:06d}"
                    answer = http("POST", path, body)
                    if answer.status != 201:
                        problems.append(answer)
                    sent.append(body)
                    number += 1

        def receive() -> None:
            with Http(broker.http) as http:
                while not over.is_set() or len(received) < len(sent):
                    got = http("POST", "/q/!head?timeout=2")
                    if got.status == 204:
                        continue
                    done = http("DELETE", got.headers["location"])
                    if got.status != 201 or done.status != 200:
                        problems.append((got, done))
                    received.append(got.body.decode())

        threads = [threading.Thread(target=send, args=(path,)) for path in ("/q", "/r")]
        threads.append(threading.Thread(target=receive))
        for thread in threads:
            thread.start()
        try:
            for _ in range(MOVES):
                move(broker.data, "q")
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert problems == []
        assert len(sent) > 20
        assert sorted(received) == sorted(sent), "lost or twice"
        for path in ("/q", "/r"):
            mine = [body for body in received if body.startswith(path)]
            assert mine == sorted(mine), "out of order"


def test_a_message_that_waits_after_a_failure_moves_with_its_time(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--shards", "2", "--frontends", "1") as broker, Http(broker.http) as http:
        policy = {"role": "queue", "retry_delay": 600, "retry_growth": 2}
        assert http("POST", "/q", policy).status == 201
        assert http("POST", "/q", "fails").status == 201
        locked = http("POST", "/q/!head?timeout=20")
        assert http("PUT", locked.headers["location"], {"outcome": "modified"}).status == 200
        before = http("GET", "/q/!messages").json()["messages"]
        assert [(each["state"], each["delivery_count"]) for each in before] == [("delayed", 1)]
        for _ in range(MOVES):
            move(broker.data, "q")
        assert http("GET", "/q/!messages").json()["messages"] == before
        assert http("PUT", "/q/!policy", {"role": "queue"}).status == 200
        got = http("POST", "/q/!head?timeout=20")
        assert (got.body, got.properties["DeliveryCount"]) == (b"fails", 1)
