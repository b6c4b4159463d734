"""Receivers without a window: the broker sends as many messages as the application asked for."""

import multiprocessing
import os
import time
from typing import Any

import pytest

from lightrail.client import ManagementError
from lightrail.client.management import QUEUE
from lightrail.client.sync import connect
from tests.support import wait
from tests.support.broker import Broker

SILENCE_S = 0.3


def test_as_many_come_as_were_granted(broker: Broker) -> None:
    with connect(broker.amqp) as connection, connection.sender("granted") as sender:
        for number in range(6):
            sender.send(number)
        with connection.receiver("granted", credit=0) as receiver:
            assert not receiver.receive(timeout=SILENCE_S)
            receiver.grant(2)
            found = receiver.receive(1, timeout=10) + receiver.receive(1, timeout=10)
            assert not receiver.receive(timeout=SILENCE_S)
            receiver.grant(1)
            found += receiver.receive(9, timeout=10)
            assert [delivery.body for delivery in found] == [0, 1, 2]


def test_credit_that_is_taken_back_brings_nothing(broker: Broker) -> None:
    with (
        connect(broker.amqp) as connection,
        connection.sender("grant/back") as sender,
        connection.receiver("grant/back", credit=0) as receiver,
    ):
        receiver.grant(10)
        receiver.grant(-100)
        # Answered on the same connection: the broker has seen both.
        with connection.management() as management:
            management.read("grant/back")
        sender.send(1)
        assert not receiver.receive(timeout=SILENCE_S)


def test_a_window_that_refills_itself_is_not_granted_to(broker: Broker) -> None:
    with (
        connect(broker.amqp) as connection,
        connection.receiver("window") as receiver,
        pytest.raises(ValueError, match="credit=0"),
    ):
        receiver.grant(1)


def test_management_without_await(broker: Broker) -> None:
    with connect(broker.amqp) as connection, connection.management() as management:
        assert management.create(QUEUE, "sync-managed", {"max_length": 5})["max_length"] == 5
        with pytest.raises(ManagementError):
            management.create(QUEUE, "sync-managed")
        assert management.update("sync-managed", {"max_length": 6})["max_length"] == 6
        with connection.sender("sync-managed") as sender:
            sender.send("x")
        assert [message.body for _, _, message in management.peek("sync-managed")] == ["x"]
        assert "sync-managed" in [each["name"] for each in management.query(QUEUE, "name")]
        assert management.purge("sync-managed") == 1
        management.delete("sync-managed")


def die_with_a_child(url: str, child: Any) -> None:
    """Receives a message, leaves a child behind, and dies without a word to the broker."""
    with connect(url) as connection, connection.receiver("inherited") as receiver:
        assert receiver.receive(timeout=10)
        grandchild = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        grandchild.start()
        child.put(grandchild.pid)
        wait.until(lambda: False, "it is killed", 60)


def test_the_death_of_a_process_ends_its_connection_though_its_children_live(broker: Broker) -> None:
    forked = multiprocessing.get_context("fork")
    pids = forked.SimpleQueue()
    with connect(broker.amqp) as connection:
        with connection.sender("inherited") as sender:
            sender.send("x")
        process = forked.Process(target=die_with_a_child, args=(broker.amqp, pids))
        process.start()
        grandchild = pids.get()
        try:
            process.kill()
            process.join()
            with connection.receiver("inherited") as receiver:
                # Long before the broker notices that nobody answers its heartbeats.
                (delivery,) = receiver.receive(timeout=10)
                delivery.accept()
        finally:
            os.kill(grandchild, 9)
