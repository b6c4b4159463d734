"""Stories of routed messages: stored once for many queues, each of which has a policy of its own."""

from collections.abc import Iterator
from typing import Any

from proton import Message

from tests.policies.driver import Names, instant
from tests.policies.laws import survives

POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "always": {"durable": "always"},
    "never": {"durable": "never"},
    "levels": {"priorities": 10},
    "keys": {"order": "sorted", "order_key": "subject"},
    "values": {"order": "last_value", "order_key": "subject"},
    "groups": {"groups": True},
    "once": {"duplicate_window": 3600},
    "later": {"delay": True},
    "two": {"max_length": 2, "overflow": "discard_existing"},
    "first": {"max_length": 1, "overflow": "discard_incoming"},
    "aged": {"max_age": 3600},
}
BODIES = ["a", "b", "c", "b again"]
FOUND = {
    "plain": BODIES,
    "always": BODIES,
    "levels": ["c", "a", "b", "b again"],
    "keys": ["c", "b", "b again", "a"],
    "values": ["a", "c", "b again"],
    "groups": BODIES,
    "once": ["a", "b", "c"],
    "later": ["a", "c", "b again"],
    "two": ["c", "b again"],
    "first": ["a"],
    "aged": BODIES,
}


def feed(names: Names) -> tuple[str, dict[str, str]]:
    """A router with a queue for each of the policies."""
    router = names.router()
    queues = {name: names.queue(name, **policy) for name, policy in POLICIES.items()}
    for queue in queues.values():
        names.subscribe(router, queue)
    return router, queues


def four(names: Names, router: str, durable: bool) -> None:
    """Four messages: the second is delayed where that is allowed, the fourth has its id and subject."""
    for body, subject, id, priority in (("a", "z", "1", 5), ("b", "y", "2", 1), ("c", "x", "3", 9)):
        later: dict[str, Any] = {"ScheduledEnqueueTimeUtc": instant(3600)} if body == "b" else {}
        told: dict[str, Any] = {"Subject": subject, "MessageId": id, "Priority": priority}
        told |= {"GroupId": "g", "Durable": durable}
        names.send(router, body, **told, **later)
    names.send(router, "b again", Subject="y", MessageId="2", Priority=1, GroupId="g", Durable=durable)


@survives("distribution", *("durable", "priorities", "order", "groups", "duplicate_window", "delay"))
def each_queue_does_with_a_routed_message_as_its_policy_says(names: Names) -> Iterator[None]:
    router, queues = feed(names)
    four(names, router, durable=True)
    assert names.texts(queues["never"]) == BODIES
    yield
    assert names.rest(queues.pop("never")) == []
    assert {name: names.rest(queue) for name, queue in queues.items()} == FOUND


@survives("distribution", "durable")
def of_routed_messages_that_are_not_durable_those_stay_whose_queue_keeps_all(names: Names) -> Iterator[None]:
    router, queues = feed(names)
    four(names, router, durable=False)
    assert names.rest(queues["keys"]) == FOUND["keys"]
    yield
    assert {name: names.rest(queue) for name, queue in queues.items()} == {
        name: BODIES if name == "always" else [] for name in POLICIES
    }


@survives("max_age")
def routed_messages_keep_the_time_at_which_they_expire(names: Names) -> Iterator[None]:
    router, queue = names.router(max_age=3600), names.queue()
    names.subscribe(router, queue)
    names.send(router, "before")
    (before,) = names.peek(queue)
    yield
    names.send(router, "after")
    found = {each["body"]["text"]: each["expires_at"] for each in names.peek(queue)}
    assert found["before"] == before["expires_at"]
    assert found["after"] > found["before"]


@survives("distribution", "max_delivery_count", "dead_letter")
def the_failures_of_one_queue_are_not_those_of_another(names: Names) -> Iterator[None]:
    router = names.router()
    graves = names.queue("graves")
    one, two = names.queue("one", max_delivery_count=2, dead_letter=graves), names.queue("two")
    for queue in (one, two):
        names.subscribe(router, queue)
    names.send(router, "x")
    names.fail(names.lock(one))
    yield
    assert names.lock(two).properties["DeliveryCount"] == 0
    names.fail(names.lock(one))
    assert names.take(graves) == ["x"]


@survives("distribution")
def what_one_queue_is_done_with_is_still_in_the_other(names: Names) -> Iterator[None]:
    router = names.router()
    queues = [names.queue(name) for name in ("one", "two", "three")]
    for queue in queues:
        names.subscribe(router, queue)
    with names.amqp() as amqp:
        sender = amqp.create_sender(router)
        for number in range(20):
            sender.send(Message(body=str(number), durable=True))
    bodies = [str(number) for number in range(20)]
    assert names.take(queues[0], 20) == bodies
    assert names.take(queues[1], 5) == bodies[:5]
    names.http("DELETE", f"/{queues[2]}/!policy")
    yield
    assert [names.rest(queue) for queue in queues[:2]] == [[], bodies[5:]]
    assert names.role(queues[2]) == "none"


@survives("distribution")
def an_action_is_on_disk_with_the_message_that_it_changed(names: Names) -> Iterator[None]:
    router = names.router()
    plain = names.queue("plain")
    changed = names.queue("changed", order="last_value", order_key="application-properties.key")
    names.subscribe(router, plain)
    action = {"set": {"subject": "seen", "application-properties.key": "same"}}
    names.subscribe(router, changed, action=action)
    for body in "ab":
        names.send(router, body, Subject="new")
    yield
    assert [names.receive(plain).properties["Subject"] for _ in range(2)] == ["new", "new"]
    got = names.receive(changed)
    assert (got.body, got.properties["Subject"]) == (b"b", "seen")
    assert got.headers["lightrail-property-key"] == '"same"'
    assert names.rest(changed) == []
