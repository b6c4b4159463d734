"""Messages that came before, and those whose time has not come yet."""

import time

import pytest
from proton import Message, timestamp, ulong
from proton.utils import BlockingConnection

from tests.policies.driver import Names, instant, listen, outcome, seconds, send
from tests.policies.laws import checks


@checks("duplicate_window")
def test_a_message_id_is_taken_once_and_every_sender_is_told_accepted(
    names: Names, amqp: BlockingConnection
) -> None:
    queue = names.queue(duplicate_window=600)
    sender = amqp.create_sender(queue)
    for id in ("a", "b", "a", ulong(7), ulong(7), "7"):
        assert outcome(amqp, sender, Message(body=str(id), id=id)) == "accepted"
    names.send(queue, "a", MessageId="a")
    assert names.figures(queue)["duplicates"] == 3
    assert names.rest(queue) == ["a", "b", "ulong(7)", "7"]


@checks("duplicate_window")
def test_a_known_id_stays_known_when_its_message_has_gone(names: Names) -> None:
    queue = names.queue(duplicate_window=600)
    names.send(queue, "first", MessageId="m")
    assert names.take(queue) == ["first"]
    names.send(queue, "again", MessageId="m")
    assert names.rest(queue) == []


@checks("duplicate_window")
def test_behind_the_window_an_id_is_new_again(names: Names) -> None:
    queue = names.queue(duplicate_window=0.2)
    names.send(queue, "first", MessageId="m")
    sent = 1
    end = time.monotonic() + 20
    while names.figures(queue)["ready"] < 2:
        assert time.monotonic() < end
        names.send(queue, "again", MessageId="m")
        sent += 1
    assert names.figures(queue)["duplicates"] == sent - 2


@checks("duplicate_window")
def test_messages_without_an_id_are_all_taken(names: Names) -> None:
    queue = names.queue(duplicate_window=600)
    names.send(queue, "x", "x")
    assert names.rest(queue) == ["x", "x"]


@checks("delay")
@pytest.mark.parametrize("annotation", ["x-opt-delivery-time", "x-opt-delivery-delay"])
def test_a_message_comes_at_its_time_and_not_before(
    names: Names, amqp: BlockingConnection, annotation: str
) -> None:
    queue = names.queue(delay=True)
    receiver = listen(amqp, queue)
    due = time.time() + 0.4
    wanted = timestamp(int(due * 1000)) if annotation.endswith("time") else 400
    send(amqp, queue, Message(body="later", annotations={annotation: wanted}), Message(body="at once"))
    assert receiver.receive().body == "at once"
    receiver.accept()
    seen = names.peek(queue)[0]
    assert seen["state"] == "delayed"
    assert seconds(seen["due_at"]) >= due - 0.001
    assert receiver.receive().body == "later"
    assert time.time() >= due - 0.001
    receiver.accept()


@checks("delay")
def test_messages_come_in_the_order_of_their_times(names: Names) -> None:
    queue = names.queue(delay=True)
    for delay in (0.6, 0.2, 0.4):
        names.send(queue, str(delay), DeliveryDelay=delay)
    assert names.take(queue, 3) == ["0.2", "0.4", "0.6"]


@checks("delay")
def test_a_scheduled_message_can_be_called_off(names: Names) -> None:
    queue = names.queue(delay=True)
    location = names.send(queue, "never", ScheduledEnqueueTimeUtc=instant(3600))
    assert names.http("DELETE", f"{location}").status == 204
    assert names.peek(queue) == []
    assert names.http("DELETE", f"{location}").status == 404


@checks("delay")
def test_where_it_is_not_allowed_nothing_is_held_back(names: Names) -> None:
    queue = names.queue(delay=False)
    names.send(queue, "now", DeliveryDelay=3600)
    assert names.take(queue) == ["now"]
