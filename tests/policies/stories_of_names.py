"""Stories of names: their roles, times and subscriptions are those of before in the next broker."""

import itertools
from collections.abc import Iterator

from proton.utils import BlockingConnection

from tests.policies.driver import Names, Shared, instant, refused
from tests.policies.laws import survives
from tests.support import wait
from tests.support.hook import Answer, Got, Hook
from tests.support.http_client import Http


@survives("expires_at")
def names_expire_at_their_time_and_are_renewed(names: Names) -> Iterator[None]:
    over, later = instant(0.5), instant(3600)
    short, long = names.queue("short", expires_at=over), names.queue("long", expires_at=later)
    names.send(long, "kept")
    yield
    wait.until(lambda: names.role(short) == "none", "it falls back")
    assert names.policy(long) == {"expires_at": later}
    names.put(long, expires_at=instant(7200))
    assert names.texts(long) == ["kept"]


@survives("auto_create", "template")
def queues_come_into_being_as_above_or_not_at_all(names: Names) -> Iterator[None]:
    names.give("closed", "none", auto_create=False)
    names.give("bounded", "none", template={"max_length": 1})
    names.send(names.name("bounded/before"), "x")
    yield
    assert names.post(names.name("closed/q")).status == 404
    for queue in (names.name("bounded/before"), names.name("bounded/after")):
        if queue.endswith("after"):
            names.send(queue, "x")
        assert names.policy(queue) == {"max_length": 1}
        assert names.post(queue).status == 503


@survives("reference")
def metadata_points_where_it_did(names: Names) -> Iterator[None]:
    there = "amqps://other.example/orders"
    name = names.give("moved", "metadata", reference=there)
    yield
    answer = names.http("GET", f"/{name}")
    assert (answer.status, answer.headers["location"]) == (303, there)
    with names.amqp() as amqp:
        assert refused(amqp, name).name == "amqp:link:redirect"


@survives("status")
def who_was_refused_is_refused(names: Names) -> Iterator[None]:
    queue, router = names.queue(), names.router(status="disabled")
    names.send(queue, "x")
    names.put(queue, status="receive_disabled")
    yield
    assert names.post(router).status == 409
    assert names.receive(queue, 1).status == 409
    names.put(queue)
    assert names.rest(queue) == ["x"]


@survives("forward_to")
def what_is_forwarded_is_there_and_so_is_what_could_not_be(names: Names) -> Iterator[None]:
    target = names.queue("target", max_length=3)
    source, router = names.queue("source", forward_to=target), names.router()
    names.subscribe(router, source)
    for body in ("1", "2"):
        names.send(router, body)
    yield
    names.send(source, "3", "4")
    wait.until(lambda: len(names.peek(f"{source}/$transfer/$dlq")) == 1, "what does not fit is kept")
    assert names.rest(target) == ["1", "2", "3"]
    assert names.rest(f"{source}/$transfer/$dlq") == ["4"]


@survives("distribution")
def routers_distribute_as_before_and_what_they_gave_is_there(names: Names) -> Iterator[None]:
    every, one = names.router("every"), names.router("one", distribution="one")
    queues = {
        router: [names.queue(f"{router.rpartition('/')[2]}{number}") for number in range(2)]
        for router in (every, one)
    }
    for router, fed in queues.items():
        for queue in fed:
            names.subscribe(router, queue)
        names.send(router, "before")
    yield
    for router in queues:
        names.send(router, "after")
    found = {router: [names.rest(queue) for queue in fed] for router, fed in queues.items()}
    assert found[every] == [["before", "after"]] * 2
    assert sorted(itertools.chain(*found[one])) == ["after", "before"]


@survives("max_subscribers")
def subscribers_are_counted(names: Names) -> Iterator[None]:
    router = names.router(max_subscribers=1)
    names.subscribe(router, names.queue("first"))
    second = names.queue("second")
    yield
    assert names.http("POST", f"/{router}/!subscriptions", {"target": second}).status in (409, 422)
    assert len(names.http("GET", f"/{router}/!subscriptions").json()["subscriptions"]) == 1


@survives("unroutable")
def what_nobody_gets_is_refused_or_dropped(names: Names) -> Iterator[None]:
    strict, lax = names.router("strict"), names.router("lax", unroutable="drop")
    yield
    assert (names.post(strict).status, names.post(lax).status) == (404, 201)


@survives("buffer_timeout")
def senders_wait_for_a_first_subscriber(names: Names) -> Iterator[None]:
    router, queue = names.router(buffer_timeout=60), names.queue()
    yield
    with Http(names.broker.http, deadline_s=60) as sender:
        sender.ask("POST", f"/{router}?body=text")
        names.subscribe(router, queue)
        assert sender.answer().status == 201
    assert len(names.rest(queue)) == 1


@survives("push_retries", "push_backoff")
def what_was_not_pushed_yet_is_pushed(names: Names) -> Iterator[None]:
    works = False
    taken: list[bytes] = []

    def answer(got: Got) -> Answer:
        if works:
            taken.append(got.body)
        return (200 if works else 500), {}, b""

    with Hook(answer) as hook:
        # The pause grows to a hundred times this while the other stories are told.
        router = names.router(push_retries=1000, push_backoff=0.02)
        names.http("POST", f"/{router}/!subscriptions", {"target": f"{hook.url}/hook"})
        names.send(router, "before")
        wait.until(lambda: hook.got, "it was tried")
        yield
        works = True
        names.send(router, "after")
        wait.until(lambda: sorted(taken) == [b"after", b"before"], "both are pushed")


@survives("push_retries", "push_backoff")
def what_fails_to_the_end_is_a_dead_letter(names: Names) -> Iterator[None]:
    with Hook(lambda _: (500, {}, b"")) as hook:
        router = names.router(push_retries=1, push_backoff=0.2)
        made = names.http("POST", f"/{router}/!subscriptions", {"target": f"{hook.url}/hook"}).json()
        names.send(router, "before")
        yield
        queue = f"{router}/$subscriptions/{made['id']}"
        assert names.dead(queue).body == b"before"
        names.send(router, "after")
        assert names.dead(queue).body == b"after"
        assert len([got for got in hook.got if got.body == b"after"]) == 2


@survives("lifetime")
def subscriptions_of_clients_that_ended_with_the_broker_go(names: Names) -> Iterator[None]:
    router = names.router(unroutable="drop")
    client = BlockingConnection(f"amqp://{names.broker.amqp}", timeout=30)
    client.create_receiver(router, name="own")
    client.create_receiver(router, name="news|1", options=[Shared()])

    def subscriptions() -> list[object]:
        return list(names.http("GET", f"/{router}/!subscriptions").json()["subscriptions"])

    assert len(subscriptions()) == 2
    yield
    wait.until(lambda: not subscriptions(), "both are gone")
