"""Routers: who gets a message, how many may subscribe, what nobody gets, how long senders wait."""

import itertools
import threading
import time

from proton import Message
from proton.utils import BlockingConnection

from tests.policies.driver import Names, outcome
from tests.policies.laws import checks
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
