"""azure-servicebus for Python and messages that are scheduled in a topic: subscriptions get them in time."""

import os
import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError

from lightrail.amqp.encoder import encode
from lightrail.amqp.values import Symbol, Timestamp, UInt
from tests.interop.azure_scene import client_for, key_of, received
from tests.interop.test_proton_security import admin
from tests.support import wait
from tests.support.amqp.frame_peer import Peer
from tests.support.amqp.transaction_peer import Client as Transactions
from tests.support.broker import Broker
from tests.support.moves import move
from tests.support.namespace import change, drop, give, named, permit, subscribe

HOUR = timedelta(hours=1)
SOON = timedelta(seconds=1.5)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("azure") / "data"
    key_of(data, "first")
    with Broker(data, "--service-bus-auto-create", "true", "--shards", "2") as started:
        yield started


def add(broker: Broker, topic: str, id: str, **policy: Any) -> str:
    """A subscription with a queue, whose name is returned."""
    target = f"{topic}/{id}"
    give(broker.data, target, role="queue", **policy)
    subscribe(broker.data, topic, target, id=id)
    return target


def texts(messages: Sequence[object]) -> list[str]:
    return [str(message) for message in messages]


def left(client: ServiceBusClient, queue: str) -> list[str]:
    """The messages that are ready in a queue."""
    with client.get_queue_receiver(queue) as receiver:
        return texts(receiver.peek_messages(50))


def test_a_scheduled_message_gets_to_the_subscriptions_that_there_are_when_it_is_due(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="router", unroutable="drop")
    add(guarded, queue, "before")
    timed = {"filter": None, "action": {"rule": {"sql": "SET sys.TimeToLive = '00:00:50'"}}}
    give(guarded.data, f"{queue}/timed", role="queue")
    subscribe(guarded.data, queue, f"{queue}/timed", id="timed", rules={"it": timed})
    with client.get_topic_sender(queue) as sender:
        soon = datetime.now(UTC) + timedelta(seconds=4)
        assert sender.schedule_messages([ServiceBusMessage("1"), ServiceBusMessage("2")], soon) == [1, 2]
        sender.send_messages(ServiceBusMessage("3", scheduled_enqueue_time_utc=soon))
        sender.send_messages(
            [ServiceBusMessage("4", scheduled_enqueue_time_utc=soon), ServiceBusMessage("now")]
        )
        assert left(client, f"{queue}/before") == ["now"]
        add(guarded, queue, "after")
        assert datetime.now(UTC) < soon
        everything = ["1", "2", "3", "4", "now"]
        for id, expected in (("before", everything), ("after", everything[:4]), ("timed", everything)):
            with client.get_subscription_receiver(queue, id) as receiver:
                found = received(receiver, len(expected))
                assert sorted(texts(found)) == expected
                for each in found:
                    if str(each) != "now":
                        assert each.enqueued_time_utc >= soon - timedelta(milliseconds=1)
                    # The time to live that a rule sets counts from then, too.
                    assert each.time_to_live == (timedelta(seconds=50) if id == "timed" else None)
                    receiver.complete_message(each)
    assert datetime.now(UTC) >= soon


def test_a_cancelled_message_gets_to_no_subscription(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="router")
    targets = [add(guarded, queue, "one"), add(guarded, queue, "two")]
    with client.get_topic_sender(queue) as sender:
        with pytest.raises(ServiceBusError, match="not scheduled"):
            sender.cancel_scheduled_messages(1)
        soon = datetime.now(UTC) + SOON
        numbers = sender.schedule_messages([ServiceBusMessage(text) for text in "abc"], soon)
        sender.cancel_scheduled_messages(numbers[:2])
        with pytest.raises(ServiceBusError, match="not scheduled"):
            sender.cancel_scheduled_messages(numbers[0])
        wait.until(lambda: [left(client, each) for each in targets] == [["c"]] * 2, "the third is there")
        with pytest.raises(ServiceBusError, match="not scheduled"):
            sender.cancel_scheduled_messages(numbers[2])


def test_the_time_to_live_begins_when_a_message_is_due(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="router")
    add(guarded, queue, "mine")
    soon, life = datetime.now(UTC) + SOON, timedelta(minutes=1)
    message = ServiceBusMessage("x", time_to_live=life)
    with (
        client.get_topic_sender(queue) as sender,
        client.get_subscription_receiver(queue, "mine") as receiver,
    ):
        sender.schedule_messages(message, soon)
        sender.send_messages(ServiceBusMessage("y", time_to_live=life, scheduled_enqueue_time_utc=soon))
        found = received(receiver, 2)
        assert sorted(texts(found)) == ["x", "y"]
        for each in found:
            assert soon + life <= each.expires_at_utc + timedelta(milliseconds=2)


def test_a_message_that_the_topic_rejects_when_due_is_a_dead_letter_with_the_reason(
    client: ServiceBusClient, guarded: Broker, queue: str, tmp_path: Path
) -> None:
    give(guarded.data, queue, role="router")
    with client.get_topic_sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC))
    with client.get_queue_receiver(f"{queue}/$scheduled/$dlq") as receiver:
        (dead,) = received(receiver, 1)
        assert str(dead) == "x"
        assert dead.dead_letter_error_description == (
            f"nobody subscribes to {queue}, or no filter lets this message pass"
        )
    add(guarded, queue, "mine")
    admin(guarded.data, "user", "add", "ann", password="secret")
    permit(guarded.data, "ann", queue, "send", "listen")
    password = tmp_path / "password"
    password.write_text("secret")
    ann = ("--url", f"http://{guarded.http}", "--user", "ann", "--password-file", str(password))
    admin(guarded.data, *ann, "dlq", "redrive", f"{queue}/$scheduled")
    with client.get_subscription_receiver(queue, "mine") as receiver:
        assert texts(received(receiver, 1)) == ["x"]


def test_what_one_subscription_refuses_is_stored_once_in_the_others(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    """The queues are on two shards, so that one may store a message that the other refuses."""
    give(guarded.data, queue, role="router")
    targets = [add(guarded, queue, id) for id in ("one", "two", "three", "four")]
    full = targets[0]
    shards = move(guarded.data, *targets)
    change(guarded.data, full, role="queue", max_length=0)
    with client.get_topic_sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC))
        others = [each for each in targets[1:] if shards[each] != shards[full]]
        assert others
        wait.until(lambda: all(left(client, each) == ["x"] for each in others), "the others have it")
        # The next attempt is in the second after the first.
        change(guarded.data, full, role="queue")
        wait.until(lambda: all(left(client, each) == ["x"] for each in targets), "all have it once")


@pytest.mark.parametrize("topic", [True, False])
def test_a_message_for_which_there_is_no_room_is_refused_at_once(
    client: ServiceBusClient, guarded: Broker, queue: str, topic: bool
) -> None:
    """Without an info in the error this client waits for its outcome for ever."""
    give(guarded.data, queue, role="router" if topic else "queue")
    full = add(guarded, queue, "mine") if topic else queue
    change(guarded.data, full, role="queue", max_length=1)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(full) as receiver:
        sender.send_messages(ServiceBusMessage("x"), timeout=10)
        with pytest.raises(ServiceBusQuotaExceededError):
            sender.send_messages(ServiceBusMessage("y"), timeout=10)
        receiver.complete_message(received(receiver, 1)[0])
        sender.send_messages(ServiceBusMessage("z"), timeout=10)
    assert left(client, full) == ["z"]


def test_scheduled_messages_survive_kill_9_and_moves(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = key_of(data, "shop")
    with Broker(data, "--service-bus-auto-create", "true", "--shards", "2") as broker:
        give(data, "t", role="router")
        add(broker, "t", "mine")
        with client_for(broker, key) as client, client.get_topic_sender("t") as sender:
            late = sender.schedule_messages(
                [ServiceBusMessage("a"), ServiceBusMessage("b")], datetime.now(UTC) + HOUR
            )
            move(data, "t/$scheduled")
            sender.cancel_scheduled_messages(late[0])
            sender.schedule_messages(ServiceBusMessage("soon"), datetime.now(UTC) + timedelta(seconds=3))
        os.kill(broker.pid("shard"), signal.SIGKILL)
        os.kill(broker.pid("gateway"), signal.SIGKILL)

        def found() -> list[str]:
            try:
                with client_for(broker, key) as client:
                    return left(client, "t/mine")
            except ServiceBusError:
                return []

        wait.until(lambda: found() == ["soon"], "the message arrives")
        with client_for(broker, key) as client, client.get_topic_sender("t") as sender:
            assert left(client, "t/$scheduled") == ["b"]
            sender.cancel_scheduled_messages(late[1])


def test_a_message_of_a_transaction_is_scheduled_by_its_commit(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    """By frames as Azure's clients write them."""
    give(guarded.data, queue, role="router")
    target = add(guarded, queue, "mine")
    admin(guarded.data, "user", "add", "eve", password="password")
    with Peer(guarded.amqp) as peer:
        peer.sasl("PLAIN", b"\0eve\0password")
        peer.open()
        peer.begin()
        transactions = Transactions(peer)
        peer.attach_sender(queue, properties={Symbol("com.microsoft:timeout"): UInt(1000)})

        def send(txn: bytes, text: str, at: datetime) -> None:
            due = Timestamp(int(at.timestamp() * 1000))
            annotations = b"\x00\x53\x72" + encode({Symbol("x-opt-scheduled-enqueue-time"): due})
            transactions.send(txn, text, head=annotations)

        committed, rolled_back = transactions.declare(), transactions.declare()
        send(rolled_back, "never", datetime.now(UTC))
        send(committed, "late", datetime.now(UTC) + HOUR)
        send(committed, "now", datetime.now(UTC) - HOUR)
        transactions.roll_back(rolled_back)
        transactions.commit(committed)
    # The client shows a body that is a value in this way.
    assert left(client, target) == ["b'now'"]
    assert left(client, f"{queue}/$scheduled") == ["b'late'"]
    with client.get_topic_sender(queue) as sender:
        sender.cancel_scheduled_messages(1)
    assert left(client, f"{queue}/$scheduled") == []


def test_a_topic_takes_its_scheduled_messages_along(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="router")
    with client.get_topic_sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC) + HOUR)
    assert named(guarded.data, queue) == [queue, f"{queue}/$scheduled"]
    drop(guarded.data, queue)
    assert named(guarded.data, queue) == []


def test_who_may_not_send_to_a_topic_schedules_and_cancels_nothing(guarded: Broker, queue: str) -> None:
    give(guarded.data, queue, role="router")
    key = key_of(guarded.data, f"reader{queue[-1]}", "--rights", "listen", "--prefix", queue)
    with client_for(guarded, key) as client:
        with pytest.raises(ServiceBusError), client.get_topic_sender(queue) as sender:
            sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC) + HOUR)
        with pytest.raises(ServiceBusError), client.get_topic_sender(queue) as sender:
            sender.cancel_scheduled_messages(1)
    assert named(guarded.data, queue) == [queue]
