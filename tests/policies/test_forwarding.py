"""Queues that forward: where messages end, whom a target that refuses them holds up, what can't be set."""

import asyncio

import pytest
from proton import Message
from proton.utils import BlockingConnection, LinkDetached

from lightrail import client
from lightrail.gateway.forwarding.forwarding import DEAD_LETTER_HOPS_MAX, DEAD_LETTERINGS_PLAIN
from tests.policies.driver import Names, listen, outcome, refused, send
from tests.policies.laws import checks
from tests.support import wait


def forwarding(names: Names, **of_target: object) -> tuple[str, str, str, str]:
    """A router that feeds a queue and one that forwards: router, sibling, source, target."""
    target, sibling, router = names.queue("target", **of_target), names.queue("sibling"), names.router()
    source = names.queue("source", forward_to=target)
    names.subscribe(router, sibling)
    names.subscribe(router, source)
    return router, sibling, source, target


def refused_transfers(names: Names, source: str, count: int) -> list[str]:
    """The dead letters of what a queue could not forward, waited for."""
    name = f"{source}/$transfer/$dlq"
    # The first one may make the queue.
    wait.until(lambda: names.http("GET", f"/{name}/!messages").status == 200, f"{name} is there")
    wait.until(lambda: len(names.peek(name)) == count, f"{count} messages are in {name}")
    return names.rest(name)


@checks("forward_to")
def test_what_a_router_sends_to_a_chain_is_in_its_last_queue_at_once(
    names: Names, amqp: BlockingConnection
) -> None:
    router, sibling, source, target = forwarding(names)
    first = names.queue("first", forward_to=source)
    names.subscribe(router, first)
    send(amqp, router, *(Message(body=str(number)) for number in range(3)))
    names.send(router, "3")
    assert names.rest(target) == names.rest(sibling) == ["0", "1", "2", "3"]
    # Nothing was stored in between, not even for a moment.
    assert names.figures(source)["enqueued"] == names.figures(first)["enqueued"] == 0


@checks("forward_to")
def test_what_was_in_a_queue_is_forwarded_in_its_order_and_what_comes_later(names: Names) -> None:
    target, source = names.queue("target"), names.queue("source", delay=True)
    names.send(source, *map(str, range(150)))
    names.put(source, delay=True, forward_to=target)
    assert names.take(target, 150) == [str(number) for number in range(150)]
    names.send(source, "later", DeliveryDelay=0.2)
    names.send(source, "now")
    assert names.take(target, 2) == ["now", "later"]


@checks("forward_to")
def test_a_full_target_holds_up_neither_a_sender_to_a_router_nor_its_sibling(
    names: Names, amqp: BlockingConnection
) -> None:
    router, sibling, source, target = forwarding(names, max_length=1)
    sender = amqp.create_sender(router)
    assert [outcome(amqp, sender, Message(body=body)) for body in "abc"] == ["accepted"] * 3
    names.send(router, "d")
    assert names.rest(sibling) == ["a", "b", "c", "d"]
    assert refused_transfers(names, source, 3) == ["b", "c", "d"]
    assert names.rest(target) == ["a"]


@checks("forward_to")
def test_nor_does_it_fail_a_transaction(names: Names) -> None:
    router, sibling, source, target = forwarding(names, max_length=1)

    async def commit() -> None:
        async with (
            client.connect(f"amqp://{names.broker.amqp}") as connection,
            connection.sender(router) as sender,
            connection.transaction() as transaction,
        ):
            for body in "ab":
                await transaction.send(sender, body)

    asyncio.run(commit())
    assert sorted(names.rest(sibling)) == ["a", "b"]
    # Both were in one transaction, which the target refused; one by one the first of them fits.
    assert refused_transfers(names, source, 1) == ["b"]
    assert names.take(target) == ["a"]


@checks("forward_to")
def test_a_target_that_is_deleted_or_disabled_refuses_what_is_forwarded(names: Names) -> None:
    router, _, source, target = forwarding(names)
    names.put(target, status="disabled")
    names.send(router, "disabled")
    assert refused_transfers(names, source, 1) == ["disabled"]
    assert names.http("DELETE", f"/{target}/!policy").status == 204
    names.send(router, "deleted")
    assert refused_transfers(names, source, 1) == ["deleted"]


@checks("forward_to")
def test_nobody_receives_from_a_queue_that_forwards(names: Names, amqp: BlockingConnection) -> None:
    source, target = names.queue("source"), names.queue("target")
    before = listen(amqp, source)
    names.put(source, forward_to=target)
    with pytest.raises(LinkDetached) as ended:
        before.receive(timeout=20)
    assert ended.value.condition == "amqp:not-allowed"
    assert refused(amqp, source).name == "amqp:not-allowed"
    assert names.receive(source, 1).status == 409
    began = names.http("POST", "/!transfers", {"from": source, "to": target})
    assert began.status == 422


@checks("forward_to")
@pytest.mark.parametrize("fields", [{"groups": True}, {}])
def test_what_can_not_forward_is_refused_when_it_is_set(names: Names, fields: dict[str, object]) -> None:
    target = names.queue("target") if fields else names.name("missing")
    asked = {"role": "queue", "forward_to": target, **fields}
    answer = names.http("POST", f"/{names.name('source')}", asked)
    assert (answer.status, answer.json()["field"]) == (422, "forward_to")


@checks("forward_to")
def test_messages_never_return_to_a_queue(names: Names) -> None:
    first, router = names.queue("first"), names.router()
    second = names.queue("second", forward_to=first)
    for cycle in (first, second):
        answer = names.http("PUT", f"/{first}/!policy", {"role": "queue", "forward_to": cycle})
        assert (answer.status, answer.json()["field"]) == (422, "forward_to")
    names.put(first, forward_to=router)
    assert names.http("POST", f"/{router}/!subscriptions", {"target": second}).status == 422


@checks("dead_letter", "forward_to")
def test_a_message_that_returns_as_a_dead_letter_is_set_aside_in_the_end(names: Names) -> None:
    queue, again = names.queue("work", max_delivery_count=1), names.router("again")
    names.subscribe(again, queue)
    names.put(queue, max_delivery_count=1, dead_letter=again)
    names.send(queue, "poison")
    for _ in range(DEAD_LETTERINGS_PLAIN + DEAD_LETTER_HOPS_MAX + 1):
        names.fail(names.lock(queue))
    assert refused_transfers(names, queue, 1) == ["poison"]
    assert names.rest(queue) == names.rest(f"{queue}/$dlq") == []


@checks("dead_letter")
def test_where_a_rule_fails_a_full_target_of_dead_letters_refuses_no_sender(names: Names) -> None:
    graves, router, sibling = names.queue("graves", max_length=1), names.router(), names.queue("sibling")
    queue = names.queue("failing", dead_letter=graves)
    names.subscribe(router, sibling)
    names.subscribe(router, queue, rules={"it": {"filter": {"rule": {"sql": "10 / price = 5"}}}})
    for body in "abc":
        names.send(router, body, own={"price": 0})
    assert names.take(sibling, 3) == ["a", "b", "c"]
    names.until_figure(graves, "ready", 1)
    assert names.figures(f"{queue}/$dlq")["enqueued"] == 3
    assert names.take(graves, 1) == ["a"]
