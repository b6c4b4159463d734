"""What survives the end of the broker: durable messages, their order and state; how clients hear of it."""

import os
import signal
from pathlib import Path

import pytest
from proton import ConnectionException, Delivery, Event, Message, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton.utils import BlockingConnection

from tests.support.amqp.proton_blocking import connected, drain, received, take
from tests.support.amqp.proton_messages import assert_equal, messages
from tests.support.amqp.proton_reactor import Client
from tests.support.broker import Broker

SOONER_THAN_A_HEARTBEAT_S = 10.0
"""The broker asks for a heartbeat each 15 s."""


def end(broker: Broker, how: str, connection: BlockingConnection) -> None:
    if how == "SIGTERM":
        broker.process.terminate()
    else:
        broker.kill_everything()
    # Told, or cut off; a blocking connection that has not heard of it would wait in close.
    with pytest.raises(ConnectionException):
        connection.wait(lambda: False)
    connection.close()
    assert broker.process.wait(30) == (0 if how == "SIGTERM" else -9)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_accepted_durable_messages_survive(tmp_path: Path, how: str) -> None:
    """Every type, a large one, delivery-counts, what was settled, dead letters; transient ones go."""
    sent = messages()
    large = Message(body=bytes(2_000_000), inferred=True, durable=True)
    for message in sent.values():
        message.durable = True
    with Broker(tmp_path / "data") as broker, connected(broker.amqp) as connection:
        sender = connection.create_sender("orders/new")
        for message in [*sent.values(), large]:
            assert sender.send(message).remote_state == Delivery.ACCEPTED
        connection.create_sender("transient").send(Message(body="lost"))
        states = connection.create_sender("states")
        for body in ("done", "failed", "rejected", "held", "waits"):
            states.send(Message(body=body, durable=True))
        receiver = connection.create_receiver("states")
        receiver.receive()
        receiver.accept()
        _, failed = take(receiver)
        _, rejected = take(receiver)
        receiver.receive()
        failed.local.failed = True
        failed.update(Delivery.MODIFIED)
        failed.settle()
        rejected.update(Delivery.REJECTED)
        rejected.settle()
        assert drain(connection, connection.create_receiver("states/$dlq", name="look"))[0].body == "rejected"
        # The outcomes are on disk when something that was accepted after them is.
        states.send(Message(body="last", durable=True))
        end(broker, how, connection)
    with Broker(tmp_path / "data") as broker, connected(broker.amqp) as connection:
        receiver = connection.create_receiver("orders/new", credit=len(sent) + 1)
        for name, message in sent.items():
            found = receiver.receive()
            receiver.accept()
            try:
                assert_equal(found, message)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None
        assert bytes(received(receiver, 1)[0].body) == bytes(large.body)
        assert drain(connection, receiver) == []
        assert drain(connection, connection.create_receiver("transient")) == []
        left = drain(connection, connection.create_receiver("states"))
        assert [message.body for message in left] == ["failed", "held", "waits", "last"]
        counts = {message.body: message.delivery_count for message in left}
        assert (counts["failed"], counts["held"], counts["last"]) == (1, 1, 0)
        # The client may have had "waits": it was sent to the frontend, perhaps, ahead of the client's credit.
        assert counts["waits"] in (0, 1)
        (dead,) = drain(connection, connection.create_receiver("states/$dlq"))
        assert dead.body == "rejected"
        assert dead.annotations["x-opt-dead-letter-reason"] == symbol("rejected")


def test_many_accepted_messages_survive_kill_in_the_middle(tmp_path: Path) -> None:
    """Killed while a sender is at full speed: what was accepted is there, in order, nothing twice."""

    class Sending(Client):
        def begin(self) -> None:
            self.sender = self.container.create_sender(self.connection, "stream")
            self.next = 0
            self.accepted: list[int] = []
            self.bodies: dict[str, int] = {}

        def on_sendable(self, event: Event) -> None:
            while event.sender.credit:
                delivery = event.sender.send(Message(body=self.next, durable=True))
                self.bodies[delivery.tag] = self.next
                self.next += 1

        def on_accepted(self, event: Event) -> None:
            self.accepted.append(self.bodies[event.delivery.tag])
            if len(self.accepted) == 5_000:
                broker.kill_everything()

        def on_disconnected(self, event: Event) -> None:
            self._watchdog.cancel()

        def on_transport_error(self, event: Event) -> None:
            pass

    with Broker(tmp_path / "data") as broker:
        client = Sending(broker.amqp)
        client.run()
    with Broker(tmp_path / "data") as broker, connected(broker.amqp) as connection:
        found = drain(connection, connection.create_receiver("stream"), client.next)
        bodies = [message.body for message in found]
        assert bodies == list(range(len(bodies)))
        # One disposition settles many; proton's events of one need not come in the order of the deliveries.
        assert sorted(client.accepted) == list(range(len(client.accepted)))
        assert len(client.accepted) <= len(bodies) <= client.next


class Reconnecting(MessagingHandler):
    """A container with one idle receiver, which connects again by itself; it has no heartbeat of its own."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker
        self.opened = 0

    def on_start(self, event: Event) -> None:
        connection = event.container.connect(f"amqp://{self.broker.amqp}")
        event.container.create_receiver(connection, "idle")

    def on_link_opened(self, event: Event) -> None:
        self.opened += 1
        if self.opened == 1:
            self.watchdog = event.container.schedule(SOONER_THAN_A_HEARTBEAT_S, self)
            os.kill(self.broker.pid("frontend"), signal.SIGTERM)
        else:
            self.watchdog.cancel()
            event.connection.close()

    def on_timer_task(self, event: Event) -> None:
        raise AssertionError("it does not notice that its connection has ended")


def test_an_idle_container_connects_again_when_its_frontend_has_ended_in_order(tmp_path: Path) -> None:
    """It does not look at its socket after a close, and writes a heartbeat after 15 s at the earliest."""
    with Broker(tmp_path / "data") as broker:
        client = Reconnecting(broker)
        Container(client).run()
        assert client.opened == 2
