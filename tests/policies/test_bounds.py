"""Full queues: how much fits, what becomes of the rest with each overflow, and how long senders wait."""

import time

import pytest
from proton import Delivery, Message, Timeout
from proton.utils import BlockingConnection

from tests.policies.driver import Names, outcome, pumped
from tests.policies.laws import checks
from tests.support.http_client import Http

FULL = "amqp:resource-limit-exceeded"


@checks("max_length")
def test_so_many_messages_fit_those_with_consumers_included(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(max_length=2)
    sender = amqp.create_sender(queue)
    assert [outcome(amqp, sender, Message(body="x")) for _ in range(3)] == ["accepted", "accepted", FULL]
    locked = names.lock(queue)
    assert names.post(queue).status == 503
    assert names.complete(locked) == 200
    assert outcome(amqp, sender, Message(body="x")) == "accepted"


@checks("max_bytes")
def test_so_many_bytes_fit(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(max_bytes=1000)
    sender = amqp.create_sender(queue)
    message = Message(body="x" * 400)
    assert [outcome(amqp, sender, message) for _ in range(3)] == ["accepted", "accepted", FULL]
    assert names.figures(queue)["bytes"] <= 1000
    # Completed, not taken: a taken message leaves its queue only after the answer was written.
    assert names.complete(names.lock(queue)) == 200
    assert outcome(amqp, sender, message) == "accepted"


@checks("overflow")
def test_reject_says_so_and_keeps_what_is_there(names: Names) -> None:
    queue = names.queue(max_length=1, overflow="reject")
    names.send(queue, "first")
    refused = names.post(queue, "second")
    assert (refused.status, refused.json()["condition"]) == (503, FULL)
    assert names.rest(queue) == ["first"]


@checks("overflow")
def test_discard_incoming_accepts_and_drops_what_does_not_fit(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(max_length=2, overflow="discard_incoming")
    sender = amqp.create_sender(queue)
    assert {outcome(amqp, sender, Message(body=f"{number}")) for number in range(5)} == {"accepted"}
    assert names.figures(queue)["dropped"] == 3
    assert names.rest(queue) == ["0", "1"]


@checks("overflow")
def test_discard_existing_gives_up_the_oldest(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(max_length=2, overflow="discard_existing")
    sender = amqp.create_sender(queue)
    assert {outcome(amqp, sender, Message(body=f"{number}")) for number in range(5)} == {"accepted"}
    assert names.figures(queue)["discarded"] == {"discarded": 3}
    assert names.rest(queue) == ["3", "4"]
    assert names.rest(f"{queue}/$dlq") == []


@checks("overflow", "dead_letter")
def test_discard_existing_sends_the_oldest_to_the_dead_letter_name(names: Names) -> None:
    graves = names.queue("graves")
    queue = names.queue(max_length=1, overflow="discard_existing", dead_letter=graves)
    names.send(queue, "old", "new")
    got = names.receive(graves)
    assert got.body == b"old"
    assert got.properties["Annotations"]["x-opt-dead-letter-reason"] == "queue-full"
    assert names.rest(queue) == ["new"]


@checks("overflow")
def test_flow_control_holds_senders_until_there_is_room(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(max_length=1, overflow="flow_control")
    sender = amqp.create_sender(queue)
    sender.send(Message(body="first"))
    waiting = sender.link.send(Message(body="second"))
    pumped(amqp, lambda: names.figures(queue)["parked"] == 1, "it waits")
    assert not waiting.settled
    assert names.take(queue) == ["first"]
    amqp.wait(lambda: waiting.settled, timeout=20)
    assert waiting.remote_state == Delivery.ACCEPTED
    waiting.settle()
    assert names.rest(queue) == ["second"]


@checks("overflow")
def test_flow_to_disk_takes_everything_and_keeps_order(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(max_length=3, max_bytes=3000, overflow="flow_to_disk")
    sender = amqp.create_sender(queue)
    for number in range(40):
        sender.send(Message(body=f"{number} " + "x" * 500, durable=True))
    assert names.figures(queue)["ready"] == 40
    assert [each.split()[0] for each in names.take(queue, 40)] == [str(number) for number in range(40)]


@checks("enqueue_timeout")
@pytest.mark.parametrize("overflow", ["reject", "flow_control"])
def test_a_sender_waits_so_long_and_is_then_refused(
    names: Names, amqp: BlockingConnection, overflow: str
) -> None:
    queue = names.queue(max_length=1, overflow=overflow, enqueue_timeout=0.3)
    sender = amqp.create_sender(queue)
    sender.send(Message(body="first"))
    started = time.monotonic()
    assert outcome(amqp, sender, Message(body="second")) == FULL
    assert time.monotonic() - started >= 0.3
    assert names.post(queue).status == 503


@checks("enqueue_timeout")
def test_room_in_time_lets_the_message_in(names: Names) -> None:
    queue = names.queue(max_length=1, enqueue_timeout=60)
    names.send(queue, "first")
    with Http(names.broker.http, deadline_s=60) as sender:
        sender.ask("POST", f"/{queue}?body=text")
        names.until_figure(queue, "parked", 1)
        assert names.take(queue) == ["first"]
        assert sender.answer().status == 201


@checks("enqueue_timeout")
def test_without_it_flow_control_waits_for_ever(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(max_length=1, overflow="flow_control")
    names.send(queue, "first")
    sender = amqp.create_sender(queue)
    waiting = sender.link.send(Message(body="second"))
    with pytest.raises(Timeout):
        amqp.wait(lambda: waiting.settled, timeout=0.5)
    names.take(queue)
    amqp.wait(lambda: waiting.settled, timeout=20)
