"""The client without await: the same behaviour from threads, and clear errors over a fork."""

import multiprocessing
import threading
from typing import Any

import pytest

from lightrail.client import ClosedError, ConnectError, LinkError, Message, WindowFullError
from lightrail.client.errors import ForkError
from lightrail.client.sync import Connection, Delivery, connect
from tests.support.broker import Broker


def test_a_message_there_and_back(broker: Broker) -> None:
    with connect(broker.amqp) as connection:
        with connection.sender("sync") as sender:
            assert sender.send({"id": 7}, subject="created").accepted
        with connection.receiver("sync") as receiver:
            for delivery in receiver:
                assert (delivery.body, delivery.message.subject) == ({"id": 7}, "created")
                delivery.accept()
                break
            assert not receiver.receive(timeout=0)
    assert connection.closed


def test_threads_share_a_connection(broker: Broker) -> None:
    found: list[int] = []
    with connect(broker.amqp) as connection, connection.sender("threads") as sender:

        def send(first: int) -> None:
            for number in range(first, first + 50):
                sender.send(number)

        threads = [threading.Thread(target=send, args=(50 * number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        with connection.receiver("threads") as receiver:
            while len(found) < 400:
                for delivery in receiver.receive(50):
                    found.append(delivery.body)
                    delivery.accept()
        for thread in threads:
            thread.join()
    assert sorted(found) == list(range(400))


def test_a_receiver_that_another_thread_closes_ends(broker: Broker) -> None:
    with connect(broker.amqp) as connection:
        receiver = connection.receiver("ends")
        receiver.opened()
        found: list[Delivery] = []
        thread = threading.Thread(target=lambda: found.extend(receiver))
        thread.start()
        receiver.close()
        thread.join(10)
        assert not thread.is_alive()
        assert not found


def test_futures_of_many_messages(broker: Broker) -> None:
    with connect(broker.amqp) as connection, connection.sender("futures", window=100) as sender:
        answers = [sender.send_nowait(number) for number in range(100)]
        assert all(answer.result(10).accepted for answer in answers)


def test_errors_are_those_of_the_client(broker: Broker) -> None:
    with pytest.raises(ConnectError):
        connect("amqp://127.0.0.1:1")
    with connect(broker.amqp) as connection:
        with pytest.raises(LinkError), connection.receiver("$nothing/here"):
            pass
        sender = connection.sender("errors", window=1)
        sender.opened()
    with pytest.raises(ClosedError):
        sender.send("late")
    assert WindowFullError.__doc__


def in_child(connection: Connection, results: Any) -> None:
    try:
        connection.sender("sync/fork")
    except ForkError as error:
        results.put(str(error))
    else:
        results.put("no error")


def test_what_was_opened_before_a_fork_says_so_in_the_child_and_a_new_one_works(broker: Broker) -> None:
    forked = multiprocessing.get_context("fork")
    results = forked.SimpleQueue()
    with connect(broker.amqp) as connection, connection.sender("sync/fork") as sender:
        child = forked.Process(target=in_child, args=(connection, results))
        child.start()
        assert "after the fork" in results.get()
        child.join()
        child = forked.Process(target=send_in_child, args=(broker.amqp, results))
        child.start()
        assert results.get() == "accepted"
        child.join()
        assert sender.send("still here").accepted


def send_in_child(url: str, results: Any) -> None:
    with connect(url) as connection, connection.sender("sync/fork") as sender:
        results.put(str(sender.send("from the child")))


def test_management_requests_schedules_and_choices_work_without_await(broker: Broker) -> None:
    with connect(broker.amqp) as connection, connection.management() as management:
        management.create("lightrail.queue", "sync-all", {"delay": True})
        assert "sync-all" in {each["name"] for each in management.query("lightrail.queue", "name")}
        assert management.read("sync-all")["delay"] is True
        with connection.sender("sync-all") as sender, connection.receiver("sync-all") as receiver:
            sender.schedule("later", delay=60, id="later")
            assert all(outcome.accepted for outcome in sender.send_all([1, 2, 3]))
            seen: list[Any] = []

            def even(message: Message) -> Any:
                return (lambda delivery: seen.append(delivery.body)) if message.body == 2 else None

            assert receiver.select(even, timeout=10)
            assert not receiver.select(even, timeout=0.05)
            assert seen == [2]
        assert management.cancel("sync-all", "later")
        assert management.purge("sync-all") == 2
        management.delete("sync-all")


def test_a_node_of_the_broker_has_an_address_to_send_to(broker: Broker) -> None:
    with connect(broker.amqp) as connection, connection.receiver(dynamic=True) as receiver:
        assert receiver.address
        with connection.sender(receiver.address, name="of-mine") as sender:
            assert (sender.address, sender.name) == (receiver.address, "of-mine")
            sender.send("x")
        [delivery] = receiver.receive(timeout=10)
        assert delivery.body == "x"
