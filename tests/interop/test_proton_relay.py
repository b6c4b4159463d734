"""A connection point, by python-qpid-proton: the listener's credit and outcomes are the sender's."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Condition, Delivery, Message, symbol
from proton.utils import BlockingConnection, BlockingReceiver, BlockingSender, LinkDetached

from tests.support.amqp.proton_blocking import connected, drain, received, take
from tests.support.broker import Broker
from tests.support.namespace import drop, give


@pytest.fixture(params=[1, 2])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """With one frontend and with two, so that sender and listener are not always at the same one."""
    with Broker(tmp_path / "data", "--frontends", str(request.param)) as started:
        give(started.data, "point", role="connection-point")
        yield started


@pytest.fixture
def here(broker: Broker) -> Iterator[BlockingConnection]:
    with connected(broker.amqp) as made:
        yield made


@pytest.fixture
def there(broker: Broker) -> Iterator[BlockingConnection]:
    with connected(broker.amqp) as made:
        yield made


def credit(connection: BlockingConnection, sender: BlockingSender, count: int) -> None:
    """Waits until the sender may send so many."""
    connection.wait(lambda: sender.link.credit == count, msg=f"credit for {count}")


def listen(connection: BlockingConnection, count: int, name: str = "listener") -> BlockingReceiver:
    """A listener with credit for so many messages, once."""
    receiver = connection.create_receiver("point", credit=0, name=name)
    receiver.link.flow(count)
    push(connection)
    return receiver


def send(connection: BlockingConnection, sender: BlockingSender, *bodies: object) -> list[Delivery]:
    """Messages that are on their way, whatever becomes of them."""
    deliveries = [sender.link.send(Message(body=body, durable=True)) for body in bodies]
    push(connection)
    return deliveries


def push(connection: BlockingConnection) -> None:
    """Lets out what the client has to say."""
    connection.wait(lambda: connection.conn.transport.pending() <= 0, msg="writing")


def test_the_listeners_credit_reaches_the_sender(here: BlockingConnection, there: BlockingConnection) -> None:
    sender = here.create_sender("point")
    assert sender.link.credit == 0
    receiver = listen(there, 5)
    credit(here, sender, 5)
    sent = send(here, sender, *range(5))
    assert [found.body for found in received(receiver, 5)] == list(range(5))
    push(there)
    here.wait(lambda: all(delivery.settled for delivery in sent))
    assert {delivery.remote_state for delivery in sent} == {Delivery.ACCEPTED}
    assert sender.link.credit == 0
    receiver.link.flow(3)
    push(there)
    credit(here, sender, 3)


def test_each_outcome_reaches_the_sender(here: BlockingConnection, there: BlockingConnection) -> None:
    sender = here.create_sender("point")
    receiver = listen(there, 4)
    credit(here, sender, 4)
    sent = send(here, sender, *range(4))
    deliveries = [take(receiver)[1] for _ in sent]
    accepted, rejected, released, modified = deliveries
    rejected.local.condition = Condition("example:no", "not this one")
    modified.local.failed = True
    modified.local.undeliverable = True
    modified.local.annotations = {symbol("x-opt-note"): 7}
    for delivery, state in (
        (modified, Delivery.MODIFIED),
        (released, Delivery.RELEASED),
        (rejected, Delivery.REJECTED),
        (accepted, Delivery.ACCEPTED),
    ):
        delivery.update(state)
        delivery.settle()
    push(there)
    here.wait(lambda: all(delivery.settled for delivery in sent))
    states = [delivery.remote_state for delivery in sent]
    assert states == [Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED, Delivery.MODIFIED]
    assert (sent[1].remote.condition.name, sent[1].remote.condition.description) == (
        "example:no",
        "not this one",
    )
    assert (sent[3].remote.failed, sent[3].remote.undeliverable) == (True, True)
    assert sent[3].remote.annotations == {symbol("x-opt-note"): 7}


def test_messages_of_more_bytes_than_a_listener_may_be_sent_ahead_come_in_their_order(
    here: BlockingConnection, there: BlockingConnection
) -> None:
    sender = here.create_sender("point")
    receiver = listen(there, 12)
    credit(here, sender, 12)
    bodies = [bytes([number]) * size for number, size in enumerate([3_000_000, 10, 900_000, 3_000_000] * 3)]
    sent = send(here, sender, *bodies)
    assert [bytes(found.body) for found in received(receiver, 12)] == bodies
    push(there)
    here.wait(lambda: all(delivery.settled for delivery in sent))
    assert {delivery.remote_state for delivery in sent} == {Delivery.ACCEPTED}


def test_messages_that_come_while_a_listeners_window_shrinks_are_not_released(
    here: BlockingConnection, there: BlockingConnection
) -> None:
    sender = here.create_sender("point")
    receiver = listen(there, 12)
    credit(here, sender, 12)
    bodies = [bytes([number]) * size for number, size in enumerate([3_000_000, 10, 900_000, 3_000_000])]
    # Of messages like the first one a listener is sent one ahead: there is credit for one of the next three.
    sent = send(here, sender, bodies[0])
    messages = received(receiver, 1)
    sent += send(here, sender, *bodies[1:])
    messages += received(receiver, 3)
    assert [bytes(message.body) for message in messages] == bodies
    push(there)
    here.wait(lambda: all(delivery.settled for delivery in sent))
    assert {delivery.remote_state for delivery in sent} == {Delivery.ACCEPTED}


def test_nothing_is_kept_for_later(here: BlockingConnection, there: BlockingConnection) -> None:
    sender = here.create_sender("point")
    receiver = listen(there, 2)
    credit(here, sender, 2)
    sent = send(here, sender, *range(2))
    receiver.receive()
    receiver.close()
    here.wait(lambda: all(delivery.settled for delivery in sent))
    assert Delivery.ACCEPTED not in {delivery.remote_state for delivery in sent}
    credit(here, sender, 0)
    assert drain(there, there.create_receiver("point", name="later")) == []


def test_a_listener_that_is_not_there_any_more_takes_its_credit_along(
    here: BlockingConnection, there: BlockingConnection
) -> None:
    sender = here.create_sender("point")
    listen(there, 5)
    credit(here, sender, 5)
    there.close()
    credit(here, sender, 0)


def test_when_the_name_is_deleted_both_ends_are(
    broker: Broker, here: BlockingConnection, there: BlockingConnection
) -> None:
    here.create_sender("point")
    listen(there, 1)
    drop(broker.data, "point")
    for connection in (here, there):
        with pytest.raises(LinkDetached) as found:
            connection.wait(lambda: False)
        assert found.value.link.remote_condition.name == "amqp:resource-deleted"


def test_what_the_dead_shard_had_is_released_and_the_next_one_relays_again(
    broker: Broker, here: BlockingConnection, there: BlockingConnection
) -> None:
    sender = here.create_sender("point")
    receiver = listen(there, 10)
    credit(here, sender, 10)
    (lost,) = send(here, sender, "lost")
    receiver.receive()
    os.kill(broker.pid("shard"), signal.SIGKILL)
    here.wait(lambda: lost.settled)
    assert lost.remote_state == Delivery.RELEASED
    # What the listener makes of the lost one reaches nobody.
    receiver.accept()
    receiver.close()
    credit(here, sender, 0)
    receiver = listen(there, 3, name="another")
    credit(here, sender, 3)
    (again,) = send(here, sender, "again")
    assert received(receiver, 1)[0].body == "again"
    push(there)
    here.wait(lambda: again.settled)
    assert again.remote_state == Delivery.ACCEPTED
