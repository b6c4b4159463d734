"""Numbered batches over HTTP: each is stored once however often it comes, or it is said what is not."""

import os
import signal
import struct
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from lightrail.spark.http import Access, GatewayClient
from tests.support import wait
from tests.support.batches import body, message, post, texts
from tests.support.broker import Broker
from tests.support.http_client import Http
from tests.support.moves import move
from tests.support.ports import free_ports


def queue(http: Http, name: str, **policy: Any) -> None:
    assert http("POST", f"/{name}", {"role": "queue"} | policy).status == 201


def many(*words: str) -> list[bytes]:
    return [message(word) for word in words]


def test_a_batch_that_comes_again_is_stored_once(http: Http) -> None:
    queue(http, "once")
    answers = [post(http, "once", "p", 0, many("a", "b")) for _ in range(3)]
    assert [(each.status, each.json()) for each in answers] == [
        (200, {"stored": 2, "duplicate": False}),
        (200, {"stored": 0, "duplicate": True}),
        (200, {"stored": 0, "duplicate": True}),
    ]
    assert texts(http, "once") == ["a", "b"]


def test_numbers_rise_with_gaps_and_producers_are_apart(http: Http) -> None:
    queue(http, "gaps")
    for producer, number, word in [
        ("p", 0, "a"),
        ("p", 7, "b"),
        ("q", 0, "c"),
        ("p", 3, "never"),
        ("p", 8, "d"),
    ]:
        assert post(http, "gaps", producer, number, many(word)).status == 200
    assert texts(http, "gaps") == ["a", "b", "c", "d"]


def test_messages_that_differ_in_their_headers_stay_in_order_and_come_once(http: Http) -> None:
    queue(http, "mixed")
    batch = [
        message("a"),
        message("b", durable=False),
        message("c", priority=9),
        message("d", ttl_ms=3_600_000),
        message("e"),
    ]
    assert post(http, "mixed", "p", 1, batch).json() == {"stored": 5, "duplicate": False}
    assert post(http, "mixed", "p", 1, batch).json() == {"stored": 0, "duplicate": True}
    assert texts(http, "mixed") == ["a", "b", "c", "d", "e"]


def test_the_same_name_at_another_queue_is_another_producer(http: Http) -> None:
    queue(http, "here")
    queue(http, "there")
    for name in ("here", "there"):
        assert post(http, name, "p", 0, many("a")).json()["stored"] == 1


def test_a_full_queue_says_how_much_it_took_and_takes_the_rest_later(http: Http) -> None:
    queue(http, "full", max_length=3, overflow="reject")
    words = ["a", "b", "c", "d", "e"]
    refused = post(http, "full", "p", 0, many(*words))
    assert (refused.status, refused.json()["stored"]) == (503, 3)
    assert "Retry-After" in refused.headers or "retry-after" in refused.headers
    assert "the first 3 of 5 messages are stored in full" in refused.json()["detail"]
    assert post(http, "full", "p", 0, many(*words)).json()["stored"] == 3
    assert [http("DELETE", "/full/!head").body for _ in range(3)] == [b"a", b"b", b"c"]
    assert post(http, "full", "p", 0, many(*words)).json() == {"stored": 5, "duplicate": False}
    assert post(http, "full", "p", 0, many(*words)).json() == {"stored": 0, "duplicate": True}
    assert texts(http, "full") == ["d", "e"]


def test_nothing_is_stored_of_a_batch_with_a_message_that_is_too_large(http: Http) -> None:
    queue(http, "small", max_message_bytes=60)
    answer = post(http, "small", "p", 0, [*many("a"), message("x" * 100)])
    assert answer.status == 413
    assert "message 1 has" in answer.json()["detail"]
    assert texts(http, "small") == []
    assert post(http, "small", "p", 0, many("a")).json()["stored"] == 1


def router(http: Http, name: str, *targets: tuple[str, str | None], **policy: Any) -> None:
    assert http("POST", f"/{name}", {"role": "router"} | policy).status == 201
    for target, selector in targets:
        filter = {} if selector is None else {"filter": {"sql": selector}}
        assert http("POST", f"/{name}/!subscriptions", {"target": target} | filter).status == 201


def test_every_queue_behind_a_router_gets_its_share_once(http: Http) -> None:
    names = [f"shares{index}" for index in range(5)]
    for name in names:
        queue(http, name)
    queue(http, "urgent")
    router(http, "shares", *((name, None) for name in names), ("urgent", "JMSPriority > 4"))
    batch = [message("a"), message("b", priority=9), message("c")]
    assert post(http, "shares", "p", 0, batch).json() == {"stored": 16, "duplicate": False}
    assert post(http, "shares", "p", 0, batch).json() == {"stored": 0, "duplicate": True}
    for name in names:
        assert texts(http, name) == ["a", "b", "c"]
    assert texts(http, "urgent") == ["b"]


def test_a_queue_behind_a_router_that_refused_gets_the_rest_and_no_other_anything_twice(http: Http) -> None:
    queue(http, "wide")
    queue(http, "narrow", max_length=1, overflow="reject")
    router(http, "both", ("wide", None), ("narrow", None))
    refused = post(http, "both", "p", 0, many("a", "b"))
    assert refused.status == 503
    assert "1 of 2 queues behind both have all of the batch" in refused.json()["detail"]
    assert http("DELETE", "/narrow/!head").body == b"a"
    assert post(http, "both", "p", 0, many("a", "b")).status == 200
    assert (texts(http, "wide"), texts(http, "narrow")) == (["a", "b"], ["b"])


def test_a_queue_that_was_subscribed_in_between_gets_what_the_others_have(http: Http) -> None:
    queue(http, "old")
    queue(http, "new")
    router(http, "grows", ("old", None))
    assert post(http, "grows", "p", 0, many("a")).status == 200
    assert http("POST", "/grows/!subscriptions", {"target": "new"}).status == 201
    assert post(http, "grows", "p", 0, many("a")).json() == {"stored": 1, "duplicate": False}
    assert (texts(http, "old"), texts(http, "new")) == (["a"], ["a"])


def test_a_router_that_chooses_chooses_the_same_again(http: Http) -> None:
    names = [f"one{index}" for index in range(4)]
    for name in names:
        queue(http, name)
    router(http, "one", *((name, None) for name in names), distribution="one")
    words = [str(index) for index in range(40)]
    for _ in range(3):
        assert post(http, "one", "p", 0, many(*words)).status == 200
    found = [texts(http, name) for name in names]
    assert sorted((word for words in found for word in words), key=int) == words
    assert all(found)


def test_a_router_that_rejects_what_nobody_gets_stores_nothing_of_the_batch(http: Http) -> None:
    queue(http, "loud")
    router(http, "picky", ("loud", "JMSPriority > 4"), unroutable="reject")
    answer = post(http, "picky", "p", 0, [message("a", priority=9), message("b")])
    assert answer.status == 404
    assert "1 of 2, the first of them message 1; nothing of the batch is stored" in answer.json()["detail"]
    assert texts(http, "loud") == []


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"", 400, "expected u32 count"),
        (struct.pack("<I", 0), 400, "expected 1 to 65536"),
        (struct.pack("<I", 65_537), 400, "expected 1 to 65536"),
        (struct.pack("<II", 2, 0), 400, "for 2 messages"),
        (struct.pack("<II", 1, 9) + message("a"), 400, "do not rise"),
        (struct.pack("<III", 2, 40, 19) + message("a"), 400, "do not rise"),
        (body([b"no message"]), 422, "message 0 of the batch is no AMQP message"),
        (body([message("a"), b""]), 422, "message 1 of the batch is no AMQP message"),
    ],
)
def test_a_body_that_can_not_be_read_is_explained(http: Http, data: bytes, status: int, said: str) -> None:
    headers = {"LightRail-Producer": "p", "LightRail-Batch": "0"}
    answer = http("POST", "/unread/!batch", data, headers)
    assert (answer.status, said in answer.json()["detail"]) == (status, True), answer.json()


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"LightRail-Batch": "0"}, "LightRail-Producer is ''"),
        ({"LightRail-Producer": "p" * 513, "LightRail-Batch": "0"}, "1 to 512 bytes"),
        ({"LightRail-Producer": "p"}, "LightRail-Batch is ''"),
        ({"LightRail-Producer": "p", "LightRail-Batch": "-1"}, "expected a whole number from 0"),
        ({"LightRail-Producer": "p", "LightRail-Batch": str(1 << 47)}, "expected a whole number from 0"),
    ],
)
def test_a_batch_without_a_producer_or_number_is_refused(
    http: Http, headers: dict[str, str], said: str
) -> None:
    answer = http("POST", "/unsaid/!batch", body(many("a")), headers)
    assert (answer.status, said in answer.json()["detail"]) == (400, True), answer.json()


def test_the_highest_number_is_taken(http: Http) -> None:
    queue(http, "highest")
    assert post(http, "highest", "p", (1 << 47) - 1, many("a")).json()["stored"] == 1
    assert texts(http, "highest") == ["a"]


def test_a_broker_that_was_killed_knows_what_it_stored(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data, "--shards", "2") as broker:
        with Http(broker.http) as http:
            queue(http, "kept")
            assert post(http, "kept", "p", 0, many("a", "b")).json()["stored"] == 2
        broker.kill_everything()
    with Broker(data, "--shards", "2") as broker, Http(broker.http) as http:
        assert post(http, "kept", "p", 0, many("a", "b")).json() == {"stored": 0, "duplicate": True}
        assert post(http, "kept", "p", 1, many("c")).json() == {"stored": 1, "duplicate": False}
        assert texts(http, "kept") == ["a", "b", "c"]


class Sending:
    """A producer in a thread that says each batch until it is answered, as a task of Spark does."""

    def __init__(self, address: str, name: str, batches: int) -> None:
        self.done = 0
        self.again = 0
        self.problems: list[Exception] = []
        self._path = f"/{name}/!batch"
        self._batches = batches
        self._client = GatewayClient(Access((f"http://{address}",)), retry_ms=60_000)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._client as client:
                for number in range(self._batches):
                    headers = {"LightRail-Producer": "p", "LightRail-Batch": str(number)}
                    client.post(self._path, body(many(*words(number))), headers=headers)
                    self.done = number + 1
                    self.again = client.attempts_again
        except Exception as error:  # told by the test's own thread
            self.problems.append(error)

    def until(self, batches: int) -> None:
        """Waits until so many are stored."""
        wait.until(lambda: self.done >= batches or bool(self.problems), f"{batches} batches are sent", 60)

    def join(self) -> None:
        self._thread.join()


def words(number: int) -> list[str]:
    return [f"{number:04d}-{index}" for index in range(20)]


@pytest.mark.parametrize("disturbed", ["shards", "gateway", "moves"])
def test_nothing_is_lost_or_stored_twice_whatever_dies_or_moves(tmp_path: Path, disturbed: str) -> None:
    batches = 150
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with Broker(tmp_path / "data", "--shards", "2", "--http", address) as broker:
        with Http(address) as http:
            queue(http, "q")
            queue(http, "q2")
            router(http, "r", ("q", None), ("q2", None))
        sending = Sending(address, "r", batches)
        try:
            for step in range(3):
                sending.until(20 + 40 * step)
                if disturbed == "moves":
                    move(broker.data, "q")
                elif disturbed == "shards" and step < 2:
                    os.kill(broker.pid("shard", step), signal.SIGKILL)
                elif disturbed == "gateway" and not step:
                    os.kill(broker.pid("gateway"), signal.SIGKILL)
        finally:
            sending.join()
        assert sending.problems == []
        # A gateway waits for shards that are away; a client hears of it only when the gateway itself is gone.
        assert disturbed != "gateway" or sending.again
        expected = [word for number in range(batches) for word in words(number)]
        with Http(address) as http:
            assert texts(http, "q") == expected
            assert texts(http, "q2") == expected


def test_of_two_requests_of_one_producer_the_earlier_one_gives_way(broker: Broker, http: Http) -> None:
    queue(http, "busy", max_length=1, overflow="flow_control")
    assert post(http, "busy", "other", 0, many("first")).status == 200
    answers: SimpleQueue[Any] = SimpleQueue()

    def say() -> None:
        with Http(broker.http, deadline_s=60) as mine:
            answers.put(post(mine, "busy", "p", 0, many("a")))

    threads = [threading.Thread(target=say) for _ in range(2)]
    for thread in threads:
        thread.start()
    # Both wait for room, and only one of them may.
    early = answers.get(timeout=30)
    assert (early.status, early.json()["condition"]) == (503, "amqp:link:stolen")
    assert "send the batch again, under the same number" in early.json()["detail"]
    assert http("DELETE", "/busy/!head").body == b"first"
    late = answers.get(timeout=30)
    assert (late.status, late.json()) == (200, {"stored": 1, "duplicate": False})
    for thread in threads:
        thread.join()
    assert post(http, "busy", "p", 0, many("a")).json()["duplicate"]
    assert texts(http, "busy") == ["a"]
