"""Names, roles and rights as python-qpid-proton sees them at the attach and while its links are open."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Condition, Message
from proton.reactor import Selector
from proton.utils import BlockingConnection, BlockingReceiver, BlockingSender, LinkDetached

from tests.interop.test_proton_security import admin
from tests.support.amqp.proton_blocking import connected, drain, received
from tests.support.broker import Broker
from tests.support.namespace import change, drop, give, named, permit

USER = "alice:secret"


@pytest.fixture
def connection(broker: Broker) -> Iterator[BlockingConnection]:
    with connected(broker.amqp) as made:
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose user alice may do nothing yet."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    admin(data, "user", "add", "alice", "--no-rights", password="secret")
    with Broker(data, "--frontends", "2") as broker:
        yield broker


@pytest.fixture
def alice(guarded: Broker) -> Iterator[BlockingConnection]:
    with connected(f"amqp://{USER}@{guarded.amqp}", allowed_mechs="PLAIN") as made:
        yield made


def detached(connection: BlockingConnection, link: BlockingSender | BlockingReceiver) -> Condition:
    """Why the broker ends a link."""
    with pytest.raises(LinkDetached) as found:
        connection.wait(lambda: False, timeout=30, msg="for the detach")
    assert found.value.link == link.link
    return found.value.link.remote_condition


def refused(connection: BlockingConnection, name: str, *, sender: bool = True) -> Condition:
    """Why the broker does not take a link."""
    with pytest.raises(LinkDetached) as found:
        connection.create_sender(name) if sender else connection.create_receiver(name)
    return found.value.link.remote_condition


# --- roles -----------------------------------------------------------------------------------------------


def test_metadata_redirects_to_where_the_thing_is(broker: Broker, connection: BlockingConnection) -> None:
    give(broker.data, "moved/elsewhere", role="metadata", reference="amqps://other.example:5700/orders")
    give(broker.data, "moved/nearby", role="metadata", reference="amqp://other.example/orders")
    give(broker.data, "moved/document", role="metadata", reference="https://other.example/orders")
    found = refused(connection, "moved/elsewhere")
    assert found.name == "amqp:link:redirect"
    assert found.info == {
        "address": "amqps://other.example:5700/orders",
        "hostname": "other.example",
        "network-host": "other.example",
        "port": 5700,
    }
    assert refused(connection, "moved/nearby", sender=False).info["port"] == 5672
    assert refused(connection, "moved/document").info == {"address": "https://other.example/orders"}


def test_a_name_without_a_role_where_none_comes_by_use(
    broker: Broker, connection: BlockingConnection
) -> None:
    give(broker.data, "closed", role="none", auto_create=False)
    for name in ("closed/below", "closed/below/$dlq"):
        found = refused(connection, name)
        assert found.name == "amqp:not-found"
        assert "give it one by posting a policy" in found.description
    assert named(broker.data, "closed") == ["closed"]
    give(broker.data, "closed/below", role="queue")
    connection.create_sender("closed/below").send(Message(body=1))
    connection.create_receiver("closed/below/$dlq")


def test_auto_create_can_be_off(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--auto-create", "off") as broker:
        give(broker.data, "open", role="none", auto_create=True, template={"max_message_bytes": 1000})
        with connected(broker.amqp) as connection:
            assert refused(connection, "q").name == "amqp:not-found"
            sender = connection.create_sender("open/q")
            assert sender.link.remote_max_message_size == 1000
            assert named(broker.data) == ["open", "open/q"]


def test_messages_are_as_large_as_the_policy_says(broker: Broker, connection: BlockingConnection) -> None:
    give(broker.data, "small", role="queue", max_message_bytes=2000)
    sender = connection.create_sender("small")
    assert sender.link.remote_max_message_size == 2000
    sender.send(Message(body=b"x" * 1900))
    sender.link.send(Message(body=b"x" * 2100))
    assert detached(connection, sender).name == "amqp:link:message-size-exceeded"
    assert [len(found.body) for found in drain(connection, connection.create_receiver("small"))] == [1900]


def test_a_selector_chooses_messages(broker: Broker, connection: BlockingConnection) -> None:
    sender = connection.create_sender("colours")
    for number, colour in enumerate(("red", "blue", "red")):
        sender.send(Message(body=number, properties={"colour": colour}))
    red = connection.create_receiver("colours", name="red", options=Selector("colour = 'red'"))
    assert [found.body for found in drain(connection, red)] == [0, 2]
    rest = connection.create_receiver("colours", name="rest")
    assert [found.body for found in drain(connection, rest)] == [1]
    with pytest.raises(LinkDetached) as found:
        connection.create_receiver("colours", name="bad", options=Selector("colour = "))
    assert found.value.link.remote_condition.name == "amqp:invalid-field"


# --- changes under an open link --------------------------------------------------------------------------


def test_links_of_a_deleted_name_are_detached(broker: Broker, connection: BlockingConnection) -> None:
    sender = connection.create_sender("deleted")
    sender.send(Message(body="before"))
    drop(broker.data, "deleted")
    found = detached(connection, sender)
    assert found.name == "amqp:resource-deleted"
    assert "deleted was " in found.description
    assert named(broker.data, "deleted") == []


def test_receivers_of_a_deleted_name_and_its_dead_letters_are_detached(
    broker: Broker, connection: BlockingConnection
) -> None:
    connection.create_sender("deleted/two").close()
    receiver = connection.create_receiver("deleted/two/$dlq")
    drop(broker.data, "deleted/two")
    assert detached(connection, receiver).name == "amqp:resource-deleted"


def test_without_a_right_nothing_is_done_and_nothing_made(guarded: Broker, alice: BlockingConnection) -> None:
    for sender in (True, False):
        found = refused(alice, "vault/q", sender=sender)
        assert found.name == "amqp:unauthorized-access"
        doing = "send to" if sender else "listen at"
        assert f"user alice has no right to {doing} vault/q" in found.description
    assert named(guarded.data) == []


def test_rights_hold_at_and_below_their_prefix(guarded: Broker, alice: BlockingConnection) -> None:
    permit(guarded.data, "alice", "in", "send")
    permit(guarded.data, "alice", "in/mine", "listen")
    alice.create_sender("in/mine").send(Message(body="hello"))
    assert [found.body for found in received(alice.create_receiver("in/mine"), 1)] == ["hello"]
    assert refused(alice, "in", sender=False).name == "amqp:unauthorized-access"
    assert refused(alice, "inside").name == "amqp:unauthorized-access"


def test_a_right_that_is_taken_away_ends_the_links_that_need_it(
    guarded: Broker, alice: BlockingConnection
) -> None:
    permit(guarded.data, "alice", "for-a-while", "send", "listen")
    sender = alice.create_sender("for-a-while/q")
    receiver = alice.create_receiver("for-a-while/q")
    permit(guarded.data, "alice", "for-a-while", "listen")
    found = detached(alice, sender)
    assert found.name == "amqp:unauthorized-access"
    assert "permission set alice for-a-while/q send" in found.description
    permit(guarded.data, "alice", "for-a-while")
    assert detached(alice, receiver).name == "amqp:unauthorized-access"


def test_a_policy_can_open_a_name_and_close_it_again(guarded: Broker, alice: BlockingConnection) -> None:
    give(guarded.data, "public/in", role="queue", authorization="listen")
    sender = alice.create_sender("public/in")
    sender.send(Message(body=1))
    assert refused(alice, "public/in", sender=False).name == "amqp:unauthorized-access"
    change(guarded.data, "public/in", role="queue")
    assert detached(alice, sender).name == "amqp:unauthorized-access"


def test_a_name_that_asks_for_tls_is_not_for_links_without(
    broker: Broker, connection: BlockingConnection
) -> None:
    sender = connection.create_sender("tls/later")
    give(broker.data, "tls/q", role="queue", transport_protection="tls")
    found = refused(connection, "tls/q")
    assert found.name == "amqp:unauthorized-access"
    assert "asks for TLS" in found.description
    change(broker.data, "tls/later", role="queue", transport_protection="tls")
    assert detached(connection, sender).name == "amqp:unauthorized-access"
