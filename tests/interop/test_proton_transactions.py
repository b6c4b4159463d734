"""Transactions as python-qpid-proton's reactor makes them: batches of sends, and receiving with answers."""

from collections.abc import Iterator
from typing import Any

import pytest
from proton import Event, Message

from tests.support.amqp.proton_blocking import connected
from tests.support.amqp.proton_reactor import Client
from tests.support.broker import Broker


@pytest.fixture(scope="module", params=[1, 2], ids=["one-shard", "two-shards"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With one shard, then with two, over which queues are spread."""
    flags = ["--shards", str(request.param)]
    with Broker(tmp_path_factory.mktemp("broker") / "data", *flags) as started:
        yield started


class Batches(Client):
    """Sends messages, so many in each transaction; every third transaction is aborted and comes again."""

    def __init__(self, address: str, queue: str, count: int, batch: int) -> None:
        super().__init__(address)
        self.queue = queue
        self.count = count
        self.batch = batch
        self.confirmed = 0
        self.sent = 0
        self.ended = 0
        self.aborted = 0
        self.transaction: Any = None
        self.sender: Any = None

    def begin(self) -> None:
        self.sender = self.container.create_sender(self.connection, self.queue)
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        self.send()

    def on_sendable(self, event: Event) -> None:
        self.send()

    def send(self) -> None:
        transaction = self.transaction
        while transaction is not None and self.sender.credit and self.sent < self.batch:
            body = self.confirmed + self.sent
            transaction.send(self.sender, Message(body=body, durable=True))
            self.sent += 1
        if transaction is not None and self.sent == self.batch:
            self.transaction = None
            self.ended += 1
            if self.ended % 3:
                transaction.commit()
            else:
                transaction.abort()

    def on_transaction_committed(self, event: Event) -> None:
        self.confirmed += self.sent
        self.go_on()

    def on_transaction_aborted(self, event: Event) -> None:
        self.aborted += 1
        self.go_on()

    def on_transaction_commit_failed(self, event: Event) -> None:
        raise AssertionError("a commit failed")

    def go_on(self) -> None:
        self.sent = 0
        if self.confirmed < self.count:
            self.container.declare_transaction(self.connection, handler=self)
        else:
            self.done()


class Answering(Client):
    """Receives messages and sends an answer for each, both in one transaction for each batch."""

    def __init__(self, address: str, source: str, target: str, batch: int, count: int) -> None:
        super().__init__(address, prefetch=2 * batch, auto_accept=False)
        self.source = source
        self.target = target
        self.batch = batch
        self.count = count
        self.answered = 0
        self.current = 0
        self.transaction: Any = None
        self.waiting: list[tuple[Any, int]] = []
        self.sender: Any = None

    def begin(self) -> None:
        self.sender = self.container.create_sender(self.connection, self.target)
        self.container.create_receiver(self.connection, self.source)
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        self.answer()

    def on_message(self, event: Event) -> None:
        self.waiting.append((event.delivery, event.message.body))
        self.answer()

    def on_sendable(self, event: Event) -> None:
        self.answer()

    def answer(self) -> None:
        transaction = self.transaction
        while transaction is not None and self.sender.credit and self.waiting and self.current < self.batch:
            delivery, body = self.waiting.pop(0)
            transaction.accept(delivery)
            transaction.send(self.sender, Message(body=-body, durable=True))
            self.current += 1
        if transaction is not None and self.current == self.batch:
            self.transaction = None
            transaction.commit()

    def on_transaction_committed(self, event: Event) -> None:
        self.answered += self.current
        self.current = 0
        if self.answered < self.count:
            self.container.declare_transaction(self.connection, handler=self)
        else:
            self.done()

    def on_transaction_commit_failed(self, event: Event) -> None:
        raise AssertionError("a commit failed")


def contents(broker: Broker, queue: str, count: int) -> list[int]:
    """So many messages, and that there are no more."""
    with connected(broker.amqp) as connection:
        receiver = connection.create_receiver(queue, credit=count + 1)
        found = [receiver.receive(timeout=20).body for _ in range(count)]
        assert receiver.fetcher.has_message == 0
    return found


def test_what_was_committed_is_there_once_and_in_order(broker: Broker, queue: str) -> None:
    client = Batches(broker.amqp, queue, count=200, batch=10)
    client.run()
    assert client.aborted >= 9
    assert contents(broker, queue, 200) == list(range(200))


def test_messages_and_their_answers_are_one(broker: Broker, queue: str) -> None:
    with connected(broker.amqp) as connection:
        sender = connection.create_sender(queue)
        for number in range(60):
            sender.send(Message(body=number, durable=True))
    client = Answering(broker.amqp, queue, f"{queue}/answers", batch=5, count=60)
    client.run()
    assert contents(broker, f"{queue}/answers", 60) == [-number for number in range(60)]
    assert contents(broker, queue, 0) == []
