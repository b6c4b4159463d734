"""Forwarding while shards die: every message is at its target in the end, and none is lost on the way."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message
from proton.utils import BlockingConnection

from lightrail.gateway.forwarding.transfer import TRANSFER_WINDOW
from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http

MESSAGES = 3_000
BATCH = 500
BATCH_TYPE = {"Content-Type": "application/vnd.lightrail.batch+json"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", "--shards", "2") as running:
        yield running


def put(http: Http, name: str, **policy: Any) -> None:
    assert http("POST", f"/{name}", {"role": "queue"} | policy).status == 201


def fill(http: Http, name: str) -> None:
    for first in range(0, MESSAGES, BATCH):
        batch = [{"Body": str(number)} for number in range(first, first + BATCH)]
        assert http("POST", f"/{name}", batch, BATCH_TYPE).status == 201


def numbers(http: Http, name: str) -> Counter[int]:
    """What is in a queue, and how often."""
    found: Counter[int] = Counter()
    after: int | None = 0
    while after is not None:
        page = http("GET", f"/{name}/!messages?from={after}&count=1000").json()
        found.update(int(each["body"]["text"]) for each in page["messages"])
        after = page["next"]
    return found


@pytest.mark.parametrize("mode", ["move", "copy"])
@pytest.mark.parametrize("dies", ["source", "target"])
def test_a_shard_that_dies_during_a_transfer_costs_no_message(broker: Broker, mode: str, dies: str) -> None:
    with Http(broker.http) as http:
        put(http, "source")
        put(http, "target")
        fill(http, "source")
        shards = {each["name"]: each["shard"] for each in http("GET", "/!queues").json()["queues"]}
        assert shards["source"] != shards["target"], "names are placed in turn"
        target = broker.pid("shard", shards["target"])
        # What is on its way stays so: the transfer can't end before the other shard has died.
        wait.freeze(target)
        path = http("POST", "/!transfers", {"from": "source", "to": "target", "mode": mode}).headers[
            "location"
        ]
        wait.until(lambda: _has_begun(http), "it has begun")
        os.kill(broker.pid("shard", shards[dies]), signal.SIGKILL)
        if dies == "source":
            os.kill(target, signal.SIGCONT)
        ended = wait.until(
            lambda: (found := http("GET", path).json())["state"] != "running" and found, "it ends", 60
        )
        assert (ended["state"], ended["error"]) == ("done", None)
        found = numbers(http, "target")
        assert set(found) == set(range(MESSAGES))
        assert sum(found.values()) <= MESSAGES + TRANSFER_WINDOW
        assert MESSAGES <= ended["moved"] <= MESSAGES + TRANSFER_WINDOW
        assert len(numbers(http, "source")) == (0 if mode == "move" else MESSAGES)


@pytest.mark.parametrize("dies", ["source", "target"])
def test_a_shard_that_dies_while_dead_letters_are_forwarded_costs_none(broker: Broker, dies: str) -> None:
    with Http(broker.http) as http:
        put(http, "source")
        put(http, "target")
        amqp = BlockingConnection(f"amqp://{broker.amqp}", timeout=30)
        sender = amqp.create_sender("source")
        receiver = amqp.create_receiver("source", credit=300)
        for number in range(300):
            sender.send(Message(body=str(number), durable=True))
        for _ in range(300):
            receiver.receive(30)
            receiver.settle(Delivery.REJECTED)
        amqp.close()
        shards = {each["name"]: each["shard"] for each in http("GET", "/!queues").json()["queues"]}
        wait.until(lambda: len(numbers(http, "source/$dlq")) == 300, "all are dead letters")
        assert http("PUT", "/source/!policy", {"role": "queue", "dead_letter": "target"}).status == 200
        wait.until(lambda: len(numbers(http, "target")) > 0, "it has begun")
        os.kill(broker.pid("shard", shards[dies]), signal.SIGKILL)
        wait.until(lambda: _all_there(http), "all are forwarded", 60)


@pytest.mark.parametrize("dies", ["source", "target", "gateway"])
def test_a_process_that_dies_while_a_queue_forwards_costs_no_message_and_doubles_none(
    broker: Broker, dies: str
) -> None:
    with Http(broker.http) as http:
        put(http, "source")
        put(http, "target")
        fill(http, "source")
        shards = {each["name"]: each["shard"] for each in http("GET", "/!queues").json()["queues"]}
        assert shards["source"] != shards["target"], "names are placed in turn"
        victim = broker.pid("gateway") if dies == "gateway" else broker.pid("shard", shards[dies])
        policy = {"role": "queue", "forward_to": "target"}
        assert http("PUT", "/source/!policy", policy).status == 200
        wait.until(lambda: http("GET", "/target/!figures").json()["ready"] > 0, "it has begun")
        os.kill(victim, signal.SIGKILL)

    def all_there() -> bool:
        try:
            with Http(broker.http) as http:
                return bool(http("GET", "/target/!figures").json().get("ready", 0) >= MESSAGES)
        except OSError:
            # The gateway is being started again.
            return False

    wait.until(all_there, "all are forwarded", 90)
    with Http(broker.http) as http:
        # The source learns last how the transaction has ended that was under way.
        wait.until(lambda: not numbers(http, "source"), "the source is empty", 60)
        assert numbers(http, "target") == Counter(range(MESSAGES))
        assert numbers(http, "source/$transfer/$dlq") == Counter()


def _has_begun(http: Http) -> bool:
    """Whether the transfer's consumer has been given messages."""
    figures = http("GET", "/source/!figures").json()
    return bool(figures["counters"]["browsed"] or figures["in_flight"])


def _all_there(http: Http) -> bool:
    answer = http("GET", "/target/!messages?count=1000")
    if answer.status != 200:
        return False
    found = {int(each["body"]["text"]) for each in answer.json()["messages"]}
    return found == set(range(300))
