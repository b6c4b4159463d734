"""azure-servicebus and deferred messages: nobody gets them but who asks for them by their numbers."""

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.amqp import AmqpMessageHeader
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError, ServiceBusError

from lightrail.amqp.performatives import Detach, Modified
from lightrail.amqp.values import Symbol
from tests.interop.azure_scene import client_for, key_of, received
from tests.interop.test_proton_security import admin
from tests.support import wait
from tests.support.amqp.frame_peer import Peer
from tests.support.amqp.transaction_peer import Client as Transactions
from tests.support.amqp.transaction_peer import settle
from tests.support.broker import Broker
from tests.support.namespace import give

DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"
"""A header that says durable."""


def send(client: ServiceBusClient, queue: str, *texts: str, **attributes: Any) -> None:
    messages = [ServiceBusMessage(text, message_id=text, **attributes) for text in texts]
    for message in messages:
        message.raw_amqp_message.header = AmqpMessageHeader(durable=True)
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(messages)


def deferred(client: ServiceBusClient, queue: str, count: int) -> list[int]:
    """Defers the next messages; their numbers."""
    with client.get_queue_receiver(queue) as receiver:
        messages = received(receiver, count)
        for message in messages:
            receiver.defer_message(message)
        return [message.sequence_number for message in messages]


def test_a_deferred_message_is_received_by_its_number_alone(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, "first", "second", "third")
    one, two = deferred(client, queue, 2)
    with client.get_queue_receiver(queue) as receiver:
        assert [str(each) for each in received(receiver, 1)] == ["third"]
        assert receiver.receive_messages(max_wait_time=1) == []
        found = receiver.peek_messages(5, sequence_number=1)
        assert [(each.sequence_number, each.state) for each in found] == [
            (one, ServiceBusMessageState.DEFERRED),
            (two, ServiceBusMessageState.DEFERRED),
            (3, ServiceBusMessageState.ACTIVE),
        ]
        first, second = receiver.receive_deferred_messages([one, two])
        assert (str(first), first.message_id) == ("first", "first")
        assert first.state == ServiceBusMessageState.DEFERRED
        assert first.locked_until_utc is not None
        assert receiver.renew_message_lock(first) >= first.locked_until_utc - timedelta(seconds=1)
        receiver.complete_message(first)
        receiver.abandon_message(second)
        first._settled = False
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(first)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(one)
        (again,) = receiver.receive_deferred_messages(two)
        assert again.delivery_count == 1
        receiver.defer_message(again)
        (again,) = receiver.receive_deferred_messages(two)
        receiver.dead_letter_message(again, reason="why", error_description="because")
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = received(receiver, 1)
        assert (str(dead), dead.dead_letter_reason, dead.dead_letter_error_description) == (
            "second",
            "why",
            "because",
        )
        receiver.complete_message(dead)


def test_one_that_is_locked_is_not_received_again_until_its_lock_ends(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", lock_duration=2)
    send(client, queue, "one", "two")
    numbers = deferred(client, queue, 2)
    with client.get_queue_receiver(queue) as receiver:
        receiver.receive_deferred_messages(numbers[:1])
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred_messages(numbers)

        def is_free() -> bool:
            try:
                (found,) = receiver.receive_deferred_messages(numbers[:1])
            except MessageNotFoundError:
                return False
            return bool(found.delivery_count == 1)

        wait.until(is_free, "the lock ends")


def test_one_that_is_received_and_deleted_is_gone(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, "one")
    (number,) = deferred(client, queue, 1)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver(queue, receive_mode=mode) as receiver:
        (found,) = receiver.receive_deferred_messages(number)
        assert str(found) == "one"
        assert receiver.peek_messages() == []


def test_an_expired_one_becomes_a_dead_letter(client: ServiceBusClient, queue: str) -> None:
    send(client, queue, "one", time_to_live=timedelta(seconds=3))
    deferred(client, queue, 1)
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = received(receiver, 1)
        assert (str(dead), dead.dead_letter_reason) == ("one", "TTLExpiredException")
        receiver.complete_message(dead)


def test_deferred_messages_survive_a_kill_of_their_shard(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = key_of(data, "shop")
    with Broker(data, "--service-bus-auto-create", "true") as broker:
        with client_for(broker, key) as client:
            send(client, "q", "first", "second", "third")
            one, two = deferred(client, "q", 2)
        os.kill(broker.pid("shard"), signal.SIGKILL)

        def found() -> list[str]:
            try:
                with client_for(broker, key) as client, client.get_queue_receiver("q") as receiver:
                    return [str(each) for each in receiver.receive_deferred_messages([one, two])]
            except ServiceBusError:
                return []

        wait.until(lambda: found() == ["first", "second"], "the shard has the deferred messages")
        with client_for(broker, key) as client, client.get_queue_receiver("q") as receiver:
            assert [str(each) for each in received(receiver, 1)] == ["third"]


def test_a_transaction_defers_with_all_else_and_survives_kill_9(tmp_path: Path) -> None:
    """By frames as Azure's clients write them; the last transaction is not discharged."""
    data = tmp_path / "data"
    key = key_of(data, "shop")
    admin(data, "user", "add", "ann", password="password")
    with Broker(data, "--service-bus-auto-create", "true") as broker:
        with client_for(broker, key) as client:
            send(client, "q", "first", "second", "third")
        with Peer(broker.amqp) as peer:
            peer.sasl("PLAIN", b"\0ann\0password")
            peer.open()
            peer.begin()
            transactions = Transactions(peer)
            peer.attach_sender("out")
            peer.attach_receiver("q", 1, properties={Symbol("com.microsoft:receiver-name"): "r"})
            peer.flow(3, handle=1)
            for _ in range(3):
                peer.delivery()
            deferring, open_one = transactions.declare(), transactions.declare()
            settle(peer, deferring, 0, 0, outcome=Modified(undeliverable_here=True))
            settle(peer, deferring, 1, 1)
            transactions.send(deferring, "answer", head=DURABLE)
            settle(peer, open_one, 2, 2, outcome=Modified(undeliverable_here=True))
            transactions.commit(deferring)
            broker.kill_everything()
    with (
        Broker(data, "--service-bus-auto-create", "true") as broker,
        client_for(broker, key) as client,
    ):
        with client.get_queue_receiver("q") as receiver:
            shown = [(each.sequence_number, each.state) for each in receiver.peek_messages(10)]
            assert shown == [(1, ServiceBusMessageState.DEFERRED), (3, ServiceBusMessageState.ACTIVE)]
            (back,) = receiver.receive_deferred_messages(1)
            assert (str(back), back.delivery_count) == ("first", 0)
            receiver.complete_message(back)
            assert [str(each) for each in received(receiver, 1)] == ["third"]
        with client.get_queue_receiver("out") as receiver:
            assert len(received(receiver, 1)) == 1


def test_what_a_transaction_would_have_deferred_is_the_receivers_still_after_a_rollback(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    give(guarded.data, queue, role="queue", lock_duration=60, lock_ends="link")
    admin(guarded.data, "user", "add", "bob", password="password")
    send(client, queue, "one")
    with Peer(guarded.amqp) as peer:
        peer.sasl("PLAIN", b"\0bob\0password")
        peer.open()
        peer.begin()
        transactions = Transactions(peer)
        peer.attach_receiver(queue, 1, properties={Symbol("com.microsoft:receiver-name"): "r"})
        peer.flow(1, handle=1)
        peer.delivery()
        txn = transactions.declare()
        settle(peer, txn, 0, 0, outcome=Modified(undeliverable_here=True))
        transactions.roll_back(txn)
        with client.get_queue_receiver(queue) as receiver:
            assert receiver.receive_messages(max_wait_time=1) == []
            peer.write(Detach(handle=1, closed=True))
            (again,) = received(receiver, 1)
            assert (str(again), again.delivery_count) == ("one", 0)


def test_who_may_not_listen_receives_nothing_by_its_number(
    client: ServiceBusClient, guarded: Broker, queue: str
) -> None:
    send(client, queue, "one")
    (number,) = deferred(client, queue, 1)
    writer = key_of(guarded.data, f"writer{queue[-1]}", "--rights", "send", "--prefix", queue)
    with (
        client_for(guarded, writer) as other,
        pytest.raises(ServiceBusError),
        other.get_queue_receiver(queue) as receiver,
    ):
        receiver.receive_deferred_messages(number)
