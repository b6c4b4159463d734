"""Queues move to another shard while proton's clients send to them, hold messages, settle and leave."""

import threading
from collections import deque
from pathlib import Path

import pytest
from proton import Delivery, Event, Message
from proton.utils import BlockingConnection

from tests.support.amqp.proton_blocking import connected, drain, take
from tests.support.amqp.proton_reactor import Client
from tests.support.broker import Broker
from tests.support.http_client import Http
from tests.support.moves import move

MOVES = 4


class Traffic(Client):
    """Sends numbered messages to an address for as long as `moving` lives, and receives from queues.

    Each receiver holds the last messages and settles them late, so that every move finds some that are held.
    """

    def __init__(self, address: str, target: str, queues: list[str], moving: threading.Thread) -> None:
        super().__init__(address, prefetch=100, auto_accept=False)
        self.target = target
        self.queues = queues
        self.moving = moving
        self.sent = 0
        self.accepted = 0
        self.received: dict[str, list[int]] = {queue: [] for queue in queues}
        self.held: dict[str, deque[Delivery]] = {queue: deque() for queue in queues}

    def begin(self) -> None:
        self.sender = self.container.create_sender(self.connection, self.target, name="s")
        for queue in self.queues:
            self.container.create_receiver(self.connection, queue, name=queue)
        self.tick()

    def tick(self) -> None:
        """A little at a time, so that there is something under way at any moment."""
        if self.moving.is_alive() or self.sent < 1_000:
            for _ in range(min(20, self.sender.credit)):
                self.sender.send(Message(body=self.sent, durable=True))
                self.sent += 1
            self.after(0.002, self.tick)
        else:
            self.moving.join()
            for queue in self.queues:
                self.settle_old(queue, 0)
            self.check()

    def on_accepted(self, event: Event) -> None:
        self.accepted += 1
        self.check()

    def on_rejected(self, event: Event) -> None:
        raise AssertionError(f"rejected: {event.delivery.remote}")

    def on_released(self, event: Event) -> None:
        raise AssertionError("released")

    def on_message(self, event: Event) -> None:
        queue = event.receiver.source.address
        self.received[queue].append(event.message.body)
        self.held[queue].append(event.delivery)
        self.settle_old(queue, 40 if self.moving.is_alive() else 0)
        self.check()

    def settle_old(self, queue: str, keep: int) -> None:
        held = self.held[queue]
        while len(held) > keep:
            delivery = held.popleft()
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()

    def check(self) -> None:
        ended = not self.moving.is_alive() and self.accepted == self.sent
        everything = all(len(found) >= self.sent for found in self.received.values())
        if ended and everything and not any(self.held.values()):
            self.done()


def mover(data: Path, *queues: str) -> threading.Thread:
    """Moves queues to and fro; an error of it is the test's."""

    def run() -> None:
        for _ in range(MOVES):
            move(data, *queues)

    return threading.Thread(target=run)


def leftovers(broker: Broker, queue: str) -> list[Message]:
    with connected(broker.amqp) as connection:
        return drain(connection, connection.create_receiver(queue, name="look"))


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "data", "--shards", "2", "--frontends", "2")


def test_a_queue_moves_under_senders_and_receivers_that_hear_nothing_of_it(broker: Broker) -> None:
    with broker:
        with connected(broker.amqp) as connection:
            connection.create_sender("q")
        moving = mover(broker.data, "q")
        traffic = Traffic(broker.amqp, "q", ["q"], moving)
        moving.start()
        traffic.run()
        assert traffic.received["q"] == list(range(traffic.sent)), "lost, twice or out of order"
        assert leftovers(broker, "q") == []


def test_messages_of_a_router_follow_its_queues(broker: Broker) -> None:
    with broker:
        with Http(broker.http) as http:
            assert http("POST", "/r", {"role": "router"}).status == 201
            for queue in ("a", "b"):
                assert http("POST", f"/{queue}", {"role": "queue"}).status == 201
                assert http("POST", "/r/!subscriptions", {"target": queue}).status == 201
        moving = mover(broker.data, "a")
        traffic = Traffic(broker.amqp, "r", ["a", "b"], moving)
        moving.start()
        traffic.run()
        for queue in ("a", "b"):
            assert traffic.received[queue] == list(range(traffic.sent)), (
                f"{queue}: lost, twice or out of order"
            )
            assert leftovers(broker, queue) == []


def test_what_a_client_holds_is_its_own_after_the_move(broker: Broker) -> None:
    with broker:
        connection = BlockingConnection(f"amqp://{broker.amqp}", timeout=30)
        sender = connection.create_sender("q")
        for number in range(6):
            sender.send(Message(body=number, durable=True))
        receiver = connection.create_receiver("q", name="r")
        held = [take(receiver) for _ in range(4)]
        move(broker.data, "q")
        for (_, delivery), state in zip(
            held, (Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED), strict=False
        ):
            delivery.update(state)
            delivery.settle()
        sender.send(Message(body=6, durable=True))
        # The client has not settled the fourth when it closes in order: it returns uncounted.
        connection.close()
        found = leftovers(broker, "q")
        assert sorted(message.body for message in found) == [2, 3, 4, 5, 6]
        assert [message.delivery_count for message in found] == [0] * 5
        assert [message.body for message in leftovers(broker, "q/$dlq")] == [1]
