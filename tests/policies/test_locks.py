"""Locks: how long a delivery is its consumer's, over HTTP and AMQP."""

import statistics
import time

import pytest
from proton import Message, Timeout
from proton.utils import BlockingConnection

from tests.policies.driver import Names, OfAzure, listen, nothing, send
from tests.policies.laws import checks
from tests.support import wait
from tests.support.amqp.proton_blocking import received

LATE_S = 0.05
ROUNDS = 5


@checks("lock_duration")
def test_a_lock_over_http_lasts_a_minute_unless_the_policy_says(names: Names) -> None:
    for queue, lasts in ((names.queue("minute"), 60), (names.queue("short", lock_duration=5), 5)):
        names.send(queue, "x")
        assert names.lock(queue).until - time.time() == pytest.approx(lasts, abs=2)


@checks("lock_duration")
def test_a_message_is_back_within_50_ms_of_the_deadline_and_never_before(names: Names) -> None:
    queue = names.queue(lock_duration=0.25, max_delivery_count=0)
    names.send(queue, "x")

    def quiet_round() -> bool:
        """Five locks that run out; False when this machine had other things to do."""
        late = []
        locked = names.lock(queue)
        for _ in range(5):
            until = locked.until
            locked = names.lock(queue)
            late.append(time.time() - until)
            # The time-out is told in milliseconds.
            assert late[-1] >= -0.001
        names.fail(locked)
        return statistics.median(late) <= LATE_S

    wait.until(quiet_round, "a median of at most 50 ms")


@checks("lock_duration")
def test_over_amqp_a_lock_runs_out_as_well_and_the_next_delivery_counts_it(
    names: Names, amqp: BlockingConnection
) -> None:
    queue = names.queue(lock_duration=0.3)
    send(amqp, queue, Message(body="x", durable=True))
    receiver = listen(amqp, queue, credit=2)
    receiver.receive()
    started = time.monotonic()
    again = receiver.receive()
    assert time.monotonic() - started >= 0.2
    assert (again.body, again.delivery_count) == ("x", 1)
    assert names.figures(queue)["locks_expired"] == 1
    # What the client says of the first delivery comes too late, and hurts nobody.
    receiver.accept()
    receiver.accept()
    wait.until(lambda: names.peek(queue) == [] or names.figures(queue)["locks_expired"] > 1, "it is settled")


@checks("lock_duration")
def test_without_it_a_delivery_over_amqp_is_the_links(names: Names, amqp: BlockingConnection) -> None:
    queue = names.queue()
    send(amqp, queue, Message(body="x"))
    receiver = listen(amqp, queue, credit=2)
    receiver.receive()
    with pytest.raises(Timeout):
        receiver.receive(timeout=0.5)
    receiver.accept()
    assert names.rest(queue) == []


@checks("lock_duration", "max_delivery_count")
def test_locks_that_run_out_are_failures_and_end_in_a_dead_letter(
    names: Names, amqp: BlockingConnection
) -> None:
    queue = names.queue(lock_duration=0.1, max_delivery_count=2)
    names.send(queue, "nobody completes it")
    names.lock(queue)
    names.lock(queue)
    (dead,) = received(listen(amqp, f"{queue}/$dlq"), 1)
    assert dead.annotations["x-opt-dead-letter-reason"] == "max-delivery-count"


@checks("lock_ends")
@pytest.mark.parametrize("ends", ["time", "link"])
def test_the_end_of_its_link_gives_a_message_of_azures_clients_back_where_the_policy_says_so(
    names: Names, amqp: BlockingConnection, ends: str
) -> None:
    queue = names.queue(ends, lock_duration=600, lock_ends=ends)
    names.send(queue, "x")
    receiver = listen(amqp, queue, option=OfAzure())
    assert receiver.receive(timeout=20).body == "x"
    receiver.close()
    if ends == "link":
        assert names.take(queue) == ["x"]
    else:
        assert nothing(amqp, listen(amqp, queue, 0))
        assert names.figures(queue)["in_flight"] == 1


@checks("lock_ends")
def test_other_clients_links_give_their_messages_back_with_every_policy(
    names: Names, amqp: BlockingConnection
) -> None:
    queue = names.queue(lock_duration=600)
    names.send(queue, "x")
    receiver = listen(amqp, queue)
    assert receiver.receive(timeout=20).body == "x"
    receiver.close()
    assert names.take(queue) == ["x"]
