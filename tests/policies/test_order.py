"""Which message is next, and for whom: priorities, last values, sorted queues, groups."""

from typing import Any

import pytest
from proton import Message
from proton.utils import BlockingConnection, BlockingReceiver

from tests.policies.driver import Names, listen, nothing, send
from tests.policies.laws import checks
from tests.support.amqp.proton_blocking import connected, received


def bodies(receiver: BlockingReceiver, count: int) -> list[str]:
    return [message.body for message in received(receiver, count)]


@checks("priorities")
def test_higher_priorities_go_first_and_equal_ones_in_order(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(priorities=10)
    messages = [Message(body=f"{level}{number}", priority=level) for number in (1, 2) for level in (4, 9, 0)]
    send(amqp, queue, *messages)
    assert bodies(listen(amqp, queue), 6) == ["91", "92", "41", "42", "01", "02"]


@checks("priorities")
@pytest.mark.parametrize(
    ("levels", "order"), [(1, ["3", "9", "4", "5"]), (2, ["9", "5", "3", "4"]), (3, ["9", "5", "4", "3"])]
)
def test_fewer_levels_are_told_apart_around_the_normal_priority(
    names: Names, levels: int, order: list[str]
) -> None:
    queue = names.queue(priorities=levels)
    for priority in (3, 9, 4, 5):
        names.send(queue, str(priority), Priority=priority)
    assert names.take(queue, 4) == order


@checks("priorities")
def test_a_message_that_is_given_back_goes_to_its_level(names: Names) -> None:
    queue = names.queue(priorities=10)
    names.send(queue, "high", Priority=8)
    locked = names.lock(queue)
    names.send(queue, "low", Priority=1)
    names.fail(locked)
    assert names.take(queue, 2) == ["high", "low"]


@checks("order", "order_key")
def test_last_value_keeps_one_message_for_each_key_and_the_newest(names: Names) -> None:
    queue = names.queue(order="last_value", order_key="subject")
    for body, subject in (("old a", "a"), ("old b", "b"), ("new a", "a")):
        names.send(queue, body, Subject=subject)
    names.send(queue, "no key", "no key either")
    assert names.figures(queue)["replaced"] == 1
    assert sorted(names.rest(queue)) == ["new a", "no key", "no key either", "old b"]


@checks("order", "order_key")
def test_a_last_value_with_a_consumer_stays_its_own(names: Names) -> None:
    queue = names.queue(order="last_value", order_key="application-properties.symbol")
    names.send(queue, "old", own={"symbol": "LRL"})
    locked = names.lock(queue)
    names.send(queue, "new", own={"symbol": "LRL"})
    assert names.complete(locked) == 200
    assert names.rest(queue) == ["new"]


@checks("order", "order_key")
def test_sorted_gives_the_smallest_key_first_and_equal_ones_in_order(
    names: Names, amqp: BlockingConnection
) -> None:
    queue = names.queue(order="sorted", order_key="application-properties.due")
    keys = [5, 1, 3, 1, 4]
    send(amqp, queue, *(Message(body=f"{at}{key}", properties={"due": key}) for at, key in enumerate(keys)))
    assert bodies(listen(amqp, queue), 5) == ["11", "31", "23", "44", "05"]


@checks("order_key")
@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("subject", "subject"),
        ("message-id", "id"),
        ("correlation-id", "correlation_id"),
        ("to", "address"),
        ("reply-to", "reply_to"),
        ("group-id", "group_id"),
    ],
)
def test_any_of_these_fields_may_be_the_key(
    names: Names, amqp: BlockingConnection, key: str, field: str
) -> None:
    queue = names.queue(order="sorted", order_key=key)
    sent: list[dict[str, Any]] = [{"body": value, field: value} for value in ("b", "c", "a")]
    send(amqp, queue, *(Message(**fields) for fields in sent))
    assert bodies(listen(amqp, queue), 3) == ["a", "b", "c"]


@checks("groups")
def test_a_group_is_with_one_consumer_at_a_time_and_in_order(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(groups=True)
    one, two = listen(amqp, queue), listen(amqp, queue)
    messages = [Message(body=f"{group}{number}", group_id=group) for number in range(4) for group in "ab"]
    send(amqp, queue, *messages)
    first, second = one.receive(), two.receive()
    assert (first.body, second.body) == ("a0", "b0")
    # Neither gets a message of the other's group, however much credit it has.
    one.accept()
    two.accept()
    for receiver, group in ((one, "a"), (two, "b")):
        assert bodies(receiver, 3) == [f"{group}{number}" for number in (1, 2, 3)]
        assert nothing(amqp, receiver)


@checks("groups")
def test_a_group_goes_to_another_consumer_when_its_own_leaves(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(groups=True)
    send(amqp, queue, *(Message(body=str(number), group_id="g") for number in range(4)))
    with connected(names.broker.amqp) as other:
        leaving = listen(other, queue)
        assert bodies(leaving, 1) == ["0"]
        # It holds the next one, and goes with it.
        assert leaving.receive().body == "1"
        staying = listen(amqp, queue)
        assert nothing(amqp, staying)
    assert bodies(staying, 3) == ["1", "2", "3"]


@checks("groups")
def test_messages_without_a_group_go_to_anybody(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue(groups=True)
    one, two = listen(amqp, queue), listen(amqp, queue)
    send(amqp, queue, Message(body="x"), Message(body="y"))
    assert {one.receive().body, two.receive().body} == {"x", "y"}
