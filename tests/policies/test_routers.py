"""Routers: who gets a message, how many may subscribe, what nobody gets, how long senders wait."""

import asyncio
import itertools
import threading
import time
from collections.abc import Mapping

import pytest
from proton import Message
from proton.utils import BlockingConnection

from lightrail.client import connect
from tests.policies.driver import Names, outcome, seconds
from tests.policies.laws import checks
from tests.support.batches import message as batched
from tests.support.batches import post
from tests.support.hook import Answer, Got, Hook
from tests.support.http_client import Http


def fed(names: Names, router: str, count: int, **fields: object) -> list[str]:
    """So many queues that a router feeds."""
    queues = [names.queue(f"{router.rpartition('/')[2]}{number}") for number in range(count)]
    for queue in queues:
        names.subscribe(router, queue, **fields)
    return queues


@checks("distribution")
def test_all_is_for_every_subscriber(names: Names) -> None:
    router = names.router(distribution="all")
    queues = fed(names, router, 3)
    names.send(router, "1", "2")
    assert [names.rest(queue) for queue in queues] == [["1", "2"]] * 3


@checks("distribution")
def test_one_is_for_one_of_them_and_each_gets_some(names: Names, amqp: BlockingConnection) -> None:
    router = names.router(distribution="one")
    queues = fed(names, router, 2)
    sender = amqp.create_sender(router)
    for number in range(100):
        sender.send(Message(body=str(number)))
    found = [names.rest(queue) for queue in queues]
    assert sorted(itertools.chain(*found), key=int) == [str(number) for number in range(100)]
    # Both get some with all but one in 10^29 runs, and each in order.
    assert all(found)
    assert all(each == sorted(each, key=int) for each in found)


@checks("distribution")
def test_a_router_behind_a_router_is_one_of_its_subscribers(names: Names) -> None:
    every, one = names.router("every"), names.router("one", distribution="one")
    (audit,) = fed(names, every, 1)
    names.subscribe(every, one)
    workers = fed(names, one, 2)
    names.send(every, "job")
    assert names.take(audit) == ["job"]
    assert sorted(names.rest(queue) for queue in workers) == [[], ["job"]]


@checks("max_subscribers")
def test_so_many_subscriptions_and_no_more(names: Names) -> None:
    router = names.router(max_subscribers=2)
    fed(names, router, 2)
    third = names.queue("third")
    refused = names.http("POST", f"/{router}/!subscriptions", {"target": third})
    assert refused.status == 409
    assert "max_subscribers" in refused.json()["detail"]
    (first, _) = names.http("GET", f"/{router}/!subscriptions").json()["subscriptions"]
    assert names.http("DELETE", f"/{router}/!subscriptions/{first['id']}").status == 204
    names.subscribe(router, third)


@checks("unroutable")
def test_what_nobody_gets_is_rejected_with_a_reason(names: Names, amqp: BlockingConnection) -> None:
    router = names.router(unroutable="reject")
    names.subscribe(router, names.queue(), filter={"subject": "wanted"})
    sender = amqp.create_sender(router)
    assert outcome(amqp, sender, Message(subject="wanted")) == "accepted"
    assert outcome(amqp, sender, Message(subject="other")) == "amqp:not-found"
    assert names.post(router, Subject="other").status == 404


@checks("unroutable")
def test_or_it_is_accepted_and_dropped(names: Names, amqp: BlockingConnection) -> None:
    router = names.router(unroutable="drop")
    assert outcome(amqp, amqp.create_sender(router), Message(body="x")) == "accepted"
    assert names.post(router).status == 201


@checks("buffer_timeout")
def test_a_sender_waits_for_a_first_subscriber(names: Names) -> None:
    router, queue = names.router(buffer_timeout=60), names.queue()
    statuses: list[int] = []

    def send() -> None:
        with Http(names.broker.http, deadline_s=60) as http:
            statuses.append(http("POST", f"/{router}", "x").status)

    sending = threading.Thread(target=send)
    sending.start()
    names.subscribe(router, queue)
    sending.join(30)
    assert statuses == [201]
    assert len(names.rest(queue)) == 1


@checks("buffer_timeout")
def test_when_the_time_is_over_nobody_gets_it(names: Names, amqp: BlockingConnection) -> None:
    router = names.router(buffer_timeout=0.3)
    sender = amqp.create_sender(router)
    started = time.monotonic()
    assert outcome(amqp, sender, Message(body="x")) == "amqp:not-found"
    assert time.monotonic() - started >= 0.3


@checks("push_retries", "push_backoff")
def test_a_push_is_tried_so_often_with_pauses_that_double(names: Names) -> None:
    times: list[float] = []

    def answer(_: Got) -> Answer:
        times.append(time.monotonic())
        return 500, {}, b""

    with Hook(answer) as hook:
        router = names.router(push_retries=3, push_backoff=0.1)
        made = names.http("POST", f"/{router}/!subscriptions", {"target": f"{hook.url}/hook"})
        assert made.status == 201
        names.send(router, "bad")
        dead = names.dead(f"{router}/$subscriptions/{made.json()['id']}")
    assert dead.body == b"bad"
    assert dead.properties["Annotations"]["x-opt-dead-letter-condition"] == "lightrail:push-failed"
    pauses = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert len(pauses) == 3
    for pause, least in zip(pauses, (0.1, 0.2, 0.4), strict=True):
        # Pauses are spread a little, so that many messages do not come at once.
        assert pause >= least / 2


@checks("push_retries")
def test_without_retries_one_failure_is_the_end(names: Names) -> None:
    with Hook(lambda _: (500, {}, b"")) as hook:
        router = names.router(push_retries=0)
        made = names.http("POST", f"/{router}/!subscriptions", {"target": f"{hook.url}/hook"})
        names.send(router, "bad")
        assert names.dead(f"{router}/$subscriptions/{made.json()['id']}").body == b"bad"
        assert len(hook.got) == 1


def lives(names: Names, queue: str) -> dict[str, float | None]:
    """How long the messages of a queue may be in it, in seconds by body."""
    return {
        each["body"]["text"]: None
        if each["expires_at"] is None
        else seconds(each["expires_at"]) - seconds(each["enqueued_at"])
        for each in names.peek(queue)
    }


def near(expected: Mapping[str, float | None]) -> dict[str, object]:
    """Some milliseconds may pass between the process that routes and the shard."""
    return {body: life if life is None else pytest.approx(life, abs=1) for body, life in expected.items()}


@checks("max_age")
def test_messages_expire_at_the_age_of_a_router_in_all_queues_behind_it(
    names: Names, amqp: BlockingConnection
) -> None:
    router = names.router(max_age=100)
    plain, short = names.queue("plain"), names.queue("short", max_age=50)
    inner, behind = names.router("inner", max_age=25), names.queue("behind")
    for target in (plain, short, inner):
        names.subscribe(router, target)
    names.subscribe(inner, behind)
    sender = amqp.create_sender(router)
    for message in (
        Message(body="amqp"),
        Message(body="own", ttl=10),
        Message(body="longer", ttl=3600),
    ):
        assert outcome(amqp, sender, message) == "accepted"
    names.send(router, "http")
    names.send(router, "http own", TimeToLive=10)
    numbered = [batched("numbered"), batched("numbered own", ttl_ms=10_000)]
    assert [post(names.http, router, "p", 0, numbered).status for _ in range(2)] == [200, 200]
    for queue, life in ((plain, 100), (short, 50), (behind, 25)):
        found = lives(names, queue)
        assert found == near(
            {body: 10 if "own" in body else life for body in found} | {"longer": life, "numbered": life}
        )
        assert len(names.peek(queue)) == 7


@checks("max_age")
def test_a_changed_age_of_a_router_is_that_of_later_messages(names: Names) -> None:
    router, queue = names.router(max_age=0.4), names.queue()
    names.subscribe(router, queue)
    names.send(router, "old")
    names.until_figure(queue, "expired", 1)
    assert names.dead(queue).properties["Annotations"]["x-opt-dead-letter-reason"] == "expired"
    names.put(router, "router", max_age=100)
    names.send(router, "aged")
    names.put(router, "router")
    names.send(router, "ageless")
    assert lives(names, queue) == near({"aged": 100, "ageless": None})


@checks("max_age")
def test_messages_of_a_transaction_expire_at_the_age_of_a_router(names: Names) -> None:
    router = names.router(max_age=100)
    plain, inner, behind = names.queue("plain"), names.router("inner", max_age=25), names.queue("behind")
    names.subscribe(router, plain)
    names.subscribe(router, inner)
    names.subscribe(inner, behind)

    async def send() -> None:
        async with (
            connect(names.broker.amqp) as connection,
            connection.sender(router) as sender,
            connection.transaction() as transaction,
        ):
            await transaction.send(sender, "x")

    asyncio.run(send())
    assert lives(names, plain) == near({"x": 100})
    assert lives(names, behind) == near({"x": 25})
