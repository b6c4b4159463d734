"""azure-servicebus and dead letters that are forwarded to other queues, or dead-lettered again."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import ServiceBusError

from tests.interop.azure_scene import client_for, key_of, received
from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http
from tests.support.namespace import give, subscribe

Reasons = tuple[str | None, str | None, str | None]


def reasons_of(message: ServiceBusReceivedMessage) -> Reasons:
    return (
        message.dead_letter_reason,
        message.dead_letter_error_description,
        message.dead_letter_source,
    )


@pytest.mark.parametrize("is_topic", [False, True])
def test_a_forwarded_dead_letter_keeps_its_reason_its_description_and_its_source(
    client: ServiceBusClient, guarded: Broker, queue: str, is_topic: bool
) -> None:
    """Received, peeked and deferred; those of a topic after its subscription has got them."""
    target = f"{queue}/failed"
    give(guarded.data, target, role="queue")
    if is_topic:
        give(guarded.data, f"{queue}/topic", role="router")
        subscribe(guarded.data, f"{queue}/topic", target)
    dead_letter = f"{queue}/topic" if is_topic else target
    give(guarded.data, queue, role="queue", max_delivery_count=1, dead_letter=dead_letter)
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(text) for text in ("rejected", "plainly", "failed")])
        sender.send_messages(ServiceBusMessage("expired", time_to_live=timedelta(milliseconds=1)))
    with client.get_queue_receiver(queue) as receiver:
        rejected, plainly, failed = received(receiver, 3)
        receiver.dead_letter_message(rejected, reason="why", error_description="because")
        receiver.dead_letter_message(plainly)
        receiver.abandon_message(failed)
    expected: dict[str, Reasons] = {
        "rejected": ("why", "because", queue),
        "plainly": (None, None, queue),
        "failed": ("MaxDeliveryCountExceeded", "delivery failed 1 times, 1 are allowed", queue),
        "expired": ("TTLExpiredException", "The message expired and was dead lettered.", queue),
    }
    with client.get_queue_receiver(target) as receiver:
        found = received(receiver, 4)
        assert {str(each): reasons_of(each) for each in found} == expected
        for each in found:
            receiver.defer_message(each)
        peeked = receiver.peek_messages(4, sequence_number=1)
        assert {str(each): reasons_of(each) for each in peeked} == expected
        deferred = receiver.receive_deferred_messages([each.sequence_number for each in found])
        assert {str(each): reasons_of(each) for each in deferred} == expected
        for each in deferred:
            receiver.complete_message(each)


def test_a_dead_letter_that_is_dead_lettered_again_is_not_lost(client: ServiceBusClient, queue: str) -> None:
    """On its link, and by a request."""
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("bad"))
    with client.get_queue_receiver(queue) as receiver:
        receiver.dead_letter_message(received(receiver, 1)[0], reason="first")
    for number in range(3):
        with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (dead,) = received(receiver, 1)
            assert (str(dead), dead.dead_letter_reason) == ("bad", "first")
            if number == 1:
                # As the client marks a message that no link of its own can settle.
                dead._is_deferred_message = True
            with pytest.raises(ServiceBusError, match="can't be dead-lettered again"):
                receiver.dead_letter_message(dead, reason="second")


def test_what_the_broker_moves_to_other_queues_survives_kill_9_there(tmp_path: Path) -> None:
    """Forwarded messages, dead letters and scheduled ones of a topic; these clients send no `durable`."""
    data = tmp_path / "data"
    key = key_of(data, "shop")
    with Broker(data) as broker, client_for(broker, key) as client:
        for name in ("sink", "copies"):
            give(data, name, role="queue")
        give(data, "source", role="queue", forward_to="sink")
        give(data, "failing", role="queue", dead_letter="sink")
        give(data, "topic", role="router")
        subscribe(data, "topic", "copies")
        for name in ("source", "failing"):
            with client.get_queue_sender(name) as sender:
                sender.send_messages(ServiceBusMessage(name))
        with client.get_topic_sender("topic") as sender:
            sender.schedule_messages(ServiceBusMessage("topic"), datetime.now(UTC) + timedelta(seconds=1))
        with client.get_queue_receiver("failing") as receiver:
            receiver.dead_letter_message(received(receiver, 1)[0])
        user, password = (part.split("=", 1)[1] for part in key.split(";"))
        with Http(broker.http, user, password) as http:
            for queue, count in {"sink": 2, "copies": 1}.items():
                wait.until_with(
                    (queue, count),
                    lambda each: http("GET", f"/{each[0]}/!figures").json()["ready"] == each[1],
                    f"{queue} has them",
                )
        broker.kill_everything()
    with Broker(data) as broker, client_for(broker, key) as client:
        with client.get_queue_receiver("sink") as receiver:
            assert {str(each) for each in received(receiver, 2)} == {"source", "failing"}
        with client.get_queue_receiver("copies") as receiver:
            assert [str(each) for each in received(receiver, 1)] == ["topic"]
