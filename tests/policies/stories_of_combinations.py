"""Stories of what is set together, and of what was done before the end: nothing comes back or gets lost."""

from collections.abc import Iterator

from proton import Delivery, Message

from tests.policies.driver import Names, instant, listen, nothing, pumped, send, transferred
from tests.policies.laws import survives
from tests.support import wait
from tests.support.amqp.proton_blocking import received, take


@survives("delay", "priorities", "order", "groups")
def delayed_messages_take_their_position_in_every_order(names: Names) -> Iterator[None]:
    due = instant(1.0)
    by_priority = names.queue("priorities", delay=True, priorities=10)
    by_key = names.queue("sorted", delay=True, order="sorted", order_key="subject")
    by_value = names.queue("values", delay=True, order="last_value", order_key="subject")
    by_group = names.queue("groups", delay=True, groups=True)
    names.send(by_priority, "low", Priority=1)
    names.send(by_priority, "high, later", Priority=9, ScheduledEnqueueTimeUtc=due)
    names.send(by_key, "b", Subject="b")
    names.send(by_key, "a, later", Subject="a", ScheduledEnqueueTimeUtc=due)
    names.send(by_value, "old", Subject="s")
    names.send(by_value, "new, later", Subject="s", ScheduledEnqueueTimeUtc=due)
    names.send(by_group, "1", GroupId="g")
    names.send(by_group, "2, later", GroupId="g", ScheduledEnqueueTimeUtc=due)
    yield
    for queue in (by_priority, by_key, by_value, by_group):
        names.until_figure(queue, "delayed", 0)
    assert names.take(by_priority, 2) == ["high, later", "low"]
    assert names.take(by_key, 2) == ["a, later", "b"]
    assert names.take(by_group, 2) == ["1", "2, later"]
    assert names.rest(by_value) == ["new, later"]


@survives("priorities", "max_delivery_count")
def what_failed_keeps_its_position_and_its_count(names: Names) -> Iterator[None]:
    queue = names.queue(priorities=10, max_delivery_count=2)
    names.send(queue, "high", Priority=9)
    names.fail(names.lock(queue))
    names.send(queue, "low", Priority=0)
    yield
    again = names.lock(queue)
    assert (again.body, again.properties["DeliveryCount"]) == ("high", 1)
    names.fail(again)
    assert names.dead(queue).body == b"high"
    assert names.take(queue) == ["low"]


@survives("order", "max_length", "overflow")
def the_oldest_value_gives_way(names: Names) -> Iterator[None]:
    queue = names.queue(order="last_value", order_key="subject", max_length=2, overflow="discard_existing")
    for subject in "abca":
        names.send(queue, subject, Subject=subject)
    before = names.texts(queue)
    yield
    assert names.texts(queue) == before == ["c", "a"]
    names.send(queue, "d", Subject="d")
    assert names.rest(queue) == ["a", "d"]


@survives()
def what_was_done_stays_done(names: Names) -> Iterator[None]:
    queue, moved = names.queue(), names.queue("moved")
    names.send(queue, "completed", "purged", "purged")
    assert names.complete(names.lock(queue)) == 200
    assert names.http("DELETE", f"/{queue}/!messages").json() == {"purged": 2}
    names.send(queue, "moved")
    assert transferred(names, queue, moved, mode="move") == 1
    yield
    assert (names.rest(queue), names.rest(moved)) == ([], ["moved"])


@survives()
def a_queue_that_was_deleted_and_made_again_is_empty(names: Names) -> Iterator[None]:
    queue, gone = names.queue(), names.queue("gone")
    for each in (queue, gone):
        names.send(each, "old")
        assert names.http("DELETE", f"/{each}/!policy").status == 204
    names.queue()
    names.send(queue, "new")
    yield
    assert names.role(gone) == "none"
    names.queue("gone")
    assert (names.rest(queue), names.rest(gone)) == (["new"], [])


@survives("dead_letter", "auto_create")
def dead_letters_wait_for_a_name_that_is_not_there_yet(names: Names) -> Iterator[None]:
    names.give("graves", "none", auto_create=False)
    graves = names.name("graves/q")
    queue = names.queue(dead_letter=graves, max_delivery_count=1)
    names.send(queue, "bad")
    names.fail(names.lock(queue))
    wait.until(lambda: names.figures(f"{queue}/$dlq")["bytes"], "it is a dead letter")
    yield
    assert names.role(graves) == "none"
    names.queue("graves/q")
    got = names.http("DELETE", f"/{graves}/!head?timeout=60")
    assert got.body == b"bad"
    assert got.properties["Annotations"]["x-opt-dead-letter-source"] == queue


@survives("max_delivery_count")
def annotations_of_a_failed_delivery_are_kept(names: Names) -> Iterator[None]:
    queue = names.queue(priorities=10)
    with names.amqp() as amqp:
        send(amqp, queue, Message(body="x", durable=True))
        receiver = listen(amqp, queue)
        _, delivery = take(receiver)
        delivery.local.annotations = {"x-opt-tried-by": "me"}
        delivery.local.failed = True
        delivery.update(Delivery.MODIFIED)
        delivery.settle()
        pumped(amqp, lambda: names.figures(queue)["ready"] == 1, "it is back")
    yield
    with names.amqp() as amqp:
        (again,) = received(listen(amqp, queue), 1)
    assert (again.delivery_count, again.annotations["x-opt-tried-by"]) == (1, "me")


@survives("priorities", "max_length")
def the_policy_of_the_last_change_holds(names: Names) -> Iterator[None]:
    queue = names.queue(max_length=1)
    names.send(queue, "1", Priority=1)
    names.put_now(queue, priorities=10, max_length=3)
    names.send(queue, "9", Priority=9)
    yield
    assert names.policy(queue) == {"priorities": 10, "max_length": 3}
    names.send(queue, "5", Priority=5)
    assert names.post(queue).status == 503
    assert names.take(queue, 3) == ["9", "5", "1"]


@survives("groups")
def a_group_of_the_broker_that_died_waits_for_what_is_locked(names: Names) -> Iterator[None]:
    queue = names.queue(groups=True)
    for number in range(3):
        names.send(queue, str(number), GroupId="g")
    locked = names.lock(queue)
    yield
    with names.amqp() as amqp:
        one = listen(amqp, queue)
        assert nothing(amqp, one)
        assert names.complete(locked) == 200
        assert [message.body for message in received(one, 2)] == ["1", "2"]
