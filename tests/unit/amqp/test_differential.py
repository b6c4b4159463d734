"""python-qpid-proton's engine as the client of ours, in memory: what nobody here wrote agrees."""

from typing import Any

import pytest
from proton import Connection as ProtonConnection
from proton import Delivery, Link, Message, Receiver, Sender, Transport, symbol

from lightrail.amqp import events
from lightrail.amqp.connection import Connection
from lightrail.amqp.performatives import Modified, Rejected
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.values import Symbol
from tests.support.now import now


class Pair:
    """proton's transport and ours, joined; the answers that a broker would give, given."""

    def __init__(self, client_frame_size: int = 0, credit: int = 1000, **settings: Any) -> None:
        self.client = ProtonConnection()
        self.client.container = "client"
        self.transport = Transport()
        if client_frame_size:
            self.transport.max_frame_size = client_frame_size
        self.transport.bind(self.client)
        self.server = Connection(ConnectionSettings(**settings), 0)
        self.credit = credit
        self.events: list[Any] = []
        self.links: dict[str, Any] = {}
        self.received: list[bytes] = []
        self.outcome: Any = events.ACCEPTED
        self.client.open()
        self.session = self.client.session()
        self.session.open()

    def run(self) -> None:
        """Carry bytes until both are quiet."""
        while True:
            pending = self.transport.pending()
            if pending > 0:
                data = self.transport.peek(pending)
                self.transport.pop(len(data))
                for event in self.server.feed(data, 0):
                    self.events.append(event)
                    self.handle(event)
            output = b"".join(self.server.output)
            self.server.output.clear()
            while output:
                capacity = self.transport.capacity()
                assert capacity > 0, self.transport.condition
                self.transport.push(output[:capacity])
                output = output[capacity:]
            if self.transport.pending() <= 0:
                return

    def handle(self, event: Any) -> None:
        if isinstance(event, events.Attached):
            event.link.accept()
            self.links[event.link.name] = event.link
            if not event.link.is_sender:
                event.link.grant(self.credit)
        elif isinstance(event, events.Transfers):
            self.received += event.payloads
            if not event.settled:
                first = event.first_delivery_id
                event.link.settle(first, first + len(event.payloads) - 1, self.outcome)
            event.link.grant(self.credit)

    def sender(self, name: str = "s") -> Sender:
        link = self.session.sender(name)
        link.source.address = link.target.address = "queue"
        link.open()
        self.run()
        return link

    def receiver(self, name: str = "r", credit: int = 100) -> Receiver:
        link = self.session.receiver(name)
        link.source.address = link.target.address = "queue"
        link.open()
        link.flow(credit)
        self.run()
        return link

    def take(self, link: Receiver, state: Any = Delivery.ACCEPTED) -> list[bytes]:
        """All complete deliveries of a proton receiver, settled with the state."""
        found = []
        while link.current is not None and not link.current.partial:
            delivery = link.current
            found.append(link.recv(delivery.pending) or b"")
            link.advance()
            if state is not None:
                delivery.update(state)
                delivery.settle()
        return found


def send(link: Sender, tag: str, message: bytes, settled: bool = False) -> Any:
    delivery = link.delivery(tag)
    link.send(message)
    link.advance()
    if settled:
        delivery.settle()
    return delivery


def test_open_begin_attach_agree() -> None:
    pair = Pair(container_id="broker")
    link = pair.sender()
    assert pair.client.remote_container == "broker"
    assert link.remote_target.address == "queue"
    assert link.credit == 1000
    assert [type(event).__name__ for event in pair.events] == ["Opened", "Begun", "Attached"]


def test_transfers_and_their_outcomes_agree() -> None:
    pair = Pair()
    link = pair.sender()
    messages = [
        Message(body="m" * (number % 300), id=number, durable=number % 7 == 0).encode()
        for number in range(3000)
    ]
    deliveries = []
    for number, message in enumerate(messages):
        deliveries.append(send(link, str(number), message))
        if number % 211 == 0:
            pair.run()
    pair.run()
    assert pair.received == messages
    assert {delivery.remote_state for delivery in deliveries} == {Delivery.ACCEPTED}
    assert all(delivery.settled for delivery in deliveries)


@pytest.mark.parametrize("client_frame_size", [0, 512])
def test_large_messages_agree_in_both_directions(client_frame_size: int) -> None:
    pair = Pair(client_frame_size, max_frame_size=1024)
    message = Message(body=bytes(range(256)) * 900).encode()
    link = pair.sender()
    send(link, "a", message)
    pair.run()
    assert pair.received == [message]
    receiver = pair.receiver()
    ours = pair.links["r"]
    for _ in range(3):
        ours.send_one(message)
    got: list[bytes] = []
    for _ in range(2000):
        pair.run()
        got += pair.take(receiver)
        if len(got) == 3:
            break
    assert got == [message] * 3
    pair.run()
    assert pair.events[-1].last == 2


def test_deliveries_and_their_outcomes_agree() -> None:
    pair = Pair()
    receiver = pair.receiver(credit=10)
    ours = pair.links["r"]
    assert ours.limit == 10
    messages = [Message(body=f"m{number}").encode() for number in range(10)]
    blob = b"".join(messages)
    ends = [sum(map(len, messages[: number + 1])) for number in range(10)]
    ours.send(10, ends, blob)
    pair.run()
    assert pair.take(receiver) == messages
    pair.run()
    assert pair.events[-1] == events.Outcome(ours, 0, 9, events.ACCEPTED, True)
    receiver.flow(5)
    pair.run()
    assert pair.events[-1] == events.Credit(ours, 15)


def test_every_outcome_agrees() -> None:
    pair = Pair()
    receiver = pair.receiver()
    ours = pair.links["r"]
    for _ in range(3):
        ours.send_one(Message(body="x").encode())
    pair.run()
    for state in (Delivery.REJECTED, Delivery.RELEASED, Delivery.MODIFIED):
        delivery = receiver.current
        receiver.recv(1000)
        receiver.advance()
        if state == Delivery.MODIFIED:
            delivery.local.failed = True
            delivery.local.undeliverable = True
            delivery.local.annotations = {symbol("x-why"): "because"}
        delivery.update(state)
        delivery.settle()
        pair.run()
    rejected, released, modified = (event for event in pair.events if isinstance(event, events.Outcome))
    assert isinstance(rejected.state, Rejected)
    assert released.state is events.RELEASED
    assert modified.state == Modified(True, True, {Symbol("x-why"): "because"})


@pytest.mark.parametrize("outcome", [Rejected(), Modified(delivery_failed=True), events.RELEASED])
def test_our_outcomes_agree(outcome: Any) -> None:
    pair = Pair()
    pair.outcome = outcome
    delivery = send(pair.sender(), "a", Message(body="x").encode())
    pair.run()
    expected = {Rejected: Delivery.REJECTED, Modified: Delivery.MODIFIED}.get(
        type(outcome), Delivery.RELEASED
    )
    assert delivery.remote_state == expected


def test_presettled_both_ways_agrees() -> None:
    pair = Pair()
    link = pair.sender()
    for number in range(50):
        send(link, str(number), Message(body=number).encode(), settled=True)
    pair.run()
    assert len(pair.received) == 50
    receiver = pair.receiver()
    pair.links["r"].send_one(Message(body="x").encode(), settled=True)
    pair.run()
    assert receiver.current.settled


def test_settle_mode_second_agrees() -> None:
    pair = Pair()
    receiver = pair.session.receiver("r")
    receiver.source.address = "queue"
    receiver.rcv_settle_mode = Link.RCV_SECOND
    receiver.open()
    receiver.flow(5)
    pair.run()
    ours = pair.links["r"]
    ours.send_one(Message(body="x").encode())
    pair.run()
    delivery = receiver.current
    receiver.recv(1000)
    delivery.update(Delivery.ACCEPTED)
    pair.run()
    assert pair.events[-1] == events.Outcome(ours, 0, 0, events.ACCEPTED, False)
    ours.settle_sent(0, 0, events.ACCEPTED)
    pair.run()
    assert delivery.settled


def test_drain_agrees() -> None:
    pair = Pair()
    receiver = pair.receiver(credit=5)
    ours = pair.links["r"]
    receiver.drain(5)
    pair.run()
    assert pair.events[-1].drain is True
    assert pair.events[-1].limit == 10
    ours.send_one(Message(body="x").encode())
    ours.drained()
    pair.run()
    assert receiver.drained() == 9
    assert receiver.credit == 1


def test_an_aborted_delivery_agrees() -> None:
    pair = Pair()
    link = pair.sender()
    delivery = link.delivery("a")
    link.stream(b"half of it")
    pair.run()
    delivery.abort()
    pair.run()
    send(link, "b", Message(body="whole").encode())
    pair.run()
    assert pair.received == [Message(body="whole").encode()]


def test_interleaved_streams_agree() -> None:
    pair = Pair(512)
    links = [pair.sender(f"s{number}") for number in range(4)]
    messages = [Message(body=bytes([number]) * 3000).encode() for number in range(4)]
    for link in links:
        link.delivery("a")
    for start in range(0, 4000, 500):
        for link, message in zip(links, messages, strict=True):
            link.stream(message[start : start + 500])
        pair.run()
    for link in links:
        link.advance()
    pair.run()
    assert sorted(pair.received) == sorted(messages)


def test_detach_end_and_close_agree() -> None:
    pair = Pair()
    link = pair.sender()
    link.close()
    pair.run()
    assert isinstance(now(pair.events[-1]), events.Detached)
    assert link.state & Link.REMOTE_CLOSED
    receiver = pair.receiver()
    pair.links["r"].detach("amqp:resource-deleted", "gone")
    pair.run()
    assert receiver.remote_condition.name == "amqp:resource-deleted"
    assert receiver.remote_condition.description == "gone"
    pair.session.close()
    pair.run()
    assert isinstance(now(pair.events[-1]), events.Ended)
    pair.client.close()
    pair.run()
    assert isinstance(pair.events[-1], events.Closed)
    assert pair.server.closed
    assert pair.client.state & ProtonConnection.REMOTE_CLOSED


def test_our_faults_are_understood() -> None:
    pair = Pair(max_message_size=1000)
    link = pair.sender()
    send(link, "a", Message(body="x" * 2000).encode())
    pair.run()
    assert link.remote_condition.name == "amqp:link:message-size-exceeded"
    pair.server.close("amqp:connection:forced", "bye")
    pair.run()
    assert pair.client.remote_condition.name == "amqp:connection:forced"


def test_five_hundred_links_agree() -> None:
    pair = Pair(credit=10)
    links = []
    for number in range(500):
        link = pair.session.sender(f"s{number}")
        link.target.address = "queue"
        link.open()
        links.append(link)
    pair.run()
    for turn in range(3):
        for link in links:
            send(link, f"{turn}", Message(body=f"{link.name} {turn}").encode())
        pair.run()
    assert len(pair.received) == 1500
    assert len(set(pair.received)) == 1500
