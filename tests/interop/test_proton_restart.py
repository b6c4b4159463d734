"""What survives the end of the broker: durable messages, their order and state; how clients hear of it."""

from pathlib import Path

import pytest
from proton import ConnectionException, Delivery, Event, Message, symbol
from proton.utils import BlockingConnection, ConnectionClosed

from tests.support.amqp.proton_blocking import connected, drain, received, take
from tests.support.amqp.proton_messages import assert_equal, messages
from tests.support.amqp.proton_reactor import Client
from tests.support.broker import Broker


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


def test_shut_down_closes_connections_with_a_condition(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, connected(broker.amqp) as connection:
        connection.create_receiver("q")
        broker.process.terminate()
        with pytest.raises(ConnectionClosed) as closed:
            connection.wait(lambda: False)
        assert closed.value.condition == "amqp:connection:forced"
        connection.close()
        assert broker.process.wait(30) == 0
