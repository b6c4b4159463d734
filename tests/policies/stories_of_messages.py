"""Stories of what is in queues: what the next broker knows of messages, and what it does with them."""

import time
from collections.abc import Iterator

from proton import Message

from tests.policies.driver import Names, OfAzure, instant, listen, nothing, seconds, send
from tests.policies.laws import survives
from tests.support import wait
from tests.support.amqp.proton_blocking import received


def until_past(text: str) -> None:
    wait.until(lambda: instant(0) > text, f"it is {text}")


@survives("durable")
def what_is_durable_is_there_and_the_rest_is_not(names: Names) -> Iterator[None]:
    queues = [names.queue(durable, durable=durable) for durable in ("default", "always", "never")]
    with names.amqp() as amqp:
        for queue in queues:
            send(amqp, queue, Message(body="asks for it", durable=True), Message(body="does not"))
    yield
    assert [names.rest(queue) for queue in queues] == [["asks for it"], ["asks for it", "does not"], []]


@survives("max_age")
def messages_keep_the_time_at_which_they_expire(names: Names) -> Iterator[None]:
    queue, short = names.queue(max_age=3600), names.queue("short", max_age=0.5)
    names.send(queue, "kept")
    names.send(short, "expires meanwhile")
    (before,) = names.peek(queue)
    gone = names.peek(short)[0]["expires_at"]
    yield
    (after,) = names.peek(queue)
    assert after["expires_at"] == before["expires_at"]
    until_past(gone)
    assert names.dead(short).body == b"expires meanwhile"
    assert names.rest(short) == []


@survives("expired")
def what_expires_meanwhile_is_discarded(names: Names) -> Iterator[None]:
    queue = names.queue(max_age=0.5, expired="discard")
    names.send(queue, "expires meanwhile")
    until = names.peek(queue)[0]["expires_at"]
    yield
    until_past(until)
    wait.until(lambda: names.peek(queue) == [], "the message has expired")
    assert names.rest(f"{queue}/$dlq") == []


@survives("max_delivery_count")
def failures_are_counted_on(names: Names) -> Iterator[None]:
    queue = names.queue(max_delivery_count=3)
    names.send(queue, "bad")
    for _ in range(2):
        names.fail(names.lock(queue))
    yield
    locked = names.lock(queue)
    assert locked.properties["DeliveryCount"] == 2
    names.fail(locked)
    assert names.dead(queue).properties["Annotations"]["x-opt-dead-letter-reason"] == "max-delivery-count"


@survives("retry_delay", "retry_growth", "retry_delay_max")
def what_waits_after_a_failure_keeps_its_time(names: Names) -> Iterator[None]:
    queue = names.queue(retry_delay=600, retry_growth=3, retry_delay_max=1500)
    soon = names.queue("soon", retry_delay=0.2)
    for each in (queue, soon):
        names.send(each, "bad")
        names.fail(names.lock(each))
    (before,) = names.peek(queue)
    assert before["state"] == "delayed"
    yield
    (after,) = names.peek(queue)
    assert (after["state"], after["due_at"]) == ("delayed", before["due_at"])
    again = names.lock(soon)
    assert again.properties["DeliveryCount"] == 1
    # The growth and its bound hold on: the second and the third wait.
    names.put(soon, retry_delay=600, retry_growth=3, retry_delay_max=1500)
    names.fail(again)
    (waiting,) = names.peek(soon)
    assert seconds(waiting["due_at"]) - time.time() > 1400


@survives("lock_duration")
def what_was_locked_stays_locked_for_its_receiver(names: Names) -> Iterator[None]:
    queue = names.queue(lock_duration=600, max_delivery_count=1)
    names.send(queue, "locked")
    locked = names.lock(queue)
    names.send(queue, "ready")
    yield
    assert names.take(queue) == ["ready"]
    assert names.complete(locked) == 200
    assert names.peek(queue) == []


@survives("lock_ends")
def the_end_of_a_link_gives_back_what_the_policy_says(names: Names) -> Iterator[None]:
    queues = {ends: names.queue(ends, lock_duration=600, lock_ends=ends) for ends in ("time", "link")}
    yield
    with names.amqp() as amqp:
        for ends, queue in queues.items():
            names.send(queue, ends)
            receiver = listen(amqp, queue, option=OfAzure())
            assert receiver.receive(timeout=20).body == ends
            receiver.close()
        assert names.take(queues["link"]) == ["link"]
        assert nothing(amqp, listen(amqp, queues["time"], 0))


@survives("dead_letter")
def dead_letters_keep_their_story_and_more_of_them_go_where_the_policy_says(names: Names) -> Iterator[None]:
    graves = names.queue("graves")
    queue = names.queue("queue", dead_letter=graves, max_delivery_count=1)
    said = {"outcome": "rejected", "condition": "app:bad", "description": "no such order"}
    names.send(queue, "before")
    assert names.http("PUT", names.lock(queue).location, said).status == 200
    names.until_figure(graves, "ready", 1)
    yield
    notes = names.receive(graves).properties["Annotations"]
    assert notes["x-opt-dead-letter-source"] == queue
    assert notes["x-opt-dead-letter-condition"] == "app:bad"
    assert notes["x-opt-dead-letter-description"] == "no such order"
    names.send(queue, "after")
    names.fail(names.lock(queue))
    assert names.take(graves) == ["after"]


@survives("priorities")
def priorities_are_still_in_order(names: Names) -> Iterator[None]:
    queue = names.queue(priorities=10)
    for level in (1, 9, 5):
        names.send(queue, str(level), Priority=level)
    yield
    names.send(queue, "7", Priority=7)
    assert names.take(queue, 4) == ["9", "7", "5", "1"]


@survives("order", "order_key")
def there_is_still_one_last_value_for_each_key(names: Names) -> Iterator[None]:
    queue = names.queue(order="last_value", order_key="subject")
    for body, subject in (("old a", "a"), ("b", "b"), ("new a", "a")):
        names.send(queue, body, Subject=subject)
    yield
    assert sorted(names.texts(queue)) == ["b", "new a"]
    names.send(queue, "newest a", Subject="a")
    assert sorted(names.rest(queue)) == ["b", "newest a"]


@survives("order", "order_key")
def sorted_messages_are_still_sorted(names: Names) -> Iterator[None]:
    queue = names.queue(order="sorted", order_key="application-properties.at")
    for at in (5, 1, 3):
        names.send(queue, str(at), own={"at": at})
    yield
    names.send(queue, "2", own={"at": 2})
    assert names.take(queue, 4) == ["1", "2", "3", "5"]


@survives("groups")
def groups_are_in_order_and_with_one_consumer(names: Names) -> Iterator[None]:
    queue = names.queue(groups=True)
    for number in range(4):
        for group in "ab":
            names.send(queue, f"{group}{number}", GroupId=group)
    # The first of them is gone, and the next is with a client when the broker dies.
    assert names.take(queue) == ["a0"]
    locked = names.lock(queue)
    assert locked.body in ("a1", "b0")
    yield
    names.fail(locked)
    with names.amqp() as amqp:
        one, two = listen(amqp, queue), listen(amqp, queue)
        first, second = one.receive(), two.receive()
        one.accept()
        two.accept()
        assert {first.body, second.body} == {"a1", "b0"}
        for receiver, mine in ((one, first.body), (two, second.body)):
            expected = [f"{mine[0]}{number}" for number in range(int(mine[1]) + 1, 4)]
            assert [message.body for message in received(receiver, len(expected))] == expected
            assert nothing(amqp, receiver)


@survives("duplicate_window")
def ids_are_still_known_also_of_messages_that_have_gone(names: Names) -> Iterator[None]:
    queue = names.queue(duplicate_window=3600)
    names.send(queue, "gone", MessageId="gone")
    names.take(queue)
    names.send(queue, "there", MessageId="there")
    yield
    names.send(queue, "again", MessageId="gone")
    names.send(queue, "again", MessageId="there")
    names.send(queue, "new", MessageId="new")
    assert names.rest(queue) == ["there", "new"]


@survives("delay")
def delayed_messages_come_at_their_time_or_are_called_off(names: Names) -> Iterator[None]:
    queue, soon = names.queue(delay=True), names.queue("soon", delay=True)
    due = instant(0.5)
    location = names.send(queue, "far", ScheduledEnqueueTimeUtc=instant(3600))
    names.send(soon, "came meanwhile", ScheduledEnqueueTimeUtc=due)
    (before,) = names.peek(queue)
    yield
    (after,) = names.peek(queue)
    assert (after["state"], after["due_at"]) == ("delayed", before["due_at"])
    assert names.rest(queue) == []
    assert names.http("DELETE", location).status == 204
    assert names.peek(queue) == []
    until_past(due)
    assert names.take(soon) == ["came meanwhile"]
    names.send(queue, "behind it", DeliveryDelay=0.2)
    assert names.take(queue) == ["behind it"]
