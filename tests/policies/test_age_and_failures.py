"""What becomes of messages that get old or fail: expiry, delivery counts, dead letters."""

import time

import pytest
from proton import Message
from proton.utils import BlockingConnection

from tests.policies.driver import Names, listen, reject, seconds, send, transferred
from tests.policies.laws import checks
from tests.support import wait


@checks("max_age")
def test_a_message_expires_at_its_age_and_not_before(names: Names) -> None:
    queue = names.queue(max_age=0.4)
    names.send(queue, "old")
    (seen,) = names.peek(queue)
    assert seconds(seen["expires_at"]) - seconds(seen["enqueued_at"]) == pytest.approx(0.4, abs=0.001)
    names.until_figure(queue, "expired", 1)
    assert names.rest(queue) == []
    dead = names.dead(queue)
    assert dead.body == b"old"
    assert dead.properties["Annotations"]["x-opt-dead-letter-reason"] == "expired"


@checks("max_age")
def test_a_shorter_ttl_of_its_own_counts_and_a_longer_one_does_not(
    names: Names, amqp: BlockingConnection
) -> None:
    long, short = names.queue("long", max_age=3600), names.queue("short", max_age=0.2)
    send(amqp, long, Message(body="own", ttl=0.2), Message(body="stays"))
    send(amqp, short, Message(body="of the queue", ttl=3600))
    names.until_figure(long, "expired", 1)
    names.until_figure(short, "expired", 1)
    assert names.texts(long) == ["stays"]


@checks("expired")
def test_what_expires_is_discarded_where_the_policy_says_so_and_failures_are_not(names: Names) -> None:
    queue = names.queue(max_age=0.4, expired="discard", max_delivery_count=1)
    names.send(queue, "old")
    names.until_figure(queue, "expired", 1)
    names.put(queue, expired="discard", max_delivery_count=1)
    names.send(queue, "bad")
    names.fail(names.lock(queue))
    assert names.dead(queue).body == b"bad"
    assert names.rest(f"{queue}/$dlq") == []
    names.put(queue, max_age=0.2)
    names.send(queue, "old again")
    assert names.dead(queue).body == b"old again"


@checks("max_delivery_count")
@pytest.mark.parametrize("count", [1, 3])
def test_so_many_failures_make_a_dead_letter(names: Names, count: int) -> None:
    queue = names.queue(max_delivery_count=count)
    names.send(queue, "bad")
    for failed in range(count):
        locked = names.lock(queue)
        assert locked.properties["DeliveryCount"] == failed
        names.fail(locked)
    dead = names.dead(queue)
    assert dead.properties["Annotations"]["x-opt-dead-letter-reason"] == "max-delivery-count"
    assert names.rest(queue) == []


@checks("max_delivery_count")
def test_zero_is_never(names: Names) -> None:
    queue = names.queue(max_delivery_count=0)
    names.send(queue, "again")
    for failed in range(15):
        locked = names.lock(queue)
        assert locked.properties["DeliveryCount"] == failed
        names.fail(locked)
    assert names.texts(queue) == ["again"]


def due(names: Names, queue: str) -> float:
    """When the only message of a queue, which waits, is delivered again, in seconds since 1970."""
    (seen,) = names.peek(queue)
    assert seen["state"] == "delayed"
    return seconds(seen["due_at"])


@checks("retry_delay", "retry_growth", "retry_delay_max")
def test_a_failed_message_waits_longer_each_time_up_to_the_bound(names: Names) -> None:
    queue = names.queue(retry_delay=0.2, retry_growth=1.5, retry_delay_max=0.4)
    names.send(queue, "bad")
    for failed, wait_s in enumerate((0.2, 0.3, 0.4, 0.4)):
        locked = names.lock(queue)
        assert locked.properties["DeliveryCount"] == failed
        before = time.time()
        names.fail(locked)
        until = due(names, queue)
        # The broker reads its clock after our first reading of the clock and before our second one.
        assert before + wait_s - 0.002 <= until <= time.time() + wait_s + 0.002
        assert names.figures(queue)["delayed"] == 1
        names.send(queue, "good")
        assert names.take(queue) == ["good"]
    assert names.complete(names.lock(queue)) == 200
    assert time.time() >= until - 0.002


@checks("retry_delay")
def test_released_messages_do_not_wait_nor_any_without_the_policy(
    names: Names, amqp: BlockingConnection
) -> None:
    queue = names.queue(retry_delay=3600)
    names.send(queue, "first")
    receiver = listen(amqp, queue)
    assert receiver.receive(timeout=20).body == "first"
    receiver.release(delivered=False)
    receiver.close()
    names.fail(names.lock(queue))
    assert names.figures(queue)["delayed"] == 1
    names.put_now(queue, max_delivery_count=9)
    assert names.take(queue) == ["first"]


@checks("dead_letter")
def test_a_rejected_message_goes_to_the_name_with_reason_source_time_and_error(
    names: Names, amqp: BlockingConnection
) -> None:
    graves = names.queue("graves")
    queue = names.queue("queue", dead_letter=graves)
    names.send(queue, "bad", MessageId="m", own={"colour": "red"})
    before = time.time()
    reject(amqp, listen(amqp, queue), "app:bad", "no such order")
    got = names.receive(graves)
    assert got.body == b"bad"
    assert got.headers["lightrail-property-colour"] == '"red"'
    assert got.properties["MessageId"] == "m"
    notes = got.properties["Annotations"]
    assert notes["x-opt-dead-letter-reason"] == "rejected"
    assert notes["x-opt-dead-letter-source"] == queue
    assert notes["x-opt-dead-letter-condition"] == "app:bad"
    assert notes["x-opt-dead-letter-description"] == "no such order"
    assert notes["x-opt-dead-letter-count"] == 1
    assert before - 0.001 <= seconds(notes["x-opt-dead-letter-time"]) <= time.time()
    wait.until(lambda: names.figures(f"{queue}/$dlq")["ready"] == 0, "nothing stays behind")


@checks("dead_letter")
def test_the_first_error_stays_with_a_message_that_fails_again(
    names: Names, amqp: BlockingConnection
) -> None:
    graves = names.queue("graves")
    queue = names.queue("queue", dead_letter=graves)
    names.send(queue, "bad")
    reject(amqp, listen(amqp, queue), "app:first", "no such order")
    reject(amqp, listen(amqp, graves), "app:second", "nobody can mend it")
    notes = names.dead(graves).properties["Annotations"]
    assert notes["x-opt-dead-letter-condition"] == "app:first"
    assert notes["x-opt-dead-letter-description"] == "no such order"
    assert notes["x-opt-dead-letter-source"] == graves
    assert notes["x-opt-dead-letter-count"] == 2


@checks("dead_letter")
def test_dead_letters_are_sent_back_to_where_they_came_from(names: Names, amqp: BlockingConnection) -> None:
    graves = names.queue("graves")
    queues = [names.queue(name, dead_letter=graves) for name in ("a", "b")]
    for queue in queues:
        names.send(queue, queue)
        reject(amqp, listen(amqp, queue), "app:bad", "later")
    names.until_figure(graves, "ready", 2)
    transferred(names, graves, None, mode="redrive")
    assert [names.take(queue) for queue in queues] == [[queue] for queue in queues]


@checks("retry_delay")
def test_a_dead_letter_that_fails_waits_as_its_queue_says_and_a_redrive_takes_the_others(
    names: Names, amqp: BlockingConnection
) -> None:
    queue = names.queue(retry_delay=3600)
    for body in ("bad", "good"):
        names.send(queue, body)
        reject(amqp, listen(amqp, queue), "app:bad", "later")
    names.fail(names.lock(f"{queue}/$dlq"))
    assert [names.figures(f"{queue}/$dlq")[state] for state in ("ready", "delayed")] == [1, 1]
    counts = names.http("GET", f"/{queue}?api-version=2021-05").body.decode()
    assert "DeadLetterMessageCount>2<" in counts
    assert transferred(names, f"{queue}/$dlq", None, mode="redrive") == 1
    assert names.take(queue) == ["good"]
    assert [each["state"] for each in names.peek(f"{queue}/$dlq")] == ["delayed"]
    # Without the policy it is ready at once, or after the short pace of dead letters.
    names.put_now(queue)
    names.until_figure(f"{queue}/$dlq", "ready", 1)
    assert transferred(names, f"{queue}/$dlq", None, mode="redrive") == 1
    assert names.take(queue) == ["bad"]


@checks("dead_letter")
def test_a_router_takes_dead_letters_too(names: Names) -> None:
    router, audit = names.router("failed"), names.queue("audit")
    names.subscribe(router, audit)
    queue = names.queue("queue", dead_letter=router, max_delivery_count=1)
    names.send(queue, "bad")
    names.fail(names.lock(queue))
    assert names.take(audit) == ["bad"]
