"""What clients fetched ahead when they close or crash: only what they work on is ever counted (ADR 5)."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from proton import Message
from proton.utils import BlockingConnection

from tests.interop.azure_scene import received as received_by_azure
from tests.support import wait
from tests.support.amqp.proton_blocking import connected, drain, received
from tests.support.broker import Broker

ROOT = Path(__file__).parents[2]
CRASHES = 10
"""Failed deliveries that make a dead letter, by default."""


def filled(connection: BlockingConnection, queue: str, count: int) -> None:
    sender = connection.create_sender(queue)
    for number in range(count):
        sender.send(Message(body=number, durable=True))


def end_session(_connection: BlockingConnection, receiver: Any) -> None:
    receiver.link.session.close()


ENDS: dict[str, Callable[[BlockingConnection, Any], None]] = {
    "link": lambda _, receiver: receiver.close(),
    "session": end_session,
    "connection": lambda connection, _: connection.close(),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("credit", [1, 1_000])
def test_a_client_of_proton_that_closes_counts_nothing(
    broker: Broker, queue: str, how: str, credit: int
) -> None:
    rounds, count = 12, 40
    with connected(broker.amqp) as connection:
        filled(connection, queue, count)
    for number in range(rounds):
        with connected(broker.amqp) as connection:
            receiver = connection.create_receiver(queue, credit=credit)
            assert receiver.receive().body == number
            receiver.accept()
            ENDS[how](connection, receiver)
    with connected(broker.amqp) as connection:
        left = received(connection.create_receiver(queue, credit=count), count - rounds)
        assert [(each.body, each.delivery_count) for each in left] == [(n, 0) for n in range(rounds, count)]
        assert drain(connection, connection.create_receiver(f"{queue}/$dlq", credit=count)) == []


def test_a_client_of_azure_that_closes_counts_nothing(client: ServiceBusClient, queue: str) -> None:
    rounds, count = 12, 40
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(count)])
    for number in range(rounds):
        with client.get_queue_receiver(queue, prefetch_count=100) as receiver:
            (message,) = received_by_azure(receiver, 1)
            assert str(message) == str(number)
            receiver.complete_message(message)
    with client.get_queue_receiver(queue, prefetch_count=100) as receiver:
        left = received_by_azure(receiver, count - rounds)
        assert [(str(each), each.delivery_count) for each in left] == [
            (str(number), 0) for number in range(rounds, count)
        ]


def test_a_client_that_is_killed_in_the_middle_of_one_message_makes_a_dead_letter_of_no_other_one(
    broker: Broker, queue: str
) -> None:
    count = 100
    with connected(broker.amqp) as connection:
        filled(connection, queue, count)
    script = Path(__file__).with_name("proton_hold.py")
    for _ in range(CRASHES):
        command = [sys.executable, str(script), broker.amqp, queue, str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, cwd=ROOT) as client:
            assert client.stdout is not None
            assert wait.line(client.stdout) == b"0\n"
            client.kill()
    with connected(broker.amqp) as connection:
        (dead,) = received(connection.create_receiver(f"{queue}/$dlq"), 1)
        assert dead.body == 0
        left = received(connection.create_receiver(queue, credit=count), count - 1)
        assert [each.body for each in left] == list(range(1, count))
        # A message that may have been handled is marked, which is not counted.
        assert {each.delivery_count for each in left} == {1}
