"""Policies that change under open links: what holds from then on, for what is there and for what comes."""

import time

import pytest
from proton import Message
from proton.utils import BlockingConnection

from tests.policies.driver import Names, detached, listen, outcome, pumped, refused, send
from tests.policies.laws import checks
from tests.support import wait
from tests.support.amqp.proton_blocking import received

FULL = "amqp:resource-limit-exceeded"


@checks("max_length")
def test_a_shorter_queue_takes_no_more_and_a_longer_one_does(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(max_length=5)
    sender = amqp.create_sender(queue)
    for _ in range(3):
        sender.send(Message(body="x"))
    names.put_now(queue, max_length=2)
    assert outcome(amqp, sender, Message(body="x")) == FULL
    assert len(names.peek(queue)) == 3
    names.put_now(queue, max_length=4)
    assert outcome(amqp, sender, Message(body="x")) == "accepted"
    assert outcome(amqp, sender, Message(body="x")) == FULL


@checks("max_length", "overflow")
def test_a_sender_that_waits_gets_the_room_of_a_change(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(max_length=1, overflow="flow_control")
    names.send(queue, "first")
    sender = amqp.create_sender(queue)
    waiting = sender.link.send(Message(body="second"))
    pumped(amqp, lambda: names.figures(queue)["parked"] == 1, "it waits")
    names.put_now(queue, max_length=2, overflow="flow_control")
    amqp.wait(lambda: waiting.settled, timeout=20)
    assert len(names.peek(queue)) == 2


@checks("max_idle")
def test_the_time_of_an_unused_queue_changes_under_its_links(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(max_idle=300)
    receiver, sender = listen(amqp, queue), amqp.create_sender(queue)
    for policy in ({"max_idle": 301.5}, {}, {"max_idle": 300}):
        names.put_now(queue, **policy)
        assert names.policy(queue) == policy
        sender.send(Message(body="x"))
        assert [message.body for message in received(receiver, 1)] == ["x"]


@checks("max_idle")
def test_the_time_of_an_unused_router_changes_under_its_senders(
    names: Names, amqp: BlockingConnection
) -> None:
    router, queue = names.router(max_idle=300), names.queue()
    names.subscribe(router, queue)
    sender = amqp.create_sender(router)
    for policy in ({"max_idle": 301.5}, {}, {"max_idle": 300}):
        names.put_now(router, role="router", **policy)
        assert names.policy(router) == policy
        sender.send(Message(body="x"))
        names.send(router, "y")
        assert names.rest(queue) == ["x", "y"]


@checks("lock_duration")
def test_a_new_lock_duration_is_that_of_the_next_delivery(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(lock_duration=600, max_delivery_count=0)
    names.send(queue, "x")
    assert names.lock(queue).until - time.time() == pytest.approx(600, abs=5)
    receiver = amqp.create_receiver(queue)
    names.put_now(queue, lock_duration=0.2, max_delivery_count=0)
    send(amqp, queue, Message(body="y"))

    def runs_out() -> bool:
        """A delivery from now on is locked for the short time, and comes back."""
        receiver.receive()
        return bool(names.figures(queue)["locks_expired"])

    wait.until(runs_out, "a lock of the new duration")


@checks("priorities")
def test_priorities_can_be_turned_on_and_off_under_messages_and_links(
    names: Names, amqp: BlockingConnection
) -> None:
    queue = names.queue()
    receiver = listen(amqp, queue)
    for level in (1, 9, 5):
        names.send(queue, str(level), Priority=level)
    names.put_now(queue, priorities=10)
    assert [message.body for message in received(receiver, 1)] == ["9"]
    for level in (7, 2):
        names.send(queue, str(level), Priority=level)
    assert [message.body for message in received(receiver, 2)] == ["7", "5"]
    names.put_now(queue)
    names.send(queue, "8", Priority=8)
    assert [message.body for message in received(receiver, 3)] == ["1", "2", "8"]


@checks("max_delivery_count")
def test_a_smaller_count_makes_the_next_failure_the_last(names: Names) -> None:
    queue = names.queue(max_delivery_count=10)
    names.send(queue, "bad")
    for _ in range(3):
        names.fail(names.lock(queue))
    names.put_now(queue, max_delivery_count=2)
    names.fail(names.lock(queue))
    assert names.dead(queue).body == b"bad"


@checks("max_age")
def test_an_age_is_for_what_comes_from_then_on(names: Names) -> None:
    queue = names.queue()
    names.send(queue, "old")
    names.put_now(queue, max_age=0.1)
    names.send(queue, "new")
    assert names.dead(queue).body == b"new"
    assert names.rest(queue) == ["old"]


@checks("max_message_bytes")
def test_a_smaller_message_size_holds_for_links_that_are_open(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue()
    sender = amqp.create_sender(queue)
    sender.send(Message(body="x" * 2000))
    names.put_now(queue, max_message_bytes=1000)
    assert names.post(queue, "x" * 2000).status == 413
    wait.until(lambda: outcome(amqp, sender, Message(body="x" * 2000)) != "accepted", "it is refused")


@checks("max_consumers", "exclusive")
def test_readers_that_are_there_stay_and_others_do_not_come(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue()
    one, two = listen(amqp, queue), listen(amqp, queue)
    names.put_now(queue, max_consumers=1)

    assert refused(amqp, queue).name == "amqp:resource-limit-exceeded"
    names.send(queue, "x", "y")
    assert {each.receive().body for each in (one, two)} == {"x", "y"}


@checks("delay", "duplicate_window", "groups")
def test_what_looks_into_messages_can_be_turned_on(names: Names) -> None:
    queue = names.queue()
    names.send(queue, "first", MessageId="m", GroupId="g")
    names.put_now(queue, delay=True, duplicate_window=600)
    names.send(queue, "id", MessageId="n")
    names.send(queue, "id again", MessageId="n")
    names.send(queue, "later", DeliveryDelay=3600)
    assert [each["state"] for each in names.peek(queue)] == ["ready", "ready", "delayed"]
    names.put_now(queue, groups=True)
    assert names.rest(queue) == ["first", "id", "later"]


@checks("overflow")
def test_another_overflow_holds_for_what_comes_next(names: Names) -> None:
    queue = names.queue(max_length=1)
    names.send(queue, "1")
    assert names.post(queue, "2").status == 503
    names.put_now(queue, max_length=1, overflow="discard_existing")
    names.send(queue, "3")
    assert names.rest(queue) == ["3"]


def test_a_deleted_policy_ends_the_links(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue()
    amqp.create_receiver(queue)
    assert names.http("DELETE", f"/{queue}/!policy").status == 204
    assert detached(amqp).name == "amqp:resource-deleted"


def test_what_is_sent_to_a_queue_that_was_made_again_is_there_and_nothing_of_before(
    names: Names, amqp: BlockingConnection
) -> None:
    anybody = amqp.create_sender(None)
    for number in range(10):
        queue = names.queue(f"again{number}")
        names.send(queue, "old")
        anybody.send(Message(address=queue, body="old"))
        # Somebody waits at the queue, or has received from it, when it goes.
        assert names.take(queue) == ["old"]
        assert names.http("DELETE", f"/{queue}/!policy").status == 204
        names.queue(f"again{number}")
        if number % 2:
            names.send(queue, "new")
        else:
            anybody.send(Message(address=queue, body="new"))
        assert names.take(queue) == ["new"]
        assert names.rest(queue) == []


def test_what_is_sent_after_the_answer_to_a_change_is_taken_as_the_new_policy_says(names: Names) -> None:
    for number in range(10):
        queue = names.queue(f"changed{number}")
        names.send(queue, "now")
        names.put(queue, delay=True)
        names.send(queue, "later", DeliveryDelay=3600)
        names.put(queue, delay=True, max_length=2)
        assert names.post(queue).status == 503
        assert [each["state"] for each in names.peek(queue)] == ["ready", "delayed"]
