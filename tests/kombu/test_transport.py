"""Kombu on a real broker: what is published comes to whom it should, and again when nobody settles it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from kombu import Connection, Consumer, Exchange, Message, Producer, Queue
from kombu.exceptions import ChannelError

from lightrail.client import LinkError, SendError
from lightrail.client.management import ROUTER
from lightrail.kombu import ConnectionGoneError

Connect = Callable[..., Connection]
DEADLINE_S = 20.0
LOCK_S = 2.0
"""Long enough for a machine that is busy for a second."""
SILENCE_S = 0.3
"""Seconds in which nothing comes where nothing should."""


@contextmanager
def inbox(connection: Connection, *queues: Queue, **options: object) -> Iterator[list[Message]]:
    found: list[Message] = []
    channel = connection.channel()
    prefetch = options.pop("prefetch", 0)
    channel.basic_qos(0, prefetch, False)
    with Consumer(channel, queues, callbacks=[lambda _, message: found.append(message)], **options):
        yield found
    channel.close()


def drain(connection: Connection, found: list[Message], count: int) -> list[object]:
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        connection.drain_events(timeout=max(0.01, deadline - time.monotonic()))
    return [message.payload for message in found]


def is_silent(connection: Connection) -> bool:
    try:
        connection.drain_events(timeout=SILENCE_S)
    except TimeoutError:
        return True
    return False


def test_a_message_there_and_back_with_headers_and_properties(connect: Connect) -> None:
    connection = connect()
    tasks = Queue("tasks", Exchange("tasks", "direct"), "tasks")
    producer = connection.Producer()
    producer.publish(
        {"id": 7},
        exchange=tasks.exchange,
        routing_key="tasks",
        declare=[tasks],
        serializer="json",
        headers={"id": "a", "timelimit": [None, 5], "shadow": None},
        correlation_id="c",
        reply_to="answers",
        priority=3,
    )
    with inbox(connection, tasks) as found:
        assert drain(connection, found, 1) == [{"id": 7}]
        (message,) = found
        assert message.headers == {"id": "a", "timelimit": [None, 5], "shadow": None}
        assert (message.properties["correlation_id"], message.properties["reply_to"]) == ("c", "answers")
        assert message.delivery_info == {
            "exchange": "tasks",
            "routing_key": "tasks",
            "priority": 3,
            "redelivered": False,
        }
        message.ack()
        assert is_silent(connection)
    assert tasks(connection.channel()).queue_declare(passive=True).message_count == 0


def test_what_is_not_acknowledged_comes_again_once_the_connection_ends(connect: Connect) -> None:
    queue = Queue("kept", Exchange("kept"), "kept")
    first, second = connect(), connect()
    first.Producer().publish("x", exchange=queue.exchange, routing_key="kept", declare=[queue])
    with inbox(first, queue) as found:
        drain(first, found, 1)
        first.release()
        with inbox(second, queue) as again:
            drain(second, again, 1)
            # A worker fetches ahead: its end in order counts no failed delivery.
            assert not again[0].delivery_info["redelivered"]
            again[0].ack()


def test_rejected_is_a_dead_letter_and_requeued_comes_again(connect: Connect) -> None:
    connection = connect()
    queue = Queue("rejects", Exchange("rejects"), "rejects")
    connection.Producer().publish("x", exchange=queue.exchange, routing_key="rejects", declare=[queue])
    with inbox(connection, queue) as found:
        drain(connection, found, 1)
        found[0].requeue()
        drain(connection, found, 2)
        found[1].reject()
        assert is_silent(connection)
    failed = connection.channel().basic_get("rejects/$dlq")
    assert failed.payload == "x"
    failed.ack()


def test_fanout_goes_to_each_queue_and_to_other_processes_bindings(connect: Connect) -> None:
    exchange = Exchange("news", "fanout")
    sender, one, two = connect(), connect(), connect()
    with (
        inbox(one, Queue("one", exchange, auto_delete=True)) as first,
        inbox(two, Queue("two", exchange, auto_delete=True)) as second,
    ):
        sender.Producer().publish("extra", exchange=exchange)
        assert (drain(one, first, 1), drain(two, second, 1)) == (["extra"], ["extra"])
        for found in (first, second):
            found[0].ack()


def test_topics_match_by_words_and_direct_keys_as_they_are(connect: Connect) -> None:
    connection = connect()
    topics, keys = Exchange("topics", "topic"), Exchange("keys", "direct", durable=False)
    with (
        inbox(connection, Queue("eu", topics, "order.*.eu"), no_ack=True) as eu,
        inbox(connection, Queue("all", topics, "order.#"), no_ack=True) as everything,
        inbox(connection, Queue("star", keys, "*"), no_ack=True) as star,
    ):
        producer = connection.Producer()
        for key in ("order.new.eu", "order.new.us", "return.eu"):
            producer.publish(key, exchange=topics, routing_key=key)
        for key in ("other", "*"):
            producer.publish(key, exchange=keys, routing_key=key)
        deadline = time.monotonic() + DEADLINE_S
        while len(eu) + len(everything) + len(star) < 4 and time.monotonic() < deadline:
            connection.drain_events(timeout=DEADLINE_S)
        assert [message.payload for message in eu] == ["order.new.eu"]
        assert [message.payload for message in everything] == ["order.new.eu", "order.new.us"]
        assert [message.payload for message in star] == ["*"]
        assert is_silent(connection)


def test_higher_priorities_come_first(connect: Connect) -> None:
    connection = connect()
    queue = Queue("ranked", Exchange("ranked"), "ranked", max_priority=9)
    producer = connection.Producer()
    for priority in (0, 9, 5, 1):
        producer.publish(
            priority, exchange=queue.exchange, routing_key="ranked", declare=[queue], priority=priority
        )
    with inbox(connection, queue, no_ack=True) as found:
        assert drain(connection, found, 4) == [9, 5, 1, 0]


def test_the_broker_keeps_a_task_until_its_eta(connect: Connect) -> None:
    connection = connect()
    queue = Queue("later", Exchange("later"), "later")
    producer = Producer(connection, queue.exchange, "later")
    producer.maybe_declare(queue)
    due = datetime.now(UTC) + timedelta(seconds=1)
    producer.publish("late", headers={"eta": due.isoformat()}, declare=[queue])
    producer.publish("now", declare=[queue])
    with inbox(connection, queue, no_ack=True) as found:
        assert drain(connection, found, 2) == ["now", "late"]
        assert datetime.now(UTC) >= due - timedelta(milliseconds=50)


def test_no_more_than_the_prefetch_count_is_unsettled_and_cancelled_consumers_still_settle(
    connect: Connect,
) -> None:
    connection = connect()
    queue = Queue("few", Exchange("few"), "few")
    for number in range(6):
        connection.Producer().publish(
            number, exchange=queue.exchange, routing_key="few", declare=[queue], retry=True
        )
    found: list[Message] = []
    channel = connection.channel()
    channel.basic_qos(0, 2, False)
    consumer = Consumer(channel, [queue], callbacks=[lambda _, message: found.append(message)])
    consumer.consume()
    drain(connection, found, 2)
    assert is_silent(connection)
    found[0].ack()
    drain(connection, found, 3)
    assert is_silent(connection)
    channel.basic_qos(0, 3, False)
    drain(connection, found, 4)
    assert is_silent(connection)
    consumer.cancel()
    for message in found[1:]:
        message.ack()
    channel.close()
    with inbox(connection, queue) as rest:
        assert drain(connection, rest, 2) == [4, 5]
        for message in rest:
            message.ack()


def test_get_takes_one_or_finds_nothing(connect: Connect) -> None:
    connection = connect(transport_options={"get_timeout": DEADLINE_S})
    simple = connection.SimpleQueue("simple")
    simple.put({"a": 1})
    channel = connection.channel()
    message = channel.basic_get("simple")
    message.ack()
    assert message.payload == {"a": 1}
    assert connect().channel().basic_get("simple") is None
    simple.close()


def test_what_a_consumer_renews_stays_its_own_and_what_it_does_not_comes_again(connect: Connect) -> None:
    options = {"queue_policy": {"lock_duration": LOCK_S, "max_delivery_count": 0}}
    keeps = connect(transport_options={**options, "renew_for": DEADLINE_S})
    forgets = connect(transport_options=options)
    queue = Queue("locked")
    producer = keeps.Producer()
    producer.publish("kept", routing_key="locked", declare=[queue])
    with inbox(keeps, queue, prefetch=1) as kept:
        assert drain(keeps, kept, 1) == ["kept"]
        producer.publish("forgotten", routing_key="locked")
        with inbox(forgets, queue) as forgotten:
            # Each time a lock has run out: the other one would have, too.
            assert drain(forgets, forgotten, 3) == ["forgotten"] * 3
        kept[0].ack()
    with inbox(forgets, queue) as left:
        assert drain(forgets, left, 1) == ["forgotten"]
        assert is_silent(forgets)


def test_a_task_for_a_queue_that_is_not_there_is_refused_and_a_reply_is_dropped(connect: Connect) -> None:
    connection = connect()
    connection.channel().queue_declare("there")
    producer = connection.Producer()
    with pytest.raises(SendError):
        producer.publish("task", exchange="", routing_key="nowhere")
    producer.publish("reply", exchange="", routing_key="nowhere", delivery_mode="transient")
    with pytest.raises(LinkError):
        connection.channel().basic_consume("nowhere", callback=print)


def test_a_router_that_kombu_did_not_declare_is_no_exchange_to_bind_to(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    address = channel._names.exchange("ours")
    channel.connection.management.create(ROUTER, address, {"description": "prices"})
    with pytest.raises(ChannelError, match=r"expected .* that Kombu declared.* found 'prices'"):
        channel.queue_bind("anything", "ours", "key")


def test_a_channel_forgets_consumers_that_were_cancelled(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    Queue("often")(channel).queue_declare()
    for _ in range(5):
        tag = channel.basic_consume("often", callback=print)
        channel.basic_cancel(tag)
    assert len(channel._cancelled) == 1


def test_a_queue_that_ended_since_it_was_declared_is_there_when_it_is_bound(connect: Connect) -> None:
    """It was another process's, whose last consumer has left in between."""
    connection = connect()
    channel = connection.default_channel
    exchange = Exchange("again", type="direct")
    exchange(channel).declare()
    queue = Queue("again", exchange, routing_key="again", auto_delete=True)
    channel.queue_declare("again", auto_delete=True)
    channel.queue_delete("again")
    queue(channel).queue_bind()
    connection.Producer(exchange=exchange, routing_key="again").publish("kept")
    with connection.SimpleQueue(queue) as simple:
        message = simple.get(timeout=10)
        assert message.payload == "kept"
        message.ack()


def test_queues_of_one_consumer_and_their_bindings_end_with_it(connect: Connect) -> None:
    connection = connect()
    exchange = Exchange("ends", "fanout")
    queue = Queue("ends", exchange, auto_delete=True)
    with inbox(connection, queue, no_ack=True):
        pass
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            queue(connection.channel()).queue_declare(passive=True)
        except connection.channel_errors:
            break
        assert time.monotonic() < deadline
    connection.Producer().publish("nobody", exchange=exchange)


def test_no_broker_is_a_connection_error(connect: Connect) -> None:
    with pytest.raises(ConnectionGoneError), Connection("lightrail://127.0.0.1:1") as connection:
        connection.transport.establish_connection()
