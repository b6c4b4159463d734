"""Actions of rules that set times: what counts in the queue of a subscription."""

import asyncio
import time
from typing import Any

from proton import Message
from proton.utils import BlockingConnection

from lightrail.client import connect
from tests.policies.driver import Names, outcome, seconds
from tests.policies.laws import checks
from tests.policies.test_routers import lives, near
from tests.support import wait
from tests.support.batches import message as batched
from tests.support.batches import post


def rules(*texts: str) -> dict[str, Any]:
    """Rules that every message matches, each with an action."""
    return {f"r{n}": {"filter": None, "action": {"rule": {"sql": text}}} for n, text in enumerate(texts)}


def until_stored(names: Names, queue: str, count: int) -> None:
    """Waits until a queue has so many messages."""
    wait.until(lambda: len(names.peek(queue)) == count, f"{count} messages are in {queue}")


def until_ready(names: Names, queue: str, count: int) -> None:
    """Waits until so many messages of a queue wait no longer."""

    def are_ready() -> bool:
        return [each["state"] for each in names.peek(queue)] == ["ready"] * count

    wait.until(are_ready, f"{count} messages of {queue} are ready")


def commit(names: Names, router: str, *bodies: str) -> None:
    """Sends messages in a transaction."""

    async def send() -> None:
        async with (
            connect(names.broker.amqp) as connection,
            connection.sender(router) as sender,
            connection.transaction() as transaction,
        ):
            for body in bodies:
                await transaction.send(sender, body)

    asyncio.run(send())


@checks("max_age")
def test_a_time_to_live_of_a_rule_counts_in_its_subscription_and_nowhere_else(
    names: Names, amqp: BlockingConnection
) -> None:
    router, inner = names.router(max_age=100), names.router("inner")
    long, plain, short, none = (
        names.queue("long"),
        names.queue("plain"),
        names.queue("short"),
        names.queue("none"),
    )
    aged, end, behind = names.queue("aged", max_age=20), names.queue("end"), names.queue("behind")
    source = names.queue("source", forward_to=end)
    names.subscribe(router, plain)
    names.subscribe(router, long, rules=rules("SET sys.TimeToLive = '01:00:00'"))
    names.subscribe(router, short, rules=rules("SET sys.TimeToLive = '00:00:50'; SET a = 1"))
    names.subscribe(router, none, rules=rules("REMOVE sys.TimeToLive"))
    for target in (aged, source, inner):
        names.subscribe(router, target, rules=rules("SET sys.TimeToLive = '00:00:50'"))
    names.subscribe(inner, behind, rules=rules("SET b = 2"))
    sender = amqp.create_sender(router)
    for message in (Message(body="amqp"), Message(body="amqp own", ttl=10)):
        assert outcome(amqp, sender, message) == "accepted"
    names.send(router, "http")
    names.send(router, "http own", TimeToLive=10)
    numbered = [batched("numbered"), batched("numbered own", ttl_ms=10_000), batched("numbered too")]
    assert [post(names.http, router, "p", 0, numbered).status for _ in range(2)] == [200, 200]
    commit(names, router, "committed")
    found = lives(names, plain)
    assert found == near({body: 10 if "own" in body else 100 for body in found})
    assert len(found) == 8
    for queue, life in ((long, 100), (short, 50), (none, 100), (aged, 20), (end, 50), (behind, 50)):
        expected = dict.fromkeys(found, life)
        # Numbered batches are always stored in sources, from where they are transferred.
        until_stored(names, queue, 8)
        assert lives(names, queue) == near(expected), queue


@checks("max_age", "forward_to")
def test_so_does_one_of_a_topic_behind_a_queue_that_forwards(names: Names) -> None:
    router, second = names.router(), names.router("second", max_age=200)
    source, plain, changed = (
        names.queue("source", forward_to=second),
        names.queue("plain"),
        names.queue("changed"),
    )
    names.subscribe(router, source, rules=rules("SET sys.TimeToLive = '00:05:00'"))
    names.subscribe(second, plain)
    names.subscribe(second, changed, rules=rules("SET sys.TimeToLive = '00:00:30'"))
    names.send(router, "x")
    names.send(source, "y")
    for queue, expected in ((plain, {"x": 200, "y": 200}), (changed, {"x": 30, "y": 30})):
        until_stored(names, queue, 2)
        assert lives(names, queue) == near(dict[str, float | None](expected))


IN_A_MOMENT = (
    "SET sys.TimeToLive = '00:00:00.6'; SET sys.ScheduledEnqueueTimeUtc = sys.ExpiresAtUtc; "
    "SET sys.TimeToLive = '00:01:00'"
)
"""As rules of Azure Service Bus delay messages, since they have no function for the present time."""


@checks("delay", "max_age", "forward_to")
def test_a_message_that_a_rule_schedules_waits_in_its_subscription_and_lives_from_then_on(
    names: Names, amqp: BlockingConnection
) -> None:
    router, second = names.router(max_age=40), names.router("second")
    late, aged, end = (names.queue(each, delay=True) for each in ("late", "aged", "end"))
    plain, behind = names.queue("plain"), names.queue("behind")
    names.put(aged, delay=True, max_age=20)
    names.subscribe(router, plain)
    sources = [
        names.queue("to_queue", forward_to=end),
        names.queue("to_router", delay=True, forward_to=second),
    ]
    for target in (late, aged, *sources):
        names.subscribe(router, target, rules=rules(IN_A_MOMENT))
    names.subscribe(second, behind)
    sender = amqp.create_sender(router)
    began = time.time()
    assert outcome(amqp, sender, Message(body="amqp", ttl=0.1)) == "accepted"
    names.send(router, "http")
    assert post(names.http, router, "p", 0, [batched("numbered")]).status == 200
    commit(names, router, "committed")
    bodies = ["amqp", "http", "numbered", "committed"]
    for queue, life in ((late, 40), (aged, 20), (end, 40), (behind, 40)):
        until_ready(names, queue, len(bodies))
        assert lives(names, queue) == near(dict.fromkeys(bodies, life)), queue
        # Numbered batches are always stored in sources, and forwarded from there.
        assert sorted(names.texts(queue)) == sorted(bodies) if queue is end else names.texts(queue) == bodies
        assert all(seconds(each["enqueued_at"]) >= began + 0.599 for each in names.peek(queue))
    assert [each["sequence"] for each in names.peek(late)] == [4, 5, 6, 7]
    # In the other queues the message has the time of its sender.
    assert names.texts(plain) in (bodies, bodies[1:])


@checks("expired")
def test_what_a_rule_lets_expire_is_a_dead_letter_of_its_subscription(names: Names) -> None:
    router, queue, other = names.router(), names.queue(expired="dead_letter"), names.queue("other")
    names.subscribe(router, queue, rules=rules("SET sys.TimeToLive = '00:00:00.05'"))
    names.subscribe(router, other)
    names.send(router, "x", TimeToLive=1_000)
    assert names.dead(queue).properties["Annotations"]["x-opt-dead-letter-reason"] == "expired"
    assert names.texts(other) == ["x"]


@checks("dead_letter")
def test_a_message_without_a_value_for_a_time_is_a_dead_letter_and_its_sender_is_not_refused(
    names: Names,
) -> None:
    router, queue = names.router(), names.queue()
    names.subscribe(router, queue, rules=rules("SET sys.TimeToLive = life"))
    names.send(router, "bad", own={"life": "soon"})
    names.send(router, "good", own={"life": "00:01:00"})
    assert lives(names, queue) == near({"good": 60})
    dead = names.dead(queue)
    assert dead.body == b"bad"
    why = dead.properties["Annotations"]["x-opt-dead-letter-description"]
    assert "a duration above 0, such as '00:10:00'" in why
    assert "sys.TimeToLive, found 'soon'" in why


def test_a_rule_with_a_value_that_is_no_time_is_refused_with_its_place(names: Names) -> None:
    router, queue = names.router(), names.queue()
    asked = {"target": queue, "rules": rules("SET sys.TimeToLive = 60")}
    answer = names.http("POST", f"/{router}/!subscriptions", asked)
    assert answer.status == 422
    assert "expected a duration above 0" in answer.json()["detail"]
    assert "at character 22" in answer.json()["detail"]
