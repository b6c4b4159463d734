"""The broker as python-qpid-proton's blocking client sees it: messages, outcomes, expiry, browsing."""

import time
from collections.abc import Iterator

import pytest
from proton import Condition, Delivery, Link, Message, symbol, timestamp
from proton.reactor import AtMostOnce, Copy
from proton.utils import BlockingConnection, LinkDetached

from tests.support.amqp.proton_blocking import SettleModes, connected, drain, received, take
from tests.support.amqp.proton_messages import assert_equal, messages
from tests.support.broker import Broker

MAX_DELIVERY_COUNT = 10
"""The broker's default."""


@pytest.fixture
def connection(broker: Broker) -> Iterator[BlockingConnection]:
    with connected(broker.amqp) as made:
        yield made


# --- messages --------------------------------------------------------------------------------------------


def test_every_type_arrives_as_it_was_sent(connection: BlockingConnection, queue: str) -> None:
    sent = messages()
    sender = connection.create_sender(queue)
    for message in sent.values():
        assert sender.send(message).remote_state == Delivery.ACCEPTED
    receiver = connection.create_receiver(queue, credit=len(sent))
    for name, message in sent.items():
        found = receiver.receive()
        receiver.accept()
        try:
            assert_equal(found, message)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    assert drain(connection, receiver) == []


def test_ttl_counts_down_on_the_way(connection: BlockingConnection, queue: str) -> None:
    connection.create_sender(queue).send(Message(body="x", ttl=60, durable=True))
    receiver = connection.create_receiver(queue)
    (found,) = received(receiver, 1)
    assert 0 < found.ttl <= 60
    found.ttl = 60
    assert_equal(found, Message(body="x", ttl=60, durable=True))


@pytest.mark.parametrize("durable", [False, True])
def test_large_messages_both_ways(connection: BlockingConnection, queue: str, durable: bool) -> None:
    body = bytes(range(256)) * (20 * 1024 * 1024 // 256)
    sent = Message(body=body, inferred=True, durable=durable)
    sender = connection.create_sender(queue)
    assert sender.send(sent).remote_state == Delivery.ACCEPTED
    sender.send(Message(body="after"))
    found, after = received(connection.create_receiver(queue, credit=2), 2)
    assert bytes(found.body) == body
    assert found.durable is durable
    assert after.body == "after"


def test_order_is_kept(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    count = 1_000
    deliveries = [sender.link.send(Message(body=number)) for number in range(count)]
    receiver = connection.create_receiver(queue, credit=count)
    assert [message.body for message in received(receiver, count)] == list(range(count))
    connection.wait(lambda: all(delivery.settled for delivery in deliveries))
    assert {delivery.remote_state for delivery in deliveries} == {Delivery.ACCEPTED}


# --- outcomes --------------------------------------------------------------------------------------------


def test_accepted_messages_are_gone(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    receiver = connection.create_receiver(queue)
    for body in ("one", "two"):
        sender.send(Message(body=body))
    assert [message.body for message in received(receiver, 2)] == ["one", "two"]
    receiver.close()
    assert drain(connection, connection.create_receiver(queue)) == []


def test_rejected_goes_to_the_dead_letter_queue(connection: BlockingConnection, queue: str) -> None:
    before_ms = int(time.time() * 1000)
    message = Message(body={"k": 1}, id="m", durable=True, annotations={"x-opt-mine": 5}, properties={"p": 1})
    connection.create_sender(queue).send(message)
    receiver = connection.create_receiver(queue)
    _, delivery = take(receiver)
    delivery.local.condition = Condition("example:bad-order", "no such article")
    delivery.update(Delivery.REJECTED)
    delivery.settle()
    (dead,) = received(connection.create_receiver(f"{queue}/$dlq"), 1)
    notes = dead.annotations
    assert notes["x-opt-dead-letter-reason"] == symbol("rejected")
    assert notes["x-opt-dead-letter-source"] == queue
    assert isinstance(notes["x-opt-dead-letter-time"], timestamp)
    assert before_ms <= notes["x-opt-dead-letter-time"] <= time.time() * 1000
    assert notes["x-opt-dead-letter-condition"] == symbol("example:bad-order")
    assert notes["x-opt-dead-letter-description"] == "no such article"
    assert notes["x-opt-mine"] == 5
    assert (dead.body, dead.id, dead.properties, dead.durable) == ({"k": 1}, "m", {"p": 1}, True)
    assert drain(connection, receiver) == []


def test_rejected_from_the_dead_letter_queue_is_removed(connection: BlockingConnection, queue: str) -> None:
    connection.create_sender(queue).send(Message(body=1))
    receiver = connection.create_receiver(queue)
    receiver.receive()
    receiver.reject()
    dead_letters = connection.create_receiver(f"{queue}/$dlq")
    dead_letters.receive()
    dead_letters.reject()
    assert drain(connection, dead_letters) == []
    assert drain(connection, receiver) == []


def test_released_comes_back_unchanged_and_first(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    for body in (1, 2):
        sender.send(Message(body=body))
    receiver = connection.create_receiver(queue)
    receiver.receive()
    receiver.release(delivered=False)
    again, second = received(receiver, 2)
    assert (again.body, again.delivery_count) == (1, 0)
    assert second.body == 2


def test_modified_delivery_failed_counts(connection: BlockingConnection, queue: str) -> None:
    connection.create_sender(queue).send(Message(body=1, delivery_count=2, first_acquirer=True))
    receiver = connection.create_receiver(queue)
    message, delivery = take(receiver)
    assert (message.delivery_count, message.first_acquirer) == (2, True)
    delivery.local.failed = True
    delivery.update(Delivery.MODIFIED)
    delivery.settle()
    (again,) = received(receiver, 1)
    assert (again.body, again.delivery_count, again.first_acquirer) == (1, 3, False)


def test_modified_without_failure_does_not_count(connection: BlockingConnection, queue: str) -> None:
    connection.create_sender(queue).send(Message(body=1))
    receiver = connection.create_receiver(queue)
    _, delivery = take(receiver)
    delivery.update(Delivery.MODIFIED)
    delivery.settle()
    (again,) = received(receiver, 1)
    assert again.delivery_count == 0


def test_modified_undeliverable_here_goes_to_another_link(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    sender.send(Message(body="first"))
    here = connection.create_receiver(queue)
    _, delivery = take(here)
    delivery.local.undeliverable = True
    delivery.update(Delivery.MODIFIED)
    delivery.settle()
    assert drain(connection, here) == []
    sender.send(Message(body="second"))
    assert [message.body for message in received(here, 1)] == ["second"]
    elsewhere = connection.create_receiver(queue, name="elsewhere")
    assert [message.body for message in received(elsewhere, 1)] == ["first"]


def test_modified_annotations_are_merged(connection: BlockingConnection, queue: str) -> None:
    connection.create_sender(queue).send(
        Message(body="b", id=7, annotations={"x-opt-a": 1, "x-opt-b": 2}, properties={"p": "q"})
    )
    receiver = connection.create_receiver(queue)
    _, delivery = take(receiver)
    delivery.local.annotations = {"x-opt-b": "new", "x-opt-c": [3]}
    delivery.update(Delivery.MODIFIED)
    delivery.settle()
    (again,) = received(receiver, 1)
    assert again.annotations == {symbol("x-opt-a"): 1, symbol("x-opt-b"): "new", symbol("x-opt-c"): [3]}
    assert (again.body, again.id, again.properties, again.delivery_count) == ("b", 7, {"p": "q"}, 0)


def test_the_close_of_the_connection_counts_no_failed_delivery(
    broker: Broker, connection: BlockingConnection, queue: str
) -> None:
    connection.create_sender(queue).send(Message(body=1))
    with connected(broker.amqp) as other:
        assert other.create_receiver(queue).receive().delivery_count == 0
    (again,) = received(connection.create_receiver(queue), 1)
    assert (again.body, again.delivery_count) == (1, 0)


def test_after_the_last_attempt_comes_the_dead_letter_queue(
    connection: BlockingConnection, queue: str
) -> None:
    connection.create_sender(queue).send(Message(body="poison"))
    receiver = connection.create_receiver(queue)
    for attempt in range(MAX_DELIVERY_COUNT):
        message, delivery = take(receiver)
        assert message.delivery_count == attempt
        delivery.local.failed = True
        delivery.update(Delivery.MODIFIED)
        delivery.settle()
    (dead,) = received(connection.create_receiver(f"{queue}/$dlq"), 1)
    assert dead.body == "poison"
    assert dead.annotations["x-opt-dead-letter-reason"] == symbol("max-delivery-count")
    assert dead.annotations["x-opt-dead-letter-source"] == queue
    assert drain(connection, receiver) == []


# --- expiry ----------------------------------------------------------------------------------------------


def expired(connection: BlockingConnection, queue: str, message: Message) -> Message:
    """What comes out of the dead-letter queue for a message that nobody fetches in time."""
    sender = connection.create_sender(queue)
    sender.send(message)
    sender.send(Message(body="stays"))
    (dead,) = received(connection.create_receiver(f"{queue}/$dlq"), 1)
    assert dead.annotations["x-opt-dead-letter-reason"] == symbol("expired")
    assert dead.annotations["x-opt-dead-letter-source"] == queue
    assert [left.body for left in drain(connection, connection.create_receiver(queue))] == ["stays"]
    return dead


@pytest.mark.parametrize("durable", [False, True])
def test_ttl_ends_in_the_dead_letter_queue(connection: BlockingConnection, queue: str, durable: bool) -> None:
    dead = expired(connection, queue, Message(body="old", ttl=0.05, durable=durable))
    assert (dead.body, dead.durable) == ("old", durable)


def test_absolute_expiry_ends_in_the_dead_letter_queue(connection: BlockingConnection, queue: str) -> None:
    when = time.time() + 0.05
    dead = expired(connection, queue, Message(body="old", expiry_time=when))
    assert dead.body == "old"
    assert dead.expiry_time == pytest.approx(when, abs=0.002)


def test_what_has_expired_when_it_comes_is_dead_at_once(connection: BlockingConnection, queue: str) -> None:
    assert expired(connection, queue, Message(body="old", expiry_time=1.0)).body == "old"


# --- browsing, draining ----------------------------------------------------------------------------------


def test_browsing_leaves_messages_and_keeps_order(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    for body in range(5):
        sender.send(Message(body=body))
    for _ in range(2):
        browser = connection.create_receiver(queue, credit=5, options=Copy())
        assert browser.link.remote_source.distribution_mode == browser.link.source.distribution_mode
        assert [message.body for message in received(browser, 5)] == list(range(5))
        assert drain(connection, browser) == []
        sender.send(Message(body="new"))
        assert received(browser, 1)[0].body == "new"
        browser.close()
        taken = connection.create_receiver(queue, credit=6)
        bodies = [message.body for message in received(taken, 6)]
        assert bodies == [0, 1, 2, 3, 4, "new"]
        taken.close()
        for body in range(5):
            sender.send(Message(body=body))


def test_draining_gives_what_is_there_and_takes_the_credit(
    connection: BlockingConnection, queue: str
) -> None:
    sender = connection.create_sender(queue)
    receiver = connection.create_receiver(queue)
    assert drain(connection, receiver, 100) == []
    for body in range(3):
        sender.send(Message(body=body))
    assert [message.body for message in drain(connection, receiver, 100)] == [0, 1, 2]
    assert receiver.link.credit == 0
    sender.send(Message(body=3))
    assert not receiver.fetcher.has_message
    receiver.link.drain_mode = False
    assert receiver.receive().body == 3


# --- settlement ------------------------------------------------------------------------------------------


def test_presettled_both_ways(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue, options=AtMostOnce())
    assert sender.link.remote_snd_settle_mode == Link.SND_SETTLED
    for body in range(10):
        assert sender.send(Message(body=body)).local_state == 0
    receiver = connection.create_receiver(queue, credit=10, options=AtMostOnce())
    assert receiver.link.remote_snd_settle_mode == Link.SND_SETTLED
    assert [receiver.receive().body for _ in range(10)] == list(range(10))
    assert not receiver.fetcher.unsettled
    receiver.close()
    assert drain(connection, connection.create_receiver(queue)) == []


def test_sender_settles_last_with_receiver_settle_mode_second(
    connection: BlockingConnection, queue: str
) -> None:
    second = SettleModes(Link.SND_UNSETTLED, Link.RCV_SECOND)
    sender = connection.create_sender(queue, options=second)
    assert sender.link.remote_rcv_settle_mode == Link.RCV_FIRST
    sent = sender.link.send(Message(body=1))
    connection.wait(lambda: sent.settled)
    assert sent.remote_state == Delivery.ACCEPTED
    sent.settle()
    receiver = connection.create_receiver(queue, options=second)
    assert receiver.link.remote_rcv_settle_mode == Link.RCV_SECOND
    message, delivery = take(receiver)
    assert message.body == 1
    delivery.update(Delivery.ACCEPTED)
    connection.wait(lambda: delivery.settled)
    delivery.settle()
    receiver.close()
    assert drain(connection, connection.create_receiver(queue)) == []


# --- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("$nothing", "amqp:not-found"),
        ("a//b", "amqp:invalid-field"),
        ("!system/x", "amqp:not-found"),
        ("a/../b", "amqp:invalid-field"),
        ("x" * 600, "amqp:invalid-field"),
    ],
)
def test_bad_names_are_refused_with_a_condition(
    connection: BlockingConnection, address: str, condition: str
) -> None:
    for create in (connection.create_sender, connection.create_receiver):
        with pytest.raises(LinkDetached) as refused:
            create(address)
        assert refused.value.condition == condition
