"""azure-servicebus and its locks: tokens, renewal, dead letters with reasons, peeking and schedules."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from tests.interop.azure_scene import client_for, key_of, received
from tests.support import wait
from tests.support.broker import Broker
from tests.support.namespace import give, subscribe

HOUR = timedelta(hours=1)


def send(client: ServiceBusClient, queue: str, *texts: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(text, message_id=text) for text in texts])


def texts(messages: Sequence[object]) -> list[str]:
    return [str(message) for message in messages]


def test_a_message_has_a_lock_token_a_sequence_and_its_times(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", lock_duration=30)
    before = datetime.now(UTC) - timedelta(seconds=1)
    send(client, queue, "one", "two")
    with client.get_queue_receiver(queue) as receiver:
        first, second = received(receiver, 2)
        assert isinstance(first.lock_token, uuid.UUID)
        assert first.lock_token != second.lock_token
        assert (first.sequence_number, second.sequence_number) == (1, 2)
        assert before < first.enqueued_time_utc < datetime.now(UTC) + timedelta(seconds=1)
        left = first.locked_until_utc - datetime.now(UTC)
        assert timedelta(seconds=20) < left <= timedelta(seconds=31)
        assert first.state == ServiceBusMessageState.ACTIVE
        assert first.delivery_count == 0


def test_a_lock_is_renewed_and_a_lost_one_is_not(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", lock_duration=2)
    send(client, queue, "one", "two")
    with client.get_queue_receiver(queue) as receiver:
        first, second = received(receiver, 2)
        renewed = receiver.renew_message_lock(first)
        assert renewed == first.locked_until_utc
        assert renewed > datetime.now(UTC)
        receiver.complete_message(second)
        second._settled = False
        with pytest.raises(MessageLockLostError):
            receiver.renew_message_lock(second)


def test_locks_of_many_messages_are_renewed_from_several_threads(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    """The threads share a link, and some of their requests have the same delivery-id and delivery-tag."""
    give(guarded.data, queue, role="queue", lock_duration=10)
    bodies = [str(number) for number in range(20)]
    send(client, queue, *bodies)
    with AutoLockRenewer() as renewer, client.get_queue_receiver(queue, prefetch_count=20) as receiver:
        messages = received(receiver, len(bodies))
        end = max(each.locked_until_utc for each in messages) + timedelta(seconds=2)
        for each in messages:
            renewer.register(receiver, each)
        wait.until(
            lambda: all(each.locked_until_utc >= end for each in messages), "all are locked for longer"
        )
        for each in messages:
            receiver.complete_message(each)
    with client.get_queue_receiver(queue) as receiver:
        assert receiver.receive_messages(max_wait_time=1) == []


def test_an_abandoned_message_comes_again_with_its_count(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    send(client, queue, "one")
    with client.get_queue_receiver(queue) as receiver:
        (first,) = received(receiver, 1)
        receiver.abandon_message(first)
        (again,) = received(receiver, 1)
        assert (str(again), again.delivery_count, again.sequence_number) == ("one", 1, 1)
        assert again.lock_token != first.lock_token
        receiver.complete_message(again)


def test_a_dead_letter_has_its_reason_its_description_and_its_source(
    client: ServiceBusClient, queue: str
) -> None:
    send(client, queue, "bad")
    with client.get_queue_receiver(queue) as receiver:
        (message,) = received(receiver, 1)
        receiver.dead_letter_message(message, reason="can't be read", error_description="it is größer")
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (peeked,) = receiver.peek_messages()
        (dead,) = received(receiver, 1)
        for each in (peeked, dead):
            assert str(each) == "bad"
            assert (each.dead_letter_reason, each.dead_letter_error_description) == (
                "can't be read",
                "it is größer",
            )
            assert each.dead_letter_source == queue
            assert each.message_id == "bad"
        receiver.complete_message(dead)


def test_a_message_that_fails_too_often_says_so(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", max_delivery_count=1)
    send(client, queue, "bad")
    with client.get_queue_receiver(queue) as receiver:
        receiver.abandon_message(received(receiver, 1)[0])
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = received(receiver, 1)
        assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


def test_messages_are_settled_by_their_lock_tokens_over_the_management_node(
    client: ServiceBusClient, queue: str
) -> None:
    send(client, queue, "done", "bad", "again")
    with client.get_queue_receiver(queue) as receiver:
        done, bad, again = received(receiver, 3)
        for message in (done, bad, again):
            # As the client marks a message that no link of its own can settle.
            message._is_deferred_message = True
        receiver.complete_message(done)
        receiver.dead_letter_message(bad, reason="why", error_description="because")
        receiver.abandon_message(again)
        (second,) = received(receiver, 1)
        assert (str(second), second.delivery_count) == ("again", 1)
        receiver.complete_message(second)
        done._settled = False
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(done)
        assert receiver.peek_messages() == []
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = received(receiver, 1)
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("why", "because")
        receiver.complete_message(dead)


def test_peeked_messages_stay_and_are_not_locked(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, "one", "two", "three")
    with client.get_queue_receiver(queue) as receiver:
        assert texts(receiver.peek_messages(2)) == ["one", "two"]
        assert texts(receiver.peek_messages(2)) == ["three"]
        assert receiver.peek_messages(2) == []
        (peeked,) = receiver.peek_messages(1, sequence_number=2)
        assert (str(peeked), peeked.sequence_number) == ("two", 2)
        assert texts(received(receiver, 3)) == ["one", "two", "three"]


def test_scheduled_messages_are_cancelled_by_their_numbers(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", delay=True)
    later = datetime.now(UTC) + HOUR
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        numbers = sender.schedule_messages([ServiceBusMessage("one"), ServiceBusMessage("two")], later)
        assert numbers == [1, 2]
        found = receiver.peek_messages(5)
        assert texts(found) == ["one", "two"]
        assert {each.state for each in found} == {ServiceBusMessageState.SCHEDULED}
        shown = found[0].scheduled_enqueue_time_utc
        assert shown is not None
        assert abs(shown - later) < timedelta(milliseconds=2)
        sender.cancel_scheduled_messages(numbers[0])
        with pytest.raises(ServiceBusError, match="not scheduled"):
            sender.cancel_scheduled_messages(numbers[0])
        assert texts(receiver.peek_messages(5, sequence_number=1)) == ["two"]


def test_a_scheduled_message_is_delivered_at_its_time(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", delay=True)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.schedule_messages(ServiceBusMessage("asked"), soon)
        sender.send_messages(ServiceBusMessage("sent", scheduled_enqueue_time_utc=soon))
        assert sorted(texts(received(receiver, 2))) == ["asked", "sent"]
        assert datetime.now(UTC) >= soon


def test_the_time_to_live_of_a_scheduled_message_begins_when_it_is_due(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", delay=True)
    life = timedelta(seconds=1)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        late = datetime.now(UTC) + HOUR
        sender.schedule_messages(ServiceBusMessage("late", time_to_live=life), late)
        sender.send_messages(ServiceBusMessage("sent", time_to_live=life, scheduled_enqueue_time_utc=late))
        # Until due it is there, however short its life is.
        sender.schedule_messages(
            ServiceBusMessage("soon", time_to_live=timedelta(seconds=20)), datetime.now(UTC) + 2 * life
        )
        assert texts(received(receiver, 1)) == ["soon"]
        assert texts(receiver.peek_messages(5, sequence_number=1))[:2] == ["late", "sent"]


def test_a_message_that_is_peeked_or_deferred_has_its_time_to_live_and_its_count(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", max_age=3_600)
    two_hours = timedelta(hours=2)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(
            [ServiceBusMessage("by queue"), ServiceBusMessage("own", time_to_live=two_hours)]
        )
        peeked = receiver.peek_messages(2, sequence_number=1)
        for message in received(receiver, 2):
            receiver.abandon_message(message)
        again = received(receiver, 2)
        for message in again:
            receiver.defer_message(message)
        deferred = receiver.receive_deferred_messages([each.sequence_number for each in again])
        assert [each.time_to_live for each in (*peeked, *again, *deferred)] == [HOUR] * 6
        assert [each.delivery_count for each in (*peeked, *again, *deferred)] == [0, 0, 1, 1, 1, 1]
        for each in deferred:
            assert each.enqueued_time_utc is not None
            assert each.expires_at_utc == each.enqueued_time_utc + HOUR
            receiver.complete_message(each)


def test_a_message_that_is_due_comes_behind_what_is_there_with_a_number_and_a_time_of_then(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", delay=True)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        # Its link and its requests are open when the times begin.
        sender.cancel_scheduled_messages(
            sender.schedule_messages(ServiceBusMessage("never"), datetime.now(UTC) + HOUR)
        )
        sender.send_messages(ServiceBusMessage("first"))
        receiver.complete_message(received(receiver, 1)[0])
        # Times of messages have milliseconds.
        begin = datetime.now(UTC).replace(microsecond=0)
        later, soon = begin + timedelta(seconds=3), begin + timedelta(seconds=2)
        (number,) = sender.schedule_messages(ServiceBusMessage("later"), later)
        sender.send_messages(ServiceBusMessage("soon", scheduled_enqueue_time_utc=soon))
        sender.send_messages(ServiceBusMessage("now"))
        wait.until(
            lambda: (
                [each.state for each in receiver.peek_messages(3, sequence_number=1)]
                == [ServiceBusMessageState.ACTIVE] * 3
            ),
            "both are due",
        )
        now, first, second = received(receiver, 3)
        assert texts([now, first, second]) == ["now", "soon", "later"]
        assert [each.sequence_number for each in (now, first, second)] == [5, 6, 7]
        assert [each.enqueued_time_utc >= due for each, due in ((first, soon), (second, later))] == [True] * 2
        with pytest.raises(ServiceBusError, match="not scheduled"):
            sender.cancel_scheduled_messages(number)


def test_a_queue_that_delays_nothing_says_so(client: ServiceBusClient, guarded: Broker, queue: str) -> None:
    give(guarded.data, queue, role="queue")
    with (
        client.get_queue_sender(queue) as sender,
        pytest.raises(ServiceBusError, match="delays no messages"),
    ):
        sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC) + HOUR)


def test_who_may_not_listen_may_not_peek(guarded: Broker, queue: str) -> None:
    give(guarded.data, queue, role="queue")
    key = key_of(guarded.data, f"writer{queue[-1]}", "--rights", "send", "--prefix", queue)
    with (
        client_for(guarded, key) as client,
        pytest.raises(ServiceBusError),
        client.get_queue_receiver(queue) as receiver,
    ):
        receiver.peek_messages()


def test_a_subscription_is_peeked_and_its_dead_letters_are_received(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    topic, target = f"{queue}/topic", f"{queue}/target"
    give(guarded.data, topic, role="router")
    give(guarded.data, target, role="queue")
    subscribe(guarded.data, topic, target, id="mine")
    with client.get_topic_sender(topic) as sender:
        sender.send_messages(ServiceBusMessage("x"))
    with client.get_subscription_receiver(topic, "mine") as receiver:
        assert texts(receiver.peek_messages()) == ["x"]
        (message,) = received(receiver, 1)
        receiver.dead_letter_message(message, reason="no")
    dead_letters = ServiceBusSubQueue.DEAD_LETTER
    with client.get_subscription_receiver(topic, "mine", sub_queue=dead_letters) as receiver:
        (dead,) = received(receiver, 1)
        assert (str(dead), dead.dead_letter_reason) == ("x", "no")


def test_what_is_received_and_deleted_has_no_lock(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, "one")
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver(queue, receive_mode=mode) as receiver:
        (message,) = received(receiver, 1)
        assert message.sequence_number == 1
        wait.until(lambda: receiver.peek_messages() == [], "the message is gone")
