"""Links without a target, by python-qpid-proton: each message says where it goes."""

from collections.abc import Iterator

import pytest
from proton import Delivery, Message
from proton.utils import BlockingConnection, BlockingSender, SendException

from lightrail.frontend.links.anonymous import ANONYMOUS_ADDRESSES_MAX
from tests.interop.test_proton_names import alice, guarded
from tests.support.amqp.proton_blocking import connected, received
from tests.support.broker import Broker
from tests.support.namespace import drop, give, named, permit

__all__ = ["alice", "guarded"]


@pytest.fixture
def connection(broker: Broker) -> Iterator[BlockingConnection]:
    with connected(broker.amqp) as made:
        yield made


def refused(connection: BlockingConnection, sender: BlockingSender, message: Message) -> tuple[str, str]:
    """(condition, description) of the one message's rejection; the link goes on."""
    delivery = sender.link.send(message)
    connection.wait(lambda: delivery.settled, msg="settled")
    assert delivery.remote_state == Delivery.REJECTED
    return delivery.remote.condition.name, delivery.remote.condition.description


def until_refused(sender: BlockingSender, address: str) -> int:
    """Sends until the broker has heard that it may not; the outcome then."""
    try:
        while True:
            sender.send(Message(body="once more", address=address))
    except SendException as error:
        return int(error.state)


def test_it_is_offered(connection: BlockingConnection) -> None:
    assert "ANONYMOUS-RELAY" in [str(each) for each in connection.conn.remote_offered_capabilities]


def test_each_message_goes_where_it_says(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(None)
    sent = [sender.link.send(Message(body=n, address=f"{queue}/{n % 3}")) for n in range(300)]
    connection.wait(lambda: all(delivery.settled for delivery in sent))
    assert {delivery.remote_state for delivery in sent} == {Delivery.ACCEPTED}
    for rest in range(3):
        receiver = connection.create_receiver(f"{queue}/{rest}", credit=100)
        assert [found.body for found in received(receiver, 100)] == list(range(rest, 300, 3))


def test_a_response_needs_no_link_of_its_own(broker: Broker, connection: BlockingConnection) -> None:
    replies = connection.create_receiver(None, dynamic=True)
    with connected(broker.amqp) as server:
        server.create_sender(None).send(Message(body="yes", address=replies.link.remote_source.address))
    assert received(replies, 1)[0].body == "yes"


def test_what_can_not_be_routed_is_rejected_and_the_link_goes_on(
    broker: Broker, connection: BlockingConnection, queue: str
) -> None:
    give(broker.data, f"{queue}/closed", role="none", auto_create=False)
    give(broker.data, f"{queue}/small", role="queue", max_message_bytes=500)
    give(broker.data, f"{queue}/moved", role="metadata", reference="amqp://other.example/q")
    sender = connection.create_sender(None)
    for address, condition in {
        f"{queue}/closed/q": "amqp:not-found",
        "$temporary/gone": "amqp:not-found",
        f"{queue}/moved": "amqp:not-allowed",
        "a//b": "amqp:invalid-field",
        f"{queue}/$Transfer/$DeadLetterQueue": "amqp:not-found",
        None: "amqp:not-found",
    }.items():
        assert refused(connection, sender, Message(body=1, address=address))[0] == condition
    large = Message(body=b"x" * 600, address=f"{queue}/small")
    assert refused(connection, sender, large)[0] == "amqp:link:message-size-exceeded"
    sender.send(Message(body=1, address=f"{queue}/small"))
    assert named(broker.data, queue) == [f"{queue}/{name}" for name in ("closed", "moved", "small")]


def test_a_router_is_an_address_as_well(broker: Broker, connection: BlockingConnection, queue: str) -> None:
    give(broker.data, f"{queue}/router", role="router")
    sender = connection.create_sender(None)
    message = Message(body="to all", address=f"{queue}/router")
    assert refused(connection, sender, message)[0] == "amqp:not-found"
    receivers = [connection.create_receiver(f"{queue}/router", name=f"r{n}") for n in range(2)]
    sender.send(message)
    assert [received(receiver, 1)[0].body for receiver in receivers] == ["to all"] * 2


def test_more_addresses_than_are_kept_open(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(None)
    count = 2 * ANONYMOUS_ADDRESSES_MAX
    sent = [sender.link.send(Message(body=n, address=f"{queue}/many/{n % count}")) for n in range(2 * count)]
    connection.wait(lambda: all(delivery.settled for delivery in sent))
    assert {delivery.remote_state for delivery in sent} == {Delivery.ACCEPTED}
    for n in (0, count - 1):
        receiver = connection.create_receiver(f"{queue}/many/{n}", credit=2)
        assert [found.body for found in received(receiver, 2)] == [n, n + count]


def test_a_name_that_was_deleted_is_asked_for_anew(
    broker: Broker, connection: BlockingConnection, queue: str
) -> None:
    sender = connection.create_sender(None)
    sender.send(Message(body="before", address=queue))
    drop(broker.data, queue)
    give(broker.data, queue, role="metadata", reference="https://other.example")
    assert until_refused(sender, queue) == Delivery.REJECTED


def test_rights_are_asked_for_at_each_address(guarded: Broker, alice: BlockingConnection) -> None:
    permit(guarded.data, "alice", "letters", "send")
    sender = alice.create_sender(None)
    sender.send(Message(body=1, address="letters/one"))
    condition, description = refused(alice, sender, Message(body=1, address="other"))
    assert condition == "amqp:unauthorized-access"
    assert "permission set alice other send" in description
    permit(guarded.data, "alice", "letters")
    assert until_refused(sender, "letters/one") == Delivery.REJECTED
