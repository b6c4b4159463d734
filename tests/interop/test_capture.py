"""A captured queue of a real broker: its journal has every message, with what became of it."""

from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message

from lightrail.amqp.messages import read_body
from lightrail.shard.journal.files import RealFiles
from tests.support.amqp.proton_blocking import connected, received, take
from tests.support.broker import Broker
from tests.support.http_client import Http
from tests.support.shard.captured import Event, broken_laws, read


def give(broker: Broker, name: str, **policy: Any) -> None:
    with Http(broker.http) as http:
        made = http("POST", f"/{name}", {"role": "queue", **policy})
        assert made.status == 201, made.body


def settle(delivery: Delivery, outcome: int, *, failed: bool = False) -> None:
    delivery.local.failed = failed
    delivery.update(outcome)
    delivery.settle()


def said(data: Path) -> list[Event]:
    """What the journals of all shards say."""
    found: list[Event] = []
    for directory in sorted(each for each in data.glob("shard-*") if each.is_dir()):
        events = read(RealFiles(directory)).events
        assert not broken_laws(events)
        found += events
    return found


def story(found: list[Event], queue: str) -> dict[Any, list[str]]:
    """By body: what happened to each message of a queue, in order."""
    bodies: dict[int, Any] = {}
    stories: dict[Any, list[str]] = {}
    for each in found:
        if each.queue == queue:
            if each.event == "enqueued":
                bodies[each.sequence] = read_body(each.message)
            stories.setdefault(bodies[each.sequence], []).append(each.event)
    return stories


@pytest.mark.parametrize("durable", [True, False])
def test_every_message_is_in_the_journal_with_what_became_of_it(tmp_path: Path, durable: bool) -> None:
    with Broker(tmp_path / "data", "--shards", "2") as broker, connected(broker.amqp) as connection:
        give(broker, "orders", capture=True)
        sender = connection.create_sender("orders")
        outcomes = ("accepted", "rejected", "released", "modified")
        for body in (*outcomes, *range(100)):
            sender.send(Message(body=body, durable=durable))
        receiver = connection.create_receiver("orders", credit=4)
        held = [take(receiver) for _ in outcomes]
        assert [message.body for message, _ in held] == list(outcomes)
        for (_, delivery), outcome in zip(held, outcomes, strict=True):
            settle(delivery, getattr(Delivery, outcome.upper()), failed=outcome == "modified")
        receiver.close()
        receiver = connection.create_receiver("orders", credit=200)
        assert len(received(receiver, 102)) == 102
        dead = received(connection.create_receiver("orders/$dlq"), 1)
        assert dead[0].body == "rejected"
    found = said(tmp_path / "data")
    stories = story(found, "orders")
    twice = ["enqueued", "delivered", None, "delivered", "accepted"]
    assert stories.pop("accepted") == ["enqueued", "delivered", "accepted"]
    assert stories.pop("rejected") == ["enqueued", "delivered", "dead_lettered"]
    assert stories.pop("released") == [each or "released" for each in twice]
    assert stories.pop("modified") == [each or "modified" for each in twice]
    assert list(stories) == list(range(100))
    for number, happened in stories.items():
        # The first of them may have been on the way to the first receiver when it closed.
        assert happened[:2] == ["enqueued", "delivered"], number
        assert happened[-1] == "accepted", number
    assert story(found, "orders/$dlq") == {"rejected": ["enqueued", "delivered", "accepted"]}
    ways = {each.who >> 32 for each in found if each.event in ("enqueued", "delivered") and each.who}
    assert len(ways) == 1, "all links are of one frontend"
    assert {each.durable for each in found if each.event == "enqueued"} == {durable}


def test_what_was_accepted_is_there_after_a_kill_and_the_queue_is_captured_still(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, connected(broker.amqp) as connection:
        give(broker, "orders", capture=True)
        # As long as this lives, the first segment of the journal stays where it is.
        connection.create_sender("stays").send(Message(body=bytes(100_000), inferred=True, durable=True))
        sender = connection.create_sender("orders")
        for number in range(50):
            sender.send(Message(body=number, durable=True))
        broker.kill_everything()
    with Broker(tmp_path / "data") as broker, connected(broker.amqp) as connection:
        connection.create_sender("orders").send(Message(body=50))
        received(connection.create_receiver("orders", credit=100), 51)
    stories = story(said(tmp_path / "data"), "orders")
    assert list(stories) == list(range(51))
    assert all(happened[0] == "enqueued" and happened[-1] == "accepted" for happened in stories.values())


def test_a_queue_that_keeps_one_message_audits_a_router(tmp_path: Path) -> None:
    """The way that the refusal of a captured router names."""
    audit = {"capture": True, "max_length": 1, "overflow": "discard_existing"}
    with Broker(tmp_path / "data") as broker, connected(broker.amqp) as connection:
        with Http(broker.http) as http:
            refused = http("POST", "/events", {"role": "router", "capture": True})
            assert refused.status == 422
            assert b"subscribe a queue with capture to it" in refused.body
            assert http("POST", "/events", {"role": "router"}).status == 201
            give(broker, "audit", **audit)
            made = http("POST", "/events/!subscriptions", {"target": "audit"})
            assert made.status == 201
        sender = connection.create_sender("events")
        for number in range(40):
            sender.send(Message(body=number, durable=number % 2 == 0))
        with Http(broker.http) as http:
            assert http("GET", "/audit/!figures").json()["ready"] == 1
    stories = story(said(tmp_path / "data"), "audit")
    assert list(stories) == list(range(40))
    assert all(happened == ["enqueued", "discarded"] for happened in list(stories.values())[:-1])
